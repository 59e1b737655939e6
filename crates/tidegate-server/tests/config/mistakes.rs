//! Wrong files, and what is said of each: `mistakes.txt` is the table.

use tidegate_server::config::parse;

const TABLE: &str = include_str!("mistakes.txt");
const BETWEEN: &str = "\n================\n";
const ARROW: &str = "\n----------------\n";

#[test]
fn each_mistake_is_told_with_its_place_and_what_to_write_instead() {
    let said = |case: &str| {
        let (text, _) = case.trim_end().split_once(ARROW).expect("a file and what is said of it");
        let said = parse(text).expect_err(text);
        format!("{text}{ARROW}{said}")
    };
    let table: Vec<String> = TABLE.split(BETWEEN).map(said).collect();
    super::check_file("tests/config/mistakes.txt", &format!("{}\n", table.join(BETWEEN)));
}

#[test]
fn a_mistake_does_nothing_to_a_terminal() {
    let escaped = r#"[[policy]]
name = "\u001b[31mred"
key = ["a"]
quota = "1/s""#;
    for text in [escaped, "name = \"\u{1b}[31mred\"", "name = 1 # \u{9b}31m\u{202e}", "\u{1b}]0;title\u{7} = 1"] {
        let said = parse(text).expect_err(text).to_string();
        let is_wrong = |char: char| char.is_control() && char != '\n' || char == '\u{202e}';
        assert!(!said.contains(is_wrong), "{said:?}");
    }
}

#[test]
fn no_mistake_shows_a_password() {
    for text in [
        "store.url = \"redsi://:hunter2@host/\"",
        "store.url = \"redis://:hunter2@host/",
        "store.url = [\"redis://:hunter2@host/\"]",
        "[store]\nurll = \"redis://:hunter2@host/\"",
        "store = \"redis://:hunter2@host/\"",
        "[store]\nurl = \"redis:/:hunter2@host/\"",
        "[store]\nurl = \":hunter2@host:6379\"",
        "[store]\npassword = \"hunter2\"",
        "store = { url = \"redis://host/\", Password = \"hunter2\" }",
        "[store]\nkey_secret = \"hunter2\"",
        "[admin]\nwrite_token   = \"hunter2\"",
        "[admin]\ntoken = hunter2",
    ] {
        let said = parse(text).expect_err("wrong").to_string();
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn whatever_is_cut_off_or_changed_is_told_and_never_a_panic() {
    let text = tidegate_server::config::STARTER.replace("\n# ", "\n");
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let _ = parse(&text[..end]).map_err(|problems| problems.to_string());
    }
    for text in ["\u{feff}[stor]", "a = \"é\"\n", "é = 1", "\t\t[stor]\r\n", "[store]\nurl = \"\u{1F980}\"", "a.b.c = 1", "\0"]
    {
        assert!(!parse(text).expect_err(text).to_string().is_empty());
    }
}
