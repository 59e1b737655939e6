//! The tables of a file that stand for themselves: what can be written there and what holds if nothing is. Their comments are what
//! the schema and the reference in the docs say.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::Network;

use super::{
    Fault,
    text::{Destination, Endpoint, Listener, Origin, Text},
};

/// As many as a machine has cores, if it has many.
const MAX_THREADS: usize = 1024;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Listen {
    /// JSON over HTTP, and forward-auth.
    pub http: Text<Listener>,
    /// Envoy's rate limit service.
    pub grpc: Text<Listener>,
    /// The protocol of Redis.
    pub resp: Text<Listener>,
    /// Metrics, health and administration. Other addresses than loopback need `admin.write_token_file` and `admin.cert_file`.
    pub admin: Text<Listener>,
    /// Threads that serve what comes by `http`. Unless it is said, one for every two cores if states are in memory; on Redis one for each core, but
    /// four at most, each with a connection to it.
    #[schemars(range(min = 1, max = MAX_THREADS))]
    pub threads: Option<NonZeroUsize>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            http: Text::known("127.0.0.1:8080"),
            grpc: Text::known("127.0.0.1:8081"),
            resp: Text::known("127.0.0.1:6380"),
            admin: Text::known("127.0.0.1:9090"),
            threads: None,
        }
    }
}

/// Who listens at the one listens at the other too: at all addresses, and at those of IPv4 by all of IPv6.
fn covers(one: IpAddr, other: IpAddr) -> bool {
    one.is_unspecified() && (one.is_ipv6() || other.is_ipv4())
}

impl Listen {
    /// Listeners at the address of another, and more threads than anybody has a use for.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let default = Self::default();
        let mut all = vec![("http", &self.http), ("admin", &self.admin)];
        // Nobody listens there yet: where nobody has asked for it, it is in nobody's way.
        let asked = [("grpc", &self.grpc, &default.grpc), ("resp", &self.resp, &default.resp)];
        all.extend(asked.into_iter().filter(|(_, asked, default)| asked != default).map(|(name, asked, _)| (name, asked)));
        let mut faults = Vec::new();
        for (index, (name, listener)) in all.iter().enumerate() {
            let Some(address) = listener.address().filter(|address| address.port() != 0) else { continue };
            let is_taken = |other: SocketAddr| {
                let (one, two) = (address.ip(), other.ip());
                other.port() == address.port() && (one == two || covers(one, two) || covers(two, one))
            };
            if let Some((other, _)) = all[..index].iter().find(|(_, other)| other.address().is_some_and(is_taken)) {
                faults.push(Fault::new(format!("listen.{name}"), format!("{address} is taken by `{other}`; write another port")));
            }
        }
        if let Some(threads) = self.threads.filter(|threads| threads.get() > MAX_THREADS) {
            faults.push(Fault::new("listen.threads", format!("{threads} are too many; write {MAX_THREADS} at most")));
        }
        faults
    }
}

/// What responses tell their clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Headers {
    /// Which headers tell a client how it stands.
    pub dialect: Dialect,
    /// What `X-RateLimit-Reset` is; vendors disagree.
    pub x_ratelimit_reset: ResetStyle,
}

/// Which headers tell a client how it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy`, as in the current draft of the IETF.
    #[default]
    #[serde(rename = "draft")]
    Draft,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` of the strictest policy.
    #[serde(rename = "draft-06")]
    Draft06,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` of the strictest policy.
    #[serde(rename = "x-ratelimit")]
    XRateLimit,
    /// None of these.
    #[serde(rename = "none")]
    None,
}

/// What `X-RateLimit-Reset` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ResetStyle {
    /// Seconds from now.
    #[default]
    Seconds,
    /// Seconds since 1970.
    Epoch,
}

/// Answers to proxies that ask before they pass a request on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct ForwardAuth {
    /// Networks of the proxies whose word on the client's address is taken.
    pub trusted_proxies: Vec<Text<Network>>,
    /// The status of a denial: 429, or 403 for nginx, which makes an error of its own of a 429.
    #[schemars(extend("enum" = [429, 403]))]
    pub denial_status: u16,
    /// Attributes, and what of the request each is: "address" (the client's), "method", "path", "host", or "header:" and a name. A
    /// table takes the place of the default one.
    pub attributes: BTreeMap<String, Text<Origin>>,
}

