//! `quipu top`: a live view of rates, latencies, room and refusals.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use serde_json::json;

use super::super::text;
use super::page::{Page, ask};
use super::{TopArgs, listed, time};
use crate::cli::text::shown;

/// Looks that the curves show.
const HISTORY: usize = 240;

/// What was seen between two looks.
#[derive(Default)]
struct Look {
    state: String,
    page: Page,
    before: Page,
    seconds: f64,
}

impl Look {
    fn rate(&self, name: &str) -> f64 {
        // A node that was started anew counts from zero.
        ((self.page.value(name) - self.before.value(name)) / self.seconds.max(0.001)).max(0.0)
    }

    fn quantile(&self, name: &str, labels: &[(&str, &str)], share: f64) -> Option<f64> {
        self.page.quantile(&self.before, name, (labels, share))
    }

    fn refusals(&self) -> Vec<(String, f64)> {
        let before = self.before.by("quipu_rpc_refusals_total", "reason");
        let known = |reason: &str| before.iter().find(|(known, _)| known == reason).map_or(0.0, |(_, count)| *count);
        let now = self.page.by("quipu_rpc_refusals_total", "reason").into_iter();
        now.map(|(reason, count)| (reason.clone(), count - known(&reason))).filter(|(_, more)| *more > 0.0).collect()
    }
}

/// All looks so far.
struct Watch {
    address: String,
    last: Option<(Page, Instant)>,
    look: Look,
    appends: VecDeque<u64>,
    syncs: VecDeque<u64>,
}

impl Watch {
    fn new(address: &str) -> Self {
        let (appends, syncs) = (VecDeque::new(), VecDeque::new());
        Self { address: address.to_owned(), last: None, look: Look::default(), appends, syncs }
    }

    /// Looks once more; a node that does not answer is a state, too.
    fn look(&mut self) {
        let found = ask(&self.address, "/readyz").and_then(|(_, text)| Ok((text, Page::fetch(&self.address)?)));
        match found {
            Ok((text, page)) => self.take(text.trim(), page, Instant::now()),
            Err(error) => self.look.state = format!("{error:#}"),
        }
    }

    fn take(&mut self, state: &str, page: Page, now: Instant) {
        let (before, at) = self.last.replace((page.clone(), now)).unwrap_or_else(|| (page.clone(), now));
        self.look = Look { state: state.to_owned(), page, before, seconds: (now - at).as_secs_f64() };
        let sync = self.look.quantile("quipu_sync_duration_seconds", &[], 0.99).filter(|bound| bound.is_finite());
        keep(&mut self.appends, self.look.rate("quipu_append_events_total") as u64);
        keep(&mut self.syncs, (sync.unwrap_or(0.0) * 1e6) as u64);
    }

    fn json(&self) -> serde_json::Value {
        let look = &self.look;
        json!({
            "state": look.state,
            "events_per_second": look.rate("quipu_append_events_total"),
            "bytes_per_second": look.rate("quipu_append_bytes_total"),
            "read_bytes_per_second": look.rate("quipu_read_bytes_total"),
            "sync_p50_seconds": look.quantile("quipu_sync_duration_seconds", &[], 0.5),
            "sync_p99_seconds": look.quantile("quipu_sync_duration_seconds", &[], 0.99),
            "append_p99_seconds": look.quantile("quipu_rpc_duration_seconds", &APPEND, 0.99),
            "connections": look.page.value("quipu_connections"),
            "sessions_in_memory": look.page.value("quipu_sessions_in_memory"),
            "commit_queue": look.page.value("quipu_commit_queue"),
            "disk_free_bytes": look.page.value("quipu_disk_free_bytes"),
        })
    }
}

const APPEND: [(&str, &str); 2] = [("method", "quipu.v1.LogService/Append"), ("code", "OK")];

fn keep(values: &mut VecDeque<u64>, value: u64) {
    values.push_front(value);
    values.truncate(HISTORY);
}

fn draw(frame: &mut Frame<'_>, watch: &Watch) {
    let rows = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(5),
        Constraint::Min(5),
        Constraint::Length(8),
        Constraint::Length(3),
    ]);
    let [head, appends, syncs, figures, room] = rows.areas(frame.area());
    let look = &watch.look;
    let is_good = look.state == "serving";
    let style = Style::default().fg(if is_good { Color::Green } else { Color::Red });
    let state = Paragraph::new(Line::styled(shown(&look.state), style));
    let title = format!(" quipu at {} (q ends) ", shown(&watch.address));
    frame.render_widget(state.block(Block::bordered().title(title)), head);
    let rate = look.rate("quipu_append_events_total");
    let append = |share| time(look.quantile("quipu_rpc_duration_seconds", &APPEND, share));
    let title = format!(" {rate:.0} events/s; append p50 {}, p99 {} ", append(0.5), append(0.99));
    curve(frame, appends, (title, &watch.appends));
    let sync = |share| time(look.quantile("quipu_sync_duration_seconds", &[], share));
    let title = format!(" sync p50 {}, p99 {} ", sync(0.5), sync(0.99));
    curve(frame, syncs, (title, &watch.syncs));
    frame.render_widget(Paragraph::new(lines(look)).block(Block::bordered().title(" now ")), figures);
    let (free, size) = (look.page.value("quipu_disk_free_bytes"), look.page.value("quipu_disk_size_bytes"));
    let used = if size > 0.0 { (1.0 - free / size).clamp(0.0, 1.0) } else { 0.0 };
    let label = format!("{} of {} free", text::size(free), text::size(size));
    frame.render_widget(Gauge::default().block(Block::bordered().title(" volume ")).ratio(used).label(label), room);
}

