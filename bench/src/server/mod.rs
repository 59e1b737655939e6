//! The server over HTTP beside others: decisions per second, and CPU time of the server and of the client per decision. All are asked by
//! the same client, in turns.

mod around;
mod awake;
mod contenders;

use std::{future, time::Duration};

use nix::time::ClockId;
use tidegate_load::{Distribution, Keys, Load};
use tidegate_server::serve::lanes;
use tokio::runtime::{Builder, Runtime};

use self::{awake::Awake, contenders::Contender};
use crate::{
    bars::{Bar, median},
    cases::SEED,
    remote::{self, Site},
};

/// How much is measured.
pub(crate) struct Effort {
    rounds: usize,
    /// How long each is asked in a round.
    lap: Duration,
}

impl Effort {
    /// For figures to publish.
    pub(crate) const FULL: Self = Self { rounds: 21, lap: Duration::from_secs(1) };
    /// For a look.
    pub(crate) const QUICK: Self = Self { rounds: 5, lap: Duration::from_millis(500) };
}

const CONNECTIONS: usize = 50;
const KEYS: u32 = 100_000;

/// Above what anybody takes from one key: nothing is denied, or it would be seen.
pub(crate) const PER_MINUTE: u32 = 1000;

/// Measures and prints what `filter` lets through, and returns what must hold.
pub(crate) fn run(peers: Vec<remote::Contender>, effort: &Effort, filter: &str, may_sleep: bool) -> Result<Vec<Bar>, String> {
    let client = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    println!(
        "\nSERVER over HTTP: {CONNECTIONS} connections that are kept, 100k keys, {PER_MINUTE}/min, median of {} rounds of {:?}.",
        effort.rounds, effort.lap
    );
    let mut bars = Vec::new();
    if "memory".contains(filter) {
        let results = measure(&client, contenders::in_memory()?, effort, || 0)?;
        print("in memory", &results);
        bars.extend(time_bar(&results, contenders::THROTTLECRAB, 1.2));
        bars.extend(bar("server CPU per decision", &results, contenders::THROTTLECRAB, 0.85, |result, round| result.cpu[round]));
    }
    if "redis".contains(filter) {
        let awake = (!may_sleep).then(Awake::keep);
        // The server of our making has as many threads as ours.
        let site = Site::of(lanes::on_redis());
        let results = measure(&client, contenders::on_redis(&site, peers)?, effort, || site.cpu_micros())?;
        print(if awake.is_some_and(|awake| awake.is_kept()) { "on Redis, cores kept awake" } else { "on Redis" }, &results);
        bars.extend(time_bar(&results, contenders::PLAIN, 1.3));
        bars.extend(time_bar(&results, contenders::LIMITADOR_SERVER, 3.0));
    }
    Ok(bars)
}

/// What one contender gave.
struct Measured {
    name: String,
    is_ours: bool,
    /// Microseconds of the server per decision, one for each round.
    cpu: Vec<f64>,
    /// The same of the store.
    store: Vec<f64>,
    /// Microseconds of the client per decision, one for each round: what it takes of the machine that both are on.
    client: Vec<f64>,
    /// Decisions per second, one for each round.
    rate: Vec<f64>,
}

/// Asks everyone once per round, each round starting with another, so that a disturbance hits all alike. `store`: CPU time of the store so far.
fn measure(
    client: &Runtime,
    contenders: Vec<Contender>,
    effort: &Effort,
    store: impl Fn() -> u64,
) -> Result<Vec<Measured>, String> {
    let fresh = |contender: &Contender| Measured {
        name: contender.name.clone(),
        is_ours: contender.is_ours,
        cpu: Vec::new(),
        store: Vec::new(),
        client: Vec::new(),
        rate: Vec::new(),
    };
    let mut results: Vec<_> = contenders.iter().map(fresh).collect();
    // Untimed: most keys have been seen when it counts.
    for contender in &contenders {
        lap(client, contender, Duration::from_secs(3))?;
    }
    for round in 0..effort.rounds {
        for at in (0..contenders.len()).map(|turn| (round + turn) % contenders.len()) {
            let before = [contenders[at].cpu_micros()?, store()];
            let Lap { decisions, rate, client } = lap(client, &contenders[at], effort.lap)?;
            let after = [contenders[at].cpu_micros()?, store()];
            results[at].cpu.push((after[0] - before[0]) as f64 / decisions);
            results[at].store.push((after[1] - before[1]) as f64 / decisions);
            results[at].client.push(client);
            results[at].rate.push(rate);
        }
    }
    Ok(results)
}

/// What one contender gave in a round.
struct Lap {
    decisions: f64,
    /// Of them per second.
    rate: f64,
    /// Microseconds of the client for each.
    client: f64,
}

fn lap(client: &Runtime, contender: &Contender, duration: Duration) -> Result<Lap, String> {
    let keys = Keys { count: KEYS, distribution: Distribution::Uniform, seed: SEED };
    let load = Load { connections: CONNECTIONS, rate: None, warmup: Duration::ZERO, duration, keys };
    // The client is this thread.
    let cpu = || ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from).map_err(|error| error.to_string());
    let before = cpu()?;
    let report = client.block_on(load.run(&contender.target, future::pending(), |_| {}))?;
    let spent = cpu()? - before;
    let tally = &report.tally;
    if tally.allowed == 0 || tally.denied + tally.failed + tally.unanswered > 0 {
        return Err(format!("{}: not all were allowed: {tally:?}", contender.name));
    }
    let decisions = tally.decisions() as f64;
    let rate = decisions / report.elapsed.as_secs_f64();
    Ok(Lap { decisions, rate, client: spent.as_secs_f64() * 1e6 / decisions })
}

fn print(place: &str, results: &[Measured]) {
    println!("\n{place:<34}{:>12}{:>18}{:>18}{:>10}{:>10}", "decisions/s", "min..max", "CPU us/decision", "store's", "client's");
    for Measured { name, cpu, store, client, rate, .. } in results {
        let min = rate.iter().copied().fold(f64::INFINITY, f64::min);
        let max = rate.iter().copied().fold(0.0, f64::max);
        let range = format!("{min:.0}..{max:.0}");
        let [rate, cpu, store, client] = [rate, cpu, store, client].map(|figures| median(figures));
        println!("{name:<34}{rate:>12.0}{range:>18}{cpu:>18.2}{store:>10.2}{client:>10.2}");
    }
}

/// So many times the peer's decisions per second, as a ceiling.
fn time_bar(results: &[Measured], peer: &str, times: f64) -> Option<Bar> {
    bar("time per decision", results, peer, 1.0 / times, |result, round| 1.0 / result.rate[round])
}

/// Compares within rounds: from one to the next the machine may be another. Nothing if the peer was not there.
fn bar(what: &str, results: &[Measured], peer: &str, ceiling: f64, figure: fn(&Measured, usize) -> f64) -> Option<Bar> {
    let theirs = results.iter().find(|result| result.name == peer)?;
    let ratio = |ours: &Measured| {
        let ratios: Vec<f64> = (0..ours.rate.len()).map(|round| figure(ours, round) / figure(theirs, round)).collect();
        (ours.name.clone(), median(&ratios))
    };
    let figures = results.iter().filter(|result| result.is_ours).map(ratio).collect();
    Some(Bar { claim: format!("{what}: ours / {peer}"), ceiling, figures })
}
