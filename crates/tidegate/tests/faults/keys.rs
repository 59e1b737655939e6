//! Keys of ours that hold what is not ours, and keys and scripts that vanish. One bad key in a batch fails alone.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

use tidegate::{Algorithm, Decision, Limiter, OnStoreError, Policy, Quota, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::rig::{Draw, is_by, limiter, patient, source, together, until};

const LIMIT: u64 = 5;
/// Users that hit at once, one of them with a bad key, and the hits of each.
const USERS: usize = 20;
const HITS: usize = 8;
const BAD: &str = "user-7";

/// Types, and how a key becomes one.
const TYPES: [(&str, &str, &[&str]); 5] = [
    ("string", "SET", &["foreign"]),
    ("list", "RPUSH", &["foreign"]),
    ("set", "SADD", &["foreign"]),
    ("hash", "HSET", &["field", "foreign"]),
    ("zset", "ZADD", &["1", "foreign"]),
];

/// One server for all algorithms; a prefix for each of them and for each thing that is tried.
struct Bench {
    server: Server,
    runtime: Runtime,
    tried: AtomicUsize,
}

impl Bench {
    fn new() -> Self {
        Self { server: Server::start(), runtime: Runtime::new().unwrap(), tried: AtomicUsize::new(0) }
    }

    /// Two limiters on the same keys: one decides locally where it must, one tells the error.
    fn limiters(&self, algorithm: Algorithm) -> (String, Limiter<Redis>, Limiter<Redis>) {
        let prefix = format!("try-{}", self.tried.fetch_add(1, Relaxed));
        let limiter = |says| {
            let policy = Policy::new("default", Quota::per_hour(LIMIT)).algorithm(algorithm).on_store_error(says);
            limiter(&self.runtime, patient(&self.server.url()).prefix(&prefix), [policy])
        };
        (prefix.clone(), limiter(OnStoreError::Local), limiter(OnStoreError::Error))
    }

    /// Where the state of a user is.
    fn key(&self, prefix: &str, user: &str) -> String {
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("{prefix}:*{{{user}}}*")).query(&mut self.server.connection()).unwrap();
        keys.retain(|key| !key.contains(":used:"));
        assert_eq!(keys.len(), 1, "{keys:?}");
        keys.into_iter().next().unwrap()
    }

    fn run(&self, command: &redis::Cmd) -> redis::Value {
        command.query(&mut self.server.connection()).unwrap()
    }

    fn fields(&self, key: &str) -> Vec<String> {
        redis::cmd("HKEYS").arg(key).query(&mut self.server.connection()).unwrap()
    }

    /// Changes every value at a key that has a type of ours.
    fn damage(&self, own: &str, key: &str, change: &mut dyn FnMut(&[u8]) -> Vec<u8>) {
        let mut connection = self.server.connection();
        match own {
            "string" => {
                let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut connection).unwrap();
                self.run(redis::cmd("SET").arg(key).arg(change(&value)));
            }
            "hash" => {
                for field in self.fields(key) {
                    let value: Vec<u8> = redis::cmd("HGET").arg(key).arg(&field).query(&mut connection).unwrap();
                    self.run(redis::cmd("HSET").arg(key).arg(field).arg(change(&value)));
                }
            }
            "zset" => {
                let members: Vec<(Vec<u8>, f64)> =
                    redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES").query(&mut connection).unwrap();
                self.run(redis::cmd("DEL").arg(key));
                for (member, score) in members {
                    self.run(redis::cmd("ZADD").arg(key).arg(score + 0.5).arg(change(&member)));
                }
            }
            other => panic!("no damage for a {other}"),
        }
    }

    /// All users hit at once.
    fn flood(&self, limiter: &Limiter<Redis>) -> Vec<(String, Result<Decision, StoreError>)> {
        let users = (0..USERS * HITS).map(|hit| format!("user-{}", hit % USERS));
        let pending: Vec<_> = users.map(|user| (self.runtime.spawn(limiter.check(&user)), user)).collect();
        pending.into_iter().map(|(pending, user)| (user, self.runtime.block_on(pending).unwrap())).collect()
    }

    /// The type that an algorithm keeps its state in.
    fn own_type(&self, algorithm: Algorithm) -> String {
        let (prefix, limiter, _) = self.limiters(algorithm);
        assert!(self.runtime.block_on(limiter.check(BAD)).unwrap().is_allowed());
        redis::cmd("TYPE").arg(self.key(&prefix, BAD)).query(&mut self.server.connection()).unwrap()
    }

    /// Spoils one user's key, and sees that only that user's hits fail; with this word, if it matters which.
    fn spoiled(&self, algorithm: Algorithm, what: &str, word: Option<&str>, spoil: impl Fn(&str)) {
        let (prefix, local, strict) = self.limiters(algorithm);
        for user in 0..USERS {
            assert!(is_by(&self.runtime.block_on(local.check(&format!("user-{user}"))).unwrap(), Source::Store));
        }
        spoil(&self.key(&prefix, BAD));
        let answers = self.flood(&local);
        for user in (0..USERS).map(|user| format!("user-{user}")) {
            let own = || answers.iter().filter(|(other, _)| *other == user).map(|(_, answer)| answer.as_ref().unwrap());
            let by = if user == BAD { Source::Fallback } else { Source::Store };
            assert!(own().all(|decision| is_by(decision, by)), "{algorithm}, {what}: {user} is not decided by {by:?}");
            // The fallback knows nothing of the hit before.
            let left = if user == BAD { LIMIT } else { LIMIT - 1 };
            let admitted = own().filter(|decision| decision.is_allowed()).count() as u64;
            assert_eq!(admitted, left, "{algorithm}, {what}: {user}");
        }
        for (user, answer) in self.flood(&strict) {
            match (answer, user == BAD) {
                (Err(StoreError::Refused(given)), true) if word.is_none_or(|word| word == given) => {}
                (Ok(decision), false) if source(&decision) == Source::Store => {}
                (answer, _) => panic!("{algorithm}, {what}: {user} got {answer:?}"),
            }
        }
        let status = local.store().status();
        assert_eq!((status.connects, strict.store().status().connects), (1, 1), "{algorithm}, {what}: the connection is good");
        assert!(status.calls < status.hits / 2, "they did not go together: {status:?}");
    }
}

