//! Asking a server: what people see, and that programs see what the server says.

use super::Served;

/// Windows that are so long that no test sees them move.
const FILE: &str = r#"
[[policy]]
name = "per-user"
key = ["user"]
quota = "3/2hours"
blocked = ["mallory"]
[[policy]]
name = "watch"
key = ["user"]
quota = "2/2hours"
mode = "shadow"
[[policy]]
name = "per-ip"
key = ["ip"]
quota = "1000/2hours"
algorithm = "fixed-window"
[[policy]]
name = "monthly"
key = ["tenant", "region"]
match = { route = "/login" }
calendar = { limit = 10000, per = "month", zone = "Europe/Berlin" }
override = [{ key = ["trial", "eu"], limit = 100 }]
[[policy]]
name = "exports"
key = ["tenant"]
concurrency = { limit = 3, ttl = "5m" }
"#;

#[test]
fn people_read_who_said_what_and_when_to_come_back() {
    let running = Served::start(FILE);
    let allowed = "\
allowed
POLICY    KEY  VERDICT      LEFT    RETRY IN  ALL BACK IN  SOURCE
per-user  42   allowed      1 of 3  -         2h           store
watch     42   would allow  0 of 2  -         2h           store
";
    assert_eq!(running.told(&["check", "user=42", "--cost", "2"]), allowed);
    let denied = "\
denied by per-user: come back in 2h
POLICY    KEY  VERDICT     LEFT    RETRY IN  ALL BACK IN  SOURCE
per-user  42   denied      1 of 3  2h        2h           store
watch     42   would deny  0 of 2  2h        2h           store
";
    for command in ["peek", "check"] {
        let ended = running.tidegate(&[command, "user=42", "--cost", "2"]);
        assert_eq!(ended, (1, denied.to_owned(), String::new()), "{command}");
    }
    let (code, printed, _) = running.tidegate(&["peek", "user=43", "--cost", "4"]);
    assert_eq!(code, 1);
    assert!(printed.starts_with("denied by per-user: the cost is above the limit, no wait helps\n"), "{printed}");
    let (code, printed, _) = running.tidegate(&["check", "user=mallory"]);
    assert_eq!(code, 1);
    assert!(printed.starts_with("denied by per-user: the key is blocked\n"), "{printed}");
    assert_eq!(running.told(&["check"]), "allowed: no policy applies\n");
    assert_eq!(running.told(&["check", "--", "-x=1"]), "allowed: no policy applies\n");
}

#[test]
fn people_look_at_keys_and_reset_them() {
    let running = Served::start(FILE);
    assert_eq!(running.told(&["top"]), "nobody was denied in this hour and the last\n");
    assert_eq!(running.told(&["denials"]), "nobody was denied since the server was started\n");
    running.told(&["check", "user=42", "--cost", "2"]);
    for user in ["user=42", "user=42", "user=mallory"] {
        assert_eq!(running.tidegate(&["check", user, "--cost", "2"]).0, 1);
    }
    assert_eq!(running.tidegate(&["check", "user=7", "--cost", "4"]).0, 1);
    assert_eq!(running.told(&["top"]), "POLICY    DENIED  KEY\nper-user  2       42\nper-user  1       7\n");
    assert_eq!(running.told(&["top", "per-user", "-n", "1"]), "POLICY    DENIED  KEY\nper-user  2       42\n");
    let denials = running.told(&["denials", "-n", "3"]);
    let shown: Vec<Vec<&str>> = denials.lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    assert_eq!(shown[0].join(" "), "POLICY KEY REASON USED COST RETRY IN FRONT END SOURCE ATTRIBUTES");
    assert_eq!(shown[1].join(" "), "per-user 7 cost-above-limit 0 of 3 4 never http store user=7");
    assert_eq!(shown[2].join(" "), "per-user mallory blocked 0 of 0 2 never http store user=mallory");
    assert_eq!(shown[3].join(" "), "per-user 42 over-limit 2 of 3 2 2h http store user=42");
    assert_eq!(shown.len(), 4);

    let stored = running.told(&["inspect", "per-user", "user=42"]);
    let (same, charged) = stored.split_once("charged     2 at 20").expect("an entry");
    assert_eq!(same, "policy      per-user\nkey         42\nalgorithm   sliding-window\nlasts       2h\n");
    assert!(charged.ends_with("Z\n"), "{charged}");
    // An attribute may be named as the parameter is, and hold anything.
    let other = running.told(&["inspect", "per-user", "user=a b&c=%41", "policy=x"]);
    assert!(other.contains("key         a b&c=%41\n") && other.ends_with("stored      nothing\n"), "{other}");

    let forgotten = "forgotten\nPOLICY    KEY  LEFT\nper-user  42   3 of 3\nwatch     42   2 of 2\n";
    assert_eq!(running.told(&["reset", "user=42"]), forgotten);
    assert_eq!(running.told(&["reset", "color=red"]), "nothing to forget: no policy applies\n");
    assert!(running.told(&["inspect", "per-user", "user=42"]).ends_with("stored      nothing\n"));
}

