//! What docs/cli.md shows is what is seen: its commands are run, in their order, by a shell.

use std::{env, path::Path};

use tidegate_testkit::Server as RedisServer;

use super::{Served, command, ended, program};

#[test]
fn the_examples_of_the_docs_are_true() {
    let docs = include_str!("../../../../../docs/cli.md");
    let starter = ended(command(Path::new(".")).args(["config", "init"])).1;
    let (running, redis) = (Served::start(&starter), RedisServer::start());
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder");
    let path = env::join_paths([binary.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").expect("a path"))));
    let path = path.expect("a path");
    let mut count = 0;
    for block in docs.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for example in block.split("$ ").skip(1) {
            let (line, shown) = example.split_once('\n').expect("a line");
            let line = line.replace("redis://127.0.0.1:6379/", &redis.url());
            let mut shell = program("sh", running.folder.path());
            shell.args(["-c", &format!("{{ {line}; }} 2>&1")]).env("PATH", &path);
            shell.env("TIDEGATE_SERVER_URL", &running.http).env("TIDEGATE_ADMIN_URL", &running.admin);
            let (_, seen, _) = ended(&mut shell);
            assert_eq!(timeless(&seen), timeless(shown), "{line}");
            count += 1;
        }
    }
    assert!(count > 10, "the examples were not found");
}

/// The words of a text, with times and spans of time made alike.
fn timeless(text: &str) -> Vec<String> {
    let is_span = |word: &str| {
        let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
        unit.len() < word.len() && ["ms", "s", "m", "h"].contains(&unit)
    };
    let is_time = |word: &str| word.len() > 20 && word.ends_with('Z') && word.contains('T');
    let words = text.lines().flat_map(|line| line.split_whitespace().chain(["\n"]));
    let mut words: Vec<String> = words
        .map(|word| match word {
            _ if is_span(word) => "SPAN".to_owned(),
            _ if is_time(word) => "TIME".to_owned(),
            _ => word.to_owned(),
        })
        .collect();
    // `1m 5s` is one.
    words.dedup_by(|next, last| next == "SPAN" && last == "SPAN");
    words
}
