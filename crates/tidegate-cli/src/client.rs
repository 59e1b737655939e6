//! A small client of HTTP/1.1: one connection, one question after another. It knows addresses, TLS and tokens, and of answers only
//! whether they are ones.

use std::{
    fmt, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, StatusCode, Uri,
    client::conn::http1::{self, SendRequest},
    header,
    http::HeaderValue,
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tidegate_server::config;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::show::escaped;

/// The longest answer that is read.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was asked for is wrong.
    Usage(String),
    /// It could not be asked.
    Unasked(String),
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    is_https: bool,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "not the address of a server; write for example http://127.0.0.1:8080".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_https = match uri.scheme_str() {
            Some("http") | None => false,
            Some("https") => true,
            Some(_) => return Err(wrong()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let is_root = uri.path_and_query().is_none_or(|path| path == "/");
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if !is_root || host.is_empty() || authority.as_str().ends_with(':') {
            return Err(wrong());
        }
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { is_https, host: host.to_owned(), port })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.authority())
    }
}

impl Url {
    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether what is sent there can be read on the way.
    fn is_overheard(&self) -> bool {
        let is_here = self.host == "localhost" || self.host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        !self.is_https && !is_here
    }
}

/// What a client shows and believes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Papers {
    /// A file with a token.
    pub(crate) token_file: Option<PathBuf>,
    /// A file with the certificate by which a server is known, in the place of those that the machine trusts.
    pub(crate) ca: Option<PathBuf>,
}

/// Who is asked.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    /// As people know it.
    name: String,
    host: String,
    authorization: Option<HeaderValue>,
}

/// An answer: a body of JSON, to be believed when it was read.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) body: String,
    from: String,
}

impl Client {
    pub(crate) async fn connect(url: &Url, papers: &Papers, hint: &str) -> Result<Self, Failure> {
        let token = papers.token_file.as_deref().map(|path| config::secret("--token-file", path)).transpose();
        let token = token.map_err(|problem| Failure::Usage(problem.message))?;
        if token.is_some() && url.is_overheard() {
            return Err(Failure::Usage(format!("a token is not sent to {url}, where others could read it; use https://")));
        }
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut authorization = authorization
            .map_err(|_| Failure::Usage("--token-file: what is in the file is not a token: it is one line of text".to_owned()))?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let tls = if url.is_https { Some(connector(papers.ca.as_deref())?) } else { None };
        let unreached = |error: io::Error| {
            Failure::Unasked(match error.kind() {
                io::ErrorKind::ConnectionRefused => format!("nothing listens at {url}; {hint}"),
                _ => format!("{url} cannot be reached: {error}; {hint}"),
            })
        };
        let stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(unreached)?;
        let (name, host) = (url.to_string(), url.authority());
        let client = match tls {
            None => Self::over(stream, name, host).await?,
            Some(tls) => {
                let known = ServerName::try_from(url.host.clone())
                    .map_err(|error| Failure::Usage(format!("{url} cannot be known by a certificate: {error}")))?;
                let proved = tls.connect(known, stream).await.map_err(|error| unproved(url, papers, &error))?;
                Self::over(proved, name, host).await?
            }
        };
        Ok(Self { authorization, ..client })
    }

