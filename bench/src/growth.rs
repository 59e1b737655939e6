//! The cost of a new key when there are many: a table that grows must not make the last keys pay for all.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use crate::{
    bars::{Bar, median},
    cases,
    peers::Contender,
};

const FEW: Range<usize> = 9_000..10_000;
const MANY: Range<usize> = 900_000..1_000_000;

/// Inserting among many keys may cost this many times what it costs among few. A cache miss is in it, a copy of the
/// table for each key is not.
const CEILING: f64 = 4.0;

/// How many fresh limiters are measured, and when to stop: the slowest of them take ten seconds for a million keys.
const LIMITERS: usize = 25;
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures and prints all contenders, and returns what must hold.
pub(crate) fn run(contenders: &[Contender]) -> Vec<Bar> {
    println!("\nGROWTH, ns to insert one of the keys {FEW:?} and {MANY:?}, median of fresh limiters");
    println!("{:<40}{:>12}{:>12}{:>12}", "", "few", "many", "many / few");
    let keys: Vec<String> = (0..MANY.end).map(cases::key).collect();
    let mut bars = Vec::new();
    for contender in contenders {
        let few = insertion(contender, &keys, FEW);
        let many = insertion(contender, &keys, MANY);
        let ratio = many / few;
        println!("{:<40}{few:>12.1}{many:>12.1}{ratio:>12.2}", contender.name);
        bars.extend(contender.algorithm.map(|algorithm| Bar {
            claim: format!("growth: {algorithm}, insert among 1M / among 10k"),
            ceiling: CEILING,
            figures: vec![(String::new(), ratio)],
        }));
    }
    bars
}

/// Nanoseconds per key of `range`, after all the keys before it.
fn insertion(contender: &Contender, keys: &[String], range: Range<usize>) -> f64 {
    let sample = || {
        let subject = (contender.build)();
        for key in &keys[..range.start] {
            subject.check(key);
        }
        let start = Instant::now();
        for key in &keys[range.clone()] {
            subject.check(key);
        }
        start.elapsed().as_nanos() as f64 / range.len() as f64
    };
    let start = Instant::now();
    let mut samples = vec![sample()];
    while samples.len() < LIMITERS && start.elapsed() < PATIENCE {
        samples.push(sample());
    }
    median(&samples)
}
