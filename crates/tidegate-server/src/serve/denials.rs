//! The latest denials, for people who ask who is denied and why: as many as fit, the oldest go first.

use std::{collections::VecDeque, sync::Mutex};

use super::note::Note;

pub(crate) struct Denials {
    latest: Mutex<VecDeque<Note>>,
}

/// How many are kept.
pub(crate) const KEPT: usize = 1000;

impl Default for Denials {
    fn default() -> Self {
        Self { latest: Mutex::new(VecDeque::with_capacity(KEPT)) }
    }
}

impl Denials {
    pub(crate) fn push(&self, note: impl FnOnce() -> Note) {
        // Nobody waits for this: of those that come in the same moment one is enough.
        let Ok(mut latest) = self.latest.try_lock() else { return };
        if latest.len() == KEPT {
            latest.pop_front();
        }
        latest.push_back(note());
    }

    /// At most so many, the latest first.
    pub(crate) fn latest(&self, n: usize) -> Vec<Note> {
        let latest = self.latest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        latest.iter().rev().take(n).cloned().collect()
    }
}
