//! A decision as fields of `http`'s own types: made when a request is admitted, put when it is answered, and in between all that is kept of
//! the decision. What they say is [`Dialect`]'s; here they are made with few allocations, for each request has some.

use std::{cell::RefCell, mem};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};
use tidegate::{Algorithm, Decision, Outcome, Quota};

use crate::{
    Dialect,
    headers::{DIGITS, DRAFT_06, MEMBER, RATELIMIT, RATELIMIT_POLICY, Value, X_RATELIMIT, list, strictest, told},
    retry_after,
};

/// What a response tells of a decision, apart from `Retry-After`.
pub(crate) enum Fields {
    Nothing,
    Lists { policy: HeaderValue, state: HeaderValue },
    Draft06([u64; 3]),
    XRateLimit([u64; 3]),
}

impl Fields {
    #[inline]
    pub(crate) fn of(dialect: Dialect, decision: &Decision) -> Self {
        match dialect {
            Dialect::Draft => Self::lists(decision),
            Dialect::Draft06 => strictest(dialect, decision).map_or(Self::Nothing, Self::Draft06),
            Dialect::XRateLimit(_) => strictest(dialect, decision).map_or(Self::Nothing, Self::XRateLimit),
            Dialect::None => Self::Nothing,
        }
    }

    fn lists(decision: &Decision) -> Self {
        let mut outcomes = told(decision);
        let (first, second) = (outcomes.next(), outcomes.next());
        let Some(first) = first else { return Self::Nothing };
        if second.is_none() {
            // One policy is the usual case, and some of it is kept.
            return Self::Lists { policy: policy(&first), state: member(|value| value.state(&first)) };
        }
        let all = |write: fn(&mut Value<'_>, &Outcome<'_>)| list(decision, write, text).expect("there are two at least");
        Self::Lists { policy: all(|value, outcome| value.policy(outcome)), state: all(|value, outcome| value.state(outcome)) }
    }

    /// Tells it, once. Lists go on where another limit has begun them; of what is told once, the innermost limit's is kept.
    pub(crate) fn put(&mut self, headers: &mut HeaderMap) {
        match mem::replace(self, Self::Nothing) {
            Self::Nothing => {}
            Self::Lists { policy, state } => {
                headers.append(RATELIMIT_POLICY, policy);
                headers.append(RATELIMIT, state);
            }
            Self::Draft06(numbers) => put_numbers(headers, || DRAFT_06, numbers),
            Self::XRateLimit(numbers) => put_numbers(headers, || X_RATELIMIT, numbers),
        }
    }
}

/// Told already, by another limit, is rare: it is looked for by adding to it.
#[inline]
fn put_numbers(headers: &mut HeaderMap, names: impl Fn() -> [HeaderName; 3], [most, remaining, reset]: [u64; 3]) {
    // All of them first: what was just written is slow to copy.
    let (most, remaining, reset) = (limit(most), number(remaining), number(reset));
    let [a, b, c] = names();
    let twice = [headers.append(a, most), headers.append(b, remaining), headers.append(c, reset)];
    if twice.contains(&true) {
        names().iter().zip(twice).filter(|(_, twice)| *twice).for_each(|(name, _)| take_back(headers, name));
    }
}

/// All that a response tells of a decision.
pub(crate) fn put(dialect: Dialect, decision: &Decision, headers: &mut HeaderMap) {
    Fields::of(dialect, decision).put(headers);
    if let Some(wait) = retry_after(decision) {
        headers.entry(RETRY_AFTER).or_insert(number(wait));
    }
}

/// Removes the last value of a name.
#[cold]
fn take_back(headers: &mut HeaderMap, name: &HeaderName) {
    let Entry::Occupied(entry) = headers.entry(name) else { return };
    let mut values: Vec<HeaderValue> = entry.remove_entry_mult().1.collect();
    values.pop();
    for value in values {
        headers.append(name.clone(), value);
    }
}

fn text(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("names of policies and numbers")
}

/// A list of one.
#[inline]
fn member(write: impl FnOnce(&mut Value<'_>)) -> HeaderValue {
    let mut room = [0; MEMBER];
    let mut value = Value::new(&mut room);
    write(&mut value);
    text(value.written())
}

#[inline]
fn number(number: u64) -> HeaderValue {
    match small(number) {
        Some(digits) => HeaderValue::from_static(digits),
        None => text(Value::new(&mut [0; DIGITS]).number(number).written()),
    }
}

/// Most numbers are small, and what is there already has not to be allocated.
#[inline]
fn small(number: u64) -> Option<&'static str> {
    let zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        1_000..SMALL => 0,
        SMALL.. => return None,
    };
    let at = 4 * number as usize;
    Some(&NUMBERS[at + zeros..at + 4])
}

const SMALL: u64 = 10_000;

