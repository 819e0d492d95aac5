//! Which traced call the current thread works for, and who hears of the groups that carried it.
//!
//! The floors between the wire and the disk pass no trace context on: whoever queues a change takes the mark of the
//! call that is being polled. A call that is not traced has none, and costs a look at a thread-local.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The place of a span in a trace, as W3C writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRef {
    /// 128 bits.
    pub trace: [u8; 16],
    /// 64 bits.
    pub span: [u8; 8],
}

thread_local! {
    static CURRENT: Cell<Option<SpanRef>> = const { Cell::new(None) };
}

impl SpanRef {
    /// The traced call that this thread works for.
    pub fn current() -> Option<Self> {
        CURRENT.get()
    }

    /// Makes it the current one until the guard goes.
    pub fn enter(self) -> Entered {
        Entered(CURRENT.replace(Some(self)))
    }
}

/// See [`SpanRef::enter`].
#[derive(Debug)]
pub struct Entered(Option<SpanRef>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// One group that carried changes of traced calls.
#[derive(Clone, Debug)]
pub struct GroupSpan {
    /// The calls.
    pub links: Vec<SpanRef>,
    /// When its commit began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Changes in it, those of calls that are not traced too.
    pub changes: usize,
    /// Bytes in it, about.
    pub bytes: usize,
    /// Whether it is stored.
    pub is_stored: bool,
}

/// Hears of groups; must not wait.
#[derive(Clone)]
pub struct Spans(Arc<dyn Fn(GroupSpan) + Send + Sync>);

impl Spans {
    /// Tells `hear` of each group that carried a traced call.
    pub fn new(hear: impl Fn(GroupSpan) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    /// A group was committed.
    pub fn committed(&self, group: GroupSpan) {
        (self.0)(group);
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spans")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_call_is_that_of_the_innermost_guard() {
        let (a, b) = (SpanRef { trace: [1; 16], span: [1; 8] }, SpanRef { trace: [2; 16], span: [2; 8] });
        assert_eq!(SpanRef::current(), None);
        let outer = a.enter();
        {
            let _inner = b.enter();
            assert_eq!(SpanRef::current(), Some(b));
        }
        assert_eq!(SpanRef::current(), Some(a));
        drop(outer);
        assert_eq!(SpanRef::current(), None);
    }
}