impl Default for ForwardAuth {
    fn default() -> Self {
        let attributes = [("ip", "address"), ("method", "method"), ("path", "path")];
        Self {
            trusted_proxies: vec![Text::known("127.0.0.0/8"), Text::known("::1")],
            denial_status: 429,
            attributes: attributes.map(|(name, origin)| (name.to_owned(), Text::known(origin))).into(),
        }
    }
}

/// Bounds on what clients can take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub max_body_bytes: NonZeroUsize,
    /// How long a client may take to send its headers, and its body; a new connection that nothing comes on is closed then too.
    pub header_timeout: Text<Duration>,
    /// How long a connection on which requests were answered is kept when no other comes; longer than those who ask keep theirs, as these
    /// would send into one that is being closed.
    pub idle_timeout: Text<Duration>,
    /// Connections at once, for each listener.
    pub max_connections: NonZeroUsize,
    /// Hits in one request.
    pub max_batch: NonZeroUsize,
    /// How long a server that is told to stop still takes requests and says that it is not ready, so that balancers see it first.
    pub shutdown_delay: Text<Duration>,
    /// How long requests that are under way may take after that. A second more at most is for health, logs and traces, and then a snapshot
    /// is written.
    pub shutdown_grace: Text<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        let some = |number| NonZeroUsize::new(number).expect("not zero");
        Self {
            max_body_bytes: some(65_536),
            header_timeout: Text::known("10s"),
            idle_timeout: Text::known("75s"),
            max_connections: some(10_000),
            max_batch: some(500),
            shutdown_delay: Text::known("0s"),
            shutdown_grace: Text::known("10s"),
        }
    }
}

/// Who may look at the running server and change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Admin {
    /// A file with the token that lets its bearer look.
    pub read_token_file: Option<PathBuf>,
    /// A file with the token that lets its bearer look and change.
    pub write_token_file: Option<PathBuf>,
    /// Names by which it may be called, beside addresses and `localhost`: by whoever sends a `Host`, browsers, Prometheus and `tidegate` alike.
    pub allowed_hosts: Vec<String>,
    /// A file with a certificate (PEM), to serve by TLS.
    pub cert_file: Option<PathBuf>,
    /// A file with the certificate's key (PEM).
    pub key_file: Option<PathBuf>,
}

/// A line of JSON for each decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct DecisionLog {
    /// Which decisions.
    pub record: Recorded,
    /// The share of decisions that `record = "sample"` takes, from 0.0 to 1.0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample_rate: f64,
    /// "stderr", or the path of a file.
    pub destination: Text<Destination>,
    /// Writes digests in the place of keys.
    pub hash_keys: bool,
}

impl Default for DecisionLog {
    fn default() -> Self {
        Self { record: Recorded::default(), sample_rate: 0.01, destination: Text::known("stderr"), hash_keys: false }
    }
}

/// Which decisions are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Recorded {
    /// None.
    Off,
    /// Those that deny, and those that fail because the store does not answer.
    #[default]
    Denials,
    /// Some, by chance.
    Sample,
    /// Each.
    All,
}

/// What the server says of itself, on standard error. Nobody waits for who reads it: lines that find no room are lost, and counted there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Log {
    /// How much.
    pub level: Level,
    /// How it looks.
    pub format: Format,
}

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Level {
    /// Nothing.
    Off,
    /// What does not work.
    Error,
    /// And what somebody should look at.
    Warn,
    /// And what happens seldom.
    #[default]
    Info,
    /// And what helps to find a mistake.
    Debug,
    /// And everything else.
    Trace,
}

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Traces that are sent elsewhere: a span for each request, without a word of what it asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Telemetry {
    /// A collector that speaks OTLP over gRPC. What it wants in headers, a token for one, is taken from `OTEL_EXPORTER_OTLP_HEADERS`.
    pub otlp_endpoint: Option<Text<Endpoint>>,
    /// The share of requests that are traced, from 0.0 to 1.0, where the client does not say whether they are (`traceparent`).
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sample_rate: f64,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { otlp_endpoint: None, sample_rate: 1.0 }
    }
}
