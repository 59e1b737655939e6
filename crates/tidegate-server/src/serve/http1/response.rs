//! What is answered: a status, headers, a body. One value serves all answers of a connection, so that its memory is used again.

use std::{
    cell::RefCell,
    time::{SystemTime, UNIX_EPOCH},
};

use http::StatusCode;

use super::KEPT_BYTES;

pub struct Response {
    pub status: StatusCode,
    /// Headers as they are sent.
    lines: Vec<u8>,
    pub body: Vec<u8>,
}

impl Default for Response {
    fn default() -> Self {
        Self { status: StatusCode::OK, lines: Vec::with_capacity(512), body: Vec::with_capacity(1024) }
    }
}

impl Response {
    /// Adds a header. A value that is none is left out.
    #[inline]
    pub fn header(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        if !value.iter().fold(false, |is_control, byte| is_control | (*byte < b' ') | (*byte == 0x7f)) {
            self.known_header(name, value);
        }
    }

    /// The same, for a value of ours, which is one.
    #[inline]
    pub(crate) fn known_header(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.lines.extend_from_slice(part);
        }
    }

    pub fn kind(&mut self, kind: &str) {
        self.known_header("content-type", kind.as_bytes());
    }

    /// Writes it, with more headers, and is empty then.
    pub(super) fn write(&mut self, more: &str, body: Body, output: &mut Vec<u8>) {
        match self.status {
            StatusCode::OK => output.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: "),
            StatusCode::TOO_MANY_REQUESTS => output.extend_from_slice(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: "),
            status => {
                let reason = status.canonical_reason().unwrap_or_default();
                for part in ["HTTP/1.1 ", status.as_str(), " ", reason, "\r\ncontent-length: "] {
                    output.extend_from_slice(part.as_bytes());
                }
            }
        }
        output.extend_from_slice(itoa::Buffer::new().format(self.body.len()).as_bytes());
        output.extend_from_slice(b"\r\ndate: ");
        date(output);
        for part in [b"\r\n", &*self.lines, more.as_bytes(), b"\r\n"] {
            output.extend_from_slice(part);
        }
        if body == Body::Sent {
            output.extend_from_slice(&self.body);
        }
        self.status = StatusCode::OK;
        for part in [&mut self.lines, &mut self.body] {
            part.clear();
            part.shrink_to(KEPT_BYTES);
        }
    }
}

/// Whether a body is more than a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Sent,
    /// It was asked what would be answered.
    Told,
}

/// Writes the time of day, which is made anew when it is another.
fn date(output: &mut Vec<u8>) {
    thread_local! {
        static LATEST: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
    }
    let now = SystemTime::now();
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LATEST.with_borrow_mut(|(latest, text)| {
        if *latest != second {
            (*latest, *text) = (second, httpdate::fmt_http_date(now));
        }
        output.extend_from_slice(text.as_bytes());
    });
}
