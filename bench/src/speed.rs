//! Time per decision: every contender on every case, in interleaved rounds, on keys that it has seen before.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use tidegate::Algorithm;

use crate::{
    bars::{Bar, median},
    cases::{self, Case, Scene, Spread, THREADS},
    peers::{BURST, Contender, GOVERNOR, LIMITADOR, Subject, THROTTLECRAB, position},
};

/// How much is measured.
pub(crate) struct Effort {
    rounds: usize,
    /// Decisions that a contender makes in a round: several times the keys of the uniform case, whose states are to be
    /// found in the caches, and the same for all, since who decides more has warmer caches.
    lap: usize,
}

impl Effort {
    /// For figures to publish.
    pub(crate) const FULL: Self = Self { rounds: 9, lap: 300_000 };
    /// For a look.
    pub(crate) const QUICK: Self = Self { rounds: 3, lap: 200_000 };
}

/// Who takes longer than this per decision makes a fortieth of the decisions, or we would wait for nobody else.
const SLOW: Duration = Duration::from_micros(2);

/// Decisions made to find out who is slow.
const PROBE: usize = 2_000;

// Each round is half a lap untimed and one timed; a lone free key must outlast all of them.
const _: () = assert!((Effort::FULL.lap * 3 / 2 * Effort::FULL.rounds + 3 * PROBE) * THREADS.len() < BURST as usize);

/// What one case gave, in the order of the contenders.
pub(crate) struct Measured {
    case: Case,
    timings: Vec<Timing>,
}

struct Timing {
    /// Nanoseconds per decision, one for each round.
    samples: Vec<f64>,
    decisions: usize,
    allowed: usize,
}

/// Measures and prints the cases whose names contain `filter`.
pub(crate) fn run(contenders: &[Contender], effort: &Effort, filter: &str) -> Vec<Measured> {
    println!(
        "TIME PER DECISION, each with its full answer: keys of 13 bytes that have been seen, median of {} rounds.",
        effort.rounds
    );
    println!("Wall time x threads / decisions: what a decision costs the thread that asks; two threads that do not");
    println!("disturb each other show the same figure as one.");
    let mut results = Vec::new();
    for scene in Scene::all() {
        let cases = THREADS.map(|threads| Case { scene, threads });
        let chosen: Vec<Case> = cases.into_iter().filter(|case| case.to_string().contains(filter)).collect();
        if chosen.is_empty() {
            continue;
        }
        let stage = Stage::new(contenders, scene);
        for case in chosen {
            let result = Measured { case, timings: stage.time(effort, case.threads) };
            result.print(contenders);
            results.push(result);
        }
    }
    results
}

/// What must hold of the results.
pub(crate) fn bars(contenders: &[Contender], results: &[Measured]) -> Vec<Bar> {
    let bar = |algorithm: Algorithm, peer: &str, ceiling: f64, spread: Option<Spread>| {
        let ours = contenders.iter().position(|contender| contender.algorithm == Some(algorithm)).expect("of the registry");
        let theirs = position(contenders, peer);
        let figures: Vec<_> = results
            .iter()
            .filter(|result| spread.is_none_or(|spread| spread == result.case.scene.spread))
            .map(|result| (result.case.to_string(), result.median(ours) / result.median(theirs)))
            .collect();
        let place = spread.map_or("everywhere".to_owned(), |spread| spread.to_string());
        Bar { claim: format!("time: {algorithm} / {peer}, {place}"), ceiling, figures }
    };
    let mut bars = vec![
        bar(Algorithm::Gcra, GOVERNOR, 1.0, Some(Spread::Hot)),
        bar(Algorithm::Gcra, GOVERNOR, 0.5, Some(Spread::Uniform)),
        bar(Algorithm::Gcra, GOVERNOR, 0.5, Some(Spread::Zipf)),
        bar(Algorithm::SlidingWindow, GOVERNOR, 1.0, None),
    ];
    for &algorithm in Algorithm::RATES {
        bars.extend([THROTTLECRAB, LIMITADOR].map(|peer| bar(algorithm, peer, 1.0, None)));
    }
    // A filter can leave nothing to hold a bar to.
    bars.retain(|bar| !bar.figures.is_empty());
    bars
}

