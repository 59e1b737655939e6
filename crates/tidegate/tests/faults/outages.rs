//! The server is away or cannot serve: killed, frozen, not there yet, busy, loading, read-only, unable to write. Every decision
//! is in time and by the stated fallback, and the store decides again within a second of its return.

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use tidegate::{OnStoreError, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::rig::{
    Load, NOISE, RETURN, Seen, alone, back, limiter, measured, outage, redis, source, unconnected, until, wide, within,
};

/// What a decision costs once it is known that the server is away.
const CHEAP: Duration = Duration::from_millis(1);

fn command(server: &Server, words: &[&str]) -> redis::RedisResult<redis::Value> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query(&mut server.connection())
}

/// The word by which the server refuses a command, if it does.
fn refusal(server: &Server, words: &[&str]) -> Option<String> {
    command(server, words).err().and_then(|error| error.code().map(str::to_owned))
}

fn accepts(server: &Server, words: &[&str]) {
    command(server, words).unwrap();
}

#[test]
fn killed_under_load_and_back_with_nothing() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let seen = outage("killed", &limiter, &runtime, &mut server, Server::kill, Duration::from_secs(1), Server::restart);
    assert!(seen.median < CHEAP);
    assert_eq!(seen.connects, 1);
}

#[test]
fn frozen_for_five_seconds() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let port = server.port();
    let freeze = |server: &mut Server| {
        server.freeze();
        // What the server has answered before it stood is still on its way.
        thread::sleep(Duration::from_millis(20));
    };
    let thaw = |server: &mut Server| {
        let open = open_sockets(port);
        println!("frozen: {open} sockets open to it at the end");
        assert!(open <= 2, "connections that were given up are closed");
        server.thaw();
    };
    let seen = outage("frozen", &limiter, &runtime, &mut server, freeze, Duration::from_secs(5), thaw);
    assert!(seen.median < CHEAP);
}

/// By the deadline that a store has unless told otherwise: a busy machine may make a fallback of a decision, never a late one.
#[test]
fn frozen_by_the_default_deadline() {
    const DEFAULT: Duration = Duration::from_millis(15);
    let _turn = alone();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, Redis::new(&server.url()).unwrap(), [wide()]);
    measured("default deadline", || {
        let load = Load::start(&runtime, &limiter);
        thread::sleep(Duration::from_millis(300));
        server.freeze();
        thread::sleep(Duration::from_secs(1));
        server.thaw();
        let back = back(&runtime, &limiter, Instant::now());
        let mut took: Vec<Duration> = load.stop(&runtime).iter().map(Seen::took).collect();
        took.sort_unstable();
        let (count, worst) = (took.len(), took[took.len() - 1]);
        println!(
            "default deadline: {count} decisions, median {:?}, worst {worst:?}; the store's {back:?} later",
            took[count / 2]
        );
        within(DEFAULT + NOISE, "the latest decision", worst)?;
        within(RETURN, "the store's", back)
    });
}

/// Established connections to a port, as clients have them.
fn open_sockets(port: u16) -> usize {
    let remote = format!(":{port:04X}");
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|to| to.ends_with(&remote)) && fields.next() == Some("01")
    };
    sockets.lines().filter(open).count()
}

#[test]
fn absent_at_the_start() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    measured("absent at the start", || {
        server.kill();
        let limiter = unconnected(&runtime, redis(&server.url()), [wide()]);
        let load = Load::start(&runtime, &limiter);
        for _ in 0..100 {
            let decision = runtime.block_on(limiter.check("early")).unwrap();
            assert!(decision.is_allowed());
            assert_eq!(source(&decision), Source::Fallback);
            thread::sleep(Duration::from_millis(5));
        }
        server.restart();
        let back = back(&runtime, &limiter, Instant::now());
        println!("absent at the start: the store's {back:?} after it came");
        load.stop(&runtime);
        within(RETURN, "the store's", back)
    });
}

#[test]
fn busy_with_a_script_of_others() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start_with(&["--busy-reply-threshold", "50"]), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let mut other = None;
    let hog = |server: &mut Server| {
        let mut connection = server.connection();
        other = Some(thread::spawn(move || redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection)));
        until("it is busy", || refusal(server, &["PING"]).as_deref() == Some("BUSY"));
    };
    let kill = |server: &mut Server| accepts(server, &["SCRIPT", "KILL"]);
    let seen = outage("busy", &limiter, &runtime, &mut server, hog, Duration::from_secs(1), kill);
    assert!(seen.median < CHEAP);
    assert!(other.unwrap().join().unwrap().is_err());
}

#[test]
fn read_only_as_after_a_failover() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let demote = |server: &mut Server| accepts(server, &["REPLICAOF", "127.0.0.1", "1"]);
    let promote = |server: &mut Server| accepts(server, &["REPLICAOF", "NO", "ONE"]);
    outage("read-only", &limiter, &runtime, &mut server, demote, Duration::from_secs(1), promote);
}

