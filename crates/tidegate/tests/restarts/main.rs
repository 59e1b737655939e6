//! Snapshots as files: who writes them dies, they are not what they should be, there are two who write, they are large. What a
//! restarted limiter answers is in `tests/laws`.
//!
//! `TIDEGATE_KILLS` sets how often a process is killed, `TIDEGATE_KEYS` how many keys the figures are for.

#![allow(clippy::unwrap_used)]

mod figures;
mod files;
mod processes;

use std::{env, fs, path::Path};

use tempfile::TempDir;

/// A place for files that are read back at once: where it can be had, one that is no disk.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

fn from_outside(name: &str, unless: usize) -> usize {
    env::var(name).map_or(unless, |number| number.parse().unwrap())
}

/// The names of all files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
