//! The reference in `docs/configuration.md` is made of the schema: every key, its default, what it is for.

use serde_json::Value;
use tidegate_server::config::{Config, SETTINGS};

const DOCS: &str = include_str!("../../../../docs/configuration.md");
const BEGIN: &str = "<!-- Made of the schema by the tests of tidegate-server (TIDEGATE_BLESS=1). -->\n";

#[test]
fn every_key_is_in_the_docs() {
    let (by_hand, _) = DOCS.split_once(BEGIN).expect("the mark is there");
    super::check_file("../../docs/configuration.md", &format!("{by_hand}{BEGIN}{}", reference()));
}

#[test]
fn every_variable_is_in_the_docs() {
    for setting in SETTINGS {
        let flag = setting.flag.map_or(String::new(), |flag| format!("`{flag}`"));
        let row = format!("| `{}` | {flag} | `{}` |", setting.variable, setting.key);
        assert!(DOCS.contains(&row), "{row}");
    }
}

fn reference() -> String {
    let schema = Config::schema();
    let mut text = String::new();
    for (name, table) in schema["properties"].as_object().expect("tables") {
        let (title, inner) =
            if table["items"].is_object() { (format!("[[{name}]]"), &table["items"]) } else { (format!("[{name}]"), table) };
        text += &format!("\n### `{title}`\n\n{}\n\n| key | default | |\n|---|---|---|\n", line(&table["description"]));
        rows(inner, "", &mut text);
    }
    text
}

fn rows(schema: &Value, under: &str, text: &mut String) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let key = format!("{under}{name}");
        let default = match &inner["default"] {
            _ if required.contains(&name.as_str().into()) => "needed".to_owned(),
            Value::Null => String::new(),
            Value::Object(table) => {
                let pairs: Vec<String> = table.iter().map(|(name, value)| format!("{name} = {value}")).collect();
                if pairs.is_empty() { String::new() } else { format!("`{{ {} }}`", pairs.join(", ")) }
            }
            Value::Array(list) if list.is_empty() => String::new(),
            Value::Array(list) => format!("`[{}]`", list.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")),
            default => format!("`{default}`"),
        };
        let words = words(inner);
        text.push_str(&format!("| `{key}` | {default} | {}{words} |\n", line(&inner["description"])));
        // Tables in tables, lists of tables, and those that a value can be.
        let alternatives = inner["anyOf"].as_array().into_iter().flatten();
        for inner in [inner, &inner["items"]].into_iter().chain(alternatives) {
            rows(inner, &format!("{key}."), text);
        }
        let values = inner["additionalProperties"]["anyOf"].as_array().into_iter().flatten();
        values.for_each(|inner| rows(inner, &format!("{key}.<attribute>."), text));
    }
}

/// What can be written, where that is one of a few words.
fn words(schema: &Value) -> String {
    let one_of = schema["oneOf"].as_array().or_else(|| {
        let alternatives = schema["anyOf"].as_array()?;
        alternatives.iter().find_map(|one| one["oneOf"].as_array())
    });
    let explained =
        one_of.into_iter().flatten().map(|word| format!("`{}` {}", word["const"], lowered(&line(&word["description"]))));
    let plain = schema["enum"].as_array().into_iter().flatten().filter(|word| !word.is_null()).map(|word| format!("`{word}`"));
    let all: Vec<String> = explained.chain(plain).collect();
    if all.is_empty() { String::new() } else { format!(" {}.", all.join(" · ")) }
}

fn line(text: &Value) -> String {
    text.as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|")
}

fn lowered(text: &str) -> String {
    let mut letters = text.trim_end_matches('.').chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
