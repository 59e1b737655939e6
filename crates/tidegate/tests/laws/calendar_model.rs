//! Traces in the windows of calendars, and the model that judges them. Where a window begins it finds by plain arithmetic on the
//! offsets of the zone: a day begins at the first moment at which its clocks show that date, or a later one.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};
use proptest::prelude::*;
use tidegate::{Calendar, Decision, Policy};

pub(crate) const POLICY: &str = "calendar";
pub(crate) const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe", // half an hour of daylight saving
    "America/Sao_Paulo",   // from midnight to one o'clock
    "America/St_Johns",    // from a minute past midnight back to yesterday
    "Asia/Kathmandu",      // a quarter of an hour, once, at midnight
    "Pacific/Apia",        // no 30 December 2011
    "Pacific/Kiritimati",
];

/// Days just before something happens to clocks in one of these zones, or to dates in all of them.
const DAYS: [(i64, i64, i64); 24] = [
    (1985, 12, 30),
    (1994, 12, 29),
    (2006, 4, 1),
    (2006, 10, 28),
    (2010, 9, 24),
    (2011, 4, 1),
    (2011, 12, 28),
    (2017, 10, 13),
    (2018, 2, 16),
    (2018, 11, 2),
    (2024, 2, 27),
    (2025, 2, 27),
    (2026, 3, 6),
    (2026, 3, 27),
    (2026, 4, 3),
    (2026, 4, 29),
    (2026, 6, 29),
    (2026, 8, 30),
    (2026, 9, 29),
    (2026, 10, 2),
    (2026, 10, 23),
    (2026, 10, 30),
    (2026, 12, 30),
    (2028, 2, 27),
];

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const DAY: i64 = 86_400 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Week,
    Month,
}

impl Unit {
    /// The first day, counted since the epoch, of the unit that a day is in.
    fn first(self, day: i64) -> i64 {
        match self {
            Self::Day => day,
            // The epoch was a Thursday.
            Self::Week => day - (day + 3).rem_euclid(7),
            Self::Month => day - day_of_month(day),
        }
    }

    /// The first day of the next unit, for a first day.
    fn next(self, first: i64) -> i64 {
        match self {
            Self::Day => first + 1,
            Self::Week => first + 7,
            Self::Month => self.first(first + 31),
        }
    }

    fn nominal(self) -> i64 {
        match self {
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 31 * DAY,
        }
    }
}

/// A date as days since the epoch.
pub(crate) fn day(year: i64, month: i64, day: i64) -> i64 {
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let years: i64 = (1970..year).map(|year| 365 + i64::from(leap(year))).sum();
    let lengths = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    years + lengths[..month as usize - 1].iter().sum::<i64>() + day - 1
}

/// From 0, by looking for the month that the day is in.
fn day_of_month(of: i64) -> i64 {
    let year = 1970 + of / 366;
    let months = (year..year + 2).flat_map(|year| (1..=12).map(move |month| day(year, month, 1)));
    of - months.take_while(|first| *first <= of).last().unwrap()
}

/// The first moment at which clocks show this day or a later one.
fn first_moment(zone: &TimeZone, day: i64) -> i64 {
    let midnight = day * 86_400;
    let from = Timestamp::from_second(midnight - 3 * 86_400).unwrap();
    let changes = zone.following(from).take_while(|change| change.timestamp().as_second() < midnight + 3 * 86_400);
    let mut offsets = vec![(from.as_second(), i64::from(zone.to_offset(from).seconds()))];
    offsets.extend(changes.map(|change| (change.timestamp().as_second(), i64::from(change.offset().seconds()))));
    let moment = |(index, (since, offset)): (usize, &(i64, i64))| {
        let shown = (midnight - offset).max(*since);
        offsets.get(index + 1).is_none_or(|(until, _)| shown < *until).then_some(shown)
    };
    offsets.iter().enumerate().find_map(moment).unwrap() * SECOND
}

