//! What is wrong with a configuration and where: a sentence, and the line that it is about.

use std::{error, fmt, ops::Range};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, and what to write instead.
    pub message: String,
    /// Where, if it is about a file.
    pub place: Option<Place>,
}

/// Some part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// Its first character, from 1.
    pub column: usize,
    /// Its length in characters, 1 at least.
    pub width: usize,
    /// The line; nothing where it could hold a password.
    pub text: Option<String>,
}

impl Problem {
    /// A problem that is nowhere in a file.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), place: None }
    }

    /// A problem with these bytes of `text`.
    pub(super) fn at(text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        Self { message: message.into(), place: Some(Place::new(text, span)) }
    }
}

impl Place {
    fn new(text: &str, span: Range<usize>) -> Self {
        // The parser points behind the last character where something is missing there.
        let start = text.floor_char_boundary(span.start);
        let from = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let to = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = text.floor_char_boundary(span.end).clamp(start, to);
        let line = text[from..to].trim_end_matches('\r');
        Self {
            line: text[..start].matches('\n').count() + 1,
            column: text[from..start].chars().count() + 1,
            width: text[start..end].chars().count().max(1),
            text: (!may_hold_a_secret(line)).then(|| line.replace('\t', " ")),
        }
    }
}

/// An address with a password in it, also one that is mistyped, or a secret that was written in the place of its file.
fn may_hold_a_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase().replace("token-bucket", "");
    let is_named = ["pass", "secret", "token"].iter().any(|name| line.contains(name));
    is_named || line.contains('@') || line.contains("://") && line.contains('?')
}

/// All that was found wrong, in the order of the file. It prints as a compiler does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file's name, if there is one.
    pub file: Option<String>,
    /// At least one.
    pub list: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| problem.place.as_ref().map(|place| (place.line, place.column)));
        list.dedup();
        Self { file: None, list }
    }

    pub(super) fn of(self, file: impl fmt::Display) -> Self {
        Self { file: Some(file.to_string()), ..self }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self { file: None, list: vec![problem] }
    }
}

impl From<tidegate::ConfigError> for Problems {
    fn from(error: tidegate::ConfigError) -> Self {
        Problem::new(error.to_string()).into()
    }
}

/// As wide, and nothing that a terminal does something about but new lines and tabs.
fn harmless(text: &str) -> String {
    let harmless = |char: char| {
        let turns = matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if turns || char.is_control() && !matches!(char, '\n' | '\t') { '\u{fffd}' } else { char }
    };
    text.chars().map(harmless).collect()
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { message, place }) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            let message = harmless(message);
            let Some(Place { line, column, width, text }) = place else {
                f.write_str(&message)?;
                continue;
            };
            match &self.file {
                Some(file) => write!(f, "{file}:{line}:{column}: {message}")?,
                None => write!(f, "line {line}, column {column}: {message}")?,
            }
            if let Some(text) = text {
                let margin = line.to_string().len();
                let (indent, carets) = (" ".repeat(column - 1), "^".repeat(*width));
                write!(f, "\n{line} | {}\n{:margin$} | {indent}{carets}", harmless(text), "")?;
            }
        }
        Ok(())
    }
}

impl error::Error for Problems {}
