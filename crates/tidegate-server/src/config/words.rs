//! What went wrong in words of the file and not of the program: serde knows fields, variants and `u64`; who writes a file knows
//! keys, words and whole numbers.

/// What is to be said of a message of serde's or of the TOML parser's.
pub(crate) fn plain(message: &str) -> String {
    // What was found may have anything in it.
    let after = ["`, expected ", "`, there are no "].into_iter().find_map(|words| message.rsplit_once(words));
    let (before, after) = after.unwrap_or((message.trim_end_matches('`'), ""));
    let named = before.split_once('`').map_or("", |(_, named)| named);
    let known: Vec<&str> = after.split('`').skip(1).step_by(2).collect();
    match (message.split_whitespace().next(), message.split_whitespace().nth(1)) {
        (Some("unknown"), Some("field")) => unknown("key", named, &known),
        (Some("unknown"), Some("variant")) => unknown("word", named, &known),
        (Some("missing"), Some("field")) => format!("`{named}` is missing; write {}", example(named)),
        (Some("invalid"), Some("type:" | "value:")) => mistaken(message),
        (Some("duplicate"), Some("key")) => "this is written twice; keep one of them".to_owned(),
        _ => message.to_owned(),
    }
}

/// `found` is not among those that are known: the nearest of them, or all.
pub(crate) fn unknown(what: &str, found: &str, known: &[&str]) -> String {
    let found = found.escape_debug().to_string();
    let near = |word: &&&str| {
        let (found, word) = (found.to_lowercase(), word.to_lowercase());
        // `password` is half of what is meant, `policies` more than that.
        let stem = &word[..word.floor_char_boundary(word.len().saturating_sub(1))];
        let is_part = found.len().min(stem.len()) > 3 && (word.starts_with(&found) || found.starts_with(stem));
        strsim::damerau_levenshtein(&found, &word).min(if is_part { 2 } else { usize::MAX })
    };
    let nearest = known.iter().min_by_key(near).filter(|word| near(word) <= (word.len() / 3).max(1));
    match nearest {
        Some(nearest) => format!("unknown {what} `{found}`; did you mean `{nearest}`?"),
        None if known.is_empty() => format!("unknown {what} `{found}`; nothing can be written here"),
        None => format!("unknown {what} `{found}`; write one of {}", known.join(", ")),
    }
}

/// "invalid type: string "ten", expected u32" and the like.
fn mistaken(message: &str) -> String {
    if message == "invalid type: map, expected a sequence" {
        return "there can be several of these; write the name in double brackets, as in [[policy]]".to_owned();
    }
    let (found, expected) = message.split_once(", expected ").unwrap_or((message, "something else"));
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    // A text is not repeated: it may hold a password.
    let found = match found.split_whitespace().next() {
        Some("string") => "a text".to_owned(),
        Some("map") => "a table".to_owned(),
        Some("sequence") => "a list".to_owned(),
        _ => found.replacen("integer", "the number", 1).replacen("floating point", "the number", 1),
    };
    let expected = match expected {
        "a nonzero u16" | "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => "a whole number above 0, without quotes",
        "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or above, without quotes",
        "f64" => "a number, without quotes",
        "a boolean" => "true or false, without quotes",
        "a string" | "path string" | "string or map" => "a text in quotes",
        "a sequence" => "a list, such as [\"a\", \"b\"]",
        "a map" => "a table, such as { a = \"b\" }",
        "an object" => "a table",
        other => other,
    };
    format!("this is {found}; write {expected}")
}

fn example(key: &str) -> &str {
    match key {
        "name" => "for example name = \"per-user\"",
        "key" => "for example key = \"mallory\"",
        "limit" => "for example limit = 1000",
        "per" => "per = \"day\", \"week\" or \"month\"",
        "ttl" => "for example ttl = \"5m\"",
        _ => "it",
    }
}
