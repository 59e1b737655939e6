//! What a decision costs: CPU time of the server, and decisions per second of all callers together, in interleaved rounds.

use std::sync::Arc;

use tidegate::{Algorithm, Quota};

use super::{
    CALLERS, Effort, KEYS, Site,
    contenders::{Contender, Subject, contenders},
    plain,
};
use crate::bars::{Bar, median};

/// Above what anybody takes from one key in a round.
const QUOTA: Quota = Quota::per_minute(100);

/// Measures and prints the contenders whose cases contain `filter`, `peers` among them, and returns what must hold.
pub(crate) fn run(peers: Vec<Contender>, effort: &Effort, filter: &str) -> Vec<Bar> {
    let all = contenders().into_iter().chain(peers);
    let chosen: Vec<_> = all.filter(|contender| format!("cost: {}", contender.name).contains(filter)).collect();
    if chosen.is_empty() {
        return Vec::new();
    }
    let results = measure(&chosen, effort);
    println!("\nCOST over Redis: {CALLERS} callers, 100k keys that have been seen, {QUOTA}, median of {} rounds.", effort.rounds);
    println!("CPU time is the server's, per decision; `/ plain` is over the script that stands in articles for the algorithm.\n");
    let heads = ("CPU us", "min..max", "/ plain", "decisions/s", "scripts/decision", "allowed");
    println!("{:<28}{:>8}{:>16}{:>9}{:>13}{:>17}{:>10}", "", heads.0, heads.1, heads.2, heads.3, heads.4, heads.5);
    results.iter().for_each(|result| result.print(&results));
    bars(&results)
}

/// What one contender gave.
struct Measured {
    name: String,
    algorithm: Option<Algorithm>,
    is_peer: bool,
    /// Microseconds of the server per decision, one for each round.
    cpu: Vec<f64>,
    /// Decisions per second, one for each round.
    rate: Vec<f64>,
    decisions: usize,
    allowed: usize,
    /// Scripts that the server ran for it.
    scripts: u64,
}

/// Runs everyone once per round, each round starting with another, so that a disturbance hits all alike.
fn measure(contenders: &[Contender], effort: &Effort) -> Vec<Measured> {
    let site = Site::start();
    let subjects: Vec<_> = contenders.iter().map(|contender| (contender.connect)(&site, QUOTA)).collect();
    let fresh = |contender: &Contender| Measured {
        name: contender.name.clone(),
        algorithm: contender.algorithm,
        is_peer: contender.is_peer,
        cpu: Vec::new(),
        rate: Vec::new(),
        decisions: 0,
        allowed: 0,
        scripts: 0,
    };
    let mut results: Vec<_> = contenders.iter().map(fresh).collect();
    for round in 0..effort.rounds {
        for at in (0..subjects.len()).map(|turn| (round + turn) % subjects.len()) {
            results[at].lap(&site, &subjects[at], effort);
        }
    }
    results
}

impl Measured {
    fn lap(&mut self, site: &Site, subject: &Arc<dyn Subject>, effort: &Effort) {
        site.flush();
        // Untimed: the keys of the day are there before most of its hits.
        site.ask_each(subject, KEYS, 1);
        let scripts = site.scripts_run();
        let before = site.cpu_micros();
        let tally = site.ask_for(subject, None, KEYS, effort.lap);
        let spent = site.cpu_micros() - before;
        self.scripts += site.scripts_run() - scripts;
        self.cpu.push(spent as f64 / tally.decisions as f64);
        self.rate.push(tally.rate());
        self.decisions += tally.decisions;
        self.allowed += tally.allowed;
    }

    /// The script that people would use instead, if it was measured.
    fn plain<'a>(&self, results: &'a [Self]) -> Option<&'a Self> {
        let script = plain::instead_of(self.algorithm?)?;
        results.iter().find(|result| result.name == script.name)
    }

    fn print(&self, results: &[Self]) {
        let Self { name, cpu, rate, .. } = self;
        let per_decision = |count: f64| count / self.decisions as f64;
        let min = cpu.iter().copied().fold(f64::INFINITY, f64::min);
        let max = cpu.iter().copied().fold(0.0, f64::max);
        let over = self.plain(results).map_or(String::new(), |plain| format!("{:.2}", median(cpu) / median(&plain.cpu)));
        let (cpu, rate) = (median(cpu), median(rate));
        let (scripts, allowed) = (per_decision(self.scripts as f64), 100.0 * per_decision(self.allowed as f64));
        let range = format!("{min:.2}..{max:.2}");
        println!("{name:<28}{cpu:>8.2}{range:>16}{over:>9}{rate:>13.0}{scripts:>17.3}{allowed:>9.1}%");
    }
}

fn bars(results: &[Measured]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let ours: Vec<_> = results.iter().filter_map(|result| Some((result.algorithm?, result))).collect();
    for &(algorithm, result) in &ours {
        let promised =
            matches!(algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::TokenBucket | Algorithm::Gcra);
        bars.extend(result.plain(results).filter(|_| promised).map(|plain| Bar {
            claim: format!("redis CPU: {algorithm} / {}", plain.name),
            ceiling: 0.6,
            figures: vec![(String::new(), median(&result.cpu) / median(&plain.cpu))],
        }));
    }
    for peer in results.iter().filter(|result| result.is_peer) {
        let figures = |ratio: fn(&Measured, &Measured) -> f64| {
            ours.iter().map(|(algorithm, result)| (algorithm.to_string(), ratio(result, peer))).collect()
        };
        bars.push(Bar {
            claim: format!("redis CPU: each of ours / {}", peer.name),
            ceiling: 1.0,
            figures: figures(|ours, theirs| median(&ours.cpu) / median(&theirs.cpu)),
        });
        bars.push(Bar {
            claim: format!("redis time per decision: each of ours / {}", peer.name),
            ceiling: 1.0,
            figures: figures(|ours, theirs| median(&theirs.rate) / median(&ours.rate)),
        });
    }
    bars.retain(|bar| !bar.figures.is_empty());
    bars
}
