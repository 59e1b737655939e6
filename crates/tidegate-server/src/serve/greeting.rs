//! What is said when the server has started: what listens, which policies hold, where states are, and what to try.

use std::{fmt::Write as _, net::SocketAddr};

use crate::config::{Config, Match, Mode, PolicyTable, Requirement, Sources, StoreUrl};

pub(super) fn greeting(config: &Config, sources: &Sources, http: SocketAddr, admin: Option<SocketAddr>) -> String {
    let mut text = format!("tidegate {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "  {what:<8}{said}");
    };
    match sources.path() {
        Some(path) if sources.is_read_once() => line("config", &format!("{}, read once, as it is no file", path.display())),
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
    if let Some(note) = config.store.idle_snapshot() {
        line("", note);
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
    line("try", &format!("curl -i 'http://{http}/v1/check?{}'", query(&config.policy)));
    text
}

/// What to ask about, so that a policy has something to say: one that a check is charged to, unlike one of leases.
fn query(policies: &[PolicyTable]) -> String {
    let Some(table) = policies.iter().find(|table| table.concurrency.is_none()) else { return String::new() };
    let keys = table.key.iter().filter(|name| !table.conditions.contains_key(*name)).map(|name| (name, "42".to_owned()));
    let conditions = table.conditions.iter().map(|(name, Match(requirement))| (name, met(requirement)));
    let pairs = keys.chain(conditions).map(|(name, value)| format!("{}={}", escaped(name), escaped(&value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A text that is as it must be.
fn met(Requirement { equals, one_of, prefix, network }: &Requirement) -> String {
    let prefix = prefix.as_deref().unwrap_or_default();
    let one_of = one_of.iter().flatten().find(|text| text.starts_with(prefix));
    let address = network.as_ref().map(|network| network.to_string().split('/').next().unwrap_or_default().to_owned());
    equals.clone().or_else(|| one_of.cloned()).or(address).unwrap_or_else(|| prefix.to_owned())
}

/// As it is written in a query, and within quotes of a shell.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b':' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

fn policy(table: &PolicyTable) -> String {
    let quota = table.amount();
    let by = if table.key.is_empty() { "in all".to_owned() } else { format!("for each {}", table.key.join(" and ")) };
    let shadow = if table.mode == Mode::Shadow { ", only watching" } else { "" };
    format!("{}: {quota} {by}{shadow}", table.name)
}

#[cfg(test)]
mod tests {
    use tidegate::{Hit, Limiter};

    use super::Sources;

    #[test]
    fn a_snapshot_that_is_never_written_is_spoken_of() {
        let said = |store: &str| {
            let config = crate::config::parse(&format!("[store]\n{store}\nsnapshot = \"/tmp/limits\"")).expect("right");
            super::greeting(&config, &Sources::default(), ([127, 0, 0, 1], 1).into(), None)
        };
        assert!(said("url = \"memory\"").contains("  store   memory, kept in /tmp/limits\n"));
        let redis = "  store   redis://host:6379/\n          store.snapshot is not written: it is for states in memory\n";
        assert!(said("url = \"redis://host:6379/\"").contains(redis));
    }

    #[test]
    fn what_to_try_is_what_a_policy_applies_to() {
        for (policies, query) in [
            ("[[policy]]\nname = \"a\"\nkey = [\"user\", \"ip\"]\nquota = \"1/s\"", "user=42&ip=42"),
            ("[[policy]]\nname = \"a\"\nkey = []\nquota = \"1/s\"", ""),
            (
                "[[policy]]\nname = \"a\"\nconcurrency = { limit = 1, ttl = \"1s\" }\n\
                 [[policy]]\nname = \"b\"\nkey = [\"user\"]\nquota = \"1/s\"\n\
                 match = { method = [\"GET\", \"POST\"], path = { prefix = \"/api/\" }, plan = \"it's free\" }",
                "user=42&method=GET&path=/api/&plan=it%27s%20free",
            ),
            (
                "[[policy]]\nname = \"a\"\nkey = [\"ip\"]\nquota = \"1/s\"\n\
                 match = { ip = { network = \"10.0.0.0/8\" }, path = { one_of = [\"/\", \"/b\"], prefix = \"/b\" } }",
                "ip=10.0.0.0&path=/b",
            ),
        ] {
            let config = crate::config::parse(policies).expect("right");
            assert_eq!(super::query(&config.policy), query);
            let limiter = Limiter::builder().policies(config.policies().expect("right")).build().expect("right");
            let unescaped = query.replace("%27", "'").replace("%20", " ");
            let pairs = unescaped.split('&').filter_map(|pair| pair.split_once('='));
            let decision = limiter.check(pairs.fold(Hit::new(), |hit, (name, value)| hit.attribute(name, value.as_bytes())));
            assert_eq!(decision.outcomes().count(), 1, "{query}");
        }
    }
}
