//! The Redis store: one decision for every machine. What a hit asks becomes a job for the script; the link sends it, and the
//! guards see to it that every hit is answered in time.

mod call;
mod desk;
mod door;
mod link;
mod ranking;
mod script;
mod wire;

use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread::{self, ThreadId},
    time::Duration,
};

use ::redis::IntoConnectionInfo as _;
use smallvec::smallvec;

pub(crate) use self::desk::Form;
use self::{
    call::Job,
    desk::{Desk, Verb, records},
    door::Door,
    link::Link,
    script::{SCHEMA, SCRIPT},
    wire::Answers,
};
use super::{Ask, Asks, Intent, Question, Record, Records, Source, Store, memory::Memory};
use crate::{
    Decision, Hit, Limiter, Ranked, Receipt,
    algorithm::{Stored, Verdict},
    error::{ConfigError, StoreError},
    guard::{deny_cache::DenyCache, fallback},
    lease::Lease,
    limiter::Inner,
    receipt::Origin,
    set::PolicySet,
};

/// States in Redis or Valkey, shared by every process that is given the same address, prefix and policies.
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate::{Limiter, Policy, Quota, Redis};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("per-user", Quota::per_minute(100)).key(["user"]))
///     .store(Redis::new("redis://127.0.0.1:6379/")?.deadline(Duration::from_millis(20)))
///     .build()?;
/// let decision = limiter.check("user:42").await?;
/// # Ok(())
/// # }
/// ```
///
/// A limiter on it is built inside a tokio runtime, at once: it connects in the background, and connects again for as long as it
/// lives. Until then, and whenever Redis does not answer within the deadline, each policy decides as its
/// [`OnStoreError`](crate::OnStoreError) says; the [source](crate::Outcome::source) of every outcome tells who did.
///
/// Time is the server's: the clocks of the machines do not matter.
pub struct Redis {
    address: ::redis::ConnectionInfo,
    certificates: Option<::redis::TlsCertificates>,
    prefix: String,
    deadline: Duration,
    instances: u64,
    cache: DenyCache,
    local: Memory,
    door: OnceLock<Door>,
    link: OnceLock<Link>,
    /// Of threads that have one of their own, from the front.
    own: [OnceLock<(ThreadId, Link)>; MAX_OWN],
    runtime: OnceLock<tokio::runtime::Handle>,
    counters: Counters,
    /// Whether denials will be written to the ranking soon.
    ranking: AtomicBool,
}

const STARTED: &str = "a store is started with its limiter";

/// Threads that can have a connection of their own.
const MAX_OWN: usize = 16;

#[derive(Default)]
struct Counters {
    cached: AtomicU64,
    fallbacks: AtomicU64,
    /// By why.
    unanswered: [AtomicU64; 4],
}

impl Counters {
    /// Notes that the store did not answer a hit.
    fn unanswered(&self, error: &StoreError) {
        let why = match error {
            StoreError::Timeout => 0,
            StoreError::Down => 1,
            StoreError::Full => 2,
            StoreError::Refused(_) => 3,
        };
        self.unanswered[why].fetch_add(1, Relaxed);
        self.fallbacks.fetch_add(1, Relaxed);
    }
}

/// How the store is doing; see [`Redis::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether there is a connection that answers.
    pub is_up: bool,
    /// Connections made so far.
    pub connects: u64,
    /// Calls sent so far; each carries what had gathered.
    pub calls: u64,
    /// Hits sent so far.
    pub hits: u64,
    /// Hits denied so far because the store had denied them a moment before.
    pub cached: u64,
    /// Hits decided so far without the store, because it did not answer.
    pub fallbacks: u64,
    /// Why it did not.
    pub unanswered: Unanswered,
    /// The server's `maxmemory-policy`, where that could evict the limiter's keys: what they count would be forgotten. Use
    /// `noeviction`.
    pub evicts: Option<String>,
    /// Why the last connection was lost, or the last try to make one has failed since: the word by which the server says so (`NOAUTH`,
    /// `LOADING`...), or that there is no connection, and what this machine says of that. Nothing while there is one.
    pub trouble: Option<String>,
}

