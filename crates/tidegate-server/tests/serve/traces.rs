//! Traces, as a collector gets them by the protocol's own definitions.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use super::Running;

const POLICY: &str = "[[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"2/hour\"\n";
const SECRET: &str = "carol-who-must-not-be-told";

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().expect("whole").push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// One that listens, and where.
    async fn start() -> (Self, String) {
        let (collector, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let service = TraceServiceServer::new(collector.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        (collector, url)
    }

    /// What has come, in the order of beginning.
    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().expect("whole");
        let mut spans: Vec<Span> = requests
            .iter()
            .flat_map(|request| &request.resource_spans)
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| scope.spans.clone())
            .collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key).and_then(|attribute| attribute.value.clone());
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_is_told_of_requests_and_not_of_keys() {
    let (collector, url) = Collector::start().await;
    let running = Running::start(&format!("telemetry.otlp_endpoint = \"{url}\"\n{POLICY}")).await;
    let mut client = running.client().await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    for (path, sampled) in [("/v1/check", "01"), ("/v1/check", "00"), ("/v1/check", "01")] {
        let target = format!("{path}?user={SECRET}");
        let state = format!("vendor={SECRET}");
        client.ask("GET", &target, &[("traceparent", &format!("{parent}-{sampled}")), ("tracestate", &state)]).await;
    }
    assert_eq!(client.ask(SECRET, &format!("/{SECRET}"), &[]).await.status, 404);
    let hits = format!(r#"{{"hits":[{{"attributes":{{"user":"{SECRET}"}}}},{{"attributes":{{"user":"b"}}}}]}}"#);
    assert_eq!(client.post("/v1/check/batch", hits).await.status, 200);
    drop(client);
    running.server.stop().await;

    let spans = collector.spans();
    let told = |span: &Span| {
        let event = |event: &opentelemetry_proto::tonic::trace::v1::span::Event| {
            let [verdict, policy, source] =
                ["verdict", "policy", "source"].map(|key| text(&event.attributes, &format!("tidegate.{key}")));
            format!("{verdict} {policy} {source}")
        };
        let status = text(&span.attributes, "http.response.status_code");
        (span.name.clone(), status, span.events.iter().map(event).collect::<Vec<_>>().join(", "))
    };
    let expected = [
        ("/v1/check", "200", "allowed per-user store"),
        ("/v1/check", "429", "denied per-user store"),
        ("unknown", "404", ""),
        ("/v1/check/batch", "200", "denied per-user store, allowed per-user store"),
    ];
    let expected = expected.map(|(name, status, events)| (name.to_owned(), status.to_owned(), events.to_owned()));
    assert_eq!(spans.iter().map(told).collect::<Vec<_>>(), expected);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for span in &spans[..2] {
        assert_eq!(format!("00-{}-{}", hex(&span.trace_id), hex(&span.parent_span_id)), parent);
    }
    assert!(spans[2].parent_span_id.is_empty() && spans[2].trace_id != spans[0].trace_id);
    let all = format!("{:?}", collector.0.lock().expect("whole"));
    assert!(all.contains("service.name") && all.contains("\"tidegate\""), "{all}");
    assert!(!all.contains(SECRET), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_waits_for_a_collector_that_is_not_there() {
    // Bound, and nobody behind it: who connects waits.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let running = Running::start(&format!("telemetry.otlp_endpoint = \"{url}\"\n{POLICY}")).await;
    let mut client = running.client().await;
    let started = Instant::now();
    // More than wait to be sent at most.
    for _ in 0..5_000 {
        assert_eq!(client.get("/v1/peek?user=a").await.status, 200);
    }
    drop(client);
    running.server.stop().await;
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn some_are_traced_where_a_share_is_set() {
    let (collector, url) = Collector::start().await;
    let file = format!("[telemetry]\notlp_endpoint = \"{url}\"\nsample_rate = 0.25\n{POLICY}");
    let running = Running::start(&file).await;
    let mut client = running.client().await;
    for _ in 0..1000 {
        client.get("/v1/peek?user=a").await;
    }
    drop(client);
    running.server.stop().await;
    // The trace's number decides, which is random: this is seven deviations.
    let traced = collector.spans().len();
    assert!((154..=346).contains(&traced), "{traced}");
}
