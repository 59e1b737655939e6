//! Memory of the server: what its data takes when every key has had so many requests in one window, evenly spread.

use std::{sync::Arc, time::Duration};

use tidegate::{Algorithm, ManualClock, Quota};
use tokio::task::JoinSet;

use super::{
    Effort, Site,
    contenders::Subject,
    ours,
    plain::{self, Plain},
};
use crate::bars::Bar;

/// Requests of each key.
const REQUESTS: [usize; 2] = [1_000, 10_000];

const WINDOW: Duration = Duration::from_secs(3_600);

/// The bars: bytes per request of a log, and bytes per key of a sliding window at its usual 100 grains.
const LOG: f64 = 125.0;
const SLIDING_WINDOW: f64 = 2_500.0;

/// Connects a limiter that goes by a clock.
type Connect = Box<dyn Fn(&Site, Quota, &ManualClock) -> Arc<dyn Subject>>;

/// Measures and prints those whose cases contain `filter`, and returns what must hold.
pub(crate) fn run(effort: &Effort, filter: &str) -> Vec<Bar> {
    // The script goes by the server's clock alone; its members take the same at any time.
    let plain: Connect = Box::new(|site, quota, _| Arc::new(Plain::connect(site, plain::LOG, quota)));
    let ours = Algorithm::RATES.iter().map(|&algorithm| {
        let connect: Connect = Box::new(move |site, quota, clock| ours::asking_by(clock.clone(), site, algorithm, quota));
        (format!("tidegate {algorithm}"), Some(algorithm), connect)
    });
    let all = [(plain::LOG.name.to_owned(), None, plain)].into_iter().chain(ours);
    let chosen: Vec<_> = all.filter(|(name, ..)| format!("memory: {name}").contains(filter)).collect();
    if chosen.is_empty() {
        return Vec::new();
    }
    let [few, many] = effort.filled;
    println!("\nMEMORY of Redis, by what a flush gives back: bytes per key and per request, mean of {few} keys with 1000");
    println!("requests each in a window of an hour, and of {many} keys with 10000.\n");
    println!("{:<40}{:>12}{:>12}{:>12}{:>12}", "", "1000: key", "request", "10000: key", "request");
    let site = Site::start();
    let mut bars = Vec::new();
    for (name, algorithm, connect) in chosen {
        let [few, many] = [0, 1].map(|at| fill(&site, &connect, REQUESTS[at], effort.filled[at]));
        let per_request = [few / REQUESTS[0] as f64, many / REQUESTS[1] as f64];
        println!("{name:<40}{few:>12.0}{:>12.1}{many:>12.0}{:>12.1}", per_request[0], per_request[1]);
        let bar = |what, ceiling, bytes: [f64; 2]| Bar {
            claim: format!("redis memory: {name}, bytes per {what}"),
            ceiling,
            figures: REQUESTS.into_iter().map(|requests| format!("{requests} requests")).zip(bytes).collect(),
        };
        match algorithm {
            Some(Algorithm::SlidingLog) => bars.push(bar("request", LOG, per_request)),
            Some(Algorithm::SlidingWindow) => bars.push(bar("key", SLIDING_WINDOW, [few, many])),
            _ => {}
        }
    }
    bars
}

/// Bytes per key.
fn fill(site: &Site, connect: &Connect, requests: usize, keys: usize) -> f64 {
    let quota = Quota::new(requests as u64, WINDOW).expect("an hour is a window");
    let clock = ManualClock::default();
    let subject = connect(site, quota, &clock);
    let step = WINDOW / requests as u32;
    site.flush();
    site.wait(async {
        for _ in 0..requests {
            let mut hits = JoinSet::new();
            for at in 0..keys {
                let (subject, keys) = (Arc::clone(&subject), Arc::clone(&site.keys));
                hits.spawn(async move { subject.check(&keys[at]).await });
            }
            assert!(hits.join_all().await.into_iter().all(|allowed| allowed), "the quota covers all of the requests");
            clock.advance(step);
        }
    });
    // Both with the same connections in the same state: what they take is no part of the difference.
    let filled = site.server.used_memory();
    site.flush();
    let empty = site.server.used_memory();
    (filled - empty) as f64 / keys as f64
}
