//! `tidegate bench` against servers and stores: real ones, and some that misbehave.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use tidegate_server::{
    config::Sources,
    serve::{Server, Totals},
};
use tokio::runtime::Runtime;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    bench(arguments).output().expect("it runs")
}

/// The summary of a run that succeeds, and says nothing else.
fn summary(arguments: &[&str]) -> Value {
    let output = output(&[arguments, &["--json"]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("{name}: {summary}"))
}

/// A server of ours, with one policy, in this process; what else it takes, and where it is.
fn server(quota: &str) -> (Server, (Runtime, TempDir), String) {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("tidegate.toml");
    let policy = format!("[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"{quota}\"");
    fs::write(&path, format!("[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"off\"\n{policy}")).expect("a file");
    let sources = Sources::file(path);
    let config = sources.load().expect("right");
    let runtime = Runtime::new().expect("a runtime");
    let server = runtime.block_on(Server::start(sources, config)).expect("it starts");
    let url = format!("http://{}", server.http());
    (server, (runtime, folder), url)
}

/// A server that reads requests of one connection after another, and does what `answer` does about the n-th.
fn stub(answer: impl Fn(u32, &mut TcpStream) + Send + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("one"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.expect("a connection"), answer.clone());
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("another handle"));
                for n in 0.. {
                    let mut length = None;
                    let mut line = String::new();
                    while line != "\r\n" {
                        line.clear();
                        if reader.read_line(&mut line).unwrap_or(0) == 0 {
                            return;
                        }
                        if let Some(value) = line.strip_prefix("content-length: ") {
                            length = Some(value.trim().parse().expect("a length"));
                        }
                    }
                    let mut body = vec![0; length.expect("told")];
                    reader.read_exact(&mut body).expect("a body");
                    assert!(body.starts_with(br#"{"attributes":{"user":"bench-00"#) && body.ends_with(b"\"}}"), "{body:?}");
                    answer(n, &mut stream);
                }
            });
        }
    });
    url
}

fn say(stream: &mut TcpStream, status: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
}

#[test]
fn what_is_counted_is_what_the_server_counted() {
    let (server, _around, url) = server("5/h");
    let summary = summary(&["--http", &url, "--keys", "10", "--connections", "5", "--duration", "300ms"]);
    let Totals { allowed, denied, failed } = server.recorder().totals();
    assert_eq!(
        ["allowed", "denied", "failed", "unanswered"].map(|name| number(&summary, name)),
        [allowed, denied, failed, 0],
        "{summary}"
    );
    assert_eq!(allowed, 50);
    assert!(denied > 0 && number(&summary, "decisions") == allowed + denied);
    assert!(summary["rate"].is_null() && summary["first_error"].is_null() && summary["target"] == url, "{summary}");
    let latency = |name: &str| summary["latency_us"][name].as_f64().expect("a number");
    let latencies = ["p50", "p90", "p99", "p99.9", "max"].map(latency);
    assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{summary}");
    let buckets = summary["histogram"].as_array().expect("a list");
    assert_eq!(buckets.iter().map(|bucket| number(bucket, "count")).sum::<u64>(), allowed + denied);
    assert!(buckets.iter().map(|bucket| bucket["up_to_us"].as_f64().expect("a number")).is_sorted(), "{summary}");
}

#[test]
fn forward_auth_is_asked_with_the_key_in_a_header() {
    let policy = "5/h\"\n[forward_auth]\nattributes = { user = \"header:x-user\" }\n#";
    let (server, _around, url) = server(policy);
    let summary = summary(&["--http", &url, "--auth", "X-User", "--keys", "10", "--connections", "5", "--duration", "300ms"]);
    let Totals { allowed, denied, failed } = server.recorder().totals();
    assert_eq!(["allowed", "denied", "failed"].map(|name| number(&summary, name)), [allowed, denied, failed], "{summary}");
    assert_eq!((allowed, failed), (50, 0), "{summary}");
    let output = output(&["--auth", "not a name"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).starts_with("--auth: `not a name` is not the name of a header"),
        "{output:?}"
    );
}

