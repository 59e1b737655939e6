//! A client that does what it is told, and no more.

use std::{io, net::SocketAddr};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("connected");
        stream.set_nodelay(true).expect("set");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends these bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads one reply; an error if the connection ends before it does.
    pub(crate) async fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        let mut read_line = async |stream: &mut BufReader<TcpStream>| {
            line.clear();
            match stream.read_line(&mut line).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok::<String, io::Error>(line.trim_end().to_owned()),
            }
        };
        let status = read_line(&mut self.stream).await?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(&mut self.stream).await?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length =
            headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().expect("one"));
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(Reply { status, headers, body: String::from_utf8(body).expect("text") })
    }

    /// Sends these bytes and nothing after them, and reads until the server has no more to say.
    pub(crate) async fn all(&mut self, bytes: &[u8]) -> String {
        // It may have had enough of them.
        let _ = self.send(bytes).await;
        let _ = self.stream.shutdown().await;
        let mut replies = Vec::new();
        let _ = self.stream.read_to_end(&mut replies).await;
        String::from_utf8_lossy(&replies).into_owned()
    }

    /// Goes, and says so in a way that cannot be taken for the end of what it sends.
    pub(crate) fn reset(self) {
        self.stream.into_inner().set_zero_linger().expect("set");
    }

    pub(crate) async fn try_post(&mut self, path: &str, body: &[u8]) -> io::Result<Reply> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: tidegate\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat()).await?;
        self.reply().await
    }

    pub(crate) async fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.try_post(path, body.as_ref()).await.expect("a reply")
    }

    pub(crate) async fn get(&mut self, target: &str) -> Reply {
        self.ask("GET", target, &[]).await
    }

    /// A request without a body.
    pub(crate) async fn ask(&mut self, method: &str, target: &str, headers: &[(&str, &str)]) -> Reply {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(format!("{method} {target} HTTP/1.1\r\nhost: tidegate\r\n{headers}\r\n").as_bytes()).await.expect("sent");
        self.reply().await.expect("a reply")
    }

    /// A request to the admin surface, with these headers beside what it needs.
    pub(crate) async fn admin(&mut self, request: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        if !headers.iter().any(|(name, _)| *name == "host") {
            lines.push_str("host: 127.0.0.1\r\n");
        }
        if !body.is_empty() {
            lines.push_str(&format!("content-length: {}\r\n", body.len()));
            if !headers.iter().any(|(name, _)| *name == "content-type") {
                lines.push_str("content-type: application/json\r\n");
            }
        }
        self.send(format!("{request} HTTP/1.1\r\n{lines}\r\n{body}").as_bytes()).await.expect("sent");
        self.reply().await.expect("a reply")
    }
}
