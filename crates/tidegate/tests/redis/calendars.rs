//! Windows of calendars on a real server: as the model says, by the server's time and not by the caller's.

use std::{
    cell::RefCell,
    time::{Duration, SystemTime},
};

use jiff::tz::TimeZone;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Calendar, Hit, Limiter, ManualClock, Policy, Receipt, Redis, Source};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::{
    calendar_model::{
        Answer, Case, DAY, Model, POLICY, SECOND, Setting, Step, Unit, ZONES, answer, calendar, case, day, window_of,
    },
    limiters::{avoid_midnight, by_store, connected, keys, patient},
};

async fn take(limiter: &Limiter<Redis>, receipts: &mut Vec<String>, step: Step) -> Answer {
    let hit = |cost| Hit::from("a").cost(cost);
    let pending = match step {
        Step::Check(cost) => limiter.check(hit(cost)),
        Step::Peek(cost) => limiter.peek(hit(cost)),
        Step::Charge(cost) => limiter.charge(hit(cost)),
        Step::Settle(which, actual) if !receipts.is_empty() => {
            let receipt: Receipt = receipts[which % receipts.len()].parse().unwrap();
            match actual {
                Some(actual) => limiter.settle(receipt, actual),
                None => limiter.refund(receipt),
            }
        }
        Step::Reset => limiter.reset("a"),
        Step::Settle(..) | Step::Wait(_) | Step::Edge(_) | Step::Configure(..) => limiter.peek(hit(0)),
    };
    let mut decision = by_store(pending.await);
    receipts.extend(decision.take_receipt().map(|receipt| receipt.to_string()));
    answer(&decision)
}

fn trace_agrees(server: &Server, runtime: &Runtime, (start, setting, steps): Case) -> Result<(), TestCaseError> {
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    runtime.block_on(async {
        let clock = ManualClock::new(start as u64);
        let builder = Limiter::builder().policy(setting.policy()).clock(clock.clone());
        let limiter = connected(builder.store(patient(&server.url()))).await;
        let mut model = Model::new(start, setting);
        let mut receipts = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let expected = model.take(*step);
            clock.set(model.now as u64);
            if let Step::Configure(setting, _) = step {
                limiter.configure([setting.policy()]).unwrap();
            }
            if let Some(expected) = expected {
                let told = take(&limiter, &mut receipts, *step).await;
                prop_assert_eq!(told, expected, "step {} is {:?}, at {}", index, step, model.now);
            }
        }
        Ok(())
    })
}

fn traces_agree(server: &Server) {
    let runtime = RefCell::new(Runtime::new().unwrap());
    // PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
    let config = Config { failure_persistence: None, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&case(), |case| trace_agrees(server, &runtime.borrow(), case)) {
        panic!("{failure}");
    }
}

/// What the first look after a change finds expired is there again in a clock that steps back, as it is in memory.
#[test]
fn what_a_change_found_expired_is_not_lost() {
    let setting = |zone| Setting { limit: 1, unit: Unit::Day, zone };
    let steps = vec![Step::Check(1), Step::Configure(setting("Europe/Berlin"), false), Step::Edge(0), Step::Wait(-2)];
    trace_agrees(&Server::start(), &Runtime::new().unwrap(), (day(2026, 5, 5) * DAY, setting("UTC"), steps)).unwrap();
}

#[test]
fn random_traces_agree_with_the_model_on_redis() {
    traces_agree(&Server::start());
}

#[test]
fn random_traces_agree_with_the_model_on_valkey() {
    match Server::try_valkey() {
        Some(server) => traces_agree(&server),
        None => println!("no valkey-server is installed: scripts/setup says how"),
    }
}

/// The script, asked by hand: by a caller who is in another time than the server.
struct Asked {
    connection: redis::Connection,
    script: redis::Script,
}

impl Asked {
    fn new(server: &Server) -> Self {
        let script = redis::Script::new(Redis::script());
        Self { connection: server.connection(), script }
    }

    /// What a hit of `cost` on `key` is answered at `now`, under these boundaries.
    fn check(&mut self, key: &str, cost: u64, now: i64, boundaries: [i64; 4]) -> Vec<u8> {
        let number = |number: i64| number.to_be_bytes()[1..].to_vec();
        let hit = [&[0, 1, 0, 0, 1, 0, 1, 1][..], &number(cost as i64)].concat();
        let mut plan = b"fixed-window\0".to_vec();
        let numbers = [&[5, (1 << 52) + 7][..], &boundaries, &[0]].concat();
        numbers.into_iter().for_each(|of| plan.extend(number(of)));
        let mut call = self.script.key(key);
        call.arg(now).arg(0).arg(hit).arg(plan).invoke(&mut self.connection).unwrap()
    }

    fn time_to_live(&mut self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query(&mut self.connection).unwrap()
    }
}

/// As a caller sees them whose clock shows `at`.
fn boundaries(unit: Unit, zone: &TimeZone, at: i64) -> [i64; 4] {
    let (start, end) = window_of(unit, zone, at);
    [window_of(unit, zone, start - 1).0, start, end, window_of(unit, zone, end).1]
}

