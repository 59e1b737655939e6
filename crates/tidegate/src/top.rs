//! Who is denied most: a bounded sketch of a policy's denials. It is fed on the way of a denial, so it takes a sample as soon as
//! there are many.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use crate::key::Key;

/// A key, and how often a policy has denied it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ranked {
    /// The key, printable: unusual bytes are escaped, long ids are a digest.
    pub key: String,
    /// Denials in this hour and the last.
    pub denied: u64,
}

/// The denials of one policy.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    hours: Mutex<Hours>,
    /// How many have been counted in this hour.
    total: AtomicU64,
}

#[derive(Debug, Default)]
struct Hours {
    hour: u64,
    current: Counts,
    previous: Counts,
}

/// Counts of the keys that are counted most (space-saving): a key that finds no room takes the place of the least, and
/// goes on from its count. So none is told too low.
#[derive(Clone, Debug, Default)]
struct Counts(Vec<(Key, u64)>);

/// Keys kept. A key that has more than its share of 1/128 of all denials is always among them.
const KEPT: usize = 128;
/// Keys told.
pub(crate) const TOLD: usize = 100;
/// Beyond so many denials in an hour every 16th is counted, for 16.
const EXACT: u64 = 4096;
const SAMPLE: u64 = 16;
pub(crate) const HOUR_US: u64 = 3_600_000_000;

impl Denials {
    pub(crate) fn count(&self, key: Key, now: u64) {
        if self.total.load(Relaxed) < EXACT {
            self.add(key, 1, now);
        } else if random().is_multiple_of(SAMPLE) {
            self.add(key, SAMPLE, now);
        }
    }

    #[cold]
    fn add(&self, key: Key, denied: u64, now: u64) {
        let mut hours = self.hours.lock();
        if hours.roll(now) {
            self.total.store(0, Relaxed);
        }
        hours.current.add(key, denied);
        self.total.fetch_add(denied, Relaxed);
    }

    /// The keys with the highest counts in this hour and the last, worst first.
    pub(crate) fn top(&self, n: usize, now: u64) -> Vec<(Key, u64)> {
        let mut hours = self.hours.lock();
        hours.roll(now);
        let mut both = hours.current.0.clone();
        for (key, denied) in &hours.previous.0 {
            match both.iter_mut().find(|(known, _)| known == key) {
                Some((_, count)) => *count += denied,
                None => both.push((*key, *denied)),
            }
        }
        drop(hours);
        both.sort_by_key(|(_, denied)| std::cmp::Reverse(*denied));
        both.truncate(n.min(TOLD));
        both
    }

    /// Takes what has been counted since this was last called.
    #[cfg(feature = "redis")]
    pub(crate) fn take(&self) -> Vec<(Key, u64)> {
        let Hours { current, previous, .. } = std::mem::take(&mut *self.hours.lock());
        self.total.store(0, Relaxed);
        current.0.into_iter().chain(previous.0).collect()
    }
}

impl Hours {
    /// Begins a new hour if it is time to; whether it did.
    fn roll(&mut self, now: u64) -> bool {
        let hour = now / HOUR_US;
        let last = std::mem::replace(&mut self.hour, hour);
        if last == hour {
            return false;
        }
        let ended = std::mem::take(&mut self.current);
        self.previous = if last + 1 == hour { ended } else { Counts::default() };
        true
    }
}

impl Counts {
    fn add(&mut self, key: Key, denied: u64) {
        let Self(counts) = self;
        if let Some((_, count)) = counts.iter_mut().find(|(known, _)| *known == key) {
            *count += denied;
        } else if counts.len() < KEPT {
            counts.push((key, denied));
        } else if let Some(least) = counts.iter_mut().min_by_key(|(_, count)| *count) {
            *least = (key, least.1 + denied);
        }
    }
}

/// A cheap random number: good enough to take a sample.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    STATE.with(|state| {
        let mut word = state.get();
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        state.set(word);
        word >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Digester;

    fn key(number: u32) -> Key {
        Key::of(&Digester::new(b""), &number.to_le_bytes())
    }

    #[test]
    fn few_denials_are_counted_exactly_and_by_the_hour() {
        let denials = Denials::default();
        (0..10).for_each(|number| (0..=number).for_each(|_| denials.count(key(number), HOUR_US)));
        assert_eq!(denials.top(3, HOUR_US), [(key(9), 10), (key(8), 9), (key(7), 8)]);
        denials.count(key(3), 2 * HOUR_US);
        assert!(denials.top(100, 2 * HOUR_US).contains(&(key(3), 5)));
        assert_eq!(denials.top(100, 3 * HOUR_US), [(key(3), 1)]);
        assert_eq!(denials.top(100, 5 * HOUR_US), []);
    }

    #[test]
    fn the_worst_of_many_are_found() {
        let denials = Denials::default();
        // One in four is the worst key, one in eight the next; the others are a hundred thousand different ones.
        for number in 0..400_000_u32 {
            let which = match number % 8 {
                0 | 4 => 1,
                2 => 2,
                _ => 1000 + number / 4,
            };
            denials.count(key(which), 0);
        }
        let top = denials.top(2, 0);
        assert_eq!([top[0].0, top[1].0], [key(1), key(2)]);
        assert!(top[0].1.abs_diff(100_000) < 10_000, "{top:?}");
        assert!(denials.hours.lock().current.0.len() <= KEPT);
    }
}
