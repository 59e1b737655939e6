//! What a layer costs a request: an axum app with it, over the same app without, called in process and not over a socket, which
//! would take twenty times as long as either. CPU time of the thread, in short slices that take turns: others on the machine, and what it
//! does to its clock, then trouble all cases alike. Of the slices of a round the median counts, so that one that was interrupted does not, and
//! figures are compared within a round before the median of the rounds is taken: from one to the next the machine may be another. Each round
//! has apps of its own, for it is by chance where their tables lie in memory, and so what of them is in each other's way in the caches.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
use nix::time::{ClockId, clock_gettime};
use tidegate::{Algorithm, Limiter, Policy, Quota};
use tidegate_tower::{Dialect, RateLimitLayer, Reset, client_ip};
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceExt, layer::layer_fn};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

use crate::bars::{Bar, median};

/// Of which the median is printed.
const ROUNDS: usize = 9;

/// Requests before it is the next case's turn.
const SLICE: u64 = 2 * CLIENTS;

/// Clients, each by its address, each below its limit.
const CLIENTS: u64 = 1024;

const QUOTA: Quota = Quota::per_hour(10_000);

/// An app, and what it is measured for.
struct Case {
    name: &'static str,
    does: Does,
    is_ours: bool,
    app: Router,
}

/// What a layer does beside deciding. tower_governor leaves nothing in the request's extensions, so where it tells nothing either, ours is
/// held to it without.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// There is no limit, and no bar.
    Pass,
    Decides,
    /// Tells of the limit in headers; ours puts the decision into the extensions as well, as it does unless told otherwise.
    Tells,
    /// Only the latter, which nobody else does: a figure, and no bar.
    Extends,
}

/// Measures and prints, and returns what must hold.
pub(crate) fn run(quick: bool) -> Vec<Bar> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let turns = if quick { 20 } else { 200 };
    // All of them stay until the end, or a round's would lie where those of the one before did.
    let apps: Vec<Vec<Case>> = (0..ROUNDS).map(|_| cases()).collect();
    let rounds: Vec<Vec<f64>> = apps.iter().map(|cases| round(&runtime, cases, turns)).collect();
    let cases = &*apps[0];
    let middle = |figure: &dyn Fn(&[f64]) -> f64| median(&rounds.iter().map(|round| figure(round)).collect::<Vec<_>>());
    println!(
        "\nHTTP: nanoseconds of CPU time per request in an axum app, and over the bare one; {QUOTA} per address, median of {ROUNDS} rounds.\n"
    );
    for (at, case) in cases.iter().enumerate() {
        println!("{:<34}{:>8.0}{:>+8.0}", case.name, middle(&|round| round[at]), middle(&|round| round[at] - round[0]));
    }
    let bar = |claim: &str, does: Does| {
        let with = |is_ours| (0..cases.len()).filter(move |at| cases[*at].does == does && cases[*at].is_ours == is_ours);
        let theirs = with(false).next().expect("a peer does the same");
        let ratio = |ours: usize| middle(&|round| (round[ours] - round[0]) / (round[theirs] - round[0]));
        let figures = with(true).map(|ours| (cases[ours].name.to_owned(), ratio(ours))).collect();
        Bar { claim: format!("layer over tower_governor's, {claim}"), ceiling: 1.0, figures }
    };
    vec![bar("both with headers", Does::Tells), bar("neither with headers", Does::Decides)]
}

/// Nanoseconds per request of each case.
fn round(runtime: &Runtime, cases: &[Case], turns: usize) -> Vec<f64> {
    // Not timed, and afterwards no client is new.
    for case in cases {
        slice(runtime, &case.app);
    }
    let mut slices = vec![Vec::new(); cases.len()];
    for turn in 0..turns {
        // Each begins as often as any other.
        for at in (0..cases.len()).map(|step| (turn + step) % cases.len()) {
            slices[at].push(slice(runtime, &cases[at].app).as_nanos() as f64 / SLICE as f64);
        }
    }
    slices.iter().map(|slices| median(slices)).collect()
}

/// What a layer costs that does nothing.
#[derive(Clone)]
struct Idle<I>(I);

impl<I: Service<Request<Body>>> Service<Request<Body>> for Idle<I> {
    type Response = I::Response;
    type Error = I::Error;
    type Future = I::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> I::Future {
        self.0.call(request)
    }
}

fn bare() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn cases() -> Vec<Case> {
    let governor = |tells| {
        let mut config = GovernorConfigBuilder::default();
        config.per_millisecond(QUOTA.window().as_millis() as u64 / QUOTA.limit()).burst_size(QUOTA.limit() as u32);
        if tells {
            let config = Arc::new(config.use_headers().finish().expect("it takes the quota"));
            return bare().layer(GovernorLayer::new(config));
        }
        bare().layer(GovernorLayer::new(Arc::new(config.finish().expect("it takes the quota"))))
    };
    let layer = |algorithm, dialect| {
        let policy = Policy::new("per-address", QUOTA).algorithm(algorithm);
        let limiter = Limiter::builder().policy(policy).build().expect("every algorithm takes the quota");
        RateLimitLayer::new(limiter).by(client_ip()).dialect(dialect)
    };
    let ours = |algorithm, dialect| bare().layer(layer(algorithm, dialect));
    let least = bare().layer(layer(Algorithm::Gcra, Dialect::None).without_extension());
    // As an app is served: else axum would make the layers anew for each request.
    let case = |name, does, is_ours, app: Router| Case { name, does, is_ours, app: app.with_state(()) };
    vec![
        case("bare", Does::Pass, false, bare()),
        case("a layer that does nothing", Does::Pass, false, bare().layer(layer_fn(Idle))),
        case("tower_governor", Does::Decides, false, governor(false)),
        case("tower_governor, x-ratelimit", Does::Tells, false, governor(true)),
        case("tidegate gcra, no extension", Does::Decides, true, least),
        case("tidegate gcra", Does::Extends, true, ours(Algorithm::Gcra, Dialect::None)),
        case("tidegate gcra, draft", Does::Tells, true, ours(Algorithm::Gcra, Dialect::Draft)),
        case("tidegate gcra, x-ratelimit", Does::Tells, true, ours(Algorithm::Gcra, Dialect::XRateLimit(Reset::Delta))),
        case("tidegate sliding-window, draft", Does::Tells, true, ours(Algorithm::SlidingWindow, Dialect::Draft)),
    ]
}

fn slice(runtime: &Runtime, app: &Router) -> Duration {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has it"));
    runtime.block_on(async {
        let mut app = app.clone();
        let start = now();
        for n in 0..SLICE {
            let client = (n % CLIENTS).to_be_bytes();
            let address = SocketAddr::from(([10, 0, client[6], client[7]], 4711));
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(ConnectInfo(address));
            let ready = ServiceExt::<Request<Body>>::ready(&mut app).await.expect("an app is always ready");
            let response = ready.call(request).await.expect("an app always answers");
            assert!(response.status().is_success(), "{}", response.status());
        }
        now() - start
    })
}