/// The limiters of a scene, which all know its keys, and the hits to come.
struct Stage {
    /// The keys to hit, for each thread. Each hit has a copy of its key, and copies lie in the order of the hits: a
    /// request brings its key along, so fetching it from afar must not be in the figures.
    streams: Vec<Vec<String>>,
    subjects: Vec<Box<dyn Subject>>,
}

impl Stage {
    fn new(contenders: &[Contender], scene: Scene) -> Self {
        let keys: Vec<String> = (0..scene.keys()).map(cases::key).collect();
        let most = THREADS.into_iter().max().unwrap_or(1);
        let hits = |thread| scene.picks(thread, Effort::FULL.lap * 3 / 2).map(|index| keys[index].clone()).collect();
        let streams = (0..most).map(hits).collect();
        let order = scene.order();
        let prepare = |contender: &Contender| {
            let subject = (contender.build)();
            for &index in &order {
                let key = &keys[index];
                let admitted = if scene.is_exhausted(index) { subject.exhaust(key) } else { subject.check(key) };
                assert!(admitted, "{} denied a fresh key", contender.name);
            }
            subject
        };
        let subjects = contenders.iter().map(prepare).collect();
        Self { streams, subjects }
    }

    /// Runs everyone once per round, each round starting with another, so that a disturbance hits all alike.
    fn time(&self, effort: &Effort, threads: usize) -> Vec<Timing> {
        let contenders = self.subjects.len();
        let laps: Vec<usize> = (0..contenders).map(|at| self.lap_size(at, effort, threads) / threads).collect();
        let mut timings: Vec<_> = laps.iter().map(|_| Timing { samples: Vec::new(), decisions: 0, allowed: 0 }).collect();
        for round in 0..effort.rounds {
            for at in (0..contenders).map(|turn| (round + turn) % contenders) {
                let lap = laps[at];
                // Untimed, to bring back to the caches what the others have driven out.
                self.lap(at, threads, 0..lap / 2);
                let (elapsed, allowed) = self.lap(at, threads, lap / 2..lap / 2 + lap);
                let timing = &mut timings[at];
                timing.samples.push(elapsed.as_nanos() as f64 / lap as f64);
                timing.decisions += lap * threads;
                timing.allowed += allowed;
            }
        }
        timings
    }

    /// Decisions of all threads in a lap.
    fn lap_size(&self, at: usize, effort: &Effort, threads: usize) -> usize {
        // The best of three: the first finds cold caches.
        let best = (0..3).map(|_| self.lap(at, threads, 0..PROBE / threads).0).min();
        let slow = best.is_some_and(|best| best > SLOW * (PROBE / threads) as u32);
        if slow { effort.lap / 40 } else { effort.lap }
    }

    /// Lets each thread decide its hits in `range`; how long all took, and how many were allowed.
    fn lap(&self, at: usize, threads: usize, range: Range<usize>) -> (Duration, usize) {
        let Self { streams, subjects } = self;
        let subject = &*subjects[at];
        let start = Instant::now();
        let allowed = thread::scope(|scope| {
            let others: Vec<_> =
                streams[1..threads].iter().map(|hits| scope.spawn(|| subject.check_all(&hits[range.clone()]))).collect();
            let own = subject.check_all(&streams[0][range.clone()]);
            own + others.into_iter().map(|other| other.join().expect("a limiter does not panic")).sum::<usize>()
        });
        (start.elapsed(), allowed)
    }
}

impl Measured {
    fn median(&self, at: usize) -> f64 {
        median(&self.timings[at].samples)
    }

    fn print(&self, contenders: &[Contender]) {
        let governor = position(contenders, GOVERNOR);
        println!("\n{:<40}{:>10}{:>20}{:>12}{:>10}", self.case.to_string(), "ns", "min..max", "/ governor", "allowed");
        for (at, (contender, timing)) in contenders.iter().zip(&self.timings).enumerate() {
            let min = timing.samples.iter().copied().fold(f64::INFINITY, f64::min);
            let max = timing.samples.iter().copied().fold(0.0, f64::max);
            println!(
                "{:<40}{:>10.1}{:>20}{:>12.2}{:>9.1}%",
                contender.name,
                self.median(at),
                format!("{min:.1}..{max:.1}"),
                self.median(at) / self.median(governor),
                100.0 * timing.allowed as f64 / timing.decisions as f64,
            );
        }
    }
}
