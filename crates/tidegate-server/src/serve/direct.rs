//! Answering as a server does, with no server: for who is in the same process and wants to ask a store that others share. The front ends
//! are the same, on pipes in the place of sockets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tidegate::{ConfigError, Limiter, OnStoreError, Redis};
use tokio::{
    io::{DuplexStream, duplex},
    sync::watch,
};

use super::{
    StartError,
    admin::{Admin, Administration, Entry, Refusals},
    condition::Condition,
    decision_log::DecisionLog,
    gate::Gate,
    http::{Http, seal::Seal},
    http1,
    metrics::Metrics,
    policies::Policies,
    recorder::{Recorder, Times},
    settings::{InForce, Settings},
    traces::Traces,
    waited,
};
use crate::{
    config::{self, Backend, Config, Limits, Problem, Problems},
    reload::Reloads,
};

/// The peer at the other end of a pipe, which has no address.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What a pipe holds.
const PIPE_BYTES: usize = 65_536;

/// The policies of a configuration, straight on its store.
pub struct Direct {
    gate: Gate<Redis>,
    settings: Arc<InForce>,
    administration: Arc<Administration<Redis>>,
    limits: Limits,
    seal: Seal,
    /// Dropped with this value: the pipes end then.
    stop: watch::Sender<()>,
}

impl Direct {
    /// Connects to the store of `config`, which is not memory. Each answer takes `patience` at most and comes from the store: what a server
    /// does to go on without it is not done. No listener, token, log or trace of the configuration matters.
    ///
    /// # Errors
    /// When the configuration is wrong, its store is memory, or the store does not answer.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(mut config: Config, patience: Duration) -> Result<Self, StartError> {
        // Who can reach the store needs nobody's leave.
        config.admin = config::Admin::default();
        config.listen = config::Listen::default();
        let Backend::Redis(redis) = config.store.backend().map_err(Problems::from)? else {
            let message = "store: memory is in the process of its server; ask that one, or name the address of Redis or Valkey";
            return Err(Problems::from(Problem::new(message)).into());
        };
        let wrong = |error: ConfigError| Problems::from(Problem::new(format!("store: {error}")));
        let limiter = Limiter::builder()
            .policies(config.policies()?.into_iter().map(|policy| policy.on_store_error(OnStoreError::Error)))
            .named_leases()
            .key_secret(config.store.key_secret().map_err(Problems::from)?)
            .store(redis.deadline(patience).deny_cache(Duration::ZERO))
            .build()
            .map_err(wrong)?;
        waited(limiter.store(), patience, |status| status.is_up || status.trouble.is_some()).await;
        let status = limiter.store().status();
        if !status.is_up {
            let trouble = status.trouble.unwrap_or_else(|| "no answer".to_owned());
            return Err(StartError::Store { url: config.store.url.to_string(), trouble });
        }
        let metrics = Metrics::new();
        let log = DecisionLog::new("", metrics.log_dropped.clone());
        let traces = Traces::new(&config::Telemetry::default()).map_err(Problems::from)?;
        let recorder = Arc::new(Recorder::new(metrics, log, traces, Times::Ignored));
        let (stop, stopping) = watch::channel(());
        let limits = config.limits.clone();
        let seal = Seal::new(&config.store.key_secret().map_err(Problems::from)?);
        Ok(Self {
            gate: Gate::new(limiter.clone(), Arc::clone(&recorder)),
            settings: Arc::new(InForce::new(Settings::new(&config)?)),
            administration: Arc::new(Administration {
                access: Entry::new(&config)?.access,
                refusals: Refusals::default(),
                policies: Arc::new(Policies::new(limiter, Arc::clone(&recorder), config)),
                recorder,
                condition: Condition::of_redis,
                reloads: Box::new(|| (Reloads { ok: 0, failed: 0 }, SystemTime::now())),
                stopping,
            }),
            limits,
            seal,
            stop,
        })
    }

    /// A connection to what `listen.http` is elsewhere.
    pub fn http(&self) -> DuplexStream {
        self.pipe(Http::new(self.gate.clone(), Arc::clone(&self.settings), &self.limits, self.seal, NOBODY))
    }

    /// A connection to what `listen.admin` is elsewhere.
    pub fn admin(&self) -> DuplexStream {
        self.pipe(Admin { shared: Arc::clone(&self.administration), peer: NOBODY })
    }

    fn pipe(&self, service: impl http1::Service) -> DuplexStream {
        let (ours, theirs) = duplex(PIPE_BYTES);
        tokio::spawn(http1::serve(ours, *self.limits.header_timeout, service, self.stop.subscribe()));
        theirs
    }

    /// Ends. Whom it has denied is in the store then, for `top`; a server writes that now and then.
    pub async fn close(self) {
        let Administration { policies, recorder, .. } = &*self.administration;
        let Some(any) = policies.tables().into_iter().next().filter(|_| recorder.totals().denied > 0) else { return };
        // Who reads the ranking writes first what is not in it yet.
        if let Ok(reply) = policies.limiter().top(&any.name, 1) {
            let _ = reply.await;
        }
    }
}
