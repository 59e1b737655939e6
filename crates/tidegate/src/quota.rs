//! Quotas: a limit per window, with an optional burst. A `Quota` that exists is valid: nothing downstream checks
//! it again. What an algorithm can do with one is the algorithm's business, not this file's.

use std::{fmt, num::NonZeroU64, str::FromStr, time::Duration};

use crate::error::QuotaError;

/// A limit per window, with an optional burst: `100/min`, `10/s burst 20`, `5000/day`.
///
/// *N per unit* always means N per unit: the same number is enforced whatever the algorithm, none of them rounds it up.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Quota;
///
/// let quota = Quota::per_minute(100);
/// assert_eq!(quota, "100/min".parse()?);
/// assert_eq!(quota, Quota::new(100, Duration::from_secs(60))?);
/// assert_eq!(Quota::per_second(10).burst(20), "10/s burst 20".parse()?);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u64,
    window_us: u64,
    burst: Option<NonZeroU64>,
}

impl Quota {
    /// The largest limit, burst or cost: 2<sup>53</sup> − 1, the integers that Lua numbers and JSON hold exactly.
    pub const MAX: u64 = (1 << 53) - 1;
    /// The shortest window.
    pub const MIN_WINDOW: Duration = Duration::from_millis(1);
    /// The longest window: a leap year.
    pub const MAX_WINDOW: Duration = Duration::from_hours(366 * 24);

    /// `limit` per `window`, for numbers that come from outside the program.
    ///
    /// # Errors
    /// When the limit is 0 or above [`Quota::MAX`], or the window is not whole microseconds between
    /// [`Quota::MIN_WINDOW`] and [`Quota::MAX_WINDOW`]. The error says what is allowed.
    pub fn new(limit: u64, window: Duration) -> Result<Self, QuotaError> {
        let count = amount(limit, "limit")?;
        if window < Self::MIN_WINDOW || window > Self::MAX_WINDOW {
            return Err(QuotaError::Window(window));
        }
        if !window.subsec_nanos().is_multiple_of(1_000) {
            return Err(QuotaError::Precision(window));
        }
        // Below 366 days: fits.
        let window_us = window.as_micros() as u64;
        Ok(Self { limit: count, window_us, burst: None })
    }

    /// `limit` per second.
    ///
    /// # Panics
    /// When `limit` is 0 or above [`Quota::MAX`]: a constant that is wrong should not start. Use [`Quota::new`] or
    /// `parse` for numbers that come from outside.
    pub const fn per_second(limit: u64) -> Self {
        Self::per_micros(limit, SECOND)
    }

    /// `limit` per minute.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    pub const fn per_minute(limit: u64) -> Self {
        Self::per_micros(limit, 60 * SECOND)
    }

    /// `limit` per hour.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    pub const fn per_hour(limit: u64) -> Self {
        Self::per_micros(limit, HOUR)
    }

    /// `limit` per day of 24 hours.
    ///
    /// # Panics
    /// As [`Quota::per_second`].
    pub const fn per_day(limit: u64) -> Self {
        Self::per_micros(limit, 24 * HOUR)
    }

    const fn per_micros(limit: u64, window_us: u64) -> Self {
        assert!(limit > 0 && limit <= Self::MAX, "a quota's limit is from 1 to 2^53-1");
        Self { limit, window_us, burst: None }
    }

    /// The same rate with room for `burst` at once, for the algorithms `token-bucket` and `gcra`. Without it the burst
    /// is the limit.
    ///
    /// # Panics
    /// When `burst` is 0 or above [`Quota::MAX`]; [`Quota::try_burst`] returns an error instead.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        assert!(burst > 0 && burst <= Self::MAX, "a quota's burst is from 1 to 2^53-1");
        Self { burst: NonZeroU64::new(burst), ..self }
    }

    /// As [`Quota::burst`], for a number that comes from outside the program.
    ///
    /// # Errors
    /// When `burst` is 0 or above [`Quota::MAX`].
    pub fn try_burst(self, burst: u64) -> Result<Self, QuotaError> {
        Ok(Self { burst: NonZeroU64::new(amount(burst, "burst")?), ..self })
    }

    /// The same limit per another window.
    pub(crate) fn per(self, window_us: u64) -> Self {
        Self { window_us, ..self }
    }

    /// One of so many equal shares, rounded up.
    pub(crate) fn share(self, instances: u64) -> Self {
        let burst = self.burst.and_then(|burst| NonZeroU64::new(burst.get().div_ceil(instances)));
        Self { limit: self.limit.div_ceil(instances), burst, ..self }
    }

    /// How much is allowed per window.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window.
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window_us)
    }

    pub(crate) const fn window_us(&self) -> u64 {
        self.window_us
    }

    /// The burst, where one was given.
    pub const fn burst_size(&self) -> Option<u64> {
        match self.burst {
            Some(burst) => Some(burst.get()),
            None => None,
        }
    }
}

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// Names of each unit, the one that is printed first, and its length in microseconds; longest first.
const UNITS: [(&[&str], u64); 7] = [
    (&["week", "weeks", "w"], 7 * 24 * HOUR),
    (&["day", "days", "d"], 24 * HOUR),
    (&["hour", "hours", "hr", "h"], HOUR),
    (&["min", "mins", "minute", "minutes", "m"], 60 * SECOND),
    (&["s", "sec", "secs", "second", "seconds"], SECOND),
    (&["ms", "msec", "millisecond", "milliseconds"], 1_000),
    (&["us", "microsecond", "microseconds"], 1),
];

