//! The hash table of one shard: keys and states in one array, found by linear probing. A key that is there is nearly always
//! found in the first cache line that is looked at, and that is the whole price of a decision on a key that nobody has
//! touched for a while. Places have numbers, so that a sweep or a sample can go from one to the next.

use super::Seed;
use crate::{algorithm::State, key::Key};

pub(super) struct Places<S> {
    /// A power of two of them, or none.
    places: Box<[Entry<S>]>,
    /// How many are taken.
    len: usize,
}

#[derive(Clone)]
pub(super) struct Entry<S> {
    /// The key, and in its two spare bytes the number of the era that the state was written in.
    words: [u64; 3],
    pub(super) state: S,
}

const ERA_SHIFT: u32 = 48;
const FIRST_PLACES: usize = 8;

impl<S: State> Places<S> {
    pub(super) fn new() -> Self {
        Self { places: Box::default(), len: 0 }
    }

    /// How many places there are, free ones included.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.places)
    }

    /// The place of a key.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: Key) -> Option<usize> {
        let last = self.places.len().checked_sub(1)?;
        let mut place = hash as usize & last;
        // There is always a free place to end at.
        loop {
            let entry = &self.places[place];
            if entry.is_of(key) {
                return Some(place);
            }
            if entry.is_free() {
                return None;
            }
            place = (place + 1) & last;
        }
    }

    /// What is at a place.
    pub(super) fn get(&self, place: usize) -> Option<&Entry<S>> {
        self.places.get(place).filter(|entry| !entry.is_free())
    }

    /// What is at a place where something was found.
    #[inline]
    pub(super) fn at(&mut self, place: usize) -> &mut Entry<S> {
        &mut self.places[place]
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry<S>> {
        self.places.iter().filter(|entry| !entry.is_free())
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry<S>> {
        self.places.iter_mut().filter(|entry| !entry.is_free())
    }

    /// Adds an entry whose key is not there, and says where. Places that were known before may hold others now.
    pub(super) fn insert(&mut self, seed: &Seed, entry: Entry<S>) -> usize {
        // At most six sevenths full: fuller, the way to a free place becomes long.
        if (self.len + 1) * 7 > self.places.len() * 6 {
            self.resize(seed, (2 * self.places.len()).max(FIRST_PLACES));
        }
        self.len += 1;
        self.put(seed, entry)
    }

    /// Empties a place. Another entry may move into it.
    pub(super) fn remove(&mut self, seed: &Seed, place: usize) {
        let last = self.places.len() - 1;
        let mut hole = place;
        let mut next = place;
        loop {
            next = (next + 1) & last;
            if self.places[next].is_free() {
                break;
            }
            // An entry may move back to the hole unless that is before the place it would like best.
            let best = seed.hash(self.places[next].key_words()) as usize & last;
            if (next.wrapping_sub(best) & last) >= (next.wrapping_sub(hole) & last) {
                self.places.swap(hole, next);
                hole = next;
            }
        }
        self.places[hole] = Entry::free();
        self.len -= 1;
    }

    /// Gives back room if there is far too much of it.
    pub(super) fn shrink(&mut self, seed: &Seed) {
        if self.len < self.places.len() / 8 {
            self.resize(seed, (2 * self.len).next_power_of_two().max(FIRST_PLACES));
        }
    }

    fn resize(&mut self, seed: &Seed, places: usize) {
        let old = std::mem::replace(&mut self.places, (0..places).map(|_| Entry::free()).collect());
        for entry in old.into_iter().filter(|entry| !entry.is_free()) {
            self.put(seed, entry);
        }
    }

    fn put(&mut self, seed: &Seed, entry: Entry<S>) -> usize {
        let last = self.places.len() - 1;
        let mut place = seed.hash(entry.key_words()) as usize & last;
        while !self.places[place].is_free() {
            place = (place + 1) & last;
        }
        self.places[place] = entry;
        place
    }
}

impl<S: State> Entry<S> {
    pub(super) fn new(key: Key, era: u16, state: S) -> Self {
        let mut entry = Self { words: key.words(), state };
        entry.set_era(era);
        entry
    }

    fn free() -> Self {
        Self { words: Key::NONE.words(), state: S::default() }
    }

    #[inline]
    fn is_free(&self) -> bool {
        self.words == Key::NONE.words()
    }

    pub(super) fn key(&self) -> Key {
        Key::from_words(self.key_words())
    }

    fn key_words(&self) -> [u64; 3] {
        let [first, second, third] = self.words;
        [first, second, third << (64 - ERA_SHIFT) >> (64 - ERA_SHIFT)]
    }

    #[inline]
    fn is_of(&self, key: Key) -> bool {
        let [[a, b, c], [x, y, z]] = [self.words, key.words()];
        (a ^ x) | (b ^ y) | (c ^ z) << (64 - ERA_SHIFT) == 0
    }

    #[inline]
    pub(super) fn era(&self) -> u16 {
        (self.words[2] >> ERA_SHIFT) as u16
    }

    pub(super) fn set_era(&mut self, era: u16) {
        self.words[2] = self.key_words()[2] | u64::from(era) << ERA_SHIFT;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{algorithm::Window, key::Digester};

    fn key(number: u16) -> Key {
        Key::of(&Digester::new(b""), &number.to_le_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever comes and goes, the table holds what a map holds, and finds all of it.
        #[test]
        fn holds_what_a_map_holds(steps in prop::collection::vec((0..200u16, 0..3u8), 0..600)) {
            let seed = Seed::default();
            let hash = |number| seed.hash(key(number).words());
            let mut table: Places<Window> = Places::new();
            let mut map = HashMap::new();
            for (turn, (number, action)) in steps.into_iter().enumerate() {
                let found = table.find(hash(number), key(number));
                prop_assert_eq!(found.map(|place| table.at(place).era()), map.get(&number).copied());
                match (found, action) {
                    (None, _) => {
                        let place = table.insert(&seed, Entry::new(key(number), turn as u16, Window::default()));
                        prop_assert_eq!(table.get(place).map(Entry::key), Some(key(number)));
                        map.insert(number, turn as u16);
                    }
                    (Some(place), 0) => {
                        table.at(place).set_era(turn as u16);
                        map.insert(number, turn as u16);
                    }
                    (Some(place), _) => {
                        table.remove(&seed, place);
                        map.remove(&number);
                        table.shrink(&seed);
                    }
                }
                prop_assert_eq!((table.len, table.entries().count()), (map.len(), map.len()));
            }
            for (number, era) in map {
                let place = table.find(hash(number), key(number)).expect("it is in the map");
                prop_assert_eq!(table.at(place).era(), era);
            }
        }
    }
}
