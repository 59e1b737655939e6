//! One connection on a pipe, by the bytes; the clock is the test's.

use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::RngSeed,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    runtime::Builder,
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, advance, sleep, timeout},
};

use super::{Alarm, Body, Connection, HEAD_BYTES, Head, KEPT_BYTES, LINGER, Request, Response, Service, requests, serve};

const PATIENCE: Duration = Duration::from_secs(10);
const MAX_BODY: usize = 100;

/// Answers by what it was asked; `/never` is not answered unless told to, `/slow` not at once, and `/closed` does not want a body.
#[derive(Clone, Default)]
struct Echo {
    /// Whether `/never` was answered, and whether its client had closed its side then.
    is_done: Arc<AtomicBool>,
    is_closed: Arc<AtomicBool>,
    never: Arc<Notify>,
}

impl Service for Echo {
    fn max_body_bytes(&self, head: &Head<'_>) -> Option<usize> {
        (head.path != "/closed").then_some(MAX_BODY)
    }

    async fn answer(&self, request: &Request<'_>, response: &mut Response) {
        let Request { head, body, .. } = request;
        if head.path == "/never" {
            self.never.notified().await;
            self.is_done.store(true, SeqCst);
            self.is_closed.store(request.is_closed(), SeqCst);
        }
        if head.path == "/slow" {
            sleep(Duration::from_millis(2)).await;
        }
        response.header("x-evil", "a\r\nb");
        response.body.extend_from_slice(format!("{} {} {} ", head.method, head.path, head.query).as_bytes());
        response.body.extend_from_slice(body);
    }
}

struct Rig {
    client: DuplexStream,
    echo: Echo,
    stop: watch::Sender<()>,
    serving: JoinHandle<()>,
}

fn rig() -> Rig {
    let (client, ours) = duplex(1 << 20);
    let (stop, stopped) = watch::channel(());
    let echo = Echo::default();
    let serving = tokio::spawn(serve(ours, PATIENCE, echo.clone(), stopped));
    Rig { client, echo, stop, serving }
}

impl Rig {
    /// All that is answered to these bytes, if nothing comes after them.
    async fn all(mut self, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
        for piece in pieces {
            let _ = self.client.write_all(piece.as_ref()).await;
            // The connection has read it.
            sleep(Duration::from_millis(1)).await;
        }
        let _ = self.client.shutdown().await;
        let mut replies = Vec::new();
        self.client.read_to_end(&mut replies).await.expect("its end");
        String::from_utf8_lossy(&replies).into_owned()
    }

    async fn reply(&mut self) -> String {
        let mut reply = vec![0; 4096];
        let read = self.client.read(&mut reply).await.expect("a reply");
        String::from_utf8_lossy(&reply[..read]).into_owned()
    }
}

/// Statuses and bodies, and whether the last one closes.
fn replies(text: &str) -> (Vec<(u16, &str)>, bool) {
    let mut rest = text;
    let (mut replies, mut is_closed) = (Vec::new(), false);
    while !rest.is_empty() {
        let (head, after) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let status = head.strip_prefix("HTTP/1.1 ").expect("a status").split(' ').next().expect("one").parse().expect("a number");
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let length = if status == 100 { 0 } else { header("content-length").expect("told").parse().expect("a number") };
        assert!(status == 100 || header("date").is_some_and(|date| date.ends_with(" GMT")), "{head}");
        assert_eq!(header("x-evil"), None);
        is_closed = header("connection") == Some("close");
        replies.push((status, &after[..length]));
        rest = &after[length..];
    }
    (replies, is_closed)
}

