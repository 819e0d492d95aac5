//! How far long work is, on a terminal; elsewhere nothing.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, or a count while the length of the work is not known.
pub(super) struct Gauge(ProgressBar);

impl Gauge {
    /// Of work whose length is told as it goes.
    pub(super) fn new(what: &'static str) -> Self {
        Self::shown(ProgressBar::new_spinner().with_message(what), "{pos}/{len} {msg} {wide_bar} {elapsed}")
    }

    /// Of events that are carried somewhere.
    pub(super) fn of_events(total: u64) -> Self {
        Self::shown(ProgressBar::new(total), "{bar:40} {pos}/{len} events, {per_sec}, {eta} left")
    }

    fn shown(bar: ProgressBar, template: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(template);
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// One more is done.
    pub(super) fn step(&self) {
        self.0.inc(1);
    }

    /// So much is done.
    pub(super) fn set(&self, done: u64, total: Option<u64>) {
        if let Some(total) = total {
            self.0.set_length(total);
        }
        self.0.set_position(done);
    }

    /// All is done.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
