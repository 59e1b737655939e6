//! Completions and man pages: nothing is forgotten.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use super::tidegate;

/// Every command there is, as help lists them: `policies set` and so on.
fn commands(above: &[&str]) -> Vec<Vec<String>> {
    let (code, help, _) = tidegate(&[above, &["--help"]].concat());
    assert_eq!(code, 0);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with("  "));
    // Longer lines of a description are further in.
    let names = listed.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let mut all = Vec::new();
    for name in names.filter(|name| *name != "help") {
        let path: Vec<&str> = above.iter().copied().chain([name]).collect();
        all.push(path.iter().map(ToString::to_string).collect());
        all.extend(commands(&path));
    }
    all
}

#[test]
fn every_command_has_a_page() {
    let commands = commands(&[]);
    for known in ["check", "config init", "policies set", "man", "serve"] {
        assert!(commands.iter().any(|path| path.join(" ") == known), "{commands:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("share/man1");
    let (code, printed, said) = tidegate(&["man", "--output", pages.to_str().expect("text")]);
    assert_eq!((code, printed.as_str(), said.as_str()), (0, "", ""));
    let written = fs::read_dir(&pages).expect("a folder").map(|entry| entry.expect("a file").file_name().into_string());
    let written: BTreeSet<String> = written.collect::<Result<_, _>>().expect("text");
    let page = |path: &Vec<String>| format!("tidegate-{}.1", path.join("-"));
    let expected: BTreeSet<String> = commands.iter().map(page).chain(["tidegate.1".to_owned()]).collect();
    assert_eq!(written, expected);
    let check = fs::read_to_string(pages.join("tidegate-check.1")).expect("a page");
    for said in [".SH NAME", "\\-\\-store", "203.0.113.7", "Exit codes:"] {
        assert!(check.contains(said), "{check}");
    }
    let (code, first, _) = tidegate(&["man"]);
    assert_eq!((code, first), (0, fs::read_to_string(pages.join("tidegate.1")).expect("a page")));
}

#[test]
fn every_shell_completes_every_command() {
    let commands = commands(&[]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, said) = tidegate(&["completions", shell]);
        assert_eq!((code, said.as_str()), (0, ""), "{shell}");
        for name in commands.iter().flatten().map(String::as_str).chain(["cost", "store", "json", "token-file"]) {
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    let (_, script, _) = tidegate(&["completions", "bash"]);
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash runs");
    bash.stdin.take().expect("piped").write_all(script.as_bytes()).expect("read");
    assert!(bash.wait().expect("it ends").success());
}

#[test]
fn help_tells_exit_codes_and_examples() {
    for command in ["check", "peek", "reset", "inspect", "top", "denials", "policies"] {
        for flag in ["-h", "--help"] {
            let (code, help, _) = tidegate(&[command, flag]);
            assert_eq!(code, 0);
            assert!(help.contains("Exit codes:\n  0 ") && help.contains("3 could not ask"), "{help}");
            assert!(help.contains(&format!("Examples:\n  tidegate {command}")), "{help}");
        }
    }
}
