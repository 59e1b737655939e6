//! Traces: a span for each request that is sampled, sent to a collector by OTLP. What is told comes from the configuration and from
//! this program, never from a hit. Spans wait in a bounded queue, and a thread of their own sends them: no request waits for a collector.

use std::{env, time::Duration};

use opentelemetry::{
    Context, KeyValue,
    context::FutureExt as _,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracer, SdkTracerProvider},
};
use tidegate::{Decision, StoreError};
use tracing::warn;

use super::{
    http1::{Head, Response},
    recorder::{Asked, FrontEnd},
};
use crate::config::{Problem, Telemetry};

/// How long spans may take to the collector.
const PATIENCE: Duration = Duration::from_secs(2);

/// Nothing where no collector is set.
pub(crate) struct Traces(Option<On>);

struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    pub(crate) fn new(telemetry: &Telemetry) -> Result<Self, Problem> {
        let Some(endpoint) = &telemetry.otlp_endpoint else { return Ok(Self(None)) };
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_protocol(Protocol::Grpc)
            .with_endpoint(&*endpoint.0)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| Problem::new(format!("telemetry.otlp_endpoint: {error}")))?;
        let resource = Resource::builder()
            .with_service_name(env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "tidegate".to_owned()))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(telemetry.sample_rate))))
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("tidegate");
        Ok(Self(Some(On { provider, tracer })))
    }

    /// The span of a request, where there are any; the client's own is its parent. Its route is none of the client's words.
    #[inline]
    pub(crate) fn begin(&self, head: &Head<'_>, route: impl FnOnce() -> &'static str) -> Option<Span> {
        let On { tracer, .. } = self.0.as_ref()?;
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(head));
        let (route, method) = (route(), known(head.method));
        let attributes = [KeyValue::new("http.request.method", method), KeyValue::new("http.route", route)];
        let builder = tracer.span_builder(route).with_kind(SpanKind::Server).with_attributes(attributes);
        Some(Span(parent.with_span(builder.start_with_context(tracer, &parent))))
    }

    /// Tells the span that a decision was made in.
    #[inline]
    pub(crate) fn decided(&self, front_end: FrontEnd, asked: Asked, told: &Result<Decision, StoreError>) {
        if self.0.is_some() {
            Context::map_current(|context| {
                let span = context.span();
                if span.is_recording() {
                    span.add_event("decision", facts(front_end, asked, told));
                }
            });
        }
    }

    /// Sends what is left, as far as it goes in that time.
    pub(crate) async fn close(&self, patience: Duration) {
        let Some(On { provider, .. }) = &self.0 else { return };
        let provider = provider.clone();
        let closed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience));
        if let Ok(Err(error)) = closed.await {
            warn!("the last traces are not sent: {error}");
        }
    }
}

/// A request that is traced.
pub(crate) struct Span(Context);

impl Span {
    /// Ends when there is a response, or nobody waits for it any more.
    pub(crate) async fn around<'r>(self, respond: impl Future<Output = &'r mut Response>) {
        let status = respond.with_context(self.0.clone()).await.status;
        let span = self.0.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
    }
}

fn facts(front_end: FrontEnd, asked: Asked, told: &Result<Decision, StoreError>) -> Vec<KeyValue> {
    let verdict = match told {
        Ok(decision) if decision.is_allowed() => "allowed",
        Ok(_) => "denied",
        Err(_) => "failed",
    };
    let mut facts = vec![
        KeyValue::new("tidegate.front_end", front_end.name()),
        KeyValue::new("tidegate.asked", asked.name()),
        KeyValue::new("tidegate.verdict", verdict),
    ];
    if let Some(outcome) = told.as_ref().ok().and_then(Decision::strictest) {
        facts.push(KeyValue::new("tidegate.policy", outcome.policy().to_owned()));
        facts.push(KeyValue::new("tidegate.source", outcome.source().name()));
    }
    facts
}

/// A client may make methods up.
fn known(method: &str) -> &'static str {
    match method {
        "GET" => "GET",
        "POST" => "POST",
        "HEAD" => "HEAD",
        _ => "_OTHER",
    }
}

/// The one header that a span has something of. What a client's `tracestate` says is the client's own words.
struct Headers<'r, 'b>(&'r Head<'b>);

impl Extractor for Headers<'_, '_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.text(name).filter(|_| name == "traceparent")
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}
