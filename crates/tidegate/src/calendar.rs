//! Windows that are days, weeks or months of a time zone. It owns where they begin and end; what is counted in them is the
//! business of `fixed-window`.

use std::{fmt, ptr};

use arc_swap::ArcSwap;
use jiff::{
    Span, Timestamp,
    civil::Date,
    tz::{TimeZone, TimeZoneDatabase},
};
use parking_lot::Mutex;

use crate::ConfigError;

/// Days, weeks or months as the clocks of a time zone show them, for [`Policy::calendar`](crate::Policy::calendar). Daylight
/// saving and leap days are in it: a day has 23, 24 or 25 hours, a month 28 to 31 days.
///
/// Zones have their IANA names, such as `Europe/Berlin`. What is known of them comes with the program, not from the machine, so that
/// all machines agree.
///
/// ```
/// use tidegate::{Calendar, Limiter, Policy};
///
/// let monthly = Policy::calendar("monthly", 10_000, Calendar::month("Europe/Berlin")?);
/// let limiter = Limiter::builder().policy(monthly).build()?;
/// assert_eq!(limiter.check("tenant-7").remaining(), Some(9_999));
///
/// let error = Calendar::day("Europe/Berln").unwrap_err();
/// assert_eq!(error.to_string(), "`Europe/Berln` is not a time zone; write an IANA name, such as UTC or Europe/Berlin");
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Calendar(&'static Zoned);

/// Made once for each unit and zone, and kept: there are only so many.
struct Zoned {
    unit: Unit,
    zone: TimeZone,
    /// Unit and zone, such as `month Europe/Berlin`.
    name: String,
    id: u64,
    /// The boundaries that were asked for last.
    last: ArcSwap<[u64; 4]>,
}

#[derive(Clone, Copy)]
enum Unit {
    Day,
    Week,
    Month,
}

static MADE: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

const DAY_US: u64 = 86_400_000_000;

impl Calendar {
    /// Days, from midnight to midnight.
    ///
    /// # Errors
    /// When no time zone has this name.
    pub fn day(zone: &str) -> Result<Self, ConfigError> {
        Self::new(Unit::Day, zone)
    }

    /// Weeks, from Monday to Monday.
    ///
    /// # Errors
    /// When no time zone has this name.
    pub fn week(zone: &str) -> Result<Self, ConfigError> {
        Self::new(Unit::Week, zone)
    }

    /// Months, from the first to the first.
    ///
    /// # Errors
    /// When no time zone has this name.
    pub fn month(zone: &str) -> Result<Self, ConfigError> {
        Self::new(Unit::Month, zone)
    }

    fn new(unit: Unit, zone: &str) -> Result<Self, ConfigError> {
        let unknown = || ConfigError::Zone(zone.to_owned());
        let zone = TimeZoneDatabase::bundled().get(zone).map_err(|_| unknown())?;
        // As the database writes it, whatever the case of the letters was.
        let name = zone.iana_name().filter(|_| !zone.is_unknown()).ok_or_else(unknown)?;
        let name = format!("{} {name}", unit.name());
        let mut made = MADE.lock();
        if let Some(known) = made.iter().find(|known| known.0.name == name) {
            return Ok(*known);
        }
        let hash = blake3::hash(name.as_bytes());
        let id = hash.as_bytes()[..6].iter().fold(1 << 4, |id, byte| id << 8 | u64::from(*byte)); // 2^52 and 48 bits
        let new = Self(Box::leak(Box::new(Zoned { unit, zone, name, id, last: ArcSwap::default() })));
        made.push(new);
        Ok(new)
    }

    /// Unit and zone.
    pub(crate) fn name(self) -> &'static str {
        &self.0.name
    }

    /// The calendar of this unit and zone, if there is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (unit, zone) = name.split_once(' ')?;
        let unit = [Unit::Day, Unit::Week, Unit::Month].into_iter().find(|known| known.name() == unit)?;
        Self::new(unit, zone).ok()
    }

    /// The number of this unit and zone, the same in every process: 2^52 or above, and so no length of a window, and below 2^53.
    pub(crate) fn id(self) -> u64 {
        self.0.id
    }

    /// How long a window is, more or less.
    pub(crate) fn nominal_us(self) -> u64 {
        match self.0.unit {
            Unit::Day => DAY_US,
            Unit::Week => 7 * DAY_US,
            Unit::Month => 31 * DAY_US,
        }
    }

    /// The window that `at` is in: when it begins, and when the next one does.
    pub(crate) fn window_of(self, at: u64) -> (u64, u64) {
        let known = self.0.last.load();
        let mut windows = known.windows(2).map(|window| (window[0], window[1]));
        windows.find(|(start, end)| (*start..*end).contains(&at)).unwrap_or_else(|| {
            let [_, start, end, _] = self.around(at);
            (start, end)
        })
    }

    /// When the window before that of `at` begins, its own, the next, and the one after that.
    pub(crate) fn around(self, at: u64) -> [u64; 4] {
        let known = **self.0.last.load();
        if (known[1]..known[2]).contains(&at) {
            return known;
        }
        let found = self.0.boundaries(at);
        self.0.last.store(found.into());
        found
    }

    /// The same for a time that is long ago and is not asked for again and again.
    #[cfg(feature = "redis")]
    pub(crate) fn once_around(self, at: u64) -> [u64; 4] {
        self.0.boundaries(at)
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

impl Zoned {
    fn boundaries(&self, at: u64) -> [u64; 4] {
        const KNOWN: &str = "times are below 2^53, in the year 2255";
        let at = at.min(1 << 53) as i64;
        let day = self.zone.to_datetime(Timestamp::from_microsecond(at).expect(KNOWN)).date();
        let start = |units: i64| self.start(day, units).expect(KNOWN).as_microsecond();
        // Enough of them: the clocks may show yesterday's date again after midnight, and a day may be skipped, which is none.
        let mut starts: Vec<i64> = (-3..=4).map(start).collect();
        starts.dedup();
        let next = starts.partition_point(|start| *start <= at);
        // Nothing is before the epoch.
        std::array::from_fn(|index| starts[next - 2 + index].max(0) as u64)
    }

    /// The first moment of the unit that is so many after that of `day`; that of the next one, if it is skipped.
    fn start(&self, day: Date, units: i64) -> Result<Timestamp, jiff::Error> {
        let first = match self.unit {
            Unit::Day => day.checked_add(Span::new().try_days(units)?)?,
            Unit::Week => {
                let monday = i64::from(day.weekday().to_monday_zero_offset());
                day.checked_add(Span::new().try_days(7 * units - monday)?)?
            }
            Unit::Month => day.first_of_month().checked_add(Span::new().try_months(units)?)?,
        };
        self.zone.to_timestamp(first.at(0, 0, 0, 0))
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({})", self.name())
    }
}