fn curve(frame: &mut Frame<'_>, area: Rect, (title, values): (String, &VecDeque<u64>)) {
    let curve = Sparkline::default().block(Block::bordered().title(title)).data(values.iter().copied());
    frame.render_widget(curve.direction(ratatui::widgets::RenderDirection::RightToLeft), area);
}

fn lines(look: &Look) -> Vec<Line<'static>> {
    let value = |name| look.page.value(name);
    let parts: Vec<_> =
        look.page.by("quipu_data_bytes", "part").iter().map(|(part, n)| format!("{part} {}", text::size(*n))).collect();
    let texts = [
        format!(
            "{} connections, {} calls running, {} sessions in memory",
            value("quipu_connections"),
            value("quipu_rpc_running"),
            value("quipu_sessions_in_memory")
        ),
        format!(
            "{}/s appended, {}/s read, {}/s to the journal",
            text::size(look.rate("quipu_append_bytes_total")),
            text::size(look.rate("quipu_read_bytes_total")),
            text::size(look.rate("quipu_journal_written_bytes_total"))
        ),
        format!(
            "{} changes wait; running commit {:.1} s; {} index rebuilds, {} damaged places",
            value("quipu_commit_queue"),
            value("quipu_commit_age_seconds"),
            value("quipu_index_rebuilds_total"),
            value("quipu_recovery_damaged_places_total")
        ),
        format!("data: {}", parts.join(", ")),
        format!("refusals since the last look: {}", listed(&look.refusals())),
        format!(
            "memory {}, {} descriptors",
            text::size(value("process_resident_memory_bytes")),
            value("process_open_fds")
        ),
    ];
    texts.into_iter().map(|text| Line::raw(shown(&text))).collect()
}

/// Draws until somebody has seen enough.
pub(in crate::cli) fn top(args: &TopArgs) -> anyhow::Result<()> {
    let (mut watch, every) = (Watch::new(&args.probes), Duration::from_secs(args.every));
    // A first look that fails is a wrong address more often than a node that is down.
    Page::fetch(&args.probes)?;
    if args.json > 0 {
        watch.look();
        for _ in 0..args.json {
            std::thread::sleep(every);
            watch.look();
            say!("{}", watch.json())?;
        }
        return Ok(());
    }
    if !std::io::stdout().is_terminal() {
        bail!("the screen needs a terminal; use --json COUNT, or quipu status");
    }
    let mut terminal = ratatui::try_init()?;
    let done = draw_until_told(&mut terminal, &mut watch, every);
    ratatui::try_restore()?;
    done
}

fn draw_until_told(terminal: &mut ratatui::DefaultTerminal, watch: &mut Watch, every: Duration) -> anyhow::Result<()> {
    loop {
        watch.look();
        terminal.draw(|frame| draw(frame, watch))?;
        let until = Instant::now() + every;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if is_end(key) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| draw(frame, watch))?;
                }
                _ => {}
            }
        }
    }
}

fn is_end(key: event::KeyEvent) -> bool {
    let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn the_screen_shows_rates_latencies_refusals_and_room_of_the_last_look() {
        let metrics = crate::metrics::Metrics::new();
        let (began, mut watch) = (Instant::now(), Watch::new("127.0.0.1:9777"));
        metrics.append_events.add(1000);
        watch.take("serving", Page::parse(&crate::ops::page::page(&metrics)), began);
        metrics.append_events.add(500);
        metrics.refusals.with(&["RATE"]).add(7);
        metrics.sync_duration.record(Duration::from_micros(200));
        metrics.disk_free.set(1_073_741_824.0);
        metrics.disk_size.set(4.0 * 1_073_741_824.0);
        let page = Page::parse(&crate::ops::page::page(&metrics));
        watch.take("read_only: \u{1b}[31m", page, began + Duration::from_secs(2));
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal.draw(|frame| draw(frame, &watch)).unwrap();
        let screen = terminal.backend().to_string();
        let wanted = ["250 events/s", "sync p50 250 us", "RATE 7", "1.0 GiB of 4.0 GiB free", "read_only"];
        wanted.iter().for_each(|part| assert!(screen.contains(part), "{part} is not on\n{screen}"));
        assert!(!screen.contains('\u{1b}'));
        assert_eq!(watch.json()["events_per_second"], 250.0);
    }
}