#[test]
fn a_replica_that_serves_nothing_stale() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start_with(&["--replica-serve-stale-data", "no"]), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let demote = |server: &mut Server| accepts(server, &["REPLICAOF", "127.0.0.1", "1"]);
    let promote = |server: &mut Server| accepts(server, &["REPLICAOF", "NO", "ONE"]);
    outage("master down", &limiter, &runtime, &mut server, demote, Duration::from_secs(1), promote);
}

/// Writes wait and pings do not, as while a server hands over to its replica.
#[test]
fn writes_paused_as_during_a_failover() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let pause = |server: &mut Server| {
        accepts(server, &["CLIENT", "PAUSE", "60000", "WRITE"]);
        thread::sleep(Duration::from_millis(20));
    };
    let resume = |server: &mut Server| accepts(server, &["CLIENT", "UNPAUSE"]);
    let seen = outage("paused", &limiter, &runtime, &mut server, pause, Duration::from_secs(1), resume);
    println!("paused: {} connections made", seen.connects);
    assert!(seen.median < CHEAP);
}

#[test]
fn loading_its_data() {
    let _turn = alone();
    // It loads one of these keys per millisecond, and looks for commands after each.
    let arguments =
        ["--enable-debug-command", "yes", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let (mut server, runtime) = (Server::start_with(&arguments), Runtime::new().unwrap());
    let filler = "for i = 1, 2000 do redis.call('SET', 'filler' .. i, string.rep(i, 500)) end";
    accepts(&server, &["EVAL", filler, "0"]);
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let mut reload = None;
    let load = |server: &mut Server| {
        let mut connection = server.connection();
        reload = Some(thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut connection)));
        until("it loads", || refusal(server, &["PING"]).as_deref() == Some("LOADING"));
    };
    let loaded = |server: &mut Server| until("it has loaded", || refusal(server, &["PING"]).is_none());
    let seen = outage("loading", &limiter, &runtime, &mut server, load, Duration::from_millis(700), loaded);
    assert!(seen.median < CHEAP);
    reload.unwrap().join().unwrap().unwrap();
}

#[test]
fn unable_to_save() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let (_, directory): (String, String) = redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut server.connection()).unwrap();
    // Where the file should go there is a directory.
    let obstacle = PathBuf::from(directory).join("dump.rdb");
    let save = |server: &Server, status: &str| {
        accepts(server, &["BGSAVE"]);
        let saved = || {
            let info: String = redis::cmd("INFO").arg("persistence").query(&mut server.connection()).unwrap();
            info.contains("rdb_bgsave_in_progress:0") && info.contains(&format!("rdb_last_bgsave_status:{status}"))
        };
        until("it has tried to save", saved);
    };
    let fault = |server: &mut Server| {
        fs::create_dir(&obstacle).unwrap();
        accepts(server, &["CONFIG", "SET", "save", "3600 1000000"]);
        save(server, "err");
        assert_eq!(refusal(server, &["SET", "any", "thing"]).as_deref(), Some("MISCONF"));
    };
    let cure = |server: &mut Server| {
        fs::remove_dir(&obstacle).unwrap();
        save(server, "ok");
    };
    outage("unable to save", &limiter, &runtime, &mut server, fault, Duration::from_millis(500), cure);
}

#[test]
fn too_few_replicas() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let fault = |server: &mut Server| accepts(server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let cure = |server: &mut Server| accepts(server, &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    outage("too few replicas", &limiter, &runtime, &mut server, fault, Duration::from_millis(300), cure);
}

#[test]
fn not_permitted() {
    let _turn = alone();
    let (mut server, runtime) = (Server::start(), Runtime::new().unwrap());
    let limiter = limiter(&runtime, redis(&server.url()), [wide()]);
    let fault = |server: &mut Server| accepts(server, &["ACL", "SETUSER", "default", "-fcall", "-evalsha"]);
    let cure = |server: &mut Server| accepts(server, &["ACL", "SETUSER", "default", "+fcall", "+evalsha"]);
    outage("not permitted", &limiter, &runtime, &mut server, fault, Duration::from_millis(300), cure);
}

/// Who wants the error gets the word that the server gave.
#[test]
fn errors_say_what_the_server_said() {
    let _turn = alone();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let store = redis(&server.url()).deadline(Duration::from_secs(1));
    let limiter = limiter(&runtime, store, [wide().on_store_error(OnStoreError::Error)]);
    let cases: [(&str, &[&str], &[&str]); 3] = [
        ("NOREPLICAS", &["CONFIG", "SET", "min-replicas-to-write", "1"], &["CONFIG", "SET", "min-replicas-to-write", "0"]),
        ("NOPERM", &["ACL", "SETUSER", "default", "-fcall", "-evalsha"], &["ACL", "SETUSER", "default", "+fcall", "+evalsha"]),
        ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
    ];
    for (word, fault, cure) in cases {
        measured(word, || {
            accepts(&server, fault);
            assert_eq!(runtime.block_on(limiter.check("key")).err(), Some(StoreError::Refused(word.to_owned())));
            accepts(&server, cure);
            let back = back(&runtime, &limiter, Instant::now());
            println!("{word}: the store's again after {back:?}");
            within(RETURN, "the store's again", back)
        });
    }
}
