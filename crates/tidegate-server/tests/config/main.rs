//! Configuration files as people write them: what is right, what is wrong, and what is said of it.

mod mistakes;
mod starter;

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
    walk(&tidegate_server::config::Config::schema(), "", &mut keys);
    keys
}
