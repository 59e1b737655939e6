//! HTTP/1.1 as a target: one request at a time on a connection that is kept. The request is made once, and only the key in it changes.

use std::{io, time::Duration};

use memchr::memchr_iter;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use crate::{Connection, Keys, Target, Verdict};

/// How long to leave a server alone that does not accept a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest response that is read.
const MAX_BYTES: usize = 1 << 20;

/// A server that is asked by the same request for each key.
#[derive(Clone, Debug)]
pub struct Http {
    authority: String,
    request: Vec<u8>,
    /// Where in the request the key is.
    key_at: usize,
    judge: Judge,
}

/// What a response means, by its status and its body.
type Judge = fn(u16, &[u8]) -> Result<Verdict, String>;

impl Http {
    /// `POST /v1/check` of a Tidegate server at `url`, such as `http://127.0.0.1:8080`, with the key as this attribute.
    ///
    /// # Errors
    /// When the URL is none, or none of plain HTTP.
    pub fn check(url: &str, attribute: &str) -> Result<Self, String> {
        let attribute = serde_json::Value::from(attribute);
        Self::post(url, "/v1/check", [&format!("{{\"attributes\":{{{attribute}:\""), "\"}}"], |status, body| match status {
            200 => Ok(Verdict::Allowed),
            429 => Ok(Verdict::Denied),
            _ => Err(excerpt(status, body)),
        })
    }

    /// `GET /v1/auth` of a Tidegate server at `url`, as a proxy asks, with the key in this header.
    ///
    /// # Errors
    /// When the URL is none, or none of plain HTTP, or the header's name is none.
    pub fn auth(url: &str, header: &str) -> Result<Self, String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if header.is_empty() || !header.bytes().all(is_name) {
            return Err(format!("`{}` is not the name of a header; write for example x-user", header.escape_debug()));
        }
        let head = |authority: &str| {
            format!("GET /v1/auth HTTP/1.1\r\nhost: {authority}\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /\r\n{header}: ")
        };
        Self::new(url, head, "\r\n\r\n", |status, body| match status {
            200 => Ok(Verdict::Allowed),
            // As forward_auth.denial_status says.
            403 | 429 => Ok(Verdict::Denied),
            _ => Err(excerpt(status, body)),
        })
    }

    /// Any other server: `POST path` with a body of JSON, given as what is before the key and what is behind it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn post(url: &str, path: &str, [before, behind]: [&str; 2], judge: Judge) -> Result<Self, String> {
        let length = before.len() + Keys::BYTES + behind.len();
        let head = |authority: &str| {
            format!(
                "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{before}"
            )
        };
        Self::new(url, head, behind, judge)
    }

    /// `before` makes of the host what is before the key.
    fn new(url: &str, before: impl FnOnce(&str) -> String, behind: &str, judge: Judge) -> Result<Self, String> {
        // It may hold a password.
        let shown = if url.contains('@') { "this".to_owned() } else { format!("`{}`", url.escape_debug()) };
        let wrong = || format!("{shown} is not an address of HTTP; write for example http://127.0.0.1:8080");
        let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
        if !is_host || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        let mut request = before(authority).into_bytes();
        let key_at = request.len();
        request.resize(key_at + Keys::BYTES, b'-');
        request.extend_from_slice(behind.as_bytes());
        Ok(Self { authority: format!("{host}:{port}"), request, key_at, judge })
    }

    fn unreached(&self, error: &io::Error) -> String {
        /// No file is left for another connection.
        const EMFILE: i32 = 24;
        match error.raw_os_error() {
            Some(EMFILE) => "this process may not have that many connections; raise `ulimit -n`".to_owned(),
            _ => format!("nothing answers at {}: {error}", self.authority),
        }
    }

    async fn stream(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.authority).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn excerpt(status: u16, body: &[u8]) -> String {
    let shown = &body[..body.len().min(300)];
    format!("status {status}: {}", shown.escape_ascii())
}

impl Target for Http {
    type Connection = HttpConnection;

    async fn connect(&self) -> Result<HttpConnection, String> {
        let stream = self.stream().await.map_err(|error| self.unreached(&error))?;
        Ok(HttpConnection { target: self.clone(), stream: Some(stream), read: Vec::with_capacity(4096) })
    }
}

/// A connection that is made again when it has ended.
pub struct HttpConnection {
    target: Http,
    stream: Option<TcpStream>,
    read: Vec<u8>,
}

