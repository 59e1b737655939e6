//! What denials cost the server: commands per decision where keys are at their limits and have to wait for long.

use std::time::Duration;

use tidegate::{Algorithm, Quota};

use super::{CALLERS, Effort, Site, ours};
use crate::bars::Bar;

const KEYS: usize = 100;
const LIMIT: usize = 100;

/// One comes back in a quarter of an hour, so that nobody is admitted while it is measured.
const QUOTA: Quota = Quota::per_day(LIMIT as u64);

/// What all callers ask for, per second: no more than the bar wants, since the more often a key is denied, the fewer of its
/// denials need the server. A little more is asked, as some will be late.
const RATE: f64 = 50_000.0;
const ASKED: f64 = 1.1 * RATE;

/// The bar: of 100 denials at most one asks the server.
const CEILING: f64 = 0.01;

/// Measures and prints the algorithms whose cases contain `filter`, and returns what must hold.
pub(crate) fn run(effort: &Effort, filter: &str) -> Vec<Bar> {
    let named = |algorithm: Algorithm| (algorithm, format!("tidegate {algorithm}"));
    let chosen: Vec<_> = Algorithm::RATES
        .iter()
        .map(|&algorithm| named(algorithm))
        .filter(|(_, name)| format!("denials: {name}").contains(filter))
        .collect();
    if chosen.is_empty() {
        return Vec::new();
    }
    println!(
        "\nDENIALS over Redis: {CALLERS} callers, {KEYS} keys at their limits, {QUOTA}, with the deny cache as it is by default."
    );
    println!("Commands include those that the scripts call.\n");
    println!("{:<28}{:>17}{:>20}{:>13}{:>10}", "", "scripts/decision", "commands/decision", "decisions/s", "allowed");
    let site = Site::start();
    let pace = Duration::from_secs_f64(CALLERS as f64 / ASKED);
    let (mut asked, mut slowness) = (Vec::new(), Vec::new());
    for (algorithm, name) in chosen {
        site.flush();
        let subject = ours::caching(&site, algorithm, QUOTA);
        site.ask_each(&subject, KEYS, LIMIT);
        let before = [site.scripts_run(), site.server.commands()];
        let tally = site.ask_for(&subject, Some(pace), KEYS, effort.lap);
        let after = [site.scripts_run(), site.server.commands()];
        let [scripts, commands] = [0, 1].map(|at| (after[at] - before[at]) as f64 / tally.decisions as f64);
        let rate = tally.rate();
        println!("{name:<28}{scripts:>17.5}{commands:>20.5}{rate:>13.0}{:>10}", tally.allowed);
        asked.push((name.clone(), scripts));
        slowness.push((name, RATE / rate));
    }
    vec![
        Bar { claim: "redis denials: scripts run / decision".to_owned(), ceiling: CEILING, figures: asked },
        Bar { claim: "redis denials: 50k / decisions per second".to_owned(), ceiling: 1.0, figures: slowness },
    ]
}