#[test]
fn a_foreign_type_at_one_key_fails_alone() {
    let _turn = together();
    let bench = Bench::new();
    let mut tried = 0;
    for algorithm in Algorithm::RATES {
        let own = bench.own_type(*algorithm);
        for (foreign, command, words) in TYPES.iter().filter(|(foreign, ..)| *foreign != own) {
            tried += 1;
            bench.spoiled(*algorithm, foreign, Some("WRONGTYPE"), |key| {
                bench.run(redis::cmd("DEL").arg(key));
                bench.run(redis::cmd(command).arg(key).arg(*words));
            });
        }
    }
    println!("foreign types: {tried} failed alone");
}

/// The right type, and nothing in it that a script of ours would write.
#[test]
fn garbage_at_one_key_fails_alone() {
    let _turn = together();
    let bench = Bench::new();
    for algorithm in Algorithm::RATES {
        bench.spoiled(*algorithm, "garbage", Some("ERR"), |key| match bench.own_type(*algorithm).as_str() {
            "string" => drop(bench.run(redis::cmd("SET").arg(key).arg("garbage"))),
            "hash" => {
                for field in bench.fields(key) {
                    bench.run(redis::cmd("HSET").arg(key).arg(field).arg("garbage"));
                }
            }
            "zset" => {
                bench.run(redis::cmd("DEL").arg(key));
                bench.run(redis::cmd("ZADD").arg(key).arg(1).arg("garbage"));
            }
            other => panic!("no garbage for a {other}"),
        });
        println!("garbage: {algorithm} failed alone");
    }
}

/// What a key holds, damaged in many ways: whatever its own hits get, those of others are the store's.
#[test]
fn damage_at_one_key_stays_there() {
    let _turn = together();
    let bench = Bench::new();
    let (seed, mut tried) = (3, 0);
    println!("damage: seed {seed}");
    let mut draw = Draw(seed);
    let mut spread = Vec::new();
    for algorithm in Algorithm::RATES {
        let own = bench.own_type(*algorithm);
        let (prefix, limiter, _) = bench.limiters(*algorithm);
        for kind in 0..DAMAGES {
            let bad = format!("{BAD}-{kind}");
            let good = |number: usize| format!("good-{kind}-{number}");
            let mut decision = bench.runtime.block_on(limiter.check_n(&bad, 2)).unwrap();
            if kind % 2 == 1 {
                // Also what has been corrected.
                decision = bench.runtime.block_on(limiter.settle(decision.take_receipt().unwrap(), 1)).unwrap();
            }
            assert!(decision.is_allowed());
            let key = bench.key(&prefix, &bad);
            bench.damage(&own, &key, &mut |value| damaged(value, kind, &mut draw));
            let users = (0..64).map(|hit| if hit % 4 == 0 { bad.clone() } else { good(hit % 4) });
            let pending: Vec<_> = users.map(|user| (bench.runtime.spawn(limiter.check(&user)), user)).collect();
            let before = limiter.store().status().connects;
            let (mut admitted, mut elsewhere) = (0, 0);
            for (pending, user) in pending {
                let decision = bench.runtime.block_on(pending).unwrap().unwrap();
                if user != bad {
                    admitted += u64::from(decision.is_allowed());
                    elsewhere += usize::from(source(&decision) != Source::Store);
                }
            }
            tried += 1;
            until("there is a connection", || limiter.store().status().is_up);
            let lost = limiter.store().status().connects - before;
            if (admitted, elsewhere, lost) != (3 * LIMIT, 0, 0) {
                let what =
                    format!("{algorithm}, kind {kind}: {elsewhere} hits of others by the fallback, {lost} connections lost");
                println!("damage: {what}");
                spread.push(what);
            }
        }
    }
    println!("damage: {tried} kinds tried");
    assert_eq!(spread, Vec::<String>::new());
}