#[test]
fn the_servers_time_picks_the_window() {
    let server = Server::start();
    let mut asked = Asked::new(&server);
    for name in ZONES {
        let zone = TimeZone::get(name).unwrap();
        for unit in [Unit::Day, Unit::Week, Unit::Month] {
            for of in [day(2011, 12, 29), day(2018, 11, 3), day(2026, 3, 28), day(2026, 10, 24)] {
                let (_, boundary) = window_of(unit, &zone, of * DAY);
                let (honest, skewed) = (format!("honest-{name}-{unit:?}-{of}"), format!("skewed-{name}-{unit:?}-{of}"));
                // Over the boundary, back before it, and over it again, with a clock that is fast or slow.
                let times = [-3, -1, 0, 1, -2, 2, -1, 4].map(|seconds| boundary + seconds * SECOND);
                for (now, by) in times.into_iter().zip([5, -5, 2, -2, 10, -10, 1, -7].into_iter().cycle()) {
                    let right = asked.check(&honest, 2, now, boundaries(unit, &zone, now));
                    let seen = boundaries(unit, &zone, now + by * SECOND);
                    assert_eq!(asked.check(&skewed, 2, now, seen), right, "{name}, {unit:?}, {now} seen {by} s ahead");
                    let (lives, rightly) = (asked.time_to_live(&skewed), asked.time_to_live(&honest));
                    assert!((lives - rightly).abs() < 900, "{name}, {unit:?}, {now}: {lives} and not {rightly} ms");
                    if now == times[0] {
                        // Three seconds, and one to spare.
                        assert!((2_000..=4_001).contains(&lives), "{name}, {unit:?}, {now}: {lives} ms");
                    }
                }
            }
        }
    }
}

/// A caller who is so wrong that it knows nothing of the server's window fails, and nothing is written; it is told the time.
#[test]
fn a_caller_in_another_year_charges_nothing() {
    let server = Server::start();
    let mut asked = Asked::new(&server);
    let now = day(2026, 5, 5) * DAY;
    for callers in [day(2025, 5, 5) * DAY, day(2027, 5, 5) * DAY] {
        let told = asked.check("a", 1, now, boundaries(Unit::Day, &TimeZone::UTC, callers));
        assert_eq!(told[..7], now.to_be_bytes()[1..]);
        assert_eq!(told[7..14], (-(1i64 << 54)).to_be_bytes()[1..], "it failed");
        assert!(keys(&mut asked.connection).is_empty());
    }
}

#[tokio::test]
async fn a_day_ends_when_the_server_says() {
    avoid_midnight();
    let server = Server::start();
    let policy = || Policy::calendar(POLICY, 5, Calendar::day("UTC").unwrap());
    let limiter = async |policy| connected(Limiter::builder().policy(policy).store(patient(&server.url()))).await;
    let (here, there) = (limiter(policy()).await, limiter(policy()).await);
    let told = answer(&by_store(here.check_n("a", 2).await));
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as i64;
    assert!((told.reset - (DAY - since % DAY)).abs() < 30 * SECOND, "{told:?}");
    assert_eq!(by_store(there.check("a").await).remaining(), Some(2));
    let key = &keys(&mut server.connection())[0];
    let lives: i64 = redis::cmd("PTTL").arg(key).query(&mut server.connection()).unwrap();
    assert!((lives - told.reset / 1_000).abs() < 30_000, "{lives} ms");
    assert_eq!(here.inspect(POLICY, "a").unwrap().await.unwrap().fields[1], ("used".to_owned(), 3));
    // Somebody else's calendar, of which nothing is known here: what is stored counts.
    let other = limiter(Policy::calendar(POLICY, 5, Calendar::month("Asia/Kathmandu").unwrap())).await;
    assert_eq!(by_store(other.check("a").await).remaining(), Some(1));
    assert_eq!(by_store(here.check("a").await).remaining(), Some(0));
    // Over, and not gone yet.
    redis::cmd("PEXPIRE").arg(key).arg(900).exec(&mut server.connection()).unwrap();
    assert_eq!(by_store(other.check("a").await).remaining(), Some(4));
}

/// Without a store, each instance has its share of the month.
#[tokio::test]
async fn a_share_follows_the_calendar() {
    let store = Redis::new("redis://127.0.0.1:1/").unwrap().instances(4);
    let clock = ManualClock::new((day(2028, 2, 29) * DAY) as u64);
    let policy = Policy::calendar(POLICY, 10, calendar(Unit::Month, "UTC"));
    let limiter = Limiter::builder().policy(policy).clock(clock.clone()).store(store).build().unwrap();
    let told = limiter.check_n("a", 3).await.unwrap();
    assert_eq!(told.outcomes().next().unwrap().source(), Source::Fallback);
    assert_eq!((answer(&told).limit, answer(&told).reset), (3, DAY));
    assert!(!limiter.check("a").await.unwrap().is_allowed());
    clock.advance(Duration::from_hours(24));
    assert!(limiter.check("a").await.unwrap().is_allowed());
}
