//! Windows of calendars: days, weeks and months where clocks jump, days are skipped and months differ.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tidegate::{Algorithm, Calendar, Hit, Limiter, ManualClock, Override, Policy, Quota, Receipt, Snapshot};

use crate::calendar_model::{Answer, Case, Model, POLICY, Step, Unit, answer, calendar, case, window_of};

struct Library {
    limiter: Limiter,
    clock: ManualClock,
    /// As texts, because they may be presented again.
    receipts: Vec<String>,
}

impl Library {
    fn take(&mut self, step: Step) -> Answer {
        let limiter = &self.limiter;
        let hit = |cost| Hit::from("a").cost(cost);
        let mut decision = match step {
            Step::Check(cost) => limiter.check(hit(cost)),
            Step::Peek(cost) => limiter.peek(hit(cost)),
            Step::Charge(cost) => limiter.charge(hit(cost)),
            Step::Settle(which, actual) if !self.receipts.is_empty() => {
                let receipt: Receipt = self.receipts[which % self.receipts.len()].parse().unwrap();
                match actual {
                    Some(actual) => limiter.settle(receipt, actual),
                    None => limiter.refund(receipt),
                }
            }
            Step::Reset => limiter.reset("a"),
            Step::Settle(..) | Step::Wait(_) | Step::Edge(_) | Step::Configure(..) => limiter.peek(hit(0)),
        };
        self.receipts.extend(decision.take_receipt().map(|receipt| receipt.to_string()));
        answer(&decision)
    }
}

fn agree((start, setting, steps): Case) -> Result<(), TestCaseError> {
    let clock = ManualClock::new(start as u64);
    let limiter = Limiter::builder().policy(setting.policy()).clock(clock.clone()).build().unwrap();
    let mut library = Library { limiter, clock, receipts: Vec::new() };
    let mut model = Model::new(start, setting);
    for (index, step) in steps.iter().enumerate() {
        let expected = model.take(*step);
        library.clock.set(model.now as u64);
        if let Step::Configure(setting, _) = step {
            library.limiter.configure([setting.policy()]).unwrap();
        }
        if let Some(expected) = expected {
            prop_assert_eq!(library.take(*step), expected, "step {} is {:?}, at {}", index, step, model.now);
        }
    }
    Ok(())
}

#[test]
fn answers_equal_the_model() {
    // PROPTEST_CASES and PROPTEST_RNG_SEED set how many and which; the trace that fails is printed.
    let config = Config { failure_persistence: None, ..Config::default() };
    let config = Config { cases: 4 * config.cases, ..config };
    if let Err(failure) = TestRunner::new(config).run(&case(), agree) {
        panic!("{failure}");
    }
}

