//! Asking a store with no server in between.

use tidegate_testkit::Server as RedisServer;

use super::{Served, command, ended, tidegate};

const POLICIES: &str = r#"
[[policy]]
name = "per-user"
key = ["user"]
quota = "3/2hours"
blocked = ["mallory"]
[[policy]]
name = "per-ip"
key = ["ip"]
quota = "1000/2hours"
algorithm = "gcra"
"#;

/// A server on a store that it asks for every decision.
fn server_on(redis: &RedisServer) -> Served {
    let url = redis.url();
    Served::start(&format!("[store]\nurl = \"{url}\"\ndeadline = \"30s\"\non_error = \"error\"\ndeny_cache = \"0s\"\n{POLICIES}"))
}

#[test]
fn a_store_answers_as_its_server_does() {
    let redis = RedisServer::start();
    let running = server_on(&redis);
    let direct = ["--config", "tidegate.toml"];
    let both = |arguments: &[&str]| {
        let through_server = running.tidegate(arguments);
        let straight = running.tidegate(&[arguments, &direct].concat());
        assert_eq!(through_server, straight, "{arguments:?}");
        straight
    };
    // What does not depend on the time, to the byte.
    for arguments in [
        &["peek", "user=new", "ip=::1", "--json"][..],
        &["check", "user=mallory", "--json"],
        &["check", "color=red", "--json"],
        &["reset", "user=42", "--json"],
        &["policies", "--json"],
        &["policies"],
        &["inspect", "per-user", "user=new", "--json"],
        &["inspect", "per-ip", "ip=::1"],
    ] {
        both(arguments);
    }
    assert_eq!(both(&["check", "user=new", "--cost", "4"]).0, 1);

    // And one counts what the other has charged.
    assert_eq!(running.tidegate(&[&["check", "user=42", "--cost", "2"][..], &direct].concat()).0, 0);
    assert!(running.told(&["check", "user=42"]).contains("per-user  42   allowed  0 of 3"));
    let denied = both(&["check", "user=42"]);
    let expected = "\
denied by per-user: come back in 2h
POLICY    KEY  VERDICT  LEFT    RETRY IN  ALL BACK IN  SOURCE
per-user  42   denied   0 of 3  2h        2h           store
";
    assert_eq!(denied, (1, expected.to_owned(), String::new()));
    let stored = running.tidegate(&[&["inspect", "per-user", "user=42"][..], &direct].concat()).1;
    assert!(stored.contains("algorithm   sliding-window\n") && stored.contains("\ncharged     "), "{stored}");
    assert_eq!(running.tidegate(&[&["reset", "user=42"][..], &direct].concat()).0, 0);
    assert!(running.told(&["peek", "user=42"]).contains("per-user  42   allowed  3 of 3"));
}

#[test]
fn who_was_denied_is_ranked_though_the_process_has_gone() {
    let redis = RedisServer::start();
    let url = redis.url();
    let asked = |arguments: &[&str]| tidegate(&[arguments, &["--store", &url]].concat());
    assert_eq!(asked(&["top"]).1, "nobody was denied in this hour and the last\n");
    for _ in 0..2 {
        assert_eq!(asked(&["check", "user=\u{1b}[2J", "--cost", "101"]).0, 1);
    }
    assert_eq!(asked(&["top"]).1, "POLICY    DENIED  KEY\nper-user  2       \\x1b[2J\n");
}

#[test]
fn without_a_file_the_policies_are_those_of_the_starter() {
    let redis = RedisServer::start();
    let (code, printed, _) = tidegate(&["check", "user=42", "--store", &redis.unix_url()]);
    assert_eq!(code, 0);
    assert!(printed.contains("per-user  42   allowed  99 of 100"), "{printed}");
}

#[test]
fn a_password_comes_from_a_file() {
    let redis = RedisServer::start_with(&["--requirepass", "sesame"]);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("password"), "sesame\n").expect("a file");
    let asked = |arguments: &[&str], file: &str| {
        let mut command = command(folder.path());
        ended(command.args(arguments).args(["--store", &redis.url()]).env("TIDEGATE_STORE_PASSWORD_FILE", file))
    };
    let (check, bench) = (&["check", "user=42"][..], &["bench", "--quiet", "--duration", "50ms"][..]);
    assert_eq!(asked(check, "password").0, 0);
    let (code, printed, said) = asked(check, "");
    assert_eq!((code, printed.as_str()), (3, ""));
    assert!(said.contains(&redis.url()) && said.contains("NOAUTH"), "{said}");
    assert_eq!(asked(bench, "password").0, 0);
    let (code, _, said) = asked(bench, "none");
    assert_eq!(code, 2);
    assert!(said.starts_with("store.password_file: none cannot be read: "), "{said}");
}

#[test]
fn nothing_is_decided_without_the_store() {
    let redis = RedisServer::start();
    let url = redis.url();
    redis.freeze();
    let (code, printed, said) = tidegate(&["check", "user=42", "--timeout", "300ms", "--store", &url]);
    redis.thaw();
    assert_eq!((code, printed.as_str()), (3, ""), "{said}");

    // One that answers, and may not be asked.
    let redis = RedisServer::start_with(&["--user", "default", "on", "nopass", "-@all", "+ping"]);
    for command in ["check", "peek"] {
        let (code, printed, said) = tidegate(&[command, "user=42", "--store", &redis.url()]);
        assert_eq!((code, printed.as_str()), (3, ""), "{said}");
    }
}
