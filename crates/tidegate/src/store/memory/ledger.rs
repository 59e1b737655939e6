//! Which receipts are void: used once already, or given out before their key was reset. It is asked only when a receipt
//! comes back, never on the way of a decision.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::{
    key::Key,
    packed::{Packer, Unpacker},
};

pub(super) struct Ledger {
    inner: Mutex<Inner>,
    /// Above this many live lines of a kind receipts are refused rather than lines forgotten: that never gives capacity away.
    max_lines: usize,
}

const MIN_LINES: usize = 1024;
const MAX_LOST: usize = 64;

impl Default for Ledger {
    fn default() -> Self {
        Self { inner: Mutex::default(), max_lines: MIN_LINES }
    }
}

#[derive(Default)]
struct Inner {
    /// Used receipts, and when they could no longer give anything back.
    used: HashMap<u64, u64>,
    /// Tables and keys that were reset, and when. Kept: how long a charge matters depends on how great it was.
    reset: HashMap<(u64, Key), u64>,
    /// Whatever was charged up to then is void: there were too many resets to keep apart, or what was there before is lost.
    all_void: Option<u64>,
    /// First and last times between which charges were made that no snapshot holds, oldest first: those are void too.
    lost: Vec<(u64, u64)>,
    /// Sweep when this many lines are reached.
    sweep_at: usize,
}

impl Ledger {
    /// Bounds the lines of each kind.
    pub(super) fn bound(&mut self, max_lines: usize) {
        self.max_lines = max_lines.max(MIN_LINES);
    }

    /// Marks a receipt as used; false if it was used before.
    pub(super) fn spend(&self, receipt: u64, until: u64, now: u64) -> bool {
        let mut inner = self.inner.lock();
        inner.sweep(now, self.max_lines);
        let known = inner.used.contains_key(&receipt);
        !known && inner.used.len() < self.max_lines && inner.used.insert(receipt, until).is_none()
    }

    /// Whether what a key was charged at `at` has been wiped by a reset since.
    pub(super) fn is_void(&self, table: u64, key: Key, at: u64) -> bool {
        let inner = self.inner.lock();
        let own = inner.reset.get(&(table, key)).copied();
        let is_lost = |(first, last): &(u64, u64)| (*first..=*last).contains(&at);
        own.max(inner.all_void).is_some_and(|reset| at <= reset) || inner.lost.iter().any(is_lost)
    }

    /// Makes void whatever was charged up to `at`.
    pub(super) fn void_all(&self, at: u64) {
        let mut inner = self.inner.lock();
        inner.all_void = inner.all_void.max(Some(at));
    }

    /// Makes void whatever was charged from `first` to `last`.
    pub(super) fn lose(&self, first: u64, last: u64) {
        let lost = &mut self.inner.lock().lost;
        if first <= last {
            lost.push((first, last));
        }
        if lost.len() > MAX_LOST {
            // What lies between the two oldest goes with them.
            let (first, last) = lost.remove(0);
            lost[0] = (lost[0].0.min(first), lost[0].1.max(last));
        }
    }

    /// Packs all lines but those of tables that are not among `tables`. A used receipt that could give nothing back is not left
    /// out before it is swept: under another quota it might be good for longer.
    pub(super) fn save(&self, tables: &[u64], to: &mut Packer<'_>) {
        let inner = self.inner.lock();
        to.number(inner.all_void.map_or(0, |at| at + 1));
        to.number(inner.lost.len() as u64);
        for (first, last) in &inner.lost {
            to.time(*first);
            to.time(*last);
        }
        to.number(inner.used.len() as u64);
        for (receipt, until) in &inner.used {
            to.raw(&receipt.to_le_bytes());
            to.number(*until);
        }
        let index = |made: &u64| tables.iter().position(|table| table == made);
        let reset = inner.reset.iter().filter_map(|((made, key), at)| Some((index(made)?, key, at)));
        to.number(reset.clone().count() as u64);
        for (table, key, at) in reset {
            to.number(table as u64);
            key.save(to);
            to.time(*at);
        }
    }