impl Connection for HttpConnection {
    async fn ask(&mut self, key: &str) -> Result<Verdict, String> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => match self.target.stream().await {
                Ok(stream) => stream,
                Err(error) => {
                    sleep(PAUSE).await;
                    return Err(error.to_string());
                }
            },
        };
        let at = self.target.key_at;
        self.target.request[at..at + Keys::BYTES].copy_from_slice(key.as_bytes());
        self.exchange(stream).await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl HttpConnection {
    /// Keeps the stream for the next request, if there can be one.
    async fn exchange(&mut self, mut stream: TcpStream) -> io::Result<Result<Verdict, String>> {
        stream.write_all(&self.target.request).await?;
        self.read.clear();
        let head = loop {
            if let Some(head) = head(&self.read)? {
                break head;
            }
            if stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed before there was an answer"));
            }
        };
        let end = head.length.saturating_add(head.body_length);
        if end > MAX_BYTES {
            return Err(invalid("the answer is too long"));
        }
        while self.read.len() < end {
            if stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if !head.closes {
            self.stream = Some(stream);
        }
        Ok((self.target.judge)(head.status, &self.read[head.length..end]))
    }
}

/// What has to be known of the head of a response.
struct Head {
    status: u16,
    length: usize,
    body_length: usize,
    /// Whether no other request can follow.
    closes: bool,
}

/// Nothing yet, if it has not come whole. It looks for what has to be known and passes over the rest: the generator is to leave the
/// machine to what it measures.
fn head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut head = Head { status: 0, length: 0, body_length: 0, closes: false };
    for end in memchr_iter(b'\n', bytes) {
        let line = &bytes[head.length..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if head.length == 0 {
            (head.status, head.closes) = status(line).ok_or_else(|| invalid("the answer is not one of HTTP/1.1"))?;
        }
        head.length = end + 1;
        match line.first() {
            None => return Ok(Some(head)),
            Some(b'c' | b'C') => {
                if let Some(length) = value(line, b"content-length") {
                    let length = str::from_utf8(length).ok().and_then(|length| length.parse().ok());
                    head.body_length = length.ok_or_else(|| invalid("the length of the answer is none"))?;
                } else if let Some(connection) = value(line, b"connection") {
                    head.closes |= connection.eq_ignore_ascii_case(b"close");
                }
            }
            Some(b't' | b'T') if value(line, b"transfer-encoding").is_some() => {
                return Err(invalid("the answer does not tell its length"));
            }
            Some(_) => {}
        }
    }
    if bytes.len() > MAX_BYTES { Err(invalid("the head of the answer is too long")) } else { Ok(None) }
}

/// The status of a first line, and whether it is one of HTTP/1.0, which keeps no connection.
fn status(line: &[u8]) -> Option<(u16, bool)> {
    let (minor, rest) = line.strip_prefix(b"HTTP/1.")?.split_first()?;
    let (code, reason) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
    let is_status = matches!(minor, b'0' | b'1') && code.iter().all(u8::is_ascii_digit) && matches!(reason, [] | [b' ', ..]);
    is_status.then(|| (code.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')), *minor == b'0'))
}

/// What a header has, if it is of this name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    // The colon first: that alone tells most others.
    if line.get(name.len()) != Some(&b':') || !line[..name.len()].eq_ignore_ascii_case(name) {
        return None;
    }
    Some(line[name.len() + 1..].trim_ascii())
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nX-Content-Length: 7\r\nconnections: close\r\nretry-after: 3\r\n\
        Content-LENGTH:  12 \r\n\r\n{\"a\":\"\r\n\r\n\"}";

    #[test]
    fn a_head_is_read_when_it_has_come_whole() {
        let length = ANSWER.len() - 12;
        for cut in 0..length {
            assert!(head(&ANSWER[..cut]).expect("nothing wrong so far").is_none(), "{cut}");
        }
        for cut in length..=ANSWER.len() {
            let head = head(&ANSWER[..cut]).expect("right").expect("whole");
            assert_eq!((head.status, head.length, head.body_length, head.closes), (429, length, 12, false));
        }
    }

    #[test]
    fn a_connection_is_kept_unless_the_head_says_otherwise() {
        for (text, status, closes) in [
            ("HTTP/1.1 200 OK\r\n\r\n", 200, false),
            ("HTTP/1.1 204\r\n\r\n", 204, false),
            ("HTTP/1.1 200 OK\nconnection: keep-alive\n\n", 200, false),
            ("HTTP/1.1 503 \r\nConnection: Close\r\n\r\n", 503, true),
            ("HTTP/1.0 200 OK\r\n\r\n", 200, true),
        ] {
            let head = head(text.as_bytes()).expect("right").expect("whole");
            assert_eq!((head.status, head.length, head.body_length, head.closes), (status, text.len(), 0, closes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_head_is_refused() {
        for wrong in [
            "\r\n",
            "200 OK\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.2 200 OK\r\n\r\n",
            "HTTP/1.1 20\r\n\r\n",
            "HTTP/1.1 2000\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(head(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert!(head(&vec![b'a'; MAX_BYTES + 1]).is_err());
    }
}