#[tokio::test(start_paused = true)]
async fn requests_are_read_however_they_are_cut() {
    let chunked = "POST /b HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n0a ;x=\"y\"\r\n0123456789\r\n0\r\nx: y\r\n\r\n";
    let sized = "POST /c?d=e HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n\r\n\r\n1";
    let requests = format!(
        "GET /a HTTP/1.1\r\nhost: a\r\n\r\n{chunked}{sized}\r\n\r\nPUT http://HOST:1/x#f HTTP/1.1\nhost: host:1\n\n{chunked}"
    );
    let expected = vec![
        (200, "GET /a  "),
        (200, "POST /b  abc0123456789"),
        (200, "POST /c d=e \r\n\r\n1"),
        (200, "PUT /x  "),
        (200, "POST /b  abc0123456789"),
    ];
    for size in 1..=requests.len() {
        let text = rig().all(requests.as_bytes().chunks(size)).await;
        assert_eq!(replies(&text), (expected.clone(), false), "in pieces of {size}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_be_read_in_two_ways_is_refused_and_is_the_last() {
    let rows = [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551616\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 101\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\nx: y\r\n transfer-encoding: chunked\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\r\na\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;a\rb\r\na\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\na\r: b\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n a: b\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n65\r\n", 413),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        // Two hosts: others go by the first.
        ("GET http://a/ HTTP/1.1\r\nhost: b\r\n\r\n", 400),
        ("GET http://b?a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET http://b/ HTTP/1.0\r\nhost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a@b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a:b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a:1:2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: [::1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: []\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: [::1]a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: \u{e9}\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("G\u{1}T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\na\0: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\na: b\rc\r\n\r\n", 400),
        ("\u{16}\u{3}\u{1}\u{2}", 400),
    ];
    for (request, status) in rows {
        // Whatever comes after it is not read as a request.
        let text = rig().all([&format!("{request}GET /next HTTP/1.1\r\nhost: a\r\n\r\n")]).await;
        let (replies, is_closed) = replies(&text);
        assert!(matches!(replies[..], [(told, _)] if told == status) && is_closed, "{request:?}: {text}");
    }
    let most = |size: usize| ["x: y\r\n".repeat(98), format!("x: {}\r\n\r\n", "y".repeat(size))].concat();
    for (size, status) in [(100, 200), (HEAD_BYTES - 600 - 21, 200), (HEAD_BYTES, 431)] {
        let text = rig().all([format!("GET / HTTP/1.1\r\nhost: a\r\n{}", most(size))]).await;
        assert_eq!(replies(&text).0[0].0, status, "{size}");
    }
    let text = rig().all([format!("GET / HTTP/1.1\r\nhost: a\r\na: b\r\n{}", most(1))]).await;
    assert_eq!(replies(&text).0[0].0, 431);
    let text =
        rig().all([format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;{}", "x".repeat(2000))]).await;
    assert_eq!(replies(&text).0[0].0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_as_the_client_says() {
    let rows = [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", 2, None),
        ("GET / HTTP/1.1\r\nhost: a\r\nConnection: keep-alive, Close\r\n\r\n", 1, Some("connection: close")),
        ("GET / HTTP/1.0\r\n\r\n", 1, Some("connection: close")),
        ("GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n", 2, Some("connection: keep-alive")),
        ("GET / HTTP/1.0\r\nconnection: close\r\nconnection: keep-alive\r\n\r\n", 1, Some("connection: close")),
        ("POST /closed HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n1", 2, None),
        ("POST /closed HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n1", 1, Some("connection: close")),
        ("POST /closed HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 1, Some("connection: close")),
    ];
    for (request, count, told) in rows {
        let text = rig().all([format!("{request}{request}")]).await;
        assert_eq!(replies(&text).0.len(), count, "{request}: {text}");
        assert_eq!(text.lines().find(|line| line.starts_with("connection")), told, "{request}");
    }
}

#[tokio::test(start_paused = true)]
async fn any_host_will_do_and_old_clients_need_none() {
    let hosts = ["a", "A.example.:8080", "[::1]", "[2001:db8::1]:80", "127.0.0.1:", "", "a_b", "%41"];
    let requests = hosts.map(|host| format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"));
    for request in requests.iter().map(String::as_str).chain(["GET / HTTP/1.0\r\n\r\n"]) {
        assert_eq!(replies(&rig().all([request]).await).0, [(200, "GET /  ")], "{request}");
    }
}

#[test]
fn a_browser_says_whose_page_it_asks_for() {
    let rows = [
        ("", false),
        ("sec-fetch-site: none\r\n", false),
        ("Sec-Fetch-Site: same-origin\r\norigin: http://a:1\r\n", false),
        ("origin: https://A:1\r\n", false),
        ("sec-fetch-site: same-site\r\n", true),
        ("sec-fetch-site: cross-site\r\n", true),
        ("sec-fetch-site: none\r\nsec-fetch-site: cross-site\r\n", true),
        ("sec-fetch-site:\r\n", true),
        ("Origin: http://a\r\n", true),
        ("origin: http://a:2\r\n", true),
        ("origin: a:1\r\n", true),
        ("origin: null\r\n", true),
        ("origin:\r\n", true),
        ("origin: http://a:1\r\norigin: http://a:1\r\n", true),
    ];
    for (headers, is_foreign) in rows {
        // In whatever order they come.
        for lines in [format!("host: a:1\r\n{headers}"), format!("{headers}host: a:1\r\n")] {
            let bytes = format!("GET / HTTP/1.1\r\n{lines}\r\n");
            let mut head = Head::default();
            assert!(matches!(head.read(bytes.as_bytes()), Ok(Some(_))), "{headers}");
            assert_eq!(head.is_foreign, is_foreign, "{headers}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_is_answered_without_the_body() {
    let text = rig().all(["HEAD /a HTTP/1.1\r\nhost: a\r\n\r\n"]).await;
    assert!(text.contains("content-length: 9\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    let text = rig().all(["HEAD /a HTTP/1.1\r\nhost: a\r\ncontent-length: 101\r\n\r\n"]).await;
    assert!(text.starts_with("HTTP/1.1 413 ") && text.ends_with("\r\n\r\n"), "{text}");
    let many = "a: b\r\n".repeat(101);
    for (wrong, status) in [("", 400), ("host: a\r\ncontent-length: x\r\n", 400), (&many, 431)] {
        let text = rig().all([&*format!("HEAD /a HTTP/1.1\r\n{wrong}\r\n")]).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")) && text.ends_with("\r\n\r\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_to_be_told_before_it_sends_a_body_is_told() {
    for (framing, body) in [("content-length: 1", "1"), ("transfer-encoding: chunked", "1\r\n1\r\n0\r\n\r\n")] {
        let mut rig = rig();
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-Continue\r\n{framing}\r\n\r\n");
        rig.client.write_all(head.as_bytes()).await.expect("sent");
        assert_eq!(rig.reply().await, "HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(replies(&rig.all([body]).await).0, [(200, "POST /  1")]);
    }
    // One who sends it at once is not, nor one whose body is too large.
    let text = rig().all(["POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n1"]).await;
    assert_eq!(replies(&text).0, [(200, "POST /  1")]);
    let text = rig().all(["POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 101\r\n\r\n"]).await;
    assert_eq!(replies(&text).0[0].0, 413);
}

#[tokio::test(start_paused = true)]
async fn who_takes_too_long_is_not_waited_for() {
    let rows = [
        ("", None),
        ("GET / HTTP/1.1\r\nhost: a\r\n", Some(408)),
        ("\r\n", Some(408)),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n", Some(408)),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n1", Some(408)),
    ];
    for (sent, status) in rows {
        // Later in the life of a connection too.
        for before in ["", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let mut rig = rig();
            let started = Instant::now();
            if !before.is_empty() {
                rig.client.write_all(before.as_bytes()).await.expect("sent");
                rig.reply().await;
                advance(PATIENCE / 2).await;
            }
            let began = Instant::now();
            rig.client.write_all(sent.as_bytes()).await.expect("sent");
            let mut text = String::new();
            rig.client.read_to_string(&mut text).await.expect("its end");
            let waited = if sent.is_empty() { started.elapsed() } else { began.elapsed() };
            assert!((PATIENCE..PATIENCE + PATIENCE / 10).contains(&waited), "{sent:?} after {before:?}: {waited:?}");
            assert_eq!(replies(&text).0.first().map(|reply| reply.0), status, "{sent:?}");
        }
    }
    // Nor who sends a little, again and again.
    for drop in ["a", "\r\n\r\n"] {
        let mut rig = rig();
        let started = Instant::now();
        while rig.client.write_all(drop.as_bytes()).await.is_ok() {
            sleep(PATIENCE / 4).await;
            assert!(started.elapsed() < 2 * PATIENCE, "{drop:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_take_its_answers_is_not_waited_for() {
    let (mut client, ours) = duplex(1000);
    let (_stop, stopped) = watch::channel(());
    let serving = tokio::spawn(serve(ours, PATIENCE, Echo::default(), stopped));
    let started = Instant::now();
    while client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.is_ok() {}
    serving.await.expect("it has ended");
    assert!((PATIENCE..PATIENCE + LINGER).contains(&started.elapsed()), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_has_closed_its_side_is_answered() {
    for before in ["", "GET /a HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let mut rig = rig();
        rig.client.write_all(format!("{before}GET /never HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.expect("sent");
        rig.client.shutdown().await.expect("closed");
        sleep(Duration::from_secs(100)).await;
        assert!(!rig.serving.is_finished() && !rig.echo.is_closed.load(SeqCst));
        rig.echo.never.notify_one();
        let mut text = String::new();
        rig.client.read_to_string(&mut text).await.expect("its end");
        assert_eq!(replies(&text).0.last(), Some(&(200, "GET /never  ")));
        // Where it matters, it is known.
        assert!(rig.echo.is_closed.load(SeqCst));
        rig.serving.await.expect("it has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_is_asked_to_its_end_though_the_client_goes() {
    for (before, after) in [("", ""), ("GET /a HTTP/1.1\r\nhost: a\r\n\r\n", "GET /a HTTP/1.1\r\nhost: a\r\n\r\n")] {
        let mut rig = rig();
        rig.client.write_all(format!("{before}GET /never HTTP/1.1\r\nhost: a\r\n\r\n{after}").as_bytes()).await.expect("sent");
        drop(rig.client);
        sleep(Duration::from_secs(100)).await;
        assert!(!rig.serving.is_finished() && !rig.echo.is_done.load(SeqCst));
        rig.echo.never.notify_one();
        rig.serving.await.expect("it has ended");
        assert!(rig.echo.is_done.load(SeqCst) && rig.echo.is_closed.load(SeqCst));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_ahead_is_answered_after_what_takes_time() {
    let mut rig = rig();
    rig.client.write_all(b"GET /never HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    sleep(Duration::from_millis(1)).await;
    rig.client.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HT").await.expect("sent");
    sleep(Duration::from_millis(1)).await;
    rig.echo.never.notify_one();
    let text = rig.all(["TP/1.1\r\nhost: a\r\n\r\n"]).await;
    assert_eq!(replies(&text).0, [(200, "GET /never  "), (200, "GET /a  "), (200, "GET /b  ")]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_what_is_under_way_end() {
    // Nothing is asked: it ends a while later.
    let idle = rig();
    let started = Instant::now();
    idle.stop.send_replace(());
    idle.serving.await.expect("it has ended");
    assert!(started.elapsed() >= LINGER && started.elapsed() < 2 * LINGER);

    // A request that is on its way is the last.
    let late = rig();
    late.stop.send_replace(());
    let text = late.all(["GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n"]).await;
    assert_eq!(replies(&text), (vec![(200, "GET /a  ")], true));

    // One that has begun is waited for.
    let mut begun = rig();
    begun.client.write_all(b"GET /a HTT").await.expect("sent");
    sleep(Duration::from_millis(1)).await;
    begun.stop.send_replace(());
    sleep(PATIENCE / 2).await;
    let text = begun.all(["P/1.1\r\nhost: a\r\n\r\n"]).await;
    assert_eq!(replies(&text), (vec![(200, "GET /a  ")], true));
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_while_it_sends_has_its_answer() {
    let mut rig = rig();
    rig.client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n").await.expect("sent");
    for _ in 0..100 {
        rig.client.write_all(&[b'x'; 1000]).await.expect("it is let go");
        sleep(Duration::from_millis(1)).await;
    }
    let text = rig.all([""]).await;
    assert_eq!(replies(&text).0[0].0, 413);
    // Not for ever.
    let mut rig = self::rig();
    rig.client.write_all(b"nonsense\r\n\r\n").await.expect("sent");
    while rig.client.write_all(&[b'x'; 100_000]).await.is_ok() {}
    rig.serving.await.expect("it has ended");
}

#[tokio::test(start_paused = true)]
async fn what_has_been_answered_is_not_kept() {
    // Each comes while the one before it is answered: something is always there to answer.
    let request = format!("GET /slow HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(28));
    assert_eq!(request.len(), 64);
    let (mut client, stream) = duplex(1 << 20);
    let (_stop, stopped) = watch::channel(());
    client.write_all(request.repeat(5000).as_bytes()).await.expect("sent");
    client.shutdown().await.expect("ended");
    let (patience, idle) = (PATIENCE, PATIENCE);
    let mut connection = Connection { stream, patience, idle, is_kept: false, alarm: Alarm(None), output: Vec::new() };
    let mut input = Vec::new();
    let _ = requests(&mut connection, &mut input, &Echo::default(), &stopped, pin!(pending())).await;
    assert!(input.capacity() <= 2 * KEPT_BYTES, "{}", input.capacity());

    let mut response = Response::default();
    response.body.resize(1 << 20, b'x');
    response.write("", Body::Sent, &mut Vec::new());
    assert!(response.body.is_empty() && response.body.capacity() <= KEPT_BYTES);
}

#[tokio::test(start_paused = true)]
async fn an_answer_does_not_wait_for_those_after_it() {
    let mut rig = rig();
    rig.client.write_all("GET /never HTTP/1.1\r\nhost: a\r\n\r\n".repeat(3).as_bytes()).await.expect("sent");
    for _ in 0..2 {
        rig.echo.never.notify_one();
        let reply = timeout(PATIENCE, rig.reply()).await.expect("in time");
        assert_eq!(replies(&reply).0, [(200, "GET /never  ")]);
    }
    // Nor for their client, who has closed its side.
    let mut rig = self::rig();
    rig.client.write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\nGET /never HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    rig.client.shutdown().await.expect("closed");
    let reply = timeout(PATIENCE, rig.reply()).await.expect("in time");
    assert_eq!(replies(&reply).0, [(200, "GET /a  ")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_around_a_body_is_bounded() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let trailers = |count: usize| format!("{head}0\r\n{}\r\n", format!("x: {}\r\n", "y".repeat(1000)).repeat(count));
    let extended = |count: usize| format!("{head}{}0\r\n\r\n", format!("1;{}\r\n1\r\n", "x".repeat(1000)).repeat(count));
    let lines = |count: usize| format!("{}{head}0\r\n\r\n", "\r\n".repeat(count));
    for (sent, status) in
        [(trailers(10), 200), (trailers(70), 400), (extended(10), 200), (extended(70), 400), (lines(10), 200), (lines(100), 400)]
    {
        let text = rig().all([&sent]).await;
        assert_eq!(replies(&text).0[0].0, status, "{} bytes", sent.len());
    }
}

/// What requests are made of.
const PARTS: [&str; 12] = [
    "GET /a?b HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n",
    "HEAD /a HTTP/1.1\nhost: a\n\n",
    "GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "POST /slow HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n\r\n\r\n1",
    "POST /b HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    "POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;x\r\nabc\r\n",
    "POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "0\r\nx: y\r\n\r\n",
    "content-length: 2\r\n",
    "\r\n",
    "a",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(9112), ..ProptestConfig::default() })]

    /// Whatever they are: those that are wrong, and those after them, too.
    #[test]
    fn bytes_have_the_same_answers_however_they_are_cut(
        parts in vec(prop_oneof![9 => select(&PARTS[..9]), 1 => select(&PARTS[9..])], 1..8),
        changes in vec((any::<Index>(), select(&b"\r\n\0\t :;,/0aF\xff"[..]), any::<bool>()), 0..3),
        cuts in vec(any::<Index>(), 0..9),
    ) {
        let mut bytes = parts.concat().into_bytes();
        for (at, byte, is_more) in changes {
            let at = at.index(bytes.len());
            bytes.splice(at..at + usize::from(!is_more), [byte]);
        }
        // So that a head that is wrong has an end.
        bytes.extend_from_slice(b"\r\n\r\n");
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let answers = |cuts: &[usize]| {
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            // All is answered before the client ends.
            let pieces = pieces.chain(std::iter::repeat_n(&b""[..], 20));
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
            let text = runtime.block_on(async { rig().all(pieces).await }).replace("HTTP/1.1 100 Continue\r\n\r\n", "");
            text.split("\r\n").filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>().join("\r\n")
        };
        prop_assert_eq!(answers(&[0, bytes.len()]), answers(&cuts), "{}", bytes.escape_ascii());
    }
}
