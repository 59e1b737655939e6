//! HTTP/1.1 as a target: one request at a time on a connection that is kept. The request is made once, and only the key in it changes.

use std::{io, time::Duration};

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

/// A server that is asked by `POST`.
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

    /// Any other server: `POST path` with a body of JSON, given as what is before the key and what is behind it.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn post(url: &str, path: &str, [before, behind]: [&str; 2], judge: Judge) -> Result<Self, String> {
        let wrong = || format!("`{}` is not an address of HTTP; write for example http://127.0.0.1:8080", url.escape_debug());
        let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
        if !is_host || port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        let length = before.len() + Keys::BYTES + behind.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{before}"
        );
        let key_at = head.len();
        let mut request = head.into_bytes();
        request.resize(key_at + Keys::BYTES, b'-');
        request.extend_from_slice(behind.as_bytes());
        Ok(Self { authority: format!("{host}:{port}"), request, key_at, judge })
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
        let stream = self.stream().await.map_err(|error| format!("nothing answers at {}: {error}", self.authority))?;
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

/// Nothing yet, if it has not come whole.
fn head(bytes: &[u8]) -> io::Result<Option<Head>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes).map_err(|error| invalid(&error.to_string()))? else {
        return if bytes.len() > MAX_BYTES { Err(invalid("the head of the answer is too long")) } else { Ok(None) };
    };
    let mut head =
        Head { status: response.code.unwrap_or_default(), length, body_length: 0, closes: response.version == Some(0) };
    for header in response.headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let length = str::from_utf8(header.value).ok().and_then(|length| length.parse().ok());
            head.body_length = length.ok_or_else(|| invalid("the length of the answer is none"))?;
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.closes |= header.value.eq_ignore_ascii_case(b"close");
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(invalid("the answer does not tell its length"));
        }
    }
    Ok(Some(head))
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}