#[test]
fn hits_come_at_the_rate_that_is_asked_for() {
    let (server, _around, url) = server("1000000/h");
    let summary = summary(&["--http", &url, "--rate", "500", "--duration", "1s", "--warmup", "200ms"]);
    let counted = number(&summary, "allowed") + number(&summary, "unanswered");
    assert!((499..=501).contains(&counted), "{summary}");
    // Those of the warm-up were asked as well.
    assert!(server.recorder().totals().allowed >= number(&summary, "allowed") + 90, "{summary}");
}

#[test]
fn a_server_that_stands_still_is_seen_by_who_should_have_been_answered() {
    const STALL: Duration = Duration::from_millis(600);
    let url = stub(|n, stream| {
        if n == 0 {
            thread::sleep(STALL);
        }
        say(stream, "200 OK", "{}");
    });
    let asked = ["--http", &url, "--connections", "1", "--duration", "1s"];
    let by_schedule = summary(&[&asked[..], &["--rate", "100"]].concat());
    let at = |summary: &Value, name: &str| Duration::from_secs_f64(summary["latency_us"][name].as_f64().expect("one") / 1e6);
    // Sixty of a hundred were due while it stood still, and waited for the rest of that time.
    assert!(at(&by_schedule, "max") >= STALL * 99 / 100, "{by_schedule}");
    assert!(at(&by_schedule, "p90") >= STALL * 3 / 4, "{by_schedule}");
    assert!(at(&by_schedule, "p50") >= STALL / 10, "{by_schedule}");
    assert!((99..=101).contains(&(number(&by_schedule, "decisions") + number(&by_schedule, "unanswered"))), "{by_schedule}");
    // Flat out, one has waited, as nobody else was there to.
    let flat_out = summary(&asked);
    assert!(at(&flat_out, "max") >= STALL * 99 / 100 && at(&flat_out, "p50") < STALL / 10, "{flat_out}");
}

#[test]
fn what_is_never_answered_is_told_of() {
    let url = stub(|_, _| {});
    let asked = output(&["--http", &url, "--connections", "2", "--duration", "500ms", "--rate", "100", "--json"]);
    assert_eq!((asked.status.code(), asked.stderr.as_slice()), (Some(3), &b"nothing was decided\n"[..]));
    let summary: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    assert_eq!((number(&summary, "decisions"), number(&summary, "failed")), (0, 0), "{summary}");
    assert!((49..=51).contains(&number(&summary, "unanswered")), "{summary}");
    assert!(summary["latency_us"]["p50"].as_f64().expect("one") >= 200_000.0, "{summary}");
    let text = output(&["--http", &url, "--connections", "2", "--duration", "100ms"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("unanswered            2"), "{}", text.escape_ascii());
}

#[test]
fn errors_are_counted_and_the_first_is_shown() {
    let url = stub(|n, stream| match n {
        0 => say(stream, "503 Service Unavailable", "{\"detail\":\"no\nstore\"}"),
        1 => say(stream, "200 OK", "{}"),
        2 => say(stream, "429 Too Many Requests", "{}"),
        // The next request is on another connection.
        _ => drop(stream.shutdown(std::net::Shutdown::Both)),
    });
    let asked = ["--http", &url, "--connections", "1", "--duration", "300ms"];
    let summary = summary(&asked);
    let [allowed, denied, failed] = ["allowed", "denied", "failed"].map(|name| number(&summary, name));
    assert!(allowed > 0 && denied > 0 && failed > allowed, "{summary}");
    assert_eq!(summary["first_error"], r#"status 503: {\"detail\":\"no\nstore\"}"#);
    let text = output(&asked).stdout;
    assert!(String::from_utf8_lossy(&text).contains("the first that failed: status 503: "), "{}", text.escape_ascii());
}

#[test]
fn that_nothing_was_decided_is_no_success() {
    let url = stub(|_, stream| say(stream, "404 Not Found", "{}"));
    let output = output(&["--http", &url, "--connections", "1", "--duration", "100ms"]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(3), &b"nothing was decided\n"[..]));
    assert!(String::from_utf8_lossy(&output.stdout).contains("the first that failed: status 404: "), "{output:?}");
}

#[test]
fn there_may_be_more_connections_than_shells_have_files() {
    let (_server, _around, url) = server("1000000/h");
    let mut command = Command::new("sh");
    let few = ["-c", "ulimit -Sn 30; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tidegate"), "bench", "--http", &url];
    let output = command.args(few).args(["--connections", "60", "--duration", "100ms", "--json"]).output().expect("sh runs");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!((output.status.code(), number(&summary, "failed")), (Some(0), 0), "{summary}");
}

