//! Serving: a configuration becomes a limiter on its store and front ends that listen, until it is told to stop.
//!
//! ```no_run
//! use tidegate_server::{config::Sources, serve::Server};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let sources = Sources::file("tidegate.toml");
//! let config = sources.load()?;
//! let server = Server::start(sources, config).await?;
//! println!("{}", server.greeting());
//! server.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A front end is a listener, and a task that gives each connection a `Gate` to ask by: `Server::listen` is where they are started.

mod accept;
mod admin;
mod condition;
mod decision_log;
mod denials;
mod direct;
mod gate;
mod greeting;
mod http;
/// For `bench/`, which puts other limiters behind the same HTTP.
#[doc(hidden)]
pub mod http1;
/// For `bench/`, as well.
#[doc(hidden)]
pub mod lanes;
mod metrics;
mod note;
mod policies;
mod recorder;
mod settings;
mod tls;
mod traces;

use std::{error, fmt, io, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use tidegate::{ConfigError, Limiter, Redis, Status, Store};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use self::{
    accept::Ways,
    admin::{Admin, Administration, Entry, Refusals},
    condition::Condition,
    decision_log::DecisionLog,
    gate::Gate,
    http::{Http, seal::Seal},
    lanes::Lanes,
    metrics::Metrics,
    policies::Policies,
    recorder::Times,
    settings::{InForce, Settings},
    traces::Traces,
};
pub use self::{
    direct::Direct,
    recorder::{Asked, FrontEnd, Recorder, Totals},
};
use crate::{
    config::{Backend, Config, Limits, Problem, Problems, Sources, Text},
    files,
    log::Log,
    reload::Reload,
};

/// Serves what `sources` say until SIGTERM or SIGINT comes, and then until what is under way has been answered. It logs, and says on
/// standard output when it has started.
///
/// Snapshots are written once more when the last task has gone: drop the runtime before the process ends, and then
/// [`flush`](crate::log::flush) the log.
///
/// # Errors
/// When it cannot start.
pub async fn run(sources: Sources) -> Result<(), StartError> {
    let config = sources.load_to_serve()?;
    let log = Log::start(&config.log).map_err(StartError::Threads)?;
    sources.strangers().iter().for_each(|said| warn!("{said}"));
    make_room(&config.limits);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;
    let mut terminations = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
    // Heard later (`Reload`); until then it would end the process.
    let _hangups = signal(SignalKind::hangup()).map_err(StartError::Signals)?;
    let mut told = async || {
        tokio::select! {
            _ = interrupts.recv() => "SIGINT",
            _ = terminations.recv() => "SIGTERM",
        }
    };
    let server = tokio::select! {
        started = Server::start(sources, config) => started?,
        signal = told() => {
            info!("{signal}: stopped before it had started");
            return Ok(());
        }
    };
    let following = tokio::spawn(log.follow(server.config()));
    {
        use io::Write as _;
        // Nobody may be there to read it.
        let _ = io::stdout().write_all(server.greeting().as_bytes());
    }
    // Not in the line itself: one that is not written is not waited in either.
    let signal = told().await;
    match *server.limits.shutdown_delay {
        Duration::ZERO => info!("{signal}: answering what is under way"),
        delay => info!("{signal}: not ready any more, and taking requests for another {delay:?}"),
    }
    let recorder = server.recorder();
    tokio::select! {
        () = server.stop() => {}
        signal = told() => warn!("{signal} again: not waiting any longer"),
    }
    let Totals { allowed, denied, failed } = recorder.totals();
    info!(allowed, denied, failed, "stopped");
    following.abort();
    Ok(())
}

/// Lets the process have as many files open as there may be connections. Else clients could take them all, and none would be left for
/// the admin surface and the store.
fn make_room(limits: &Limits) {
    /// Files that are no connections of clients.
    const OTHERS: u64 = 128;
    let connections = limits.max_connections.get() as u64;
    // Those of the admin surface too.
    let Some(has) = files::make_room(connections.saturating_mul(2).saturating_add(OTHERS)) else { return };
    if has < connections.saturating_add(OTHERS) {
        warn!("limits.max_connections is {connections}, and the system lets this process have no more than {has} files open");
    }
}

/// How long a stop may take when the front ends have ended: all that is left ends at the same time.
const AFTER_GRACE: &str = "1s";

/// A server that serves.
pub struct Server {
    http: SocketAddr,
    admin: Option<SocketAddr>,
    greeting: String,
    recorder: Arc<Recorder>,
    reload: Reload,
    limits: Limits,
    /// From then on the server is not ready.
    leave: watch::Sender<()>,
    stop: watch::Sender<()>,
    serving: JoinHandle<()>,
    stop_admin: watch::Sender<()>,
    administering: Option<JoinHandle<()>>,
}

/// What has been bound.
struct Listeners {
    http: TcpListener,
    admin: Option<TcpListener>,
}

impl Server {
    /// Starts to serve `config`, which came from `sources`. Later ones from there come into force while it serves.
    ///
    /// # Errors
    /// When an address is taken, or the store cannot be made.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(sources: Sources, config: Config) -> Result<Self, StartError> {
        let entry = Entry::new(&config)?;
        // First of all: a second server that was started by mistake has to end before it touches a snapshot.
        let http = bind("--http", config.listen.http.address().ok_or(StartError::Nothing)?).await?;
        let admin = match config.listen.admin.address() {
            Some(address) => Some(bind("--admin", address).await?),
            None => None,
        };
        let listeners = Listeners { http, admin };
        let threads = |default: fn() -> usize| config.listen.threads.map_or_else(default, NonZeroUsize::get);
        config.store.check_snapshot().map_err(Problems::from)?;
        let wrong = |error: ConfigError| Problems::from(Problem::new(format!("store: {error}")));
        let builder = Limiter::builder()
            .policies(config.policies()?)
            .max_keys(config.store.max_keys.get())
            .named_leases()
            .key_secret(config.store.key_secret().map_err(Problems::from)?);
        match config.store.backend().map_err(Problems::from)? {
            Backend::Memory(None) => {
                let limiter = builder.build().map_err(wrong)?;
                let lanes = Lanes::start(threads(lanes::in_memory), || ()).await.map_err(StartError::Threads)?;
                Self::listen(limiter, lanes, Condition::of_memory, listeners, entry, sources, config)
            }
            Backend::Memory(Some(snapshot)) => {
                let limiter = builder.snapshot(snapshot).build().map_err(wrong)?;
                let lanes = Lanes::start(threads(lanes::in_memory), || ()).await.map_err(StartError::Threads)?;
                Self::listen(limiter, lanes, Condition::of_snapshots, listeners, entry, sources, config)
            }
            Backend::Redis(redis) => {
                let limiter = builder.store(*redis).build().map_err(wrong)?;
                let of_lane = limiter.clone();
                let connect = move || _ = of_lane.store().connect_thread();
                let lanes = Lanes::start(threads(lanes::on_redis), connect).await.map_err(StartError::Threads)?;
                // So that the first requests find it; not for long, as it may be gone when others need this server.
                if !waited(limiter.store(), Duration::from_secs(2), |status| status.is_up).await {
                    let trouble = limiter.store().status().trouble;
                    warn!(trouble, "the store does not answer; policies decide as their on_store_error says until it does");
                }
                Self::listen(limiter, lanes, Condition::of_redis, listeners, entry, sources, config)
            }
        }
    }

    fn listen<S: Store>(
        limiter: Limiter<S>,
        lanes: Lanes,
        condition: fn(&Limiter<S>) -> Condition,
        listeners: Listeners,
        entry: Entry,
        sources: Sources,
        config: Config,
    ) -> Result<Self, StartError> {
        let unbound = |error| StartError::Listen { flag: "--http", address: ([0; 4], 0).into(), error };
        let http = listeners.http.local_addr().map_err(unbound)?;
        let admin = listeners.admin.as_ref().map(TcpListener::local_addr).transpose().map_err(unbound)?;
        let greeting = greeting::greeting(&config, &sources, http, admin);
        let settings = Arc::new(InForce::new(Settings::new(&config)?));
        let metrics = Metrics::new();
        let log = DecisionLog::new(&config.store.key_secret().map_err(Problems::from)?, metrics.log_dropped.clone());
        log.go_on(log.prepare(&config.decision_log).map_err(Problems::from)?);
        let traces = Traces::new(&config.telemetry).map_err(Problems::from)?;
        let times = if condition(&limiter).redis.is_some() { Times::Measured } else { Times::Ignored };
        let recorder = Arc::new(Recorder::new(metrics, log, traces, times));
        let policies = Arc::new(Policies::new(limiter.clone(), Arc::clone(&recorder), config.clone()));
        let (leave, leaving) = watch::channel(());
        let (stop, stopped) = watch::channel(());
        let gate = Gate::new(limiter, Arc::clone(&recorder));
        let limits = config.limits.clone();
        let seal = Seal::new(&config.store.key_secret().map_err(Problems::from)?);

        let serving = tokio::spawn({
            let (settings, recorder, limits) = (Arc::clone(&settings), Arc::clone(&recorder), limits.clone());
            async move {
                let service = |peer| {
                    let http = Http::new(gate.clone(), Arc::clone(&settings), &limits, seal, peer);
                    recorder.metrics.http.connected(http)
                };
                let lanes = Ways::Lanes(lanes);
                accept::serve(listeners.http, lanes, &limits, stopped, &recorder.metrics.http.refused, service).await;
            }
        });
        let apply = {
            let (policies, recorder) = (Arc::clone(&policies), Arc::clone(&recorder));
            move |config: &Config| {
                let new = Settings::new(config)?;
                let log = recorder.log.prepare(&config.decision_log)?;
                policies.follow(config, || settings.replace(new))?;
                recorder.log.go_on(log);
                Ok(())
            }
        };
        let reload = Reload::start(sources, config, apply).map_err(StartError::Signals)?;
        let (stop_admin, admin_stopped) = watch::channel(());
        let administering = listeners.admin.map(|listener| {
            let shared = Arc::new(Administration {
                access: entry.access,
                refusals: Refusals::default(),
                policies,
                recorder: Arc::clone(&recorder),
                condition,
                reloads: Box::new(reload.counter()),
                stopping: leaving,
            });
            // Clients of the front ends have had the grace time.
            let limits = Limits { shutdown_grace: Text::known(AFTER_GRACE), ..limits.clone() };
            tokio::spawn(async move {
                let recorder = Arc::clone(&shared.recorder);
                let service = |peer| recorder.metrics.admin.connected(Admin { shared: Arc::clone(&shared), peer });
                let here = Ways::Here(entry.tls);
                accept::serve(listener, here, &limits, admin_stopped, &recorder.metrics.admin.refused, service).await;
            })
        });
        Ok(Self { http, admin, greeting, recorder, reload, limits, leave, stop, serving, stop_admin, administering })
    }

    /// Where HTTP listens.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where the admin surface listens, if it does.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What listens, which policies hold, where states are, and what to try.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// The configuration in force, now and later.
    pub fn config(&self) -> watch::Receiver<Arc<Config>> {
        self.reload.config()
    }

    /// What every decision passes.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.recorder)
    }

    /// Is not ready any more, and after `limits.shutdown_delay` accepts nobody any more, answers what is under way, and returns when that is
    /// done, or a second after the grace time is over.
    pub async fn stop(self) {
        let _ = self.leave.send(());
        sleep(*self.limits.shutdown_delay).await;
        drop(self.reload);
        let _ = self.stop.send(());
        let _ = self.serving.await;
        // Last: until then it says that the server is not ready.
        let _ = self.stop_admin.send(());
        let administered = async {
            if let Some(administering) = self.administering {
                let _ = administering.await;
            }
        };
        let patience = *Text::<Duration>::known(AFTER_GRACE);
        tokio::join!(administered, self.recorder.log.close(patience), self.recorder.traces.close(patience));
    }
}

async fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| StartError::Listen { flag, address, error })
}

/// Waits until the store is as `condition` says; whether it was in time.
async fn waited(redis: &Redis, patience: Duration, condition: fn(&Status) -> bool) -> bool {
    const GLANCE: Duration = Duration::from_millis(5);
    let so = async {
        while !condition(&redis.status()) {
            sleep(GLANCE).await;
        }
    };
    timeout(patience, so).await.is_ok()
}

/// Listeners that the configuration asks for and nobody is behind yet.
fn not_served(config: &Config) -> Vec<&'static str> {
    let listen = &config.listen;
    let listeners = [("grpc", &listen.grpc), ("resp", &listen.resp)];
    listeners.into_iter().filter(|(_, listener)| listener.address().is_some()).map(|(name, _)| name).collect()
}

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is wrong, or something that it names.
    Config(Problems),
    /// `listen.http` is "off".
    Nothing,
    /// An address cannot be listened at.
    Listen {
        /// The flag that tells another.
        flag: &'static str,
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The process cannot have signals.
    Signals(io::Error),
    /// The process cannot have the threads that it needs.
    Threads(io::Error),
    /// The store does not answer, and nothing can be done without it.
    Store {
        /// Its address, without a password.
        url: String,
        /// Why, as far as it is known.
        trouble: String,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => problems.fmt(f),
            Self::Nothing => f.write_str("nothing listens: listen.http is \"off\"; write an address, or use --http ADDR"),
            Self::Listen { flag, address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is taken by another program; end that one, or listen elsewhere with {flag} ADDR")
            }
            Self::Listen { address, error, .. } => write!(f, "{address} cannot be listened at: {error}"),
            Self::Threads(error) => write!(f, "the process cannot have the threads that it needs: {error}"),
            Self::Signals(error) => write!(f, "the process cannot have signals: {error}"),
            Self::Store { url, trouble } => write!(f, "the store at {url} does not answer: {trouble}"),
        }
    }
}

impl error::Error for StartError {}

impl From<Problems> for StartError {
    fn from(problems: Problems) -> Self {
        Self::Config(problems)
    }
}
