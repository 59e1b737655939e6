//! Servers under load that lose a companion, and servers that many mean ill.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    sync::{
        Mutex,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tempfile::tempdir;
use tidegate_testkit::Server as Redis;

use super::running::Running;

/// A connection that is kept.
struct Client(TcpStream);

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        Self(stream)
    }

    /// The status, and the whole reply.
    fn check(&mut self) -> io::Result<(u16, String)> {
        self.0.write_all(b"GET /v1/check?user=42 HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let mut reply = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.0.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => reply.extend_from_slice(&piece[..read]),
            }
            let text = String::from_utf8_lossy(&reply);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.map_or(0, |length| length.parse().expect("a number")) {
                return Ok((head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), text.into_owned()));
            }
        }
    }
}

#[test]
fn of_two_servers_on_one_redis_one_is_killed_and_nothing_is_over_or_lost() {
    const LIMIT: usize = 2_000;
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let (folder, redis) = (tempdir().expect("a folder"), Redis::start());
        // Whoever has to wait for this machine waits: it is Redis that is to decide.
        let file = format!(
            "[store]\nurl = \"{}\"\ndeadline = \"30s\"\non_error = \"error\"\ndeny_cache = \"0s\"\n[decision_log]\nrecord = \"off\"\n\
             [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"{LIMIT}/hour\"\n",
            redis.url()
        );
        fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
        let [goes, stays] = [(); 2].map(|()| Running::start(folder.path(), &["--config", "tidegate.toml"]));
        let (allowed, unanswered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            let ask = |address, is_told: fn(&io::Error) -> bool| {
                let (allowed, unanswered) = (&allowed, &unanswered);
                move || {
                    let mut client = Client::connect(address);
                    loop {
                        match client.check() {
                            Ok((status, reply)) => {
                                assert!(reply.contains("\"source\":\"store\""), "{reply}");
                                match status {
                                    200 => drop(allowed.fetch_add(1, SeqCst)),
                                    429 => return,
                                    _ => panic!("{reply}"),
                                }
                            }
                            Err(error) => {
                                assert!(is_told(&error), "{error}");
                                unanswered.fetch_add(1, SeqCst);
                                return;
                            }
                        }
                    }
                }
            };
            for _ in 0..4 {
                scope.spawn(ask(&goes.address, |_| true));
                scope.spawn(ask(&stays.address, |_| false));
            }
            while allowed.load(SeqCst) < LIMIT / 4 {
                thread::yield_now();
            }
            goes.signal(signal);
        });
        let (allowed, unanswered) = (allowed.into_inner(), unanswered.into_inner());
        assert!(unanswered > 0, "it went while it was asked");
        match signal {
            // Nobody can tell whether the last question of each was decided.
            Signal::SIGKILL => assert!((LIMIT - unanswered..=LIMIT).contains(&allowed), "{allowed} and {unanswered} unanswered"),
            // What is not answered was not heard.
            _ => assert_eq!(allowed, LIMIT),
        }
        let left = stays.get("/v1/peek?user=42");
        assert!(left.contains("\"remaining\":0,"), "{left}");
    }
}

#[test]
fn who_means_well_is_served_while_others_take_all_they_can() {
    others_take_all_they_can("memory");
}

#[test]
fn who_means_well_is_served_on_redis_while_others_take_all_they_can() {
    others_take_all_they_can(&Redis::start().url());
}

/// One at a time: each takes all of the machine.
static FLOOD: Mutex<()> = Mutex::new(());

fn others_take_all_they_can(store: &str) {
    const CONNECTIONS: usize = 400;
    /// What each connection may have: a head, a body, and what is around them.
    const EACH: usize = (64 + 64 + 32) * 1024;
    let _alone = FLOOD.lock();
    let folder = tempdir().expect("a folder");
    let file = format!(
        "[limits]\nmax_connections = {CONNECTIONS}\nheader_timeout = \"20s\"\n[store]\nurl = \"{store}\"\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"1000000/hour\"\n"
    );
    fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
    let running = Running::start(folder.path(), &["--config", "tidegate.toml"]);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{}/status", running.process.id())).expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("told");
        resident.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    };
    let mut good = Client::connect(&running.address);
    assert_eq!(good.check().expect("a reply").0, 200);
    let before = memory();
    let (done, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let took = thread::scope(|scope| {
        let (address, done, refused) = (running.address.as_str(), &done, &refused);
        // Heads that are as long as can be and do not end, in more connections than there may be.
        scope.spawn(move || {
            let mut slow: Vec<TcpStream> = Vec::new();
            let head = format!("GET /v1/check HTTP/1.1\r\nhost: a\r\nx-long: {}", "a".repeat(60_000));
            while !done.load(Relaxed) {
                let mut stream = TcpStream::connect(address).expect("connected");
                stream.set_nonblocking(true).expect("set");
                // As much of it as goes.
                let _ = stream.write(head.as_bytes());
                slow.push(stream);
                if slow.len() > CONNECTIONS + 100 {
                    slow.remove(0);
                    refused.fetch_add(1, Relaxed);
                }
                slow.iter_mut().for_each(|stream| drop(stream.write(b"a")));
            }
        });
        // Bodies without end, and heads.
        for start in [
            "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100000000000\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
            "GET /v1/check HTTP/1.1\r\nhost: a\r\nx-long: ",
        ] {
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    let mut stream = TcpStream::connect(address).expect("connected");
                    let mut sent = stream.write_all(start.as_bytes());
                    while sent.is_ok() && !done.load(Relaxed) {
                        sent = stream.write_all(&[b'a'; 16_384]);
                    }
                }
            });
        }
        let mut took = Vec::new();
        while took.len() < 1_000 || refused.load(Relaxed) < 100 {
            let asked = Instant::now();
            let reply = good.check();
            took.push(asked.elapsed());
            if !reply.as_ref().is_ok_and(|(status, _)| *status == 200) {
                done.store(true, Relaxed);
                panic!("{reply:?}");
            }
        }
        done.store(true, Relaxed);
        took
    });
    let mut sorted = took.clone();
    sorted.sort_unstable();
    let [median, last] = [sorted[sorted.len() / 2], sorted[sorted.len() * 99 / 100]];
    let grown = memory() - before;
    println!("median {median:?}, 99 of 100 within {last:?}; {} MB more memory", grown >> 20);
    assert!(median < Duration::from_millis(50) && last < Duration::from_secs(1), "median {median:?}, 99 of 100 {last:?}");
    assert!(grown < CONNECTIONS * EACH, "{grown} bytes");
}
