//! The script that decides, assembled from the algorithms'. Its parts have versions, and `scripts.lock` says what each version is: a
//! part that is changed without a new one fails the test here.

use std::{iter, sync::LazyLock};

use crate::Algorithm;

const ARITHMETIC: &str = include_str!("../../algorithm/arithmetic.lua");
const PRELUDE: &str = include_str!("prelude.lua");
const DECIDE: &str = include_str!("decide.lua");
const MAIN: &str = include_str!("main.lua");

/// In a part of the script, after what the usual hits need of it.
const OTHERWISE: &str = "-- Otherwise\n";

/// The shape of what is stored is part of every key: it changes with every change that an older script would misread.
pub(super) const SCHEMA: &str = "rl";

/// The script that decides, as a server can be told of it. It is the same in every process of this version.
pub(super) struct Script {
    /// To be evaluated with the keys and arguments of a call.
    pub(super) text: String,
    /// The SHA-1 that the text is known by.
    pub(super) sha: String,
    /// What it is called by as a function, which is the only one of a library of the same name.
    pub(super) function: String,
    pub(super) library: String,
}

pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    let body = body();
    let text = format!("{body}return main(KEYS, ARGV)\n");
    let sha = redis::Script::new(&text).get_hash().to_owned();
    let function = format!("tidegate_{sha}");
    // While a library is loaded nothing can be called, not even what Lua brings: so all is made by the first call.
    let library = format!(
        "#!lua name={function}\nlocal known\nredis.register_function('{function}', function(keys, arguments)\n\
         known = known or (function()\n{body}return main\nend)()\nreturn known(keys, arguments)\nend)\n"
    );
    Script { text, sha, function, library }
});

/// All parts, of which the last is the function `main`.
fn body() -> String {
    // The log last, which is made of the window.
    let algorithms = || Algorithm::ALL.iter().rev().map(|algorithm| algorithm.script());
    let usual = iter::once(PRELUDE).chain(algorithms()).chain([DECIDE]).map(|part| halves(part).0.to_owned());
    // Functions of their own keep their names apart.
    let blocks = algorithms().map(|part| format!(";(function()\n{}end)()\n", halves(part).1));
    let rest =
        [ARITHMETIC.to_owned(), halves(PRELUDE).1.to_owned()].into_iter().chain(blocks).chain([halves(DECIDE).1.to_owned()]);
    let rest = format!("rest = function()\n{}end\n", rest.collect::<String>());
    usual.chain([rest, MAIN.to_owned()]).collect()
}

/// What the usual hits need, and what all others do.
fn halves(part: &str) -> (&str, &str) {
    part.split_once(OTHERWISE).expect("a part has two halves")
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
}