fn limiter(policy: Policy, now: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new(micros(now));
    (Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

fn micros(time: &str) -> u64 {
    time.parse::<Timestamp>().unwrap().as_microsecond() as u64
}

/// Windows by hand: in which unit and zone, a time, and when its window ends.
#[test]
fn windows_begin_where_the_calendar_says() {
    let table = [
        (Unit::Day, "UTC", "2026-12-31T23:59:59.999999Z", "2027-01-01T00:00:00Z"),
        // 23 and 25 hours.
        (Unit::Day, "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        (Unit::Day, "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        (Unit::Week, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T23:00:00Z"),
        (Unit::Day, "America/New_York", "2026-03-08T12:00:00Z", "2026-03-09T04:00:00Z"),
        (Unit::Month, "America/New_York", "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"),
        (Unit::Day, "Australia/Lord_Howe", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"),
        (Unit::Day, "Asia/Kathmandu", "2026-01-31T18:14:59Z", "2026-01-31T18:15:00Z"),
        // The clocks go from midnight to one o'clock: the day begins then. And from midnight back to eleven.
        (Unit::Day, "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z"),
        (Unit::Day, "America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
        (Unit::Day, "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-18T03:00:00Z"),
        // There was no 30 December.
        (Unit::Day, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-30T10:00:00Z"),
        (Unit::Day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
        (Unit::Week, "Pacific/Apia", "2011-12-29T00:00:00Z", "2012-01-01T10:00:00Z"),
        (Unit::Month, "UTC", "2028-02-29T12:00:00Z", "2028-03-01T00:00:00Z"),
        (Unit::Month, "Europe/Berlin", "2026-02-28T22:59:59Z", "2026-02-28T23:00:00Z"),
    ];
    for (unit, zone, now, end) in table {
        let (limiter, clock) = limiter(Policy::calendar(POLICY, 1, calendar(unit, zone)), now);
        assert!(limiter.check("a").is_allowed());
        let retry = limiter.check("a").retry_after().unwrap();
        assert_eq!(micros(now) + retry.as_micros() as u64, micros(end), "{unit:?} {zone} {now}");
        clock.set(micros(end) - 1);
        assert!(!limiter.check("a").is_allowed(), "{unit:?} {zone} {now}");
        clock.set(micros(end));
        assert!(limiter.check("a").is_allowed(), "{unit:?} {zone} {now}");
    }
}

/// Around every change of every zone's clocks since the epoch.
#[test]
fn every_change_of_clocks_is_followed() {
    let last = "2030-01-01T00:00:00Z".parse::<Timestamp>().unwrap();
    assert!(jiff::tz::db().available().count() > 400);
    for name in jiff::tz::db().available() {
        let zone = TimeZone::get(name.as_str()).unwrap();
        let Ok(day) = Calendar::day(name.as_str()) else { continue };
        let (limiter, clock) = limiter(Policy::calendar(POLICY, 9, day), "2026-01-01T00:00:00Z");
        let first = "1970-01-05T00:00:00Z".parse::<Timestamp>().unwrap();
        for change in zone.following(first).take_while(|change| change.timestamp() < last) {
            let at = change.timestamp().as_microsecond();
            let (_, end) = window_of(Unit::Day, &zone, at);
            for now in [at - 1, at, end] {
                clock.set(now as u64);
                let _ = limiter.reset("a");
                let told = answer(&limiter.check("a")).reset;
                assert_eq!(now + told, window_of(Unit::Day, &zone, now).1, "{} at {now}", name.as_str());
            }
        }
    }
}

#[test]
fn only_the_limit_of_a_quota_counts() {
    let month = Calendar::month("Europe/Berlin").unwrap();
    let own = Override::Quota(Quota::per_second(2));
    let policy = Policy::calendar(POLICY, 5, month).override_key(["b"], own);
    let (limiter, clock) = limiter(policy, "2026-10-01T00:00:00Z");
    let ends = |decision| clock_of(&clock) + answer(&decision).reset as u64;
    let end = micros("2026-10-31T23:00:00Z");
    assert_eq!(ends(limiter.check(Hit::from("a").cost(4))), end);
    assert_eq!(ends(limiter.check(Hit::from("b").cost(2))), end);
    assert!(!limiter.check("b").is_allowed());
    limiter.set_quota(POLICY, Quota::per_second(7)).unwrap();
    assert_eq!(limiter.remaining("a"), Some(3));
    assert_eq!(ends(limiter.check("a")), end);
    assert_eq!(limiter.policies()[0].quota().window(), Duration::from_hours(31 * 24));
    let shown = limiter.inspect(POLICY, "a").unwrap();
    assert_eq!(shown.fields[0], ("start".to_owned(), micros("2026-09-30T22:00:00Z")));
    let explained = limiter.check_n("a", 3).explain().to_string();
    assert!(explained.starts_with("denied: policy `calendar` has 5 of 7 used"), "{explained}");
}

fn clock_of(clock: &ManualClock) -> u64 {
    tidegate::Clock::epoch_micros(clock)
}

#[test]
fn what_is_no_calendar_is_refused() {
    for zone in ["Europe/Berln", "", "Etc/Unknown", "local", "../etc/passwd", "CET-1CEST"] {
        let error = Calendar::month(zone).unwrap_err().to_string();
        assert!(error.contains("not a time zone") && error.contains("Europe/Berlin"), "{zone}: {error}");
    }
    assert_eq!(Calendar::day("europe/berlin"), Calendar::day("Europe/Berlin"));
    assert_ne!(Calendar::day("Europe/Berlin"), Calendar::week("Europe/Berlin"));
    let day = Calendar::day("UTC").unwrap();
    for algorithm in Algorithm::ALL.iter().filter(|algorithm| **algorithm != Algorithm::FixedWindow) {
        let refused = Limiter::builder().policy(Policy::calendar(POLICY, 1, day).algorithm(*algorithm)).build();
        assert_eq!(refused.unwrap_err().to_string(), "policy `calendar`: only fixed-window follows a calendar");
    }
    let limiter = Limiter::builder().policy(Policy::calendar(POLICY, 1, day)).build().unwrap();
    assert!(limiter.set_quota(POLICY, Quota::per_day(1).burst(2)).is_err());
}

/// A receipt gives back what counts, and takes nothing of what a clock that was wrong has left ahead.
#[test]
fn a_refund_leaves_alone_what_is_far_ahead() {
    let day = Policy::calendar(POLICY, 5, Calendar::day("UTC").unwrap());
    for policy in [day, Policy::new(POLICY, Quota::per_day(5)).algorithm(Algorithm::FixedWindow)] {
        let (limiter, clock) = limiter(policy, "2026-05-05T12:00:00Z");
        let mut now = limiter.check("a");
        clock.set(micros("2026-06-06T12:00:00Z"));
        let _ = limiter.check_n("a", 4);
        clock.set(micros("2026-05-05T12:00:00Z"));
        let _ = limiter.refund(now.take_receipt().unwrap());
        clock.set(micros("2026-06-06T12:00:00Z"));
        assert_eq!(limiter.remaining("a"), Some(1));
    }
}

/// A snapshot knows in whose windows was counted: the same goes on, and another takes over what still runs.
#[test]
fn a_calendar_outlives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    let berlin = Calendar::day("Europe/Berlin").unwrap();
    let (limiter, clock) = limiter(Policy::calendar(POLICY, 5, berlin), "2026-10-25T12:00:00Z");
    let _ = limiter.check_n("a", 3);
    limiter.save(&file).unwrap();
    let restored = |now, calendar| {
        clock.set(micros(now));
        let builder = Limiter::builder().policy(Policy::calendar(POLICY, 5, calendar)).clock(clock.clone());
        // A copy: a limiter that goes writes it anew.
        let copy = folder.path().join("copy");
        std::fs::copy(&file, &copy).unwrap();
        builder.snapshot(Snapshot::new(copy)).build().unwrap().remaining("a")
    };
    let month = Calendar::month("UTC").unwrap();
    assert_eq!(restored("2026-10-25T22:59:59Z", berlin), Some(2));
    assert_eq!(restored("2026-10-25T22:59:59Z", month), Some(2));
    assert_eq!(restored("2026-10-25T23:00:00Z", berlin), Some(5));
    assert_eq!(restored("2026-10-25T23:00:00Z", month), Some(5), "the day was over");
}

/// A plain window becomes a calendar's, and back: what was counted goes on counting.
#[test]
fn a_plain_window_and_a_calendar_convert_into_each_other() {
    let plain = || Policy::new(POLICY, Quota::per_hour(5)).algorithm(Algorithm::FixedWindow);
    let (limiter, clock) = limiter(plain(), "2026-10-25T12:30:00Z");
    let mut first = limiter.check_n("a", 3);
    limiter.configure([Policy::calendar(POLICY, 5, Calendar::day("Europe/Berlin").unwrap())]).unwrap();
    clock.set(micros("2026-10-25T22:59:59Z"));
    assert_eq!(limiter.remaining("a"), Some(2));
    let _ = limiter.refund(first.take_receipt().unwrap());
    assert_eq!(limiter.remaining("a"), Some(2), "it was charged in another window");
    limiter.configure([plain()]).unwrap();
    assert_eq!(limiter.remaining("a"), Some(2));
    clock.set(micros("2026-10-25T23:00:00Z"));
    assert_eq!(limiter.remaining("a"), Some(5));
}
