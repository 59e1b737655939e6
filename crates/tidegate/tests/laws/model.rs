//! The exact reference, written from the laws: it forgets nothing, looks at everything for each question, and finds
//! waits by search over what is used at a later time, so that it shares no formula with the library. Numbers are wide
//! enough that nothing overflows.

use tidegate::{Algorithm, Quota};

use crate::world::{Answer, Scene, Step, capacity, micros};

pub(crate) struct Model {
    scene: Scene,
    now: i128,
    state: State,
    charges: Vec<Charge>,
    /// When the key was last reset: what was charged until then is void.
    reset_at: i128,
}

/// All that was ever taken, in the form in which the algorithm counts it.
#[derive(Clone, Debug)]
enum State {
    /// Log and window: what leaves together at `last` + W.
    Entries(Vec<Entry>),
    /// Counter and fixed window: the cost in each aligned window, by its start.
    Windows(Vec<(i128, i128)>),
    /// Token bucket: what is missing at `at`, in W-ths.
    Missing { parts: i128, at: i128 },
    /// Gcra: the theoretical arrival time, and how far it lay beyond a full burst when it was written.
    Arrival { time: i128, debt: i128 },
}

#[derive(Clone, Debug)]
struct Entry {
    last: i128,
    cost: i128,
    /// Which charges it holds.
    members: Vec<usize>,
}

struct Charge {
    at: i128,
    cost: i128,
    spent: bool,
}

const STEPS: i128 = 1 << 20;

/// 100 years of 366 days.
const CENTURY: i128 = 100 * 366 * 86_400_000_000;

impl Model {
    pub(crate) fn new(scene: Scene) -> Self {
        let state = empty(scene.algorithm);
        Self { scene, now: scene.start.into(), state, charges: Vec::new(), reset_at: -1 }
    }

    /// Takes a step; no answer where it asks for none.
    pub(crate) fn take(&mut self, step: Step) -> Option<Answer> {
        match step {
            Step::Wait(wait) => self.now += i128::from(wait),
            Step::Back(by) => self.now -= i128::from(by),
            Step::Configure(quota) => self.configure(quota),
            Step::Check(cost) if cost > 0 && self.would_admit(cost.into(), self.now) => {
                return Some(self.charged(cost));
            }
            Step::Check(cost) | Step::Peek(cost) => return Some(self.answer(cost)),
            Step::Charge(0) => return Some(self.answer(0)),
            Step::Charge(cost) => return Some(self.charged(cost)),
            Step::Refund(index) => return self.amend(index, 0),
            Step::Settle(index, actual) => return self.amend(index, actual.into()),
            Step::Reset => {
                self.state = empty(self.scene.algorithm);
                self.reset_at = self.reset_at.max(self.now);
                return Some(self.answer(0));
            }
        }
        None
    }

    /// How many charges there have been: the next one's place.
    pub(crate) fn charges(&self) -> usize {
        self.charges.len()
    }

    fn capacity(&self) -> i128 {
        capacity(self.scene.quota).into()
    }

    fn window(&self) -> i128 {
        self.scene.window().into()
    }

    fn would_admit(&self, cost: i128, at: i128) -> bool {
        cost <= (self.capacity() - self.used_at(at)).max(0)
    }

    /// How the key stands for a hit that is not charged.
    fn answer(&self, cost: u64) -> Answer {
        let asked = i128::from(cost);
        let allowed = self.would_admit(asked, self.now);
        let hopeless = asked > self.capacity();
        let used = self.used_at(self.now);
        Answer {
            allowed,
            hopeless,
            limit: capacity(self.scene.quota),
            used: used.try_into().unwrap(),
            remaining: (self.capacity() - used).max(0).try_into().unwrap(),
            charged: 0,
            retry: (!allowed && !hopeless).then(|| self.first_wait(|at| self.would_admit(asked, at))),
            reset: if used == 0 { 0 } else { self.first_wait(|at| self.used_at(at) == 0) },
        }
    }

    fn charged(&mut self, cost: u64) -> Answer {
        let (at, cost) = self.record(cost.into(), Some(self.charges.len()));
        self.charges.push(Charge { at, cost, spent: false });
        Answer { allowed: true, hopeless: false, retry: None, charged: cost.try_into().unwrap(), ..self.answer(0) }
    }