/// When the window that a time is in begins and ends.
pub(crate) fn window_of(unit: Unit, zone: &TimeZone, at: i64) -> (i64, i64) {
    let mut first = unit.first(at / DAY + 2);
    while first_moment(zone, first) > at {
        first = unit.first(first - 1);
    }
    (first_moment(zone, first), first_moment(zone, unit.next(first)))
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Check(u64),
    Peek(u64),
    Charge(u64),
    /// The receipt of this number, modulo how many there are, and the cost that turned out.
    Settle(usize, Option<u64>),
    Reset,
    Wait(i64),
    /// To the end of the window, and so much further.
    Edge(i64),
    /// And whether somebody looks before the next step.
    Configure(Setting, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) limit: u64,
    pub(crate) unit: Unit,
    pub(crate) zone: &'static str,
}

impl Setting {
    pub(crate) fn policy(self) -> Policy {
        Policy::calendar(POLICY, self.limit, calendar(self.unit, self.zone))
    }

    fn window_of(self, at: i64) -> (i64, i64) {
        window_of(self.unit, &TimeZone::get(self.zone).unwrap(), at)
    }
}

pub(crate) fn calendar(unit: Unit, zone: &str) -> Calendar {
    match unit {
        Unit::Day => Calendar::day(zone),
        Unit::Week => Calendar::week(zone),
        Unit::Month => Calendar::month(zone),
    }
    .unwrap()
}

/// A time, a setting, and what happens from then on.
pub(crate) type Case = (i64, Setting, Vec<Step>);

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let start = (prop::sample::select(&DAYS[..]), 0..4 * DAY).prop_map(|((y, m, d), time)| day(y, m, d) * DAY + time);
    (start, setting(), prop::collection::vec(step(), 1..60))
}

fn setting() -> impl Strategy<Value = Setting> {
    let unit = prop_oneof![3 => Just(Unit::Day), 1 => Just(Unit::Week), 2 => Just(Unit::Month)];
    (1..9u64, unit, prop::sample::select(&ZONES[..])).prop_map(|(limit, unit, zone)| Setting { limit, unit, zone })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4u64).prop_map(Step::Check),
        1 => (0..12u64).prop_map(Step::Check),
        1 => (0..12u64).prop_map(Step::Peek),
        1 => (0..12u64).prop_map(Step::Charge),
        2 => (0..64usize, prop::option::of(0..6u64)).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => Just(Step::Reset),
        2 => (0..3 * SECOND).prop_map(Step::Wait),
        2 => (0..DAY).prop_map(Step::Wait),
        1 => (0..40 * DAY).prop_map(Step::Wait),
        1 => (-DAY..0).prop_map(Step::Wait),
        1 => (-70 * DAY..0).prop_map(Step::Wait),
        4 => (-1..=1i64).prop_map(Step::Edge),
        1 => (-2 * DAY..DAY).prop_map(Step::Edge),
        2 => (setting(), any::<bool>()).prop_map(|(setting, looks)| Step::Configure(setting, looks)),
    ]
}

/// All that is said of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) hopeless: bool,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) charged: u64,
    pub(crate) retry: Option<i64>,
    pub(crate) reset: i64,
}

pub(crate) fn answer(decision: &Decision) -> Answer {
    let outcome = decision.outcomes().next().expect("it applies");
    let micros = |time: Duration| i64::try_from(time.as_micros()).expect("not for ever");
    Answer {
        allowed: outcome.is_allowed(),
        hopeless: outcome.is_hopeless(),
        limit: outcome.limit(),
        used: outcome.used(),
        charged: outcome.charged(),
        retry: outcome.retry_after().map(micros),
        reset: micros(outcome.reset_after()),
    }
}

pub(crate) struct Model {
    pub(crate) now: i64,
    setting: Setting,
    /// Since when its unit and zone are what they are.
    since: i64,
    /// When the window began that was last counted in, and its count.
    stored: Option<(i64, u64)>,
    charges: Vec<Charge>,
    reset_at: i64,
    /// Whether the clock has ever stepped back.
    stepped_back: bool,
}

struct Charge {
    at: i64,
    cost: u64,
    setting: Setting,
    spent: bool,
}

