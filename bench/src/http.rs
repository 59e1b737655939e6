//! What a layer costs a request: an axum app with it, over the same app without, called in process and not over a socket, which
//! would take twenty times as long as either. CPU time of the thread, in slices that take turns: others on the machine, and what it
//! does to its clock, then trouble all cases alike.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
use nix::time::{ClockId, clock_gettime};
use tidegate::{Algorithm, Limiter, Policy, Quota};
use tidegate_tower::{Dialect, RateLimitLayer, Reset, client_ip};
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceExt};
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
    Nothing,
    /// Tells of the limit in headers; ours puts the decision into the extensions as well, as it does unless told otherwise.
    Tells,
    /// Only the latter, which nobody else does: a figure, and no bar.
    Extends,
}

/// Measures and prints, and returns what must hold.
pub(crate) fn run(quick: bool) -> Vec<Bar> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let slices: u64 = if quick { 10 } else { 50 };
    let cases = cases();
    let mut samples = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        let mut taken = vec![Duration::ZERO; cases.len()];
        for _ in 0..slices {
            for (case, taken) in cases.iter().zip(&mut taken) {
                *taken += slice(&runtime, &case.app);
            }
        }
        for (samples, taken) in samples.iter_mut().zip(taken) {
            samples.push(taken.as_nanos() as f64 / (slices * SLICE) as f64);
        }
    }
    let medians: Vec<f64> = samples.iter().map(|samples| median(samples)).collect();
    println!(
        "\nHTTP: nanoseconds of CPU time per request in an axum app, and over the bare one; {QUOTA} per address, median of {ROUNDS} rounds.\n"
    );
    for (case, median) in cases.iter().zip(&medians) {
        println!("{:<34}{median:>8.0}{:>+8.0}", case.name, median - medians[0]);
    }
    let over: Vec<f64> = medians.iter().map(|median| median - medians[0]).collect();
    let bar = |claim: &str, does: Does| {
        let with = cases.iter().zip(&over).skip(1).filter(|(case, _)| case.does == does);
        let (ours, theirs): (Vec<_>, Vec<_>) = with.partition(|(case, _)| case.is_ours);
        let figures = ours.iter().map(|(case, over)| (case.name.to_owned(), *over / theirs[0].1)).collect();
        Bar { claim: format!("layer over tower_governor's, {claim}"), ceiling: 1.0, figures }
    };
    vec![bar("both with headers", Does::Tells), bar("neither with headers", Does::Nothing)]
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
        case("bare", Does::Nothing, false, bare()),
        case("tower_governor", Does::Nothing, false, governor(false)),
        case("tower_governor, x-ratelimit", Does::Tells, false, governor(true)),
        case("tidegate gcra, no extension", Does::Nothing, true, least),
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