#[test]
fn nothing_to_ask_is_said_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    for (target, named) in [("--http", format!("http://{free}")), ("--store", format!("redis://{free}/"))] {
        let output = output(&[target, &named, "--duration", "1h"]);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{stderr}");
        assert!(stderr.starts_with("nothing answers at ") && stderr.contains(&free.to_string()), "{stderr}");
        assert!(stderr.contains("Connection refused"), "{stderr}");
    }
}

#[test]
fn an_interrupt_ends_it_with_a_summary() {
    let (server, _around, url) = server("5/h");
    let mut running = bench(&["--http", &url, "--duration", "1h"]);
    let running = running.stdout(Stdio::piped()).spawn().expect("it runs");
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.recorder().totals().allowed == 0 {
        assert!(Instant::now() < deadline, "nothing was asked");
        thread::yield_now();
    }
    kill(Pid::from_raw(i32::try_from(running.id()).expect("one")), Signal::SIGINT).expect("sent");
    let output = running.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}");
    let allowed = server.recorder().totals().allowed;
    assert!(text.contains(&format!("allowed    {allowed:>12}\n")) && text.contains("p99.9"), "{text}");
}

#[test]
fn a_store_is_asked_without_a_server() {
    let redis = tidegate_testkit::Server::start();
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("tidegate.toml");
    let snapshot = folder.path().join("snapshot");
    let config = "[[policy]]\nname = \"a\"\nkey = [\"ip\"]\nquota = \"5/h\"\n[store]\ndeadline = \"5s\"";
    fs::write(&file, format!("{config}\nsnapshot = {:?}", snapshot.display().to_string())).expect("a file");
    let file = file.display().to_string();
    for store in ["memory", &redis.url()] {
        for policy in [&["--quota", "5/h", "--algorithm", "fixed-window"][..], &["--config", &file, "--attribute", "ip"]] {
            let asked = ["--store", store, "--keys", "3", "--duration", "300ms", "--connections", "4"];
            let summary = summary(&[&asked[..], policy].concat());
            assert_eq!(["allowed", "failed"].map(|name| number(&summary, name)), [15, 0], "{summary}");
            assert!(number(&summary, "denied") > 0 && summary["target"] == store, "{summary}");
        }
    }
    assert!(!snapshot.exists(), "what is kept in a file is left alone");
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, said) in [
        (&["--http", "https://127.0.0.1:1"][..], "--http: `https://127.0.0.1:1` is not an address of HTTP"),
        (&["--store", "mysql://:hunter2@host"], "--store: not a store"),
        (&["--store", "memory", "--config", "none.toml"], "none.toml cannot be read"),
        (&["--store", "memory", "--http", "http://127.0.0.1:1"], "cannot be used with"),
        (&["--quota", "1/s"], "--store <URL>"),
        (&["--http", "http://127.0.0.1:1", "--quota", "1/s"], "cannot be used with"),
        (&["--http", "http://127.0.0.1:1", "--config", "none.toml"], "cannot be used with"),
        (&["--distribution", "zipf:0"], "write uniform, zipf, hot"),
        (&["--rate", "0"], "write a number of hits per second"),
        (&["--keys", "0"], "0 is not in 1..=99999999"),
        (&["--algorithm", "leaky", "--store", "memory"], "gcra"),
    ] {
        let output = output(arguments);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said) && !stderr.contains("hunter2"), "{arguments:?}: {stderr}");
    }
}
