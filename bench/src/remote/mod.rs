//! Limiters that keep their state in Redis: what a decision costs the server, how many commands a denial takes, how many
//! bytes a key. Each part has a server of its own and a client with 64 callers; this file owns both.

pub(crate) mod contenders;
pub(crate) mod cost;
pub(crate) mod denials;
pub(crate) mod memory;
mod ours;
mod plain;

use std::{
    future::Future,
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use redis::{Client, IntoConnectionInfo, io::tcp::TcpSettings};
use tidegate_testkit::Server;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::interval,
};

pub use self::contenders::{Answer, Contender, Subject};
use crate::cases::SEED;

/// How much is measured.
pub(crate) struct Effort {
    rounds: usize,
    /// How long each contender is asked in a round.
    lap: Duration,
    /// Keys whose memory is measured, where each has 1 000 and where each has 10 000 requests.
    filled: [usize; 2],
}

impl Effort {
    /// For figures to publish.
    pub(crate) const FULL: Self = Self { rounds: 5, lap: Duration::from_secs(3), filled: [50, 20] };
    /// For a look.
    pub(crate) const QUICK: Self = Self { rounds: 3, lap: Duration::from_secs(1), filled: [20, 5] };
}

/// All the keys that there are.
const KEYS: usize = 100_000;

/// Callers that each wait for a decision before they ask for the next.
const CALLERS: usize = 64;

/// Threads of the client.
const WORKERS: usize = 2;

/// Commands that may wait for the connection of a client: more than all the callers send.
const PIPELINE: usize = 2 * CALLERS;

/// A server, and a client with its callers.
pub struct Site {
    server: Server,
    pub(crate) runtime: Runtime,
    keys: Arc<[String]>,
}

/// What became of a number of hits.
struct Tally {
    decisions: usize,
    allowed: usize,
    elapsed: Duration,
}

impl Tally {
    /// Decisions per second.
    fn rate(&self) -> f64 {
        self.decisions as f64 / self.elapsed.as_secs_f64()
    }
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::of(WORKERS)
    }

    /// With so many threads of the client.
    pub(crate) fn of(threads: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads can be had");
        // 13 bytes as in the other cases, but without the colon, which one peer refuses.
        let keys = (0..KEYS).map(|n| format!("user-{n:08}")).collect();
        Self { server: Server::start(), runtime, keys }
    }

    /// Where the server is.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// CPU time of the server so far.
    pub(crate) fn cpu_micros(&self) -> u64 {
        self.server.cpu_micros()
    }

    /// A client that does not hold back small packets.
    fn client(&self) -> Client {
        let info = self.url().into_connection_info().expect("the server knows its URL");
        Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true))).expect("the server knows its URL")
    }

    /// Waits, in the runtime of the callers.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Drops all data, but no script. All memory is given back when this returns: nothing of it is left to do in the
    /// time that is measured next.
    pub(crate) fn flush(&self) {
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.server.connection()).expect("the server flushes");
    }

    /// How many scripts clients have run. What scripts call does not count.
    fn scripts_run(&self) -> u64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.server.connection()).expect("it tells");
        let calls = |line: &str| {
            let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (calls, _) = figures.split_once(',')?;
            ["eval", "evalsha", "fcall"].contains(&command).then(|| calls.parse::<u64>().expect("a number of calls"))
        };
        info.lines().filter_map(calls).sum()
    }

    /// Lets every caller hit the keys that `picks` has for it, all callers at once: each as fast as it is answered, or at a
    /// pace of so much per hit.
    fn ask<P>(&self, subject: &Arc<dyn Subject>, pace: Option<Duration>, picks: impl Fn(usize) -> P) -> Tally
    where
        P: Iterator<Item = usize> + Send + 'static,
    {
        let start = Instant::now();
        let (decisions, allowed) = self.wait(async {
            let mut callers = JoinSet::new();
            for picks in (0..CALLERS).map(picks) {
                callers.spawn(call(Arc::clone(subject), Arc::clone(&self.keys), pace, picks));
            }
            let tallies = callers.join_all().await;
            tallies.into_iter().fold((0, 0), |(all, yes), (decisions, allowed)| (all + decisions, yes + allowed))
        });
        Tally { decisions, allowed, elapsed: start.elapsed() }
    }

    /// Hits each of the first `keys` keys `times` times.
    fn ask_each(&self, subject: &Arc<dyn Subject>, keys: usize, times: usize) -> Tally {
        self.ask(subject, None, |caller| (caller..keys * times).step_by(CALLERS).map(move |n| n % keys))
    }

    /// Hits random ones of the first `keys` keys until the lap is over: the same ones for everybody, as far as they come.
    fn ask_for(&self, subject: &Arc<dyn Subject>, pace: Option<Duration>, keys: usize, lap: Duration) -> Tally {
        let end = Instant::now() + lap;
        self.ask(subject, pace, |caller| {
            let mut rng = Rng::with_seed(SEED + caller as u64);
            iter::from_fn(move || (Instant::now() < end).then(|| rng.usize(..keys)))
        })
    }
}

/// One caller: the decisions it got, and how many of them allowed.
async fn call(
    subject: Arc<dyn Subject>,
    keys: Arc<[String]>,
    pace: Option<Duration>,
    picks: impl Iterator<Item = usize>,
) -> (usize, usize) {
    let (mut decisions, mut allowed) = (0, 0);
    let mut ticks = pace.map(interval);
    for pick in picks {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        allowed += usize::from(subject.check(&keys[pick]).await);
        decisions += 1;
    }
    (decisions, allowed)
}
