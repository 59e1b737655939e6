//! What is said of a load: a line each second while it lasts, and a summary, for people or as JSON.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use serde::Serialize;
use tidegate_load::{Load, Report, Tally};

/// Above this share of hits that were sent late, figures say more of the generator than of the target.
const LATE_SHARE: f64 = 0.01;

/// How long the bar of the longest line is.
const BAR: u64 = 40;

/// The line each second.
pub(crate) struct Live {
    began: Instant,
    shown: Instant,
    before: Tally,
}

impl Default for Live {
    fn default() -> Self {
        let now = Instant::now();
        Self { began: now, shown: now, before: Tally::default() }
    }
}

impl Live {
    /// Says what has come since the last line.
    pub(crate) fn show(&mut self, tally: &Tally) {
        let new = tally.since(&self.before);
        let rate = new.decisions() as f64 / self.shown.elapsed().as_secs_f64();
        // Nobody may be there to read it.
        let _ = writeln!(
            io::stderr(),
            "{:>5.0}s {rate:>9.0}/s  allowed {}  denied {}  failed {}  p50 {}  p99 {}  max {}",
            self.began.elapsed().as_secs_f64(),
            new.allowed,
            new.denied,
            new.failed,
            Shown(new.latency(0.5)),
            Shown(new.latency(0.99)),
            Shown(new.latency(1.0)),
        );
        self.shown = Instant::now();
        self.before = tally.clone();
    }
}

/// What there is to say at the end.
#[derive(Serialize)]
pub(crate) struct Summary {
    target: String,
    connections: usize,
    /// Hits per second that were asked for; null: flat out.
    rate: Option<f64>,
    seconds: f64,
    decisions: u64,
    decisions_per_second: f64,
    allowed: u64,
    denied: u64,
    failed: u64,
    /// Not answered when it was over; counted in the latency with the time that they had waited.
    unanswered: u64,
    latency_us: Latency,
    /// How many took no longer than so many microseconds, and longer than in the one before.
    histogram: Vec<Bucket>,
    /// Whether the generator itself sent what was due in time.
    kept_up: bool,
    first_error: Option<String>,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    max: f64,
}

#[derive(Serialize)]
struct Bucket {
    up_to_us: f64,
    count: u64,
}

impl Summary {
    pub(crate) fn new(target: &str, load: &Load, Report { tally, elapsed }: &Report) -> Self {
        let seconds = elapsed.as_secs_f64();
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let at = |share| micros(tally.latency(share));
        let hits = tally.decisions() + tally.failed + tally.unanswered;
        Self {
            target: target.to_owned(),
            connections: load.connections,
            rate: load.rate,
            seconds,
            decisions: tally.decisions(),
            decisions_per_second: if seconds > 0.0 { tally.decisions() as f64 / seconds } else { 0.0 },
            allowed: tally.allowed,
            denied: tally.denied,
            failed: tally.failed,
            unanswered: tally.unanswered,
            latency_us: Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: at(1.0) },
            histogram: tally.histogram().into_iter().map(|(most, count)| Bucket { up_to_us: micros(most), count }).collect(),
            kept_up: tally.late as f64 <= LATE_SHARE * hits as f64,
            first_error: tally.first_error.clone(),
        }
    }

    /// Whether something was asked, and none of it decided.
    pub(crate) fn has_nothing(&self) -> bool {
        self.decisions == 0 && self.failed + self.unanswered > 0
    }

    pub(crate) fn json(&self) -> String {
        format!("{}\n", serde_json::to_string_pretty(self).expect("texts and numbers"))
    }

    pub(crate) fn text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{line}");
        };
        let rate = self.rate.map_or("flat out".to_owned(), |rate| format!("{rate} hits/s"));
        line(format_args!("{}, {} connections, {rate}, {:.1} s", self.target, self.connections, self.seconds));
        line(format_args!(""));
        line(format_args!("  decisions  {:>12}   {:.0}/s", self.decisions, self.decisions_per_second));
        line(format_args!("  allowed    {:>12}", self.allowed));
        line(format_args!("  denied     {:>12}", self.denied));
        line(format_args!("  failed     {:>12}", self.failed));
        if self.unanswered > 0 {
            line(format_args!("  unanswered {:>12}   their waits are counted below", self.unanswered));
        }
        line(format_args!(""));
        let from = if self.rate.is_some() { "from when they were due" } else { "from when they were sent" };
        line(format_args!("  latency, {from}"));
        let Latency { p50, p90, p99, p99_9, max } = self.latency_us;
        for (name, micros) in [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p99_9), ("max", max)] {
            line(format_args!("  {name:<10} {:>12}", Shown(Duration::from_nanos((micros * 1000.0) as u64)).to_string()));
        }
        line(format_args!(""));
        let most = self.histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
        for Bucket { up_to_us, count } in &self.histogram {
            let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
            let up_to = Shown(Duration::from_nanos((up_to_us * 1000.0) as u64)).to_string();
            line(format_args!("  {:<10} {up_to:>12} {count:>12}  {bar}", "up to"));
        }
        if let Some(error) = &self.first_error {
            line(format_args!("\n  the first that failed: {error}"));
        }
        if !self.kept_up {
            line(format_args!(
                "\n  This program could not keep up: over 1 % of the hits were sent more than 1 ms late though a connection was free.\n  \
                 The latencies are as much its own; ask for less, or from another machine."
            ));
        }
        text
    }
}

/// A time in the unit that suits it.
struct Shown(Duration);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.as_nanos() as f64;
        match nanos {
            ..1e3 => write!(f, "{nanos:.0} ns"),
            ..1e6 => write!(f, "{:.1} us", nanos / 1e3),
            ..1e9 => write!(f, "{:.2} ms", nanos / 1e6),
            _ => write!(f, "{:.2} s", nanos / 1e9),
        }
    }
}