/// Hits that the store has not answered, by why; see [`StoreError`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unanswered {
    /// Not within the deadline.
    pub timeout: u64,
    /// There was no connection.
    pub down: u64,
    /// Too many were waiting.
    pub full: u64,
    /// It has refused.
    pub refused: u64,
}

/// What a limiter on Redis returns: a future of the answer. It holds nothing of the limiter and may be sent anywhere; dropped, it
/// asks nothing more, though what was sent may be charged.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl Redis {
    /// A server by its address: `redis://user:password@host:port/database`, `rediss://` for TLS, `unix:///path/to/socket`.
    ///
    /// # Errors
    /// When that is no address.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        let address = url.into_connection_info().map_err(|_| ConfigError::Address)?;
        let tcp = ::redis::io::tcp::TcpSettings::default()
            // Nothing waits for more to send: what could go together already does.
            .set_nodelay(true)
            .set_keepalive(::redis::io::tcp::socket2::TcpKeepalive::new().with_time(Duration::from_secs(10)));
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(Duration::from_secs(5));
        Ok(Self {
            address: address.set_tcp_settings(tcp),
            certificates: None,
            prefix: SCHEMA.to_owned(),
            deadline: Duration::from_millis(15),
            instances: 1,
            cache: DenyCache::new(500_000),
            local: Memory::default(),
            door: OnceLock::new(),
            link: OnceLock::new(),
            own: Default::default(),
            runtime: OnceLock::new(),
            counters: Counters::default(),
            ranking: AtomicBool::new(false),
        })
    }

    /// How long a decision may take; 15 ms unless set.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How long a denial is believed without asking again, if its wait is that long; 500 ms unless set, and not at all if zero.
    /// So long at most is a reset, a refund or a raised limit elsewhere not seen by a key that is being denied.
    #[must_use]
    pub fn deny_cache(self, freshness: Duration) -> Self {
        Self { cache: DenyCache::new(freshness.as_micros() as u64), ..self }
    }

    /// How many instances there are: each decides by its share of a quota, rounded up, while the store does not answer. 1 unless
    /// set.
    #[must_use]
    pub fn instances(self, instances: u64) -> Self {
        Self { instances: instances.max(1), ..self }
    }

    /// What every key begins with; `rl` unless set. Limiters with different prefixes share nothing.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// The password, in the place of one in the address: for who keeps it in a file of its own.
    #[must_use]
    pub fn password(self, password: impl AsRef<str>) -> Self {
        let settings = self.address.redis_settings().clone().set_password(password);
        Self { address: self.address.set_redis_settings(settings), ..self }
    }

    /// Trusts this certificate (PEM) and not those that the machine trusts, for an address of `rediss://`.
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls().root_cert = Some(pem.into());
        self
    }

    /// Shows this certificate to the server, with its key (PEM both), for an address of `rediss://`.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let client = ::redis::ClientTlsConfig { client_cert: certificate.into(), client_key: key.into() };
        self.tls().client_tls = Some(client);
        self
    }

    fn tls(&mut self) -> &mut ::redis::TlsCertificates {
        self.certificates.get_or_insert(::redis::TlsCertificates { client_tls: None, root_cert: None })
    }

    /// Gives this thread a connection of its own, beside the one that all share; whether it has one now. What is asked on it is then sent
    /// from here and answered here, and no other thread has to be woken: for servers that have a runtime of one thread for each of their
    /// threads. It is to be called inside of that. There are 16 such connections at most, and each gathers batches of its own, so that
    /// many of them cost Redis more.
    ///
    /// ```no_run
    /// use tidegate::{Limiter, Policy, Quota, Redis};
    ///
    /// # fn example(limiter: Limiter<Redis>) -> Result<(), Box<dyn std::error::Error>> {
    /// std::thread::spawn(move || {
    ///     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    ///     runtime.block_on(async {
    ///         limiter.store().connect_thread();
    ///         // serve
    ///     });
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_thread(&self) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return false };
        let me = thread::current().id();
        // Whoever comes first to a place has it.
        self.own.iter().any(|place| {
            let (owner, _) = place.get_or_init(|| (me, Link::start(self.door().clone(), self.deadline, &runtime)));
            *owner == me
        })
    }

    /// How the store is doing, over all connections.
    pub fn status(&self) -> Status {
        let health = &self.door().health;
        let [timeout, down, full, refused] = self.counters.unanswered.each_ref().map(|count| count.load(Relaxed));
        Status {
            // One whose thread has ended is nobody's.
            is_up: self.shared().is_up() && self.owned().all(|(_, link)| link.is_up() || link.has_ended()),
            connects: health.connects.load(Relaxed),
            calls: health.calls.load(Relaxed),
            hits: health.hits.load(Relaxed),
            cached: self.counters.cached.load(Relaxed),
            fallbacks: self.counters.fallbacks.load(Relaxed),
            unanswered: Unanswered { timeout, down, full, refused },
            evicts: health.evicts.lock().clone(),
            trouble: health.trouble.lock().clone(),
        }
    }

    /// The script that decides, as it is sent to a server that may not have it as a function.
    pub fn script() -> &'static str {
        &SCRIPT.text
    }

    fn door(&self) -> &Door {
        self.door.get().expect(STARTED)
    }

    /// The link that all threads share.
    fn shared(&self) -> &Link {
        self.link.get().expect(STARTED)
    }

    fn owned(&self) -> impl Iterator<Item = &(ThreadId, Link)> {
        self.own.iter().map_while(OnceLock::get)
    }

    /// This thread's own, if it has one that is up.
    fn link(&self) -> &Link {
        if self.own[0].get().is_none() {
            return self.shared();
        }
        let me = thread::current().id();
        let own = self.owned().find(|(owner, link)| *owner == me && link.is_up());
        own.map_or_else(|| self.shared(), |(_, link)| link)
    }
}

