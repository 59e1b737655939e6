//! What is said when the server has started: what listens, which policies hold, where states are, and what to try.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use crate::config::{Config, Mode, PolicyTable, StoreUrl};

pub(super) fn greeting(config: &Config, file: Option<&Path>, http: SocketAddr, admin: Option<SocketAddr>) -> String {
    let mut text = format!("tidegate {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "  {what:<8}{said}");
    };
    match file {
        Some(path) => line("config", &format!("{}, read again when it changes", path.display())),
        None => line("config", "built in; `tidegate config init` prints it, --config FILE takes another"),
    }
    line("http", &format!("http://{http}, forward-auth at /v1/auth, OpenAPI at /openapi.json"));
    if let Some(admin) = admin {
        let scheme = if config.admin.cert_file.is_some() { "https" } else { "http" };
        line("admin", &format!("{scheme}://{admin}, metrics at /metrics, health at /healthz and /readyz"));
    }
    let missing = super::not_served(config);
    if !missing.is_empty() {
        line("", &format!("not served by this version: {}", missing.join(", ")));
    }
    let snapshot = config.store.snapshot.as_ref();
    match (&*config.store.url, snapshot) {
        (StoreUrl::Redis(_), _) => line("store", &config.store.url.to_string()),
        (StoreUrl::Memory, Some(path)) => line("store", &format!("memory, kept in {}", path.display())),
        (StoreUrl::Memory, None) => line("store", "memory, gone when this process ends; store.snapshot keeps it"),
    }
    for table in &config.policy {
        line("policy", &policy(table));
    }
    if config.policy.is_empty() {
        line("policy", "none, everything is allowed");
    }
    let leasing: Vec<&str> = config.leasing().map(|table| table.name.as_str()).collect();
    if !leasing.is_empty() {
        line("", &format!("asked by /v1/acquire, and where a hit names its lease: {}", leasing.join(", ")));
    }
    let mut counting = config.policy.iter().filter(|table| table.concurrency.is_none());
    let query: Vec<String> =
        counting.next().map_or_else(Vec::new, |table| table.key.iter().map(|attribute| format!("{attribute}=42")).collect());
    line("try", &format!("curl -i 'http://{http}/v1/check?{}'", query.join("&")));
    text
}

fn policy(table: &PolicyTable) -> String {
    let quota = match (&table.quota, &table.calendar, &table.concurrency) {
        (Some(quota), ..) => quota.to_string(),
        (_, Some(calendar), _) => format!("{} a {}", calendar.limit, format!("{:?}", calendar.per).to_lowercase()),
        (.., Some(concurrency)) => format!("{} leases at once", concurrency.limit),
        _ => String::new(),
    };
    let by = if table.key.is_empty() { "in all".to_owned() } else { format!("for each {}", table.key.join(" and ")) };
    let shadow = if table.mode == Mode::Shadow { ", only watching" } else { "" };
    format!("{}: {quota} {by}{shadow}", table.name)
}
