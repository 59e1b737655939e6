//! The cases: which keys are hit, in what order, by how many threads, and which of the keys are exhausted. It knows no
//! limiter.

use std::{fmt, iter};

use fastrand::Rng;

/// One seed, one run: everybody sees the same keys in the same order, today and tomorrow.
pub(crate) const SEED: u64 = 0x7469_6465;

/// The id of a key, 13 bytes.
pub(crate) fn key(n: usize) -> String {
    format!("user:{n:08}")
}

/// How hits spread over keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// One key takes all.
    Hot,
    /// 100 000 keys, all alike.
    Uniform,
    /// A million keys, the n-th taking 1/n of what the first takes.
    Zipf,
}

/// Which keys are exhausted before the clock starts. Nothing else decides what is denied, so the mix is the same for
/// every limiter, however fast it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// None.
    Allowed,
    /// Every second one. One hot key cannot be both, so it becomes a pair that is hit in random turns.
    Mixed,
    /// All.
    Denied,
}

/// What limiters are prepared for: the keys that they know and the state these are in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scene {
    /// The keys.
    pub(crate) spread: Spread,
    /// Their state.
    pub(crate) mix: Mix,
}

/// What is timed.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// The keys and their state.
    pub(crate) scene: Scene,
    /// How many threads share the limiter.
    pub(crate) threads: usize,
}

/// The numbers of threads that each scene is timed with.
pub(crate) const THREADS: [usize; 2] = [1, 2];

impl Scene {
    /// Every scene.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let mixes = [Mix::Allowed, Mix::Mixed, Mix::Denied];
        [Spread::Hot, Spread::Uniform, Spread::Zipf].into_iter().flat_map(move |spread| mixes.map(|mix| Self { spread, mix }))
    }

    /// How many keys there are.
    pub(crate) fn keys(self) -> usize {
        match (self.spread, self.mix) {
            (Spread::Hot, Mix::Mixed) => 2,
            (Spread::Hot, _) => 1,
            (Spread::Uniform, _) => 100_000,
            (Spread::Zipf, _) => 1_000_000,
        }
    }

    /// Whether the key at `index` is exhausted beforehand. Neighbours are hit about equally often, so half the keys
    /// are half the hits.
    pub(crate) fn is_exhausted(self, index: usize) -> bool {
        match self.mix {
            Mix::Allowed => false,
            Mix::Mixed => index % 2 == 1,
            Mix::Denied => true,
        }
    }

    /// Every key once, shuffled: the keys that are hit most must not lie side by side because they came first.
    pub(crate) fn order(self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.keys()).collect();
        Rng::with_seed(SEED).shuffle(&mut order);
        order
    }

    /// The indices of the keys that a thread hits, `n` of them; another stream for each thread.
    pub(crate) fn picks(self, thread: usize, n: usize) -> impl Iterator<Item = usize> {
        let mut rng = Rng::with_seed(SEED + thread as u64);
        let keys = self.keys();
        let weight = move |rank: usize| if self.spread == Spread::Zipf { 1.0 / rank as f64 } else { 1.0 };
        let cumulative: Vec<f64> = (1..=keys)
            .scan(0.0, |total, rank| {
                *total += weight(rank);
                Some(*total)
            })
            .collect();
        let total = cumulative[keys - 1];
        let pick = move || {
            let share = rng.f64() * total;
            cumulative.partition_point(|&up_to| up_to <= share).min(keys - 1)
        };
        iter::repeat_with(pick).take(n)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hot => "one hot key",
            Self::Uniform => "100k keys uniform",
            Self::Zipf => "1M keys zipf",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scene: Scene { spread, mix }, threads } = self;
        let mix = match mix {
            Mix::Allowed => "allowed",
            Mix::Mixed => "mixed",
            Mix::Denied => "denied",
        };
        write!(f, "{spread}, {threads} thread{}, {mix}", if *threads == 1 { "" } else { "s" })
    }
}
