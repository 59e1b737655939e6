//! The OpenAPI document: made of the table of routes and of the types that are read and written.

use std::sync::LazyLock;

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use tidegate::Quota;

use super::{
    answer::{BatchAnswer, DecisionBody, DenialBody, Released, Renewed},
    problem::Problem,
    request::{AcquireBody, BatchBody, HitBody, LeaseBody, RefundBody, SettleBody},
    routes::{Endpoint, Methods, ROUTES, Route},
};
use crate::serve::http1::Response;

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

pub(super) fn put(response: &mut Response) {
    response.kind("application/json");
    response.body.extend_from_slice(DOCUMENT.as_bytes());
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let paths: Map<String, Value> = ROUTES.iter().map(|route| (route.path.to_owned(), path(route, &mut schemas))).collect();
    let problem = schema::<Problem>(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Tidegate", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": { "Problem": content("The request cannot be answered.", "application/problem+json", problem) },
        },
    })
}

fn path(route: &Route, schemas: &mut SchemaGenerator) -> Value {
    let mut methods = Map::new();
    if matches!(route.methods, Methods::Get | Methods::GetOrPost | Methods::Any) {
        methods.insert("get".to_owned(), operation(route, Ask::Query, schemas));
    }
    if matches!(route.methods, Methods::Post | Methods::GetOrPost) {
        methods.insert("post".to_owned(), operation(route, Ask::Body, schemas));
    }
    methods.into()
}

/// Where a hit is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Query,
    Body,
}

fn operation(route: &Route, ask: Ask, schemas: &mut SchemaGenerator) -> Value {
    use Endpoint::*;
    let endpoint = route.endpoint;
    let body = match endpoint {
        Check | Peek | Charge => Some(schema::<HitBody<'_>>(schemas)),
        Batch => Some(schema::<BatchBody<'_>>(schemas)),
        Refund => Some(schema::<RefundBody<'_>>(schemas)),
        Settle => Some(schema::<SettleBody<'_>>(schemas)),
        Acquire => Some(schema::<AcquireBody<'_>>(schemas)),
        Renew | Release => Some(schema::<LeaseBody<'_>>(schemas)),
        Auth | OpenApi => None,
    };
    let ok = match endpoint {
        Check | Peek | Charge | Refund | Settle | Acquire => Some(schema::<DecisionBody<'_>>(schemas)),
        Batch => Some(schema::<BatchAnswer<'_>>(schemas)),
        Renew => Some(schema::<Renewed>(schemas)),
        Release => Some(schema::<Released>(schemas)),
        Auth | OpenApi => None,
    };
    let mut responses = Map::new();
    responses.insert(
        "200".to_owned(),
        match ok {
            Some(schema) => content("The answer.", "application/json", schema),
            None if endpoint == Auth => json!({ "description": "Allowed." }),
            None => content("This document.", "application/json", json!({ "type": "object" })),
        },
    );
    let denied = match endpoint {
        Check | Acquire => {
            let parts = [schema::<Problem>(schemas), schema::<DenialBody>(schemas), schema::<DecisionBody<'_>>(schemas)];
            Some(json!({ "allOf": parts }))
        }
        // For the client of a proxy, whom the decision does not concern.
        Auth => Some(json!({ "allOf": [schema::<Problem>(schemas), schema::<DenialBody>(schemas)] })),
        _ => None,
    };
    if matches!(endpoint, Check | Peek | Charge | Refund | Settle | Acquire | Auth) {
        responses["200"]["headers"] = headers(&STANDING);
    }
    let back = headers(&[&STANDING[..], &[("Retry-After", "When to come back, in seconds.")]].concat());
    responses.extend(denied.map(|denied| {
        let mut denied = content("Denied.", "application/problem+json", denied);
        denied["headers"] = back.clone();
        ("429".to_owned(), denied)
    }));
    let gone = match endpoint {
        Acquire => Some("Who asked has closed its side, and the lease was given back."),
        Renew => Some("The lease is not held any more."),
        _ => None,
    };
    responses.extend(gone.map(|gone| ("409".to_owned(), content(gone, "application/problem+json", schema::<Problem>(schemas)))));
    if endpoint == Auth {
        let description = "Denied, where `forward_auth.denial_status` is 403.";
        responses.insert("403".to_owned(), json!({ "description": description, "headers": back }));
    }
    if endpoint != OpenApi {
        responses.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    let by = if route.methods == Methods::GetOrPost && ask == Ask::Query { "ByQuery" } else { "" };
    let mut operation = json!({ "operationId": format!("{endpoint:?}{by}"), "summary": route.summary, "responses": responses });
    if let (Ask::Body, Some(schema)) = (ask, &body) {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if ask == Ask::Query && body.is_some() {
        operation["parameters"] = json!([
            {
                "name": "cost", "in": "query",
                "schema": { "type": "integer", "minimum": 0, "maximum": Quota::MAX, "default": 1 },
            },
            {
                "name": "attributes", "in": "query", "style": "form", "explode": true,
                "description": "Every other parameter is an attribute.",
                "schema": { "type": "object", "additionalProperties": { "type": "string" } },
            },
        ]);
    }
    operation
}

/// How keys stand.
const STANDING: [(&str, &str); 2] = [
    ("RateLimit-Policy", "The quotas. Another `headers.dialect` has other names for it, or none."),
    ("RateLimit", "What is left of them, and when there is more. Another `headers.dialect` has other names for it, or none."),
];

fn headers(told: &[(&str, &str)]) -> Value {
    let header = |(name, meaning): &(&str, &str)| {
        let kind = if *name == "Retry-After" { "integer" } else { "string" };
        ((*name).to_owned(), json!({ "description": meaning, "schema": { "type": kind } }))
    };
    told.iter().map(header).collect::<Map<String, Value>>().into()
}

fn content(description: &str, kind: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { kind: { "schema": schema } } })
}

fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}
