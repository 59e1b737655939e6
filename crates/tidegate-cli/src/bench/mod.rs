//! `tidegate bench`: load for a server, or for a store without one. What was typed becomes a load and a target; `tidegate-load` does the
//! asking.

mod report;
mod store;

use std::{
    env::{self, VarError},
    future,
    io::{self, IsTerminal as _},
    num::{NonZeroU16, NonZeroUsize},
    thread,
    time::Duration,
};

use clap::Args;
use tidegate::{Algorithm, ConfigError, Limiter, Policy, Quota};
use tidegate_load::{Distribution, Http, Keys, Load, Target};
use tidegate_server::{
    config::{Backend, Meaning as _, Problems, Sources, Text},
    files,
};
use tokio::{runtime::Builder, signal};

use self::{
    report::{Live, Summary},
    store::InProcess,
};
use crate::{asking::some_time, client::Failure, show::print};

/// Asks about random keys and tells how many decisions there were, and how long they took.
///
/// Flat out, each connection asks again as soon as it is answered. With --rate, hits are due at even distances whether or not earlier ones
/// have been answered, and latency counts from when a hit was due: a target that stands still for a second is seen to, in the latency of
/// all that should have been sent in that second.
///
/// Hits are real: they are charged, to keys from bench-00000001 on.
#[derive(Args)]
#[command(after_help = "Examples:
  tidegate bench                                          a server on this machine, flat out, for 10 seconds
  tidegate bench --rate 5000 --duration 1m                what its clients would see at 5000 hits per second
  tidegate bench --keys 1000000 --distribution zipf       few keys that are hit often, many that are hardly hit
  tidegate bench --auth x-user                            forward-auth, where user = \"header:x-user\"
  tidegate bench --store redis://127.0.0.1:6379/          Redis by itself, with no server in between
  tidegate bench --store memory --quota 10/s --algorithm gcra")]
pub(crate) struct Command {
    /// A server, asked by POST /v1/check unless --auth is given
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", conflicts_with = "store")]
    http: String,
    /// Asks as a proxy does, by GET /v1/auth, with the key in this header; the server's forward_auth.attributes has to make an attribute of it
    #[arg(long, value_name = "HEADER", conflicts_with_all = ["store", "attribute"])]
    auth: Option<String>,
    /// No server: a store, asked from within this process: "memory", or the address of Redis or Valkey
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// With --store: the policies, and how to speak to the store
    #[arg(long, value_name = "FILE", requires = "store", conflicts_with = "http")]
    config: Option<String>,
    /// With --store and without --config: the one policy
    #[arg(long, default_value = "100/min", requires = "store", conflicts_with_all = ["config", "http"])]
    quota: Quota,
    /// With --store and without --config: its algorithm
    #[arg(long, default_value_t, requires = "store", conflicts_with_all = ["config", "http"])]
    algorithm: Algorithm,
    /// Hits per second; flat out unless given
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// How many ask at the same time
    #[arg(long, value_name = "N", default_value = "50")]
    connections: NonZeroU16,
    /// How long to ask, such as 30s or 5m
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = some_time)]
    duration: Duration,
    /// How long to ask before, without counting
    #[arg(long, value_name = "SPAN", default_value = "0s", value_parser = Duration::read)]
    warmup: Duration,
    /// How many keys there are
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u32).range(1..=i64::from(Keys::MAX)))]
    keys: u32,
    /// How hits spread over keys: uniform, hot (one key takes all), zipf (the n-th takes 1/n of what the first takes) or zipf:S (1/n^S)
    #[arg(long, default_value = "uniform")]
    distribution: Distribution,
    /// The same seed, the same keys in the same order on each connection
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// The attribute that is the key
    #[arg(long, value_name = "NAME", default_value = "user")]
    attribute: String,
    /// The summary as JSON
    #[arg(long)]
    json: bool,
    /// No line each second
    #[arg(long)]
    quiet: bool,
}

/// The variable that names a file with the password for Redis.
const PASSWORD_FILE: &str = "TIDEGATE_STORE_PASSWORD_FILE";

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=10_000_000.0).contains(rate));
    rate.ok_or_else(|| "write a number of hits per second from 0.001 to 10000000".to_owned())
}