    /// The shortest wait after which `holds`, which it does from then on.
    fn first_wait(&self, holds: impl Fn(i128) -> bool) -> u64 {
        let mut enough = 1;
        while !holds(self.now + enough) {
            enough *= 2;
        }
        let mut short = 0;
        while enough - short > 1 {
            let middle = (short + enough) / 2;
            if holds(self.now + middle) { enough = middle } else { short = middle }
        }
        u64::try_from(enough).unwrap()
    }

    /// The time that counts at `now`: never before the newest that is stored. Nothing where what is stored is so far
    /// ahead that it counts as absent.
    fn effective(&self, now: i128) -> Option<i128> {
        let newest = match &self.state {
            State::Entries(entries) => entries.iter().map(|entry| entry.last).max(),
            State::Windows(windows) => windows.iter().map(|(start, _)| *start).max(),
            State::Missing { at, .. } => Some(*at),
            State::Arrival { time, debt } => {
                // A debt is remembered by the next power of two above it.
                let power = (0..).map(|bits| 1 << bits).find(|power| power > debt).unwrap();
                let reach = self.capacity() * self.interval() + power + self.window();
                return (*time < now + reach).then_some(now);
            }
        };
        newest.map_or(Some(now), |newest| (newest <= now + self.window()).then_some(newest.max(now)))
    }

    fn interval(&self) -> i128 {
        interval(self.scene.quota)
    }

    fn used_at(&self, at: i128) -> i128 {
        let Some(now) = self.effective(at) else { return 0 };
        match &self.state {
            State::Entries(entries) => {
                entries.iter().filter(|entry| entry.last > now - self.window()).map(|entry| entry.cost).sum()
            }
            State::Windows(windows) => {
                let start = now - now % self.window();
                let of = |start: i128| windows.iter().filter(|window| window.0 == start).map(|window| window.1).sum::<i128>();
                if self.scene.algorithm == Algorithm::FixedWindow {
                    return of(start);
                }
                let overlap = start + self.window() - now;
                let weight = div_ceil(overlap * STEPS, self.window());
                of(start) + div_ceil(of(start - self.window()) * weight, STEPS)
            }
            State::Missing { .. } => div_ceil(self.missing(now), self.window()),
            State::Arrival { time, .. } => div_ceil((time - now).max(0), self.interval()),
        }
    }

    /// What a token bucket lacks, in W-ths.
    fn missing(&self, now: i128) -> i128 {
        let State::Missing { parts, at } = self.state else { return 0 };
        (parts - (now - at) * i128::from(self.scene.quota.limit())).max(0)
    }

    /// Takes `cost` and says at which time it counts, and how much of it: a debt grows to what a century pays, no further.
    fn record(&mut self, cost: i128, charge: Option<usize>) -> (i128, i128) {
        if self.effective(self.now).is_none() {
            self.state = empty(self.scene.algorithm);
        }
        let now = self.effective(self.now).unwrap();
        let (window, grain, interval) = (self.window(), i128::from(self.scene.grain()), self.interval());
        let missing = self.missing(now);
        let burst = self.capacity() * interval;
        let most = self.payable();
        let mut taken = cost;
        let joins = self.scene.algorithm == Algorithm::SlidingWindow;
        match &mut self.state {
            State::Entries(entries) => match entries.last_mut().filter(|newest| joins && newest.last / grain == now / grain) {
                Some(newest) => {
                    newest.last = now;
                    newest.cost += cost;
                    newest.members.extend(charge);
                }
                None => entries.push(Entry { last: now, cost, members: Vec::from_iter(charge) }),
            },
            State::Windows(windows) => windows.push((now - now % window, cost)),
            State::Missing { parts, at } => {
                taken = cost.min(most - missing / window);
                *parts = missing + taken * window;
                *at = now;
            }
            State::Arrival { time, debt } => {
                let backlog = (*time - now).max(0);
                let owed = (backlog + cost * interval).min(CENTURY.max(backlog));
                taken = (owed - backlog) / interval;
                *time = now + owed;
                *debt = (owed - burst).max(0);
            }
        }
        (now, taken)
    }

