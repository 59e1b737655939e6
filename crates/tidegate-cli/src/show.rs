//! What reaches a terminal: tables, spans of time, and texts of others with everything escaped that could steer it.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Wrong usage, of a command or in a file.
pub(crate) const WRONG: u8 = 2;

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        // Who has read enough has gone: `tidegate config schema | head`.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Writes to standard error, and ends so.
pub(crate) fn fail(message: &str, code: u8) -> ExitCode {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "{message}");
    ExitCode::from(code)
}

/// Whether a terminal shows it as it is, and does nothing else.
fn is_harmless(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().eq([c])
}

/// A text of somebody else's, for people.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_debug());
        }
    }
    shown
}

/// JSON of somebody else's in one line. What is harmless stays as it is.
pub(crate) fn json_line(json: &str) -> String {
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.trim().chars() {
        match c {
            // In JSON these are between texts only, or escaped.
            '\n' | '\r' | '\t' => line.push(' '),
            c if is_harmless(c) => line.push(c),
            c => line.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
        }
    }
    line.push('\n');
    line
}

/// Columns that are aligned, each as wide as its widest text; what is in them is escaped here.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, texts: [String; N]) {
        self.rows.push(texts.iter().map(|text| escaped(text)).collect());
    }

    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let line: String = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}  ")).collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A span of time in its two largest units, rounded up: who waits so long has waited long enough.
pub(crate) fn span(millis: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let mut seconds = millis.div_ceil(1_000);
    // Up to whole minutes from an hour on, up to whole hours from a day on.
    for (from, step) in [(3_600, 60), (86_400, 3_600)] {
        if seconds >= from {
            seconds = seconds.next_multiple_of(step);
        }
    }
    let shown: Vec<String> = UNITS
        .iter()
        .filter_map(|(length, unit)| {
            let count = seconds / length;
            seconds %= length;
            (count > 0).then(|| format!("{count}{unit}"))
        })
        .collect();
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        let hostile = "a\x1b[2Jb\u{9b}c\u{7f}\u{202e}\r\n\"\\x1b\" 東京";
        assert_eq!(escaped(hostile), "a\\u{1b}[2Jb\\u{9b}c\\u{7f}\\u{202e}\\r\\n\"\\x1b\" 東京");
        let json = "{\"key\":\"\u{9b}\u{202e}\u{e0001}é\\u001b\",\n\t\"n\":1}\n";
        let line = json_line(json);
        assert_eq!(line, "{\"key\":\"\\u009b\\u202e\\udb40\\udc01é\\u001b\",  \"n\":1}\n");
        let same = |text| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(same(json), same(&line));
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["POLICY", "KEY", ""]);
        table.row(["per-user".to_owned(), "4\n2".to_owned(), String::new()]);
        table.row(["a".to_owned(), "é".to_owned(), "x".to_owned()]);
        assert_eq!(table.text(), "POLICY    KEY\nper-user  4\\n2\na         é     x\n");
    }

    #[test]
    fn spans_are_rounded_up() {
        for (millis, shown) in [
            (0, "0ms"),
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_001, "2s"),
            (59_001, "1m"),
            (61_000, "1m 1s"),
            (3_599_001, "1h"),
            (3_600_001, "1h 1m"),
            (86_340_001, "1d"),
            (90_000_001, "1d 2h"),
            (u64::MAX, "213503982334d 15h"),
        ] {
            assert_eq!(span(millis), shown, "{millis}");
        }
    }
}
