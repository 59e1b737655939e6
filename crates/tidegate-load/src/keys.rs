//! Which keys are hit, and how often each. One seed, one sequence for each connection.

use std::str::FromStr;

use fastrand::Rng;

/// The keys: `bench-00000001` and so on, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// How many there are.
    pub count: u32,
    /// How hits spread over them.
    pub distribution: Distribution,
    /// What the sequence of keys begins from.
    pub seed: u64,
}

/// How hits spread over keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All keys alike.
    Uniform,
    /// The n-th key takes 1/n^s of what the first takes.
    Zipf {
        /// The exponent, above 0.
        s: f64,
    },
    /// One key takes all.
    Hot,
}

impl FromStr for Distribution {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write uniform, zipf, hot, or zipf with an exponent above 0 and up to 10, such as zipf:1.2";
        let s = match text {
            "uniform" => return Ok(Self::Uniform),
            "hot" => return Ok(Self::Hot),
            "zipf" => return Ok(Self::Zipf { s: 1.0 }),
            _ => text.strip_prefix("zipf:").and_then(|s| s.parse::<f64>().ok()).ok_or(WRONG)?,
        };
        if s > 0.0 && s <= 10.0 { Ok(Self::Zipf { s }) } else { Err(WRONG) }
    }
}

impl Keys {
    /// The most keys that there can be.
    pub const MAX: u32 = 99_999_999;

    /// How long a key is.
    pub(crate) const BYTES: usize = PREFIX.len() + DIGITS;

    /// The keys that one connection hits.
    pub(crate) fn sequence(&self, connection: u64) -> Sequence {
        let mut key = PREFIX.to_owned();
        key.extend(['0'; DIGITS]);
        // Seeds that are neighbours give sequences that have nothing in common.
        let rng = Rng::with_seed(self.seed.wrapping_add(connection));
        Sequence { draw: Draw::new(self.count.clamp(1, Self::MAX), self.distribution), rng, key: key.into_bytes() }
    }
}

const PREFIX: &str = "bench-";
const DIGITS: usize = 8;

/// Keys, one after another.
pub(crate) struct Sequence {
    draw: Draw,
    rng: Rng,
    key: Vec<u8>,
}

impl Sequence {
    pub(crate) fn next(&mut self) -> &str {
        let mut number = self.draw.rank(&mut self.rng);
        for digit in self.key[PREFIX.len()..].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        str::from_utf8(&self.key).expect("letters and digits")
    }
}

/// Draws a rank, from 1 on.
enum Draw {
    Uniform { count: u32 },
    Zipf { count: f64, s: f64, from: f64, to: f64 },
}

impl Draw {
    fn new(count: u32, distribution: Distribution) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform { count },
            Distribution::Hot => Self::Uniform { count: 1 },
            Distribution::Zipf { s } => {
                let count = f64::from(count);
                Self::Zipf { count, s, from: area(1.5, s) - 1.0, to: area(count + 0.5, s) }
            }
        }
    }

    /// Zipf by rejection: a place under the curve x^-s is drawn, and taken if it is in the bar of the nearest rank. Each bar of width 1 has
    /// less area than the curve above it, so bars fit; no table of all ranks is needed.
    fn rank(&self, rng: &mut Rng) -> u32 {
        match *self {
            Self::Uniform { count } => rng.u32(1..=count),
            Self::Zipf { count, s, from, to } => loop {
                let place = from + rng.f64() * (to - from);
                let rank = place_of(place, s).round().clamp(1.0, count);
                if place >= area(rank + 0.5, s) - rank.powf(-s) {
                    return rank as u32;
                }
            },
        }
    }
}

/// The area under x^-s from 1 to `x`.
fn area(x: f64, s: f64) -> f64 {
    let log = x.ln();
    let scaled = (1.0 - s) * log;
    // (x^(1-s) - 1) / (1-s), which is ln x for s = 1.
    if scaled.abs() < 1e-9 { log } else { log * scaled.exp_m1() / scaled }
}

/// Up to which `x` the area is this.
fn place_of(area: f64, s: f64) -> f64 {
    let scaled = (1.0 - s) * area;
    if scaled.abs() < 1e-9 { area.exp() } else { (area * scaled.ln_1p() / scaled).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    /// How often each rank was drawn, that of the first at 1.
    fn drawn(count: u32, distribution: &str) -> Vec<usize> {
        let keys = Keys { count, distribution: distribution.parse().expect("right"), seed: 7 };
        let mut sequence = keys.sequence(0);
        let mut drawn = vec![0; count as usize + 1];
        for _ in 0..DRAWS {
            drawn[sequence.next()[PREFIX.len()..].parse::<usize>().expect("a number")] += 1;
        }
        drawn
    }

    /// Five standard deviations of a count, which a right generator does not leave.
    fn is_near(count: usize, expected: f64) -> bool {
        (count as f64 - expected).abs() < 5.0 * expected.sqrt() + 1.0
    }

    #[test]
    fn hits_spread_as_they_are_asked_to() {
        let uniform = drawn(100, "uniform");
        assert_eq!(uniform[0], 0);
        assert!(uniform[1..].iter().all(|&count| is_near(count, DRAWS as f64 / 100.0)), "{uniform:?}");
        for (name, s) in [("zipf", 1.0), ("zipf:0.5", 0.5), ("zipf:1.3", 1.3)] {
            let zipf = drawn(1000, name);
            let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-s)).sum();
            for (rank, &count) in zipf.iter().enumerate().skip(1) {
                assert!(is_near(count, DRAWS as f64 * (rank as f64).powf(-s) / total), "{name}: {rank} was drawn {count} times");
            }
        }
        assert_eq!(drawn(100, "hot")[1], DRAWS);
        assert_eq!(drawn(1, "zipf")[1], DRAWS);
    }

    #[test]
    fn a_seed_and_a_connection_are_one_sequence() {
        let taken = |seed, connection| {
            let keys = Keys { count: 1_000_000, distribution: Distribution::Zipf { s: 1.0 }, seed };
            let mut sequence = keys.sequence(connection);
            (0..100).map(|_| sequence.next().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(taken(1, 2), taken(1, 2));
        assert_ne!(taken(1, 2), taken(1, 3));
        assert_ne!(taken(1, 2), taken(4, 2));
        assert!(taken(1, 2).iter().all(|key| key.len() == Keys::BYTES));
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for wrong in ["", "zip", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:11", "Hot"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
    }
}
