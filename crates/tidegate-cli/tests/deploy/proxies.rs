//! What clients get from Caddy, Traefik and nginx when these ask the server: the limits are those of `deploy/tidegate.toml`.

use std::{
    thread,
    time::{Duration, Instant},
};

use tidegate_testkit::process::PATIENCE;

use crate::{
    repository,
    site::{Proxy, Reply, Site},
};

const PER_USER: usize = 60;
const PER_IP: usize = 200;
const LOGINS: usize = 5;

/// By the passwords `wonderland` and `builder`.
const ALICE: (&str, &str) = ("authorization", "Basic YWxpY2U6d29uZGVybGFuZA==");
const BOB: (&str, &str) = ("authorization", "Basic Ym9iOmJ1aWxkZXI=");
/// What a client may say of itself, and nobody is to believe.
const LIES: [(&str, &str); 8] = [
    ("X-User", "carol"),
    ("X-Forwarded-For", "203.0.113.7"),
    ("X-Real-IP", "203.0.113.7"),
    ("Forwarded", "for=203.0.113.7"),
    ("X-Forwarded-Method", "GET"),
    ("X-Forwarded-Uri", "/other"),
    ("X-Original-URL", "/other"),
    ("RateLimit", "\"per-ip\";r=1000"),
];

/// Whether the proxy can tell how much is left on responses that are allowed.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    Always,
    OnDenials,
}

#[test]
fn caddy() {
    let mut site = Site::start(&Proxy {
        name: "caddy",
        arguments: &["run", "--config", "deploy/caddy/Caddyfile"],
        files: &["deploy/caddy/Caddyfile"],
        tidegate: "deploy/tidegate.toml",
    });
    limits(&site, Told::Always);
    fails_open(&mut site);
}

#[test]
fn nginx() {
    let mut site = Site::start(&Proxy {
        name: "nginx",
        // In one process, which can be killed.
        arguments: &["-p", ".", "-c", "deploy/nginx/nginx.conf", "-g", "daemon off; master_process off;"],
        files: &["deploy/nginx/nginx.conf", "deploy/nginx/htpasswd"],
        tidegate: "deploy/nginx/tidegate.toml",
    });
    limits(&site, Told::Always);
    fails_open(&mut site);
}

#[test]
fn traefik() {
    let mut site = Site::start(&Proxy {
        name: "traefik",
        arguments: &["--configFile=deploy/traefik/traefik.yml"],
        files: &["deploy/traefik/traefik.yml", "deploy/traefik/dynamic.yml"],
        tidegate: "deploy/tidegate.toml",
    });
    // It listens before it has read what to do.
    eventually(|| site.get("/api/").status == 401);
    limits(&site, Told::OnDenials);
    fails_closed(&mut site);
}

fn limits(site: &Site, told: Told) {
    per_user(site, told);
    per_address(site, told);
    by_method_and_path(site);
}

fn per_user(site: &Site, told: Told) {
    let api = |headers: &[(&str, &str)]| site.ask(1, "POST /api/things", headers, "of hers");
    let before = site.passed_on();
    for passed in 1..=PER_USER {
        let reply = api(&[ALICE, LIES[0]]);
        assert_eq!((reply.status, &*reply.body), (200, "POST /api/things, Some(\"alice\"), of hers"), "{passed}: {reply:?}");
        let left = reply.header("ratelimit").is_some_and(|left| left.contains(&format!("\"per-user\";r={};", PER_USER - passed)));
        assert_eq!(left, told == Told::Always, "{reply:?}");
    }
    denied(&api(&[ALICE]), "per-user");
    denied(&api(&[ALICE, ("X-User", "bob")]), "per-user");
    assert_eq!(site.passed_on() - before, PER_USER, "what is denied is not passed on");

    // Others have limits of their own; to say that one is somebody makes nobody.
    assert_eq!(api(&[BOB]).status, 200);
    assert_eq!(api(&[]).status, 401);
    assert_eq!(api(&[("X-User", "bob")]).status, 401);
    assert_eq!(api(&[("authorization", "Basic Ym9iOndyb25n"), ("X-User", "bob")]).status, 401);
    for headers in [[("X-User", "alice")], [ALICE]] {
        let reply = site.ask(1, "GET /", &headers, "");
        assert_eq!((reply.status, &*reply.body), (200, "GET /, None, "), "{reply:?}");
    }
}