const DAMAGES: u64 = 60;

/// A value in which something is wrong; the first few kinds are thorough, the others are some bytes changed at random.
fn damaged(value: &[u8], kind: u64, draw: &mut Draw) -> Vec<u8> {
    let digits = |with: u8| value.iter().map(|byte| if byte.is_ascii_digit() { with } else { *byte }).collect();
    match kind {
        0 => value[..value.len() / 2].to_vec(),
        1 => vec![0; value.len()],
        2 => vec![0xff; value.len()],
        3 => digits(b'0'),
        4 => digits(b'9'),
        5 => [value, value].concat(),
        _ => {
            let mut value = value.to_vec();
            for _ in 0..=draw.below(3) {
                let index = draw.below(value.len() as u64) as usize;
                value[index] = draw.below(256) as u8;
            }
            value
        }
    }
}

/// Runs a command again and again while something else is done; how often.
fn meanwhile(server: &Server, words: &[&str], work: impl FnOnce()) -> usize {
    let (stop, ran) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connection();
            while !stop.load(Relaxed) {
                redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
                ran.fetch_add(1, Relaxed);
            }
        });
        work();
        stop.store(true, Relaxed);
    });
    ran.into_inner()
}

#[test]
fn functions_flushed_in_a_loop() {
    admitted_during(&Server::start(), ["FUNCTION", "FLUSH"]);
}

#[test]
fn scripts_flushed_in_a_loop() {
    let server = Server::start_with(&["--rename-command", "FCALL", ""]);
    admitted_during(&server, ["SCRIPT", "FLUSH"]);
    let info: String = redis::cmd("INFO").arg("errorstats").query(&mut server.connection()).unwrap();
    let missed = info.lines().find(|line| line.starts_with("errorstat_NOSCRIPT")).unwrap();
    println!("{missed}");
}

/// Each is charged once and by the store, while the server forgets again and again what it was told of the script.
fn admitted_during(server: &Server, flush: [&str; 2]) {
    const LIMIT: u64 = 100;
    let _turn = together();
    let runtime = Runtime::new().unwrap();
    for algorithm in Algorithm::RATES {
        let policy = Policy::new("default", Quota::per_day(LIMIT)).algorithm(*algorithm);
        let limiter = limiter(&runtime, patient(&server.url()).prefix(algorithm.name()), [policy]);
        let mut admitted = 0;
        let flushes = meanwhile(server, &flush, || {
            let caller = || {
                let limiter = limiter.clone();
                runtime.spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..25 {
                        let decision = limiter.check("key").await.unwrap();
                        assert_eq!(source(&decision), Source::Store);
                        admitted += u64::from(decision.is_allowed());
                    }
                    admitted
                })
            };
            let callers: Vec<_> = (0..8).map(|_| caller()).collect();
            admitted = callers.into_iter().map(|caller| runtime.block_on(caller).unwrap()).sum();
        });
        println!("{algorithm}: {admitted} of 200 admitted during {flushes} times {}", flush.join(" "));
        assert_eq!(admitted, LIMIT, "{algorithm}");
    }
}

#[test]
fn data_flushed_in_a_loop() {
    let _turn = together();
    let (server, runtime) = (Server::start(), Runtime::new().unwrap());
    let policy = |algorithm: &Algorithm| Policy::new(algorithm.name(), Quota::per_hour(20)).algorithm(*algorithm);
    let limiter = limiter(&runtime, patient(&server.url()), Algorithm::RATES.iter().map(policy));
    let mut admitted = 0;
    let flushes = meanwhile(&server, &["FLUSHALL"], || {
        let caller = |number: usize| {
            let limiter = limiter.clone();
            runtime.spawn(async move {
                let mut admitted = 0;
                for _ in 0..100 {
                    let decision = limiter.check(if number.is_multiple_of(2) { "even" } else { "odd" }).await.unwrap();
                    assert!(is_by(&decision, Source::Store));
                    assert!(decision.outcomes().all(|outcome| outcome.used() <= 20));
                    admitted += u64::from(decision.is_allowed());
                }
                admitted
            })
        };
        let callers: Vec<_> = (0..8).map(caller).collect();
        admitted = callers.into_iter().map(|caller| runtime.block_on(caller).unwrap()).sum();
    });
    println!("{admitted} of 800 admitted during {flushes} flushes of data");
    assert!(flushes > 0 && admitted >= 40);
    assert_eq!(limiter.store().status().connects, 1);
}
