//! What is stored for a key, for people to see.

use std::time::Duration;

use crate::{Algorithm, algorithm::Stored, key::Key, label::Label};

/// What [`crate::Limiter::inspect`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The policy's name.
    pub policy: String,
    /// The key, printable: unusual bytes are escaped, long ids are a digest.
    pub key: String,
    /// The policy's algorithm.
    pub algorithm: Algorithm,
    /// Numbers by name, in the algorithm's own terms: times are epoch microseconds. What has expired may still be there.
    pub fields: Vec<(String, u64)>,
    /// The entries of a log or the grains of a window, oldest first; at most the latest 1000.
    pub entries: Vec<Entry>,
    /// How long the store keeps it; zero where there is nothing.
    pub lasts: Duration,
}

/// An entry of a log, or a grain of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// When it was charged, or the last of a grain was, in epoch microseconds.
    pub at: u64,
    /// What was charged.
    pub cost: u64,
}

impl Inspection {
    pub(crate) fn new(label: &Label, key: Key, stored: Stored, lasts: u64) -> Self {
        Self {
            policy: label.name().to_owned(),
            key: key.display(usize::from(label.attributes)).to_string(),
            algorithm: label.algorithm,
            fields: stored.fields.into_iter().map(|(name, number)| (name.into_owned(), number)).collect(),
            entries: stored.entries.into_iter().map(|(at, cost)| Entry { at, cost }).collect(),
            lasts: Duration::from_micros(lasts),
        }
    }
}