impl Model {
    pub(crate) fn new(now: i64, setting: Setting) -> Self {
        Self { now, setting, since: 0, stored: None, charges: Vec::new(), reset_at: -1, stepped_back: false }
    }

    /// Takes a step, and says how the key stands then, if anybody looks. What was written before the clock stepped back, Redis could
    /// later take for something that another process has written since a change: then somebody does.
    pub(crate) fn take(&mut self, step: Step) -> Option<Answer> {
        let before = self.now;
        match step {
            Step::Check(cost) if cost > 0 && self.answer(cost).allowed => return Some(self.charge(cost)),
            Step::Charge(cost) if cost > 0 => return Some(self.charge(cost)),
            Step::Check(cost) | Step::Peek(cost) => return Some(self.answer(cost)),
            Step::Charge(_) => {}
            Step::Settle(which, actual) if !self.charges.is_empty() => self.settle(which % self.charges.len(), actual),
            Step::Settle(..) => {}
            Step::Reset => {
                self.stored = None;
                self.reset_at = self.reset_at.max(self.now);
            }
            // Not to before all of this began to be known.
            Step::Wait(by) => self.now = (self.now + by).max(400 * DAY),
            Step::Edge(by) => self.now = self.setting.window_of(self.now).1 + by,
            Step::Configure(setting, looks) => {
                self.configure(setting);
                return (looks || self.stepped_back).then(|| self.answer(0));
            }
        }
        self.stepped_back |= self.now < before;
        Some(self.answer(0))
    }

    /// The stored window, if it is the one that runs now, or the one after: then the clock has stepped back.
    fn counted(&self) -> Option<(i64, u64)> {
        let (start, next) = self.setting.window_of(self.now);
        self.stored.filter(|(stored, used)| *used > 0 && (*stored == start || *stored == next))
    }

    fn answer(&self, cost: u64) -> Answer {
        let (start, used) = self.counted().unwrap_or((self.now, 0));
        let ends_in = self.setting.window_of(start).1 - self.now;
        let limit = self.setting.limit;
        let allowed = used + cost <= limit || cost == 0;
        let hopeless = cost > limit;
        let retry = (!allowed && !hopeless).then_some(ends_in);
        Answer { allowed, hopeless, limit, used, charged: 0, retry, reset: if used == 0 { 0 } else { ends_in } }
    }

    fn record(&mut self, cost: u64) -> i64 {
        let (start, used) = self.counted().unwrap_or_else(|| (self.setting.window_of(self.now).0, 0));
        self.stored = Some((start, used + cost));
        self.now.max(start)
    }

    fn charge(&mut self, cost: u64) -> Answer {
        let at = self.record(cost);
        self.charges.push(Charge { at, cost, setting: self.setting, spent: false });
        Answer { charged: cost, ..self.answer(0) }
    }

    /// Of another unit or zone nothing is given back. A receipt is good for two windows and what its cost takes to come back.
    fn settle(&mut self, which: usize, actual: Option<u64>) {
        let Setting { limit, unit, zone } = self.setting;
        let Charge { at, cost, setting, spent } = &mut self.charges[which];
        let (at, cost, target) = (*at, *cost, actual.unwrap_or(0));
        let comes_back = (cost as i64 * unit.nominal() + limit as i64 - 1) / limit as i64;
        let good = self.now < at + 2 * unit.nominal() + comes_back;
        let same = (setting.unit, setting.zone) == (unit, zone) && at >= self.since;
        if std::mem::replace(spent, true) || !good || at <= self.reset_at {
            return;
        }
        if target > cost {
            self.record(target - cost);
        } else if let Some((start, used)) = self.counted().filter(|_| same)
            && (start..self.setting.window_of(start).1).contains(&at)
        {
            self.stored = Some((start, used.saturating_sub(cost - target)));
        }
    }

    /// What the running window has counted, the new one has.
    fn configure(&mut self, setting: Setting) {
        if (setting.unit, setting.zone) != (self.setting.unit, self.setting.zone) {
            self.stored = self.counted().map(|(start, used)| (setting.window_of(self.now.max(start)).0, used));
            self.since = self.now;
        }
        self.setting = setting;
    }
}