fn amount(value: u64, what: &'static str) -> Result<u64, QuotaError> {
    if (1..=Quota::MAX).contains(&value) { Ok(value) } else { Err(QuotaError::Amount { what, value }) }
}

impl FromStr for Quota {
    type Err = QuotaError;

    /// Reads `100/min`, `10/s burst 20`, `5000 per day`, `1/250ms`, `20/10s`.
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let syntax = || QuotaError::Syntax(excerpt(text));
        let (rate, burst) = match text.trim().split_once("burst") {
            Some((rate, burst)) => (rate.trim(), Some(number(burst.trim()).ok_or_else(syntax)?)),
            None => (text.trim(), None),
        };
        let (limit, span) = rate.split_once('/').or_else(|| rate.split_once(" per ")).ok_or_else(syntax)?;
        let limit = number(limit.trim()).ok_or_else(syntax)?;
        let span = span.trim();
        let letters = span.find(|c: char| !c.is_ascii_digit() && c != '_').ok_or_else(syntax)?;
        let (times, unit) = span.split_at(letters);
        let times = if times.is_empty() { 1 } else { number(times).ok_or_else(syntax)? };
        let unit = unit.trim();
        let (_, unit_us) = UNITS
            .iter()
            .find(|(names, _)| names.iter().any(|name| name.eq_ignore_ascii_case(unit)))
            .ok_or_else(|| QuotaError::Unit(excerpt(unit)))?;
        let window = Duration::from_micros(times.saturating_mul(*unit_us));
        let quota = Self::new(limit, window)?;
        burst.map_or(Ok(quota), |burst| quota.try_burst(burst))
    }
}

/// A plain decimal number, `_` allowed between digits; no sign, no fraction, no exponent.
fn number(text: &str) -> Option<u64> {
    let digit = |c: char| c.is_ascii_digit();
    let plain = text.starts_with(digit) && text.ends_with(digit) && text.chars().all(|c| digit(c) || c == '_');
    // Too large for u64 is still a number: `amount` then says what is allowed.
    plain.then(|| {
        text.bytes().filter(u8::is_ascii_digit).fold(0u64, |n, d| n.saturating_mul(10).saturating_add(u64::from(d - b'0')))
    })
}

/// Enough of a wrong text to recognise it, safe to print.
fn excerpt(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

impl fmt::Display for Quota {
    /// Writes what [`FromStr`] reads: `100/min`, `20/10s`, `10/s burst 20`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, unit_us) = UNITS
            .iter()
            .find(|(_, unit_us)| self.window_us.is_multiple_of(*unit_us))
            .expect("the last unit divides every window");
        match self.window_us / unit_us {
            1 => write!(f, "{}/{}", self.limit, names[0])?,
            times => write!(f, "{}/{times}{}", self.limit, names[0])?,
        }
        self.burst.map_or(Ok(()), |burst| write!(f, " burst {burst}"))
    }
}
