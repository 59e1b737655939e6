//! `tidegate config` as a shell sees it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::tempdir;

fn tidegate(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).current_dir(folder).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn what_init_prints_is_right_and_is_never_written_over_a_file() {
    let folder = tempdir().expect("a folder");
    let (code, printed, _) = tidegate(folder.path(), &["config", "init"]);
    assert_eq!(code, Some(0));
    let written = tidegate(folder.path(), &["config", "init", "--output", "new.toml"]);
    assert_eq!(written, (Some(0), String::new(), String::new()));
    assert_eq!(fs::read_to_string(folder.path().join("new.toml")).expect("it is there"), printed);
    let ok = "ok: 3 policies (per-user, per-ip, per-key), store memory\n";
    assert_eq!(tidegate(folder.path(), &["config", "check", "new.toml"]), (Some(0), ok.to_owned(), String::new()));

    let leases = "[[policy]]\nname = \"jobs\"\nconcurrency = { limit = 3, ttl = \"5m\" }\n";
    fs::write(folder.path().join("leases.toml"), leases).expect("a file");
    let (code, printed, _) = tidegate(folder.path(), &["config", "check", "leases.toml"]);
    let note = "jobs: applies to /v1/acquire, and to hits with an attribute `lease`; what names no lease does not take one\n";
    assert_eq!((code, printed), (Some(0), format!("ok: 1 policy (jobs), store memory\n{note}")));

    let idle = "[store]\nurl = \"redis://host/\"\nsnapshot = \"limits\"\n";
    fs::write(folder.path().join("idle.toml"), idle).expect("a file");
    let (code, printed, _) = tidegate(folder.path(), &["config", "check", "idle.toml"]);
    let note = "store.snapshot is not written: it is for states in memory\n";
    assert_eq!((code, printed), (Some(0), format!("ok: no policies, everything is allowed, store redis://host/\n{note}")));

    // Neither serves it.
    fs::write(folder.path().join("empty.toml"), "\n").expect("a file");
    let (code, _, said) = tidegate(folder.path(), &["config", "check", "empty.toml"]);
    assert!(code == Some(2) && said.starts_with("empty.toml is empty; "), "{said}");

    fs::write(folder.path().join("mine.toml"), "mine").expect("a file");
    let (code, _, said) = tidegate(folder.path(), &["config", "init", "-o", "mine.toml"]);
    assert_eq!((code, said.as_str()), (Some(2), "mine.toml is there already; name another file, or remove it first\n"));
    assert_eq!(fs::read_to_string(folder.path().join("mine.toml")).expect("it is there"), "mine");
}

#[test]
fn a_wrong_file_is_refused_with_its_places() {
    let folder = tempdir().expect("a folder");
    let text = "[listen]\nhttp = \"8080\"\n\n[[policy]]\nname = \"per-user\"\nquotta = \"100/min\"\n";
    fs::write(folder.path().join("wrong.toml"), text).expect("a file");
    let (code, printed, said) = tidegate(folder.path(), &["config", "check", "wrong.toml"]);
    assert_eq!((code, printed.as_str()), (Some(2), ""));
    let expected = "\
wrong.toml:2:8: `8080` is not an address to listen at; write an IP address and a port, such as \"127.0.0.1:8080\", or \"off\"
2 | http = \"8080\"
  |        ^^^^^^
wrong.toml:6:1: unknown key `quotta`; did you mean `quota`?
6 | quotta = \"100/min\"
  | ^^^^^^
";
    assert_eq!(said, expected);
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let folder = tempdir().expect("a folder");
    let (code, _, said) = tidegate(folder.path(), &["config", "check", "none.toml"]);
    assert_eq!(code, Some(2));
    assert!(said.starts_with("none.toml cannot be read: "), "{said}");
}

#[test]
fn the_schema_is_json() {
    let (code, printed, _) = tidegate(Path::new("."), &["config", "schema"]);
    assert_eq!(code, Some(0));
    assert!(printed.starts_with("{\n") && printed.contains("\"title\": \"Tidegate configuration\""), "{printed}");
}

#[test]
fn help_names_every_command() {
    let (code, printed, _) = tidegate(Path::new("."), &["config", "--help"]);
    assert_eq!(code, Some(0));
    for command in ["check", "schema", "init"] {
        assert!(printed.contains(command), "{printed}");
    }
}