impl Command {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let runtime = match self.threads() {
            1 => Builder::new_current_thread().enable_all().build(),
            threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
        };
        let summary = runtime.map_err(|error| Failure::Unasked(error.to_string()))?.block_on(self.ask())?;
        print(&if self.json { summary.json() } else { summary.text() }).map_err(Failure::Unasked)?;
        if summary.has_nothing() { Err(Failure::Unasked("nothing was decided".to_owned())) } else { Ok(()) }
    }

    /// A target that is a process of its own needs some cores as well.
    fn threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        if self.store.as_deref() == Some("memory") { cores } else { cores.div_ceil(2) }
    }

    async fn ask(&self) -> Result<Summary, Failure> {
        let Some(url) = &self.store else {
            let (flag, target) = match &self.auth {
                Some(header) => ("--auth", Http::auth(&self.http, header)),
                None => ("--http", Http::check(&self.http, &self.attribute)),
            };
            let target = target.map_err(|message| Failure::Usage(format!("{flag}: {message}")))?;
            return self.load(&target, &self.http).await;
        };
        let wrong = |problems: Problems| Failure::Usage(problems.to_string());
        let flags = [("--store", Some(url)), ("--config", self.config.as_ref())];
        let given = flags.into_iter().filter_map(|(flag, text)| Some((flag, text?.clone())));
        // Of the environment only what `--store` cannot say: a load does not follow where a server would.
        let password_file = match env::var(PASSWORD_FILE) {
            Err(VarError::NotUnicode(_)) => {
                return Err(Failure::Usage(format!("{PASSWORD_FILE}: this is not UTF-8; write a text")));
            }
            told => told.ok(),
        };
        let variable = |name: &str| password_file.clone().filter(|_| name == PASSWORD_FILE);
        let mut config = Sources::new(given, variable).load().map_err(wrong)?;
        let policies = match self.config {
            Some(_) => config.policies().map_err(wrong)?,
            None => {
                // How long it takes is what is asked: nothing is to be decided without the store because it is late.
                config.store.deadline = Text::read("10s").map_err(Failure::Usage)?;
                vec![Policy::new("bench", self.quota).algorithm(self.algorithm).key([&self.attribute])]
            }
        };
        let builder = Limiter::builder().policies(policies).max_keys(config.store.max_keys.get());
        let builder = builder.key_secret(config.store.key_secret().map_err(|problem| wrong(problem.into()))?);
        let refused = |error: ConfigError| Failure::Usage(error.to_string());
        let name = config.store.url.to_string();
        match config.store.backend().map_err(|problem| wrong(problem.into()))? {
            // What a file keeps is not ours to add to.
            Backend::Memory(_) => {
                let limiter = builder.build().map_err(refused)?;
                self.load(&InProcess::new(limiter, &self.attribute), &name).await
            }
            Backend::Redis(redis) => {
                let limiter = builder.store(*redis).build().map_err(refused)?;
                let unanswered = |trouble| Failure::Unasked(format!("nothing answers at {name}: {trouble}"));
                store::up(limiter.store()).await.map_err(unanswered)?;
                self.load(&InProcess::new(limiter, &self.attribute), &name).await
            }
        }
    }

    async fn load(&self, target: &impl Target, name: &str) -> Result<Summary, Failure> {
        let load = Load {
            connections: usize::from(self.connections.get()),
            rate: self.rate,
            warmup: self.warmup,
            duration: self.duration,
            keys: Keys { count: self.keys, distribution: self.distribution, seed: self.seed },
        };
        /// Files that are no connections.
        const OTHERS: u64 = 32;
        let _ = files::make_room(load.connections as u64 + OTHERS);
        let mut live = (!self.quiet && io::stderr().is_terminal()).then(Live::default);
        let interrupted = async {
            if signal::ctrl_c().await.is_err() {
                // Then it ends as any other program does.
                future::pending().await
            }
        };
        let ran = load.run(target, interrupted, |tally| live.iter_mut().for_each(|live| live.show(tally))).await;
        Ok(Summary::new(name, &load, &ran.map_err(Failure::Unasked)?))
    }
}