fn has_certificate(pem: &[u8]) -> bool {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
    certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok())
}

#[expect(private_interfaces, reason = "nobody else is to call these")]
impl Store for Redis {
    type Reply<T: Send + 'static> = Pending<T>;
    type Awaited<T: Send + 'static> = Result<T, StoreError>;
    type Told<T: Send + 'static> = Pending<T>;

    fn told<T: Send + 'static>(reply: Pending<T>) -> Pending<T> {
        reply
    }

    fn start(&mut self, max_keys: usize) -> Result<(), ConfigError> {
        self.local.start(max_keys)?;
        if matches!(self.address.addr(), ::redis::ConnectionAddr::TcpTls { .. }) {
            // Somebody may have installed one already; any will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let root = self.certificates.as_ref().and_then(|certificates| certificates.root_cert.as_deref());
        if root.is_some_and(|pem| !has_certificate(pem)) {
            return Err(ConfigError::Address);
        }
        let address = self.address.clone();
        let client = match &self.certificates {
            Some(certificates) => ::redis::Client::build_with_tls(address, certificates.clone()),
            None => ::redis::Client::open(address),
        };
        let client = client.map_err(|_| ConfigError::Address)?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ConfigError::Runtime)?;
        let door = self.door.get_or_init(|| Door { client, health: Arc::default() });
        self.link.get_or_init(|| Link::start(door.clone(), self.deadline, &runtime));
        self.runtime.get_or_init(|| runtime);
        Ok(())
    }

    fn shared_by(&self) -> Option<u64> {
        Some(self.instances)
    }

    fn ahead(&self) -> i64 {
        self.door().health.ahead()
    }

    fn decide(limiter: &Limiter<Self>, hit: &Hit<'_>, intent: Intent) -> Pending<Decision> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        let question = Question::new(&set, hit, &inner.digester).asked_to(intent, hit, inner.leases, &set);
        let now = inner.clock.now();
        let generation = inner.store.cache.generation();
        let cached = if intent == Intent::Check { inner.store.cache.denials(&set, &question.asks, now) } else { None };
        if let Some(records) = cached {
            inner.store.counters.cached.fetch_add(1, Relaxed);
            inner.count_denials(&set, &records);
            return Box::pin(ready(Ok(question.decision(&set, records))));
        }
        Box::pin(async move {
            // A hit that is denied anyway charges nothing.
            let asked = if intent == Intent::Check && question.is_barred() { Intent::Peek } else { intent };
            match inner.ask(&set, &question.asks, |desk| desk.decide(&question.asks, asked)).await {
                Ok(records) => {
                    if intent == Intent::Check {
                        inner.store.cache.learn(&set, &records, now, inner.clock.now(), generation);
                        inner.count_denials(&set, &records);
                    }
                    Ok(question.decision(&set, records))
                }
                Err(error) => {
                    inner.store.counters.unanswered(&error);
                    let newest = || inner.set.load_full();
                    fallback::decide(&inner.store.local, &set, &question, intent, inner.clock.now(), error, newest)
                }
            }
        })
    }

    fn reset(limiter: &Limiter<Self>, hit: &Hit<'_>) -> Pending<Decision> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        let question = Question::new(&set, &hit.clone().cost(0), &inner.digester);
        Box::pin(async move {
            let records = inner.ask(&set, &question.asks, |desk| desk.reset(&question.asks)).await;
            inner.store.cache.forget(&set, &question.asks);
            Ok(question.decision(&set, records?))
        })
    }

    fn amend(limiter: &Limiter<Self>, receipt: Receipt, actual: Option<u64>) -> Pending<Decision> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        if receipt.origin == Origin::Local {
            // It is given back where it was taken.
            let shares = || inner.set.load().local.clone().unwrap_or_else(|| Arc::clone(&set));
            let mut decision = inner.store.local.amend(shares, &receipt, actual, inner.clock.now());
            decision.set_source(Source::Fallback);
            return Box::pin(ready(Ok(decision)));
        }
        Box::pin(async move {
            let now = inner.store_time();
            let (asks, job) = Desk::new(&inner, &set).amend(&receipt, actual, now);
            let records = inner.ask(&set, &asks, |_| job).await;
            inner.store.cache.forget(&set, &asks);
            Ok(Decision::new(records?))
        })
    }

    fn lease(limiter: &Limiter<Self>, leases: Vec<Lease>, renews: bool) -> Pending<bool> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        let known: Vec<(Ask, &Lease)> = leases.iter().filter_map(|lease| Some((set.lease(lease)?, lease))).collect();
        let asks: Asks = known.iter().map(|(ask, _)| *ask).collect();
        // It is held where it was given: here, if the store did not answer then; there as well, if it did and the answer was lost.
        let shares = || inner.set.load().local.clone().unwrap_or_else(|| Arc::clone(&set));
        let here = |lease: &Lease| inner.store.local.lease_one(shares, lease, renews, inner.clock.now()) == Some(true);
        let here: Vec<bool> = known.iter().map(|(_, lease)| here(lease)).collect();
        let all_or_any = move |held: &[bool], asks: &[Ask]| {
            let lost = held.iter().zip(asks).any(|(held, ask)| ask.enforced && !held);
            if renews { !lost } else { held.contains(&true) }
        };
        Box::pin(async move {
            match inner.ask(&set, &asks, |desk| desk.lease(&asks, renews)).await {
                Ok(there) => {
                    let is_held = |record: &Record| record.answer.verdict == Verdict::Allowed;
                    let held: Vec<bool> = here.iter().zip(&there).map(|(here, there)| *here || is_held(there)).collect();
                    Ok(all_or_any(&held, &asks))
                }
                Err(_) if all_or_any(&here, &asks) => Ok(true),
                Err(error) => Err(error),
            }
        })
    }

    /// Tried again for a while: to release twice does no harm, and what is not released is not free until it ends.
    fn let_go(limiter: &Limiter<Self>, leases: Vec<Lease>) {
        let Some(runtime) = limiter.inner.store.runtime.get() else { return };
        let (limiter, mut released) = (limiter.clone(), limiter.end(leases.clone()));
        runtime.spawn(async move {
            for pause in [100, 400, 1_600, 6_400].map(Duration::from_millis) {
                if released.await.is_ok() {
                    return;
                }
                tokio::time::sleep(pause).await;
                released = limiter.end(leases.clone());
            }
            let _ = released.await;
        });
    }

    fn inspect(limiter: &Limiter<Self>, ask: Ask) -> Pending<(Stored, u64)> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        Box::pin(async move {
            let desk = Desk::new(&inner, &set);
            let job = desk.job(Verb::Inspect, smallvec![desk.line(&ask, &[], false, &[0])]);
            match inner.in_time(inner.store.link().ask(job)).await? {
                Answers::Inspection(stored, lasts) => Ok((stored, lasts)),
                _ => Err(StoreError::unreadable()),
            }
        })
    }

    fn top(limiter: &Limiter<Self>, policy: u16, n: usize) -> Pending<Vec<Ranked>> {
        let inner = Arc::clone(&limiter.inner);
        let set = inner.set.load_full();
        Box::pin(async move { inner.top(&set, &set.policies[usize::from(policy)], n).await })
    }

    fn detach(limiter: &Limiter<Self>, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = limiter.inner.store.runtime.get() {
            runtime.spawn(future);
        }
    }

    fn known<T: Send + 'static>(value: T) -> Pending<T> {
        Box::pin(ready(Ok(value)))
    }

    fn replaced(&self, old: &PolicySet, new: &PolicySet) {
        self.cache.clear();
        if let (Some(old), Some(new)) = (&old.local, &new.local) {
            self.local.replaced(old, new);
        }
    }

    fn awaited<T: Send + 'static>(told: Result<T, StoreError>) -> Result<T, StoreError> {
        told
    }

    fn ask(limiter: &Limiter<Self>, hit: &Hit<'_>) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        Asking { pending: Some(limiter.check(hit)), limiter: limiter.clone() }
    }

    fn foresee(limiter: &Limiter<Self>, set: Arc<PolicySet>, asks: Asks) -> Pending<Records> {
        let inner = Arc::clone(&limiter.inner);
        Box::pin(async move { inner.ask(&set, &asks, |desk| desk.decide(&asks, Intent::Peek)).await })
    }

    fn map<T: Send + 'static, U: Send + 'static>(reply: Pending<T>, change: impl FnOnce(T) -> U + Send + 'static) -> Pending<U> {
        Box::pin(async move { reply.await.map(change) })
    }
}

