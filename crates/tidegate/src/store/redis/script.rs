//! The script that decides, assembled from the algorithms in use. Its parts have versions, and `scripts.lock` says what each
//! version is: a part that is changed without a new one fails the test here.

use std::{collections::HashMap, iter};

use crate::Algorithm;

const ARITHMETIC: &str = include_str!("../../algorithm/arithmetic.lua");
const PRELUDE: &str = include_str!("prelude.lua");
const DECIDE: &str = include_str!("decide.lua");
const MAIN: &str = include_str!("main.lua");

/// In a part of the script, after what the usual hits need of it.
const OTHERWISE: &str = "-- Otherwise\n";

/// The shape of what is stored is part of every key: it changes with every change that an older script would misread.
pub(super) const SCHEMA: &str = "rl";

/// A set of algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Algorithms(u16);

impl Algorithms {
    fn contains(self, algorithm: Algorithm) -> bool {
        self.0 & Self::from_iter([algorithm]).0 != 0
    }

    pub(super) fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

impl FromIterator<Algorithm> for Algorithms {
    fn from_iter<I: IntoIterator<Item = Algorithm>>(algorithms: I) -> Self {
        Self(algorithms.into_iter().fold(0, |set, algorithm| set | 1 << algorithm as u16))
    }
}

/// The text of the script for some algorithms. It is the same text, with the same SHA-1, in every process of this version.
pub(super) fn text(algorithms: Algorithms) -> String {
    let used = || Algorithm::ALL.iter().filter(|algorithm| algorithms.contains(**algorithm)).map(|algorithm| algorithm.script());
    let usual = iter::once(PRELUDE).chain(used()).chain([DECIDE]).map(|part| halves(part).0.to_owned());
    // Functions of their own keep their names apart.
    let blocks = used().map(|part| format!(";(function()\n{}end)()\n", halves(part).1));
    let rest =
        [ARITHMETIC.to_owned(), halves(PRELUDE).1.to_owned()].into_iter().chain(blocks).chain([halves(DECIDE).1.to_owned()]);
    let rest = format!("rest = function()\n{}end\n", rest.collect::<String>());
    usual.chain([rest, MAIN.to_owned()]).collect()
}

/// What the usual hits need, and what all others do.
fn halves(part: &str) -> (&str, &str) {
    part.split_once(OTHERWISE).expect("a part has two halves")
}

/// A script to send: its text, and the SHA-1 that it is known by.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) sha: String,
}

/// The scripts that have been needed so far.
#[derive(Default)]
pub(super) struct Scripts(HashMap<Algorithms, Script>);

impl Scripts {
    pub(super) fn get(&mut self, algorithms: Algorithms) -> &Script {
        self.0.entry(algorithms).or_insert_with(|| {
            let text = text(algorithms);
            Script { sha: redis::Script::new(&text).get_hash().to_owned(), text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = include_str!("scripts.lock");

    #[test]
    fn a_changed_script_has_a_new_version() {
        for part in
            [ARITHMETIC, PRELUDE, DECIDE, MAIN].into_iter().chain(Algorithm::ALL.iter().map(|algorithm| algorithm.script()))
        {
            // The first line says the name and the version: `-- gcra, version 1: ...`.
            let title = part.strip_prefix("-- ").and_then(|line| line.split_once(':')).map(|(title, _)| title).expect("a title");
            let (name, version) = title.split_once(", version ").expect("a version");
            let line = format!("{name} {version} {}", redis::Script::new(part).get_hash());
            assert!(LOCK.lines().any(|locked| locked == line), "scripts.lock does not have `{line}`: give {name} a new version");
        }
        let mut versions: Vec<&str> = LOCK.lines().filter_map(|line| line.rsplit_once(' ')).map(|(version, _)| version).collect();
        let all = versions.len();
        versions.sort_unstable();
        versions.dedup();
        assert_eq!(versions.len(), all, "a version is locked once: add a line, do not change one");
    }

    /// They share one scope, in which the later one would hide the earlier from the rest.
    #[test]
    fn what_the_usual_hits_need_has_names_of_its_own() {
        let parts = [PRELUDE, DECIDE].into_iter().chain(Algorithm::ALL.iter().map(|algorithm| algorithm.script()));
        let lines = parts.flat_map(|part| halves(part).0.lines()).filter_map(|line| line.strip_prefix("local "));
        let declared = lines.flat_map(|line| match line.strip_prefix("function ") {
            Some(function) => vec![function.split('(').next().expect("a name")],
            None => line.split('=').next().expect("names").split(',').map(str::trim).collect(),
        });
        let mut names: Vec<&str> = declared.collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }

    #[test]
    fn a_script_has_only_the_algorithms_in_use() {
        let one = text([Algorithm::Gcra].into_iter().collect());
        assert!(one.contains("algorithms['gcra']") && !one.contains("algorithms['sliding-log']"));
        let all = text(Algorithm::ALL.iter().copied().collect());
        Algorithm::ALL.iter().for_each(|algorithm| assert!(all.contains(&format!("algorithms['{algorithm}'] = "))));
    }
}