#[test]
fn policies_are_listed_and_changed() {
    let running = Served::start(FILE);
    let policies = "\
POLICY    LIMIT                          FOR EACH           NOTES
per-user  3/2hours                       user               1 blocked
watch     2/2hours                       user               only watches
per-ip    1000/2hours                    ip                 fixed-window
monthly   10000 a month (Europe/Berlin)  tenant and region  depends on route, 1 with another quota
exports   3 at once (ttl 5m)             tenant
";
    assert_eq!(running.told(&["policies"]), policies);
    let set = |arguments: &[&str]| running.told(&[&["policies", "set"], arguments].concat());
    assert_eq!(set(&["per-user", "--limit", "5"]), "per-user: 5/2hour, was 3/2hours\n");
    assert_eq!(set(&["per-user", "--quota", "7 per day"]), "per-user: 7/day, was 5/2hour\n");
    assert_eq!(set(&["monthly", "--limit", "1"]), "monthly: 1 a month (Europe/Berlin), was 10000 a month (Europe/Berlin)\n");
    assert_eq!(set(&["exports", "--limit", "9"]), "exports: 9 at once (ttl 5m), was 3 at once (ttl 5m)\n");
    assert!(running.told(&["peek", "user=42"]).contains("per-user  42   allowed      7 of 7"));
    for (arguments, said) in [
        (["nobody", "--limit", "5"], "there is no policy `nobody`; `tidegate policies` lists them\n"),
        (["monthly", "--quota", "5/min"], "monthly has no quota; write --limit N\n"),
        (["per-ip", "--quota", "5/min burst 9"], "quota: policy `per-ip`: a burst needs the algorithm token-bucket or gcra;"),
    ] {
        let (code, printed, error) = running.tidegate(&[&["policies", "set"][..], &arguments].concat());
        assert_eq!((code, printed.as_str()), (2, ""));
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn json_is_what_the_server_says() {
    let running = Served::start(FILE);
    // What does not depend on the time: a key that nobody has asked for, and one that is blocked.
    let untouched = running.told(&["peek", "user=new", "--json"]);
    assert_eq!(untouched, Served::body(&running.http, "/v1/peek?user=new") + "\n");
    let (code, printed, said) = running.tidegate(&["check", "user=mallory", "--json"]);
    assert_eq!((code, said.as_str()), (1, ""));
    assert_eq!(printed, Served::body(&running.http, "/v1/check?user=mallory") + "\n");
    for (arguments, target) in [
        (&["policies"][..], "/v1/policies"),
        (&["top"], "/v1/top"),
        (&["top", "per-user", "-n", "1"], "/v1/top?policy=per-user&n=1"),
        (&["denials"], "/v1/denials?n=20"),
        (&["denials", "-n", "1"], "/v1/denials?n=1"),
        (&["inspect", "per-user", "user=<b>é"], "/v1/inspect?policy=per-user&user=%3Cb%3E%C3%A9"),
    ] {
        let printed = running.told(&[arguments, &["--json"]].concat());
        assert_eq!(printed, Served::body(&running.admin, target) + "\n");
        assert!(printed.starts_with("{\""), "{printed}");
    }
    let reset = running.told(&["reset", "user=42", "--json"]);
    let keys = r#"{"keys":[{"policy":"per-user","key":"42","limit":3,"remaining":3},{"policy":"watch","key":"42","limit":2,"remaining":2}]}"#;
    assert_eq!(reset.trim_end(), keys);
    // Flags may stand on either side.
    for arguments in [
        ["policies", "--admin", &running.admin, "set", "per-ip", "--limit", "6"],
        ["policies", "set", "--admin", &running.admin, "per-ip", "--limit", "6"],
    ] {
        let (code, printed, said) = super::tidegate(&arguments);
        assert_eq!(code, 0, "{arguments:?}: {said}");
        assert!(printed.starts_with("per-ip: 6/"), "{printed}");
    }
    let changed = running.told(&["policies", "set", "per-ip", "--limit", "7", "--json"]);
    assert!(changed.starts_with(r#"{"name":"per-ip","key":["ip"],"match":{},"quota":"7/2hour","#), "{changed}");
}

#[test]
fn flags_win_over_the_environment() {
    let (one, other) = (Served::start(FILE), Served::start("# no policies"));
    assert_eq!(one.told(&["check", "user=42", "--server", &other.http]), "allowed: no policy applies\n");
    assert_eq!(one.told(&["policies", "--admin", &other.admin]), "no policies, everything is allowed\n");
    // An address does without its scheme.
    assert_eq!(one.told(&["check", "user=42", "--server", &other.http["http://".len()..]]), "allowed: no policy applies\n");
}