impl Inner<Redis> {
    /// Has a job done in time, which answers `asks`.
    async fn ask(&self, set: &PolicySet, asks: &[Ask], job: impl FnOnce(&Desk<'_>) -> Job) -> Result<Records, StoreError> {
        if asks.is_empty() {
            return Ok(Records::new());
        }
        let job = job(&Desk::new(self, set));
        match self.in_time(self.store.link().ask(job)).await? {
            Answers::Asks(told) => Ok(records(set, asks, &told)),
            _ => Err(StoreError::unreadable()),
        }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        tokio::time::timeout(self.store.deadline, answer).await.unwrap_or(Err(StoreError::Timeout))
    }
}

/// A check that is given back when nobody waits for its answer any more.
struct Asking {
    pending: Option<Pending<Decision>>,
    limiter: Limiter<Redis>,
}

impl Future for Asking {
    type Output = Result<Decision, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = self.pending.as_mut().expect("not polled after it has answered");
        let answer = pending.as_mut().poll(context);
        if answer.is_ready() {
            self.pending = None;
        }
        answer
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (Some(pending), Some(runtime)) = (self.pending.take(), self.limiter.inner.store.runtime.get()) else { return };
        let limiter = self.limiter.clone();
        runtime.spawn(async move {
            let Ok(mut decision) = pending.await else { return };
            // If that fails it comes back with time, like anything that was charged and not used.
            let leases = decision.leases();
            if !leases.is_empty() {
                Redis::let_go(&limiter, leases);
            }
            if let Some(receipt) = decision.take_receipt() {
                let _ = limiter.refund(receipt).await;
            }
        });
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the password.
        f.debug_struct("Redis")
            .field("address", &self.address.addr().to_string())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