/// Each with four digits.
static NUMBERS: &str = match str::from_utf8(&FOUR_DIGITS) {
    Ok(numbers) => numbers,
    Err(_) => panic!("digits are ASCII"),
};
static FOUR_DIGITS: [u8; 4 * SMALL as usize] = {
    let mut digits = [b'0'; 4 * SMALL as usize];
    let mut at = 0;
    while at < digits.len() {
        let (number, place) = (at / 4, at % 4);
        digits[at] += (number / 10_usize.pow(3 - place as u32) % 10) as u8;
        at += 1;
    }
    digits
};

/// What says the same for request after request, as it was made for those before.
struct Kept<K>([Option<(K, HeaderValue)>; 8]);

/// All that a policy's value is made of: it may be another's by the next request.
struct Told {
    name: Box<[u8]>,
    limit: u64,
    quota: Quota,
    algorithm: Algorithm,
}

// For each thread: to count who has a value is cheap only where nobody else counts.
thread_local! {
    static POLICIES: RefCell<Kept<Told>> = const { RefCell::new(Kept([const { None }; 8])) };
    static LIMITS: RefCell<Kept<u64>> = const { RefCell::new(Kept([const { None }; 8])) };
}

impl<K> Kept<K> {
    /// The value made of what `is`, or of what takes the place of another from now on. `number`: by which values are told apart, mostly.
    #[inline]
    fn get(&mut self, number: u64, is: impl FnOnce(&K) -> bool, make: impl FnOnce() -> (K, HeaderValue)) -> HeaderValue {
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61;
        let kept = &mut self.0[place as usize];
        match kept {
            Some((key, value)) if is(key) => value.clone(),
            _ => {
                let (key, value) = make();
                kept.insert((key, value)).1.clone()
            }
        }
    }
}

fn policy(outcome: &Outcome<'_>) -> HeaderValue {
    let (name, limit, quota, algorithm) = (outcome.policy_bytes(), outcome.limit(), outcome.quota(), outcome.algorithm());
    let is = |told: &Told| told.limit == limit && told.quota == quota && told.algorithm == algorithm && *told.name == *name;
    let make = || (Told { name: name.into(), limit, quota, algorithm }, member(|value| value.policy(outcome)));
    // A thread that ends has no more of its own.
    POLICIES.try_with(|kept| kept.borrow_mut().get(limit, is, make)).unwrap_or_else(|_| make().1)
}

fn limit(limit: u64) -> HeaderValue {
    if limit < SMALL {
        return number(limit);
    }
    let make = || (limit, number(limit));
    LIMITS.try_with(|kept| kept.borrow_mut().get(limit, |of| *of == limit, make)).unwrap_or_else(|_| number(limit))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tidegate::{Hit, Limiter, ManualClock, Policy};

    use super::*;
    use crate::Reset;

    #[test]
    fn small_numbers_are_written_as_others_write_them() {
        (0..SMALL).for_each(|number| assert_eq!(small(number), Some(number.to_string().as_str())));
        assert_eq!(small(SMALL), None);
    }

    fn pairs(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
        headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
    }

    proptest! {
        /// Few names and quotas, of which each thread sees many: what is kept is found again, and never in the place of another.
        #[test]
        fn say_what_their_dialect_says(
            sets in proptest::collection::vec(
                proptest::collection::btree_map("[ab]{1,2}", (1..5_u64, 1..3_u64, any::<bool>(), 0..7_usize), 0..4),
                1..8,
            ),
            costs in proptest::collection::vec(0..6_u64, 4),
            scale in prop_oneof![Just(1), Just(9_999), Just(Quota::MAX / 4)],
        ) {
            let algorithms = [Algorithm::RATES, &[Algorithm::Concurrency]].concat();
            let limiter = Limiter::builder().clock(ManualClock::default()).build().unwrap();
            for set in sets {
                let policies = set.into_iter().map(|(name, (limit, seconds, shadow, algorithm))| {
                    let quota = Quota::new(limit * scale, Duration::from_secs(seconds)).unwrap();
                    let policy = Policy::new(name, quota).algorithm(algorithms[algorithm % algorithms.len()]);
                    if shadow { policy.shadow() } else { policy }
                });
                if limiter.configure(policies).is_err() {
                    continue; // a rate that gcra does not take
                }
                for cost in &costs {
                    let decision = limiter.check(Hit::from("a").lease("b").cost(cost * scale));
                    for dialect in [Dialect::Draft, Dialect::Draft06, Dialect::XRateLimit(Reset::Delta), Dialect::None] {
                        let (mut ours, mut expected) = (HeaderMap::new(), HeaderMap::new());
                        put(dialect, &decision, &mut ours);
                        dialect.each(&decision, |name, value| {
                            expected.append(name, HeaderValue::from_bytes(value).unwrap());
                        });
                        prop_assert_eq!(pairs(&ours), pairs(&expected));
                    }
                }
            }
        }
    }
}
