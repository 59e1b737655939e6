//! The head of a request, read where it lies: what is asked, and where its body ends. What could be read in two ways is refused, or whoever
//! is between us and the client might read it the other way.

use std::{mem::MaybeUninit, ops::Range};

use http::StatusCode;
use httparse::{Header, Status};
use smallvec::SmallVec;

use super::HEAD_BYTES;
use crate::serve::http::problem::Problem;

/// Lines of a head.
const MAX_HEADERS: usize = 100;

/// Empty lines before a head, in bytes: old clients send one after a body. All of them are looked at again whenever another comes.
const EMPTY_BYTES: usize = 64;

/// What is asked.
#[derive(Default)]
pub struct Head<'b> {
    pub method: &'b str,
    pub path: &'b str,
    pub query: &'b str,
    /// Whether a browser asks for a page of another site. Nobody else says so.
    pub is_foreign: bool,
    headers: SmallVec<[Header<'b>; 16]>,
    pub(super) length: Length,
    pub(super) after: After,
    /// Whether the client waits to be told before it sends its body.
    pub(super) expects: bool,
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    /// As its chunks say.
    Chunks,
}

/// What becomes of the connection when the request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum After {
    #[default]
    Kept,
    /// By a client of HTTP/1.0, who has to be told.
    KeptAsAsked,
    Closed,
}

impl Default for Length {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

impl<'b> Head<'b> {
    /// The bytes of the head that `bytes` begin with; nothing while there is no end of it.
    pub(super) fn read(&mut self, bytes: &'b [u8]) -> Result<Option<usize>, Problem> {
        if bytes.get(..=EMPTY_BYTES).is_some_and(|first| first.iter().all(|byte| matches!(byte, b'\r' | b'\n'))) {
            return Err(wrong("This is no request of HTTP/1.1."));
        }
        let mut room = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(bytes, &mut room);
        // Also of what is refused: who asks for a head alone is told of that alone.
        self.method = request.method.unwrap_or_default();
        let end = match parsed {
            Ok(Status::Complete(end)) if end <= HEAD_BYTES => end,
            Ok(Status::Partial) if bytes.len() < HEAD_BYTES => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                let detail = format!("A head has {HEAD_BYTES} bytes and {MAX_HEADERS} headers at most.");
                return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
            }
            Err(_) => return Err(wrong("This is no request of HTTP/1.1.")),
        };
        let is_old = request.version == Some(0);
        let named;
        (named, self.path, self.query) = target(request.path.unwrap_or_default());
        self.headers = SmallVec::from_slice(request.headers);
        self.after = if is_old { After::Closed } else { After::Kept };
        let (mut length, mut is_closed) = (None, false);
        let (mut host, mut origin) = (None, None);
        for Header { name, value } in request.headers {
            // Most names are none of these by their lengths.
            match name.len() {
                4 if name.eq_ignore_ascii_case("host") => {
                    if host.replace(*value).is_some() {
                        return Err(wrong("The Host is told more than once."));
                    }
                    if name_and_port(value).is_none() {
                        return Err(wrong("The Host is none: send a name or an address, and a port if need be."));
                    }
                }
                6 if name.eq_ignore_ascii_case("origin") => self.is_foreign |= origin.replace(*value).is_some(),
                6 if name.eq_ignore_ascii_case("expect") => self.expects = !is_old && value.eq_ignore_ascii_case(b"100-continue"),
                10 if name.eq_ignore_ascii_case("connection") => {
                    let says = |word| value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word));
                    is_closed |= says(b"close");
                    if is_old && says(b"keep-alive") {
                        self.after = After::KeptAsAsked;
                    }
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let bytes = number(value).ok_or_else(|| wrong("The Content-Length is no number."))?;
                    if length.replace(Length::Bytes(bytes)).is_some() {
                        return Err(wrong("The length of the body is told more than once."));
                    }
                }
                14 if name.eq_ignore_ascii_case("sec-fetch-site") => {
                    self.is_foreign |= !matches!(*value, b"none" | b"same-origin")
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    if is_old || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                        return Err(wrong("The only Transfer-Encoding known here is chunked, of HTTP/1.1."));
                    }
                    if length.replace(Length::Chunks).is_some() {
                        return Err(wrong("The length of the body is told more than once."));
                    }
                }
                _ => {}
            }
        }
        if host.is_none() && !is_old {
            return Err(wrong("The Host is missing."));
        }
        let is_other = |named: &str| host.is_some_and(|host| !named.as_bytes().eq_ignore_ascii_case(host));
        if named.is_some_and(is_other) {
            return Err(wrong("The target names another host than the Host does."));
        }
        self.is_foreign |= origin.is_some_and(|origin| !is_of(origin, host.unwrap_or_default()));
        if is_closed {
            self.after = After::Closed;
        }
        self.length = length.unwrap_or_default();
        Ok(Some(end))
    }

    /// The values of a header, whose name is in small letters, in their order.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }

    /// The first of them.
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        self.all(name).next()
    }

    /// The same, where it is text.
    pub fn text(&self, name: &str) -> Option<&'b str> {
        self.get(name).and_then(|value| str::from_utf8(value).ok())
    }
}