    /// On a connection that is there.
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        name: String,
        host: String,
    ) -> Result<Self, Failure> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&name, &error))?;
        // What goes wrong there is told to who waits for an answer.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender, name, host, authorization: None })
    }

    pub(crate) async fn get(&mut self, target: &str) -> Result<Reply, Failure> {
        self.ask(Method::GET, target, None).await
    }

    /// Asks, and returns what was decided or done. Any other answer is a failure.
    pub(crate) async fn ask(&mut self, method: Method, target: &str, body: Option<Value>) -> Result<Reply, Failure> {
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, &self.host);
        if let Some(token) = &self.authorization {
            request = request.header(header::AUTHORIZATION, token);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(String::new, |body| body.to_string());
        let request = request.body(Full::from(body)).map_err(|error| Failure::Usage(error.to_string()))?;
        let response = self.sender.send_request(request).await.map_err(|error| broken(&self.name, &error))?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
        let bytes = bytes.map_err(|error| broken(&self.name, &*error))?.to_bytes();
        let body = String::from_utf8(bytes.to_vec()).map_err(|error| broken(&self.name, &error))?;
        match status {
            StatusCode::OK | StatusCode::TOO_MANY_REQUESTS => Ok(Reply { body, from: self.name.clone() }),
            _ => Err(self.refusal(status, &body)),
        }
    }

    fn refusal(&self, status: StatusCode, body: &str) -> Failure {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Problem {
            detail: String,
            field: Option<String>,
        }
        let Problem { detail, field } = serde_json::from_str(body).unwrap_or_default();
        let detail = escaped(&detail);
        let name = &self.name;
        match (status, field) {
            (StatusCode::UNAUTHORIZED, _) if self.authorization.is_some() => {
                Failure::Unasked(format!("{name} does not know the token that --token-file FILE names"))
            }
            (StatusCode::UNAUTHORIZED, _) => {
                Failure::Unasked(format!("{name} asks for a token; name the file that holds one with --token-file FILE"))
            }
            (StatusCode::FORBIDDEN, _) => Failure::Unasked(format!("{name} refuses: {detail} (--token-file FILE names a token)")),
            // Who asks here has written no query.
            (StatusCode::BAD_REQUEST, Some(field)) if field != "query" => {
                Failure::Usage(format!("{}: {detail}", escaped(&field)))
            }
            (StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE, _) => {
                Failure::Usage(format!("{name}: {detail}"))
            }
            _ => Failure::Unasked(format!("{name} answers {}: {detail}", status.as_u16())),
        }
    }
}

impl Reply {
    /// What it says.
    pub(crate) fn read<'r, T: Deserialize<'r>>(&'r self) -> Result<T, Failure> {
        serde_json::from_str(&self.body).map_err(|error| broken(&self.from, &error))
    }
}

/// An answer that is none of ours.
fn broken(name: &str, error: &dyn fmt::Display) -> Failure {
    Failure::Unasked(format!("{name} does not answer as tidegate does: {}", escaped(&error.to_string())))
}

/// Why there is no TLS with a server.
fn unproved(url: &Url, papers: &Papers, error: &io::Error) -> Failure {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
    Failure::Unasked(match (cause, &papers.ca) {
        (Some(rustls::Error::InvalidMessage(_)), _) => format!("{} does not speak TLS; write http://", url.authority()),
        // What `openssl req -x509` makes unless it is told otherwise.
        (Some(rustls::Error::InvalidCertificate(_)), _) if error.to_string().contains("CaUsedAsEndEntity") => {
            format!("{url} has the certificate of an authority, which is to sign others; make one with basicConstraints=CA:FALSE")
        }
        (Some(rustls::Error::InvalidCertificate(_)), Some(ca)) => {
            format!("{url} does not prove that it is {}: {error}; the certificates in {} are not its", url.host, ca.display())
        }
        (Some(rustls::Error::InvalidCertificate(_)), None) => {
            format!("{url} does not prove that it is {}: {error}; --ca FILE names whom to believe", url.host)
        }
        _ => format!("{url} does not come to terms about TLS: {error}"),
    })
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let shown = path.display();
            let pem = fs::read(path).map_err(|error| Failure::Usage(format!("--ca: {shown} cannot be read: {error}")))?;
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            roots.add_parsable_certificates(certificates.unwrap_or_default());
            if roots.is_empty() {
                return Err(Failure::Usage(format!("--ca: {shown} holds no certificate (PEM)")));
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::Unasked(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://localhost", "http://localhost:80"),
            ("https://limits.example/", "https://limits.example:443"),
            ("127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("http://[::1]:9090", "http://[::1]:9090"),
        ] {
            assert_eq!(text.parse().map(|url: Url| url.to_string()).as_deref(), Ok(shown));
        }
        for wrong in
            ["", "/", "http://", "redis://127.0.0.1:1", "http://me:secret@host", "http://host/path", "http://host:", "a b"]
        {
            let refused = wrong.parse::<Url>().expect_err(wrong);
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn tokens_stay_on_this_machine_or_in_tls() {
        for (text, is_overheard) in [
            ("http://127.0.0.1:1", false),
            ("http://[::1]:1", false),
            ("http://localhost:1", false),
            ("https://limits.example", false),
            ("http://limits.example", true),
            ("http://localhost.example", true),
            ("http://203.0.113.7:1", true),
        ] {
            assert_eq!(text.parse().map(|url: Url| url.is_overheard()), Ok(is_overheard), "{text}");
        }
    }
}
