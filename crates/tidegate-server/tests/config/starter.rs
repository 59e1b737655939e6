//! The starter is a file like any other, shows every key, and shows what holds.

use std::collections::BTreeSet;

use tidegate::{Policy, Quota};
use tidegate_server::config::{Config, STARTER, parse};

/// The starter as if somebody had removed the `# ` before each line that `wanted` takes.
fn uncommented(wanted: impl Fn(&str) -> bool) -> String {
    let is_setting = |line: &str| {
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        line == "[[policy]]" || (!key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    let line = |line: &'static str| match line.strip_prefix("# ") {
        Some(setting) if is_setting(setting) && wanted(setting) => setting,
        _ => line,
    };
    STARTER.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn it_has_the_three_policies_and_is_the_default_otherwise() {
    let starter = Config::starter();
    let policies = [
        Policy::new("per-user", Quota::per_minute(100)).key(["user"]),
        Policy::new("per-ip", Quota::per_minute(1000)).key(["ip"]),
        Policy::new("per-key", Quota::per_minute(100)).key(["key"]),
    ];
    assert_eq!(starter.policies().expect("right"), policies);
    assert_eq!(Config { policy: Vec::new(), ..starter }, Config::default());
}

#[test]
fn what_it_shows_as_defaults_are_the_defaults() {
    let text = uncommented(|line| !line.contains("# none"));
    let policies = text.find("# What else").expect("the examples");
    let rest = text.find("# --- Where to listen").expect("the tables");
    let text = format!("{}{}", &text[..policies], &text[rest..]);
    assert!(text.contains("\nhttp = ") && !text.contains("\npassword_file"), "{text}");
    assert_eq!(parse(&text).expect("right"), Config::starter());
}

#[test]
fn every_example_in_it_is_right_and_every_key_is_in_it() {
    let text = uncommented(|_| true);
    let config = parse(&text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.policies().expect("right").len(), 7);
    for key in keys() {
        let name = key.rsplit('.').next().expect("a name");
        let is_written = text.lines().any(|line| line.contains(&format!("{name} = ")) || line.contains(&format!("[{name}]")));
        // The long form of `match`.
        assert!(is_written || ["equals", "one_of"].contains(&name), "{key}");
    }
    let tables: BTreeSet<_> = keys().into_iter().filter(|key| !key.contains('.')).collect();
    assert_eq!(tables.len(), 10, "{tables:?}");
}

#[test]
fn the_schema_takes_it_and_not_what_is_wrong() {
    let schema = Config::schema();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let json = |text: &str| serde_json::to_value(toml::from_str::<toml::Value>(text).expect("TOML")).expect("JSON");
    let errors = |text: &str| validator.iter_errors(&json(text)).map(|error| error.to_string()).collect::<Vec<_>>();
    assert_eq!(errors(STARTER), [""; 0]);
    assert_eq!(errors(&uncommented(|_| true)), [""; 0]);
    let wrong = [
        "[stor]",
        "[store]\nurll = \"memory\"",
        "[store]\ninstances = 0",
        "[store]\non_error = \"panic\"",
        "[[policy]]\nquota = \"1/s\"",
        "[[policy]]\nname = 7",
        "[[policy]]\nname = \"a\"\nalgorithm = \"leaky\"",
        "[[policy]]\nname = \"a\"\nmatch = { ip = { net = \"::\" } }",
        "[forward_auth]\ndenial_status = 404",
        "[decision_log]\nsample_rate = 2.0",
    ];
    for text in wrong {
        assert_ne!(errors(text), [""; 0], "{text}");
        assert!(parse(text).is_err(), "{text}");
    }
}

/// The keys of the schema, tables before what is in them: `store`, `store.url`, `policy`, `policy.calendar.zone`...
fn keys() -> Vec<String> {
    fn walk(schema: &serde_json::Value, under: &str, keys: &mut Vec<String>) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let key = if under.is_empty() { name.clone() } else { format!("{under}.{name}") };
            keys.push(key.clone());
            let alternatives = inner["anyOf"].as_array().into_iter().flatten();
            let values = inner["additionalProperties"]["anyOf"].as_array().into_iter().flatten();
            [inner, &inner["items"]].into_iter().chain(alternatives).chain(values).for_each(|inner| walk(inner, &key, keys));
        }
    }
    let mut keys = Vec::new();
    walk(&Config::schema(), "", &mut keys);
    keys
}