fn wrong(detail: &'static str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// Host, path and query of a target. Most have no host.
fn target(target: &str) -> (Option<&str>, &str, &str) {
    let (target, _) = cut(target, b'#');
    let (target, query) = cut(target, b'?');
    let (host, path) = host_and_path(target.as_bytes());
    let path = if path == target.len() { "/" } else { &target[path..] };
    (host.map(|host| &target[host]), path, query)
}

/// Where in a target without its query the host is, if there is a scheme before it, and where the path begins. One that has none asks for `/`.
pub(crate) fn host_and_path(target: &[u8]) -> (Option<Range<usize>>, usize) {
    const SCHEME: &[u8] = b"://";
    let is_path = target.first() == Some(&b'/');
    let scheme = if is_path { None } else { target.windows(SCHEME.len()).position(|bytes| bytes == SCHEME) };
    let Some(scheme) = scheme else { return (None, 0) };
    let start = scheme + SCHEME.len();
    let end = target[start..].iter().position(|byte| *byte == b'/').map_or(target.len(), |at| start + at);
    (Some(start..end), end)
}

/// What is before a byte, and after it.
fn cut(text: &str, byte: u8) -> (&str, &str) {
    let at = text.bytes().position(|other| other == byte);
    at.map_or((text, ""), |at| (&text[..at], &text[at + 1..]))
}

/// A host and the port after it, with its colon; nothing where it is no host. None at all is one too: who asks for what has no host sends
/// that (RFC 9112, 3.2).
pub(crate) fn name_and_port(host: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_literal = host.first() == Some(&b'[');
    let end = match is_literal {
        true => host.iter().position(|byte| *byte == b']')? + 1,
        false => host.iter().position(|byte| *byte == b':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let is_plain = |byte: &u8| PLAIN[usize::from(*byte)];
    let is_name = match name {
        [b'[', address @ .., b']'] => !address.is_empty() && address.iter().all(|byte| is_plain(byte) || *byte == b':'),
        name => name.iter().all(is_plain),
    };
    let is_port = match port {
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        nothing => nothing.is_empty(),
    };
    (is_name && is_port).then_some((name, port))
}

/// The bytes that a name may have (RFC 3986, 3.2.2).
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        plain[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"-._~%!$&'()*+,;=";
    let mut at = 0;
    while at < others.len() {
        plain[others[at] as usize] = true;
        at += 1;
    }
    plain
};

/// Whether an origin is this host's.
fn is_of(origin: &[u8], host: &[u8]) -> bool {
    let site = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    site.is_some_and(|site| site.eq_ignore_ascii_case(host))
}

fn number(digits: &[u8]) -> Option<u64> {
    let add =
        |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(u64::from(byte.is_ascii_digit().then(|| byte - b'0')?));
    digits.iter().try_fold(0, add).filter(|_| !digits.is_empty())
}