fn per_address(site: &Site, told: Told) {
    // Who is not let in is not counted.
    assert_eq!(site.ask(2, "GET /api/", &[], "").status, 401);
    for passed in 1..=PER_IP {
        let mine = format!("203.0.113.{passed}");
        let reply = site.ask(2, "GET /page?a=1", &[("X-Forwarded-For", &mine), ("X-Real-IP", &mine)], "");
        assert_eq!((reply.status, &*reply.body), (200, "GET /page?a=1, None, "), "{passed}: {reply:?}");
        assert_eq!(reply.header("ratelimit-policy").is_some(), told == Told::Always, "{reply:?}");
    }
    denied(&site.ask(2, "GET /page", &[], ""), "per-ip");
    denied(&site.ask(2, "GET /page", &LIES, ""), "per-ip");
    denied(&site.ask(2, "GET /api/", &[BOB], ""), "per-ip");
    assert_eq!(site.ask(3, "GET /page", &[], "").status, 200);
}

fn by_method_and_path(site: &Site) {
    for _ in 0..LOGINS {
        assert_eq!(site.ask(4, "POST /login?next=/", &LIES, "password").status, 200);
    }
    denied(&site.ask(4, "POST /login", &LIES, "password"), "logins");
    assert_eq!(site.ask(4, "GET /login", &[], "").status, 200);
}

#[track_caller]
fn denied(reply: &Reply, policy: &str) {
    assert_eq!((reply.status, reply.header("content-type")), (429, Some("application/problem+json")), "{reply:?}");
    let wait = reply.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
    assert!(wait.is_some_and(|wait| (1..=60).contains(&wait)), "{reply:?}");
    let says =
        |header: &str, start: &str| reply.header(header).is_some_and(|value| value.contains(&format!("\"{policy}\";{start}")));
    assert!(says("ratelimit", "r=0;t=") && says("ratelimit-policy", "q="), "{reply:?}");
    assert!(reply.body.starts_with('{') && reply.body.contains("\"status\":429"), "{reply:?}");
}

/// Whatever happens to the server, the site is there, and its login too.
fn fails_open(site: &mut Site) {
    let is_limited = |site: &Site| site.get("/").header("ratelimit").is_some();
    let is_open = |site: &Site| {
        let over_the_limit = site.ask(1, "GET /api/", &[ALICE], "");
        assert_eq!((over_the_limit.status, over_the_limit.header("ratelimit")), (200, None), "{over_the_limit:?}");
        assert_eq!(site.get("/api/").status, 401);
    };
    assert!(is_limited(site));

    site.tidegate().freeze();
    is_open(site);
    site.tidegate().thaw();
    eventually(|| is_limited(site));

    site.kill_tidegate();
    is_open(site);
    {
        let failing = site.stand_in("503 Service Unavailable");
        eventually(|| {
            is_open(site);
            failing.asked() > 0
        });
    }
    site.start_tidegate();
    eventually(|| is_limited(site));
}

/// Without the server there is no site.
fn fails_closed(site: &mut Site) {
    assert_eq!(site.get("/").status, 200);
    site.kill_tidegate();
    let before = site.passed_on();
    assert_eq!(site.get("/").status, 500);
    assert_eq!(site.get("/api/").status, 401);
    {
        let _failing = site.stand_in("503 Service Unavailable");
        assert_eq!(site.get("/").status, 503);
    }
    assert_eq!(site.passed_on(), before);
    site.start_tidegate();
    eventually(|| site.get("/").status == 200);
}

#[track_caller]
fn eventually(what: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_server_behind_nginx_differs_by_its_denials_alone() {
    let [one, other] = ["deploy/tidegate.toml", "deploy/nginx/tidegate.toml"].map(|path| {
        let text = std::fs::read_to_string(repository(path)).expect("a file");
        let lines = text.lines().filter(|line| !line.starts_with('#') && *line != "denial_status = 403");
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(one, other);
}
