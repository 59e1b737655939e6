//! Policies in JSON: the tables of the configuration, as they are written there.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate::Store;

use crate::{
    config::{Fault, PolicyTable},
    object,
    serve::{
        http::{problem::Problem, request},
        policies::{Policies, Unchanged},
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(deserialize_with = "object::several")]
    policies: Vec<PolicyTable>,
}

pub(super) fn read(bytes: &[u8]) -> Result<Vec<PolicyTable>, Problem> {
    request::json(bytes).map(|Tables { policies }| policies)
}

pub(super) fn told(tables: &[PolicyTable]) -> Value {
    json!({ "policies": tables.iter().map(shown).collect::<Vec<_>>() })
}

/// Without what is not set.
pub(super) fn shown(table: &PolicyTable) -> Value {
    let mut value = serde_json::to_value(table).unwrap_or_default();
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(prune);
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

/// What of these is not so in those of the same name among `others`, as in `per-user quota=100/min mode=shadow`. Of what tells keys and
/// values of hits, how many there are.
pub(super) fn differences(tables: &[PolicyTable], others: &[PolicyTable]) -> String {
    let differences = |table: &PolicyTable| {
        let other = others.iter().find(|other| other.name == table.name).map_or_else(Value::default, shown);
        let (this, none) = (shown(table), serde_json::Map::new());
        let fields =
            this.as_object().unwrap_or(&none).iter().filter(|(name, value)| *name != "name" && other.get(name) != Some(value));
        let told: Vec<String> = fields.map(|(name, value)| format!("{name}={}", brief(name, value))).collect();
        (!told.is_empty()).then(|| format!("{} {}", table.name, told.join(" ")))
    };
    tables.iter().filter_map(differences).collect::<Vec<_>>().join(", ")
}

fn brief(field: &str, value: &Value) -> String {
    match (field, value) {
        ("match", Value::Object(conditions)) => conditions.len().to_string(),
        ("override" | "unlimited" | "blocked", Value::Array(keys)) => keys.len().to_string(),
        (_, Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

/// Changes the fields that are given (as a JSON merge patch, RFC 7396); what the policy was, and what it is.
pub(super) fn change<S: Store>(policies: &Policies<S>, name: &str, bytes: &[u8]) -> Result<[PolicyTable; 2], Problem> {
    let patch: Value = request::json(bytes)?;
    let changed = policies.change(name, |table| {
        let mut value = shown(table);
        merge(&mut value, patch);
        let changed: PolicyTable = serde_path_to_error::deserialize(value)
            .map_err(|error| Problem::of(error.path().to_string(), error.inner().to_string()))?;
        if changed.name != table.name {
            return Err(Problem::of("name", "a policy keeps its name; replace the policies with PUT /v1/policies"));
        }
        Ok(changed)
    });
    changed.map_err(|unchanged| match unchanged {
        Unchanged::Unknown => unknown(),
        Unchanged::Refused(problem) => problem,
        Unchanged::Wrong(Fault { key, message }) => Problem::of(key.splitn(3, '.').last().unwrap_or_default(), message),
    })
}

/// There is no policy of a name.
pub(super) fn unknown() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "There is no such policy; `tidegate policies` (GET /v1/policies) lists them.")
}

/// A JSON merge patch (RFC 7396).
fn merge(value: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *value = patch;
        return;
    };
    let mut fields = match value.take() {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), change);
        }
    }
    *value = Value::Object(fields);
}

/// What is wrong with policies that replace all others, by the name that it has among them: `policies[1].quota` for `policy.1.quota`.
pub(super) fn wrong(Fault { key, message }: Fault) -> Problem {
    let named = key.strip_prefix("policy.").and_then(|rest| rest.split_once('.'));
    Problem::of(named.map_or_else(|| key.clone(), |(index, field)| format!("policies[{index}].{field}")), message)
}