    /// Reads what [`save`](Self::save) packed. Where there is no room for all of it, whatever was charged before is void.
    pub(super) fn load(from: &mut Unpacker<'_>, tables: &[u64], max_lines: usize) -> Option<Self> {
        let mut ledger = Self::default();
        ledger.bound(max_lines);
        let inner = ledger.inner.get_mut();
        inner.all_void = from.number()?.checked_sub(1);
        inner.lost = from.list(|from| Some((from.time()?, from.time()?)))?;
        let mut fits = true;
        for _ in 0..from.number()? {
            let (receipt, until) = (u64::from_le_bytes(from.raw()?), from.number()?);
            fits &= inner.used.len() < ledger.max_lines;
            if fits {
                inner.used.insert(receipt, until);
            }
        }
        inner.sweep_later();
        for _ in 0..from.number()? {
            let table = usize::try_from(from.number()?).ok().and_then(|index| tables.get(index))?;
            let (key, at) = (Key::load(from)?, from.time()?);
            fits &= inner.reset.len() < ledger.max_lines;
            if fits {
                inner.reset.insert((*table, key), at);
            }
        }
        if !fits {
            inner.all_void = inner.all_void.max(Some(from.base));
        }
        Some(ledger)
    }

    /// Makes void what `key` was charged up to now.
    pub(super) fn void(&self, table: u64, key: Key, now: u64) {
        let mut inner = self.inner.lock();
        // The latest, should the clock have stepped back.
        let line = inner.reset.entry((table, key)).or_insert(now);
        *line = now.max(*line);
        if inner.reset.len() > self.max_lines {
            inner.reset.clear();
            inner.all_void = inner.all_void.max(Some(now));
        }
    }
}

impl Inner {
    /// Drops what no longer matters whenever there are twice as many lines as the last time, or no room is left.
    fn sweep(&mut self, now: u64, max_lines: usize) {
        if self.used.len() >= self.sweep_at.min(max_lines) {
            self.used.retain(|_, until| *until > now);
            self.sweep_later();
        }
    }

    fn sweep_later(&mut self) {
        self.sweep_at = 64 + 2 * self.used.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ledger_refuses_receipts_and_forgets_none() {
        let ledger = Ledger::default();
        assert!((0..1024).all(|receipt| ledger.spend(receipt, 100, 1)));
        assert!(!ledger.spend(5, 100, 2), "used before");
        assert!(!ledger.spend(5000, 100, 2), "no room");
        assert!(ledger.spend(5000, 300, 200), "the others no longer matter");
    }

    #[test]
    fn a_ledger_that_finds_no_room_for_its_lines_voids_all_that_came_before() {
        let large = Ledger { max_lines: 5000, ..Ledger::default() };
        assert!((0..2000).all(|receipt| large.spend(receipt, 100, 1)));
        let mut bytes = Vec::new();
        let mut packer = Packer::new(&mut bytes, 50);
        large.save(&[], &mut packer);
        packer.finish().expect("a vector takes all");
        let load = |max_lines| {
            let mut input = bytes.as_slice();
            let mut from = Unpacker::new(&mut input);
            from.base = 50;
            Ledger::load(&mut from, &[], max_lines).expect("just packed")
        };
        let key = Key::of(&crate::key::Digester::new(b""), b"a");
        assert!(!load(5000).spend(1999, 100, 60) && !load(5000).is_void(1, key, 50));
        assert!(load(1024).is_void(1, key, 50) && !load(1024).is_void(1, key, 51));
    }

    #[test]
    fn lost_times_are_void_and_few() {
        let ledger = Ledger::default();
        let key = Key::of(&crate::key::Digester::new(b""), b"a");
        (1..200).for_each(|life| ledger.lose(100 * life, 100 * life + 9));
        ledger.lose(7, 6);
        assert!(ledger.inner.lock().lost.len() <= MAX_LOST);
        assert!((1..200).all(|life| [0, 9].iter().all(|at| ledger.is_void(1, key, 100 * life + at))));
        assert!([6, 7, 99, 19_899, 19_910].iter().all(|at| !ledger.is_void(1, key, *at)));
    }

    #[test]
    fn too_many_resets_void_all_that_came_before() {
        let ledger = Ledger::default();
        let key = |number: u32| Key::of(&crate::key::Digester::new(b""), &number.to_le_bytes());
        (0..1024).for_each(|number| ledger.void(1, key(number), 10));
        assert!(ledger.is_void(1, key(7), 10) && !ledger.is_void(1, key(7), 11));
        assert!(!ledger.is_void(1, key(9999), 10) && !ledger.is_void(2, key(7), 10));
        ledger.void(1, key(1024), 20);
        assert!(ledger.is_void(1, key(9999), 20) && !ledger.is_void(1, key(9999), 21));
    }
}