    /// How many whole tokens come back in a century.
    fn payable(&self) -> i128 {
        (CENTURY * i128::from(self.scene.quota.limit()) / self.window()).min(Quota::MAX.into())
    }

    fn amend(&mut self, index: usize, actual: i128) -> Option<Answer> {
        let index = index % self.charges.len().max(1);
        let charge = self.charges.get_mut(index)?;
        let (at, cost) = (charge.at, charge.cost);
        let fresh = !std::mem::replace(&mut charge.spent, true);
        // A receipt is good for two windows, an hour at least, and what its cost takes to come back.
        let limit = i128::from(self.scene.quota.limit());
        let comes_back = (cost * self.window() + limit - 1) / limit;
        let good = self.now < at + (2 * self.window()).max(3_600_000_000) + comes_back;
        let counts = fresh && good && at > self.reset_at;
        if counts && actual > cost {
            self.record(actual - cost, None);
        } else if counts {
            self.give_back(index, at, cost - actual);
        }
        Some(self.answer(0))
    }

    fn give_back(&mut self, charge: usize, charged_at: i128, amount: i128) {
        let Some(now) = self.effective(self.now) else { return };
        let (window, interval, limit) = (self.window(), self.interval(), i128::from(self.scene.quota.limit()));
        let missing = self.missing(now);
        let elapsed = now - charged_at;
        let burst = self.capacity() * interval;
        match &mut self.state {
            State::Entries(entries) => {
                for entry in entries.iter_mut().filter(|entry| entry.members.contains(&charge)) {
                    entry.cost -= amount;
                }
                entries.retain(|entry| entry.cost > 0);
            }
            State::Windows(windows) => windows.push((charged_at - charged_at % window, -amount)),
            State::Missing { parts, at } => {
                *parts = (missing - (amount * window - elapsed * limit).max(0)).max(0);
                *at = now;
            }
            State::Arrival { time, debt } if *time > now => {
                *time = (*time - (amount * interval - elapsed).max(0)).max(now);
                *debt = (*time - now - burst).max(0);
            }
            State::Arrival { .. } => {}
        }
    }

    /// The old quota ends and the new one begins now, not when somebody next looks.
    fn configure(&mut self, new: Quota) {
        let Some(now) = self.effective(self.now) else { return };
        let (used, missing) = (self.used_at(now), self.missing(now));
        let old = std::mem::replace(&mut self.scene.quota, new);
        let (window, new_window) = (i128::from(micros(old.window())), self.window());
        let burst = self.capacity() * self.interval();
        let most = self.payable();
        match &mut self.state {
            // What the old window no longer holds does not come back in a longer one.
            State::Entries(entries) => entries.retain(|entry| entry.last > now - window),
            State::Windows(_) if window == new_window => {}
            State::Windows(windows) => *windows = vec![(now - now % new_window, used)],
            State::Missing { parts, at } => {
                // To the parts of the new rate in lowest terms, rounded up.
                let whole = gcd(new.limit().into(), new_window);
                let converted = div_ceil(missing * (new_window / whole), window) * whole;
                let surplus = (converted / new_window - most).max(0);
                *parts = converted - surplus * new_window;
                *at = now;
            }
            State::Arrival { time, debt } => {
                let backlog = div_ceil((*time - now).max(0) * interval(new), interval(old)).min(CENTURY);
                (*time, *debt) = (now + backlog, (backlog - burst).max(0));
            }
        }
    }
}

fn empty(algorithm: Algorithm) -> State {
    match algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow => State::Entries(Vec::new()),
        Algorithm::SlidingCounter | Algorithm::FixedWindow => State::Windows(Vec::new()),
        Algorithm::TokenBucket => State::Missing { parts: 0, at: 0 },
        Algorithm::Gcra => State::Arrival { time: 0, debt: 0 },
        other => panic!("{other} needs a model here"),
    }
}

fn interval(quota: Quota) -> i128 {
    div_ceil(micros(quota.window()).into(), quota.limit().into())
}

/// For what is not negative.
fn div_ceil(dividend: i128, divisor: i128) -> i128 {
    (dividend + divisor - 1) / divisor
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
