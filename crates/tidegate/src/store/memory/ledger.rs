//! Which receipts are void: used once already, or given out before their key was reset. It is asked only when a receipt
//! comes back, never on the way of a decision.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::key::Key;

pub(crate) struct Ledger {
    inner: Mutex<Inner>,
    /// Above this many live lines a receipt is refused rather than forgotten: that never gives capacity away.
    max_lines: usize,
}

#[derive(Default)]
struct Inner {
    /// Used receipts, and when they could no longer give anything back.
    used: HashMap<u64, u64>,
    /// Tables and keys that were reset, when, and until when that matters.
    reset: HashMap<(u64, Key), (u64, u64)>,
    /// Sweep when this many lines are reached.
    sweep_at: usize,
}

impl Ledger {
    pub(crate) fn new(max_lines: usize) -> Self {
        Self { inner: Mutex::default(), max_lines: max_lines.max(1024) }
    }

    /// Marks a receipt as used; false if it was used before.
    pub(crate) fn spend(&self, receipt: u64, until: u64, now: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.sweep(now);
        if inner.used.len() >= self.max_lines && !inner.used.contains_key(&receipt) {
            return false;
        }
        inner.used.insert(receipt, until).is_none()
    }

    /// Whether what a key was charged at `at` has been wiped by a reset since.
    pub(crate) fn is_void(&self, table: u64, key: Key, at: u64) -> bool {
        self.inner.lock().reset.get(&(table, key)).is_some_and(|(reset, _)| at <= *reset)
    }

    /// Makes void what `key` was charged up to now.
    pub(super) fn void(&self, table: u64, key: Key, until: u64, now: u64) {
        let mut inner = self.inner.lock();
        inner.sweep(now);
        // A clock that has stepped back may have charged ahead of now; what is later than that is a new charge.
        let line = inner.reset.entry((table, key)).or_insert((now, until));
        *line = (line.0.max(now), line.1.max(until));
    }
}

impl Inner {
    /// Drops what no longer matters whenever the ledger has doubled since the last time.
    fn sweep(&mut self, now: u64) {
        if self.used.len() + self.reset.len() >= self.sweep_at {
            self.used.retain(|_, until| *until > now);
            self.reset.retain(|_, (_, until)| *until > now);
            self.sweep_at = 64 + 2 * (self.used.len() + self.reset.len());
        }
    }
}
