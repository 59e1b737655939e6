//! Who may do what: tokens, and whether a browser was talked into asking.

use std::path::{Path, PathBuf};

use http::StatusCode;

use crate::{
    config::{Admin, Problem as ConfigProblem, secret},
    serve::{http::problem::Problem, http1::Head},
};

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A name that could be pointed here by anybody.
    Host,
    /// A page of another site.
    Origin,
    NoToken,
    WrongToken,
    /// A token that lets its bearer look, for a change.
    Role,
}

impl Refusal {
    /// All, in the order of their numbers: each is counted by itself.
    pub(crate) const ALL: [Self; 5] = [Self::Host, Self::Origin, Self::NoToken, Self::WrongToken, Self::Role];

    /// The name in metrics and logs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Origin => "origin",
            Self::NoToken => "no-token",
            Self::WrongToken => "wrong-token",
            Self::Role => "role",
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let forbidden = |detail| Self::new(StatusCode::FORBIDDEN, detail);
        match refusal {
            Refusal::Host => {
                forbidden("The Host is not known here; use an address or localhost, or name it in admin.allowed_hosts.")
            }
            Refusal::Origin => forbidden("The Origin is another site."),
            Refusal::NoToken | Refusal::WrongToken => Self::unauthorized("Send a token: Authorization: Bearer TOKEN."),
            Refusal::Role => forbidden("This token lets its bearer look; a change takes the one of write_token_file."),
        }
    }
}

/// What somebody may do; each may do what those before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Anyone,
    Read,
    Write,
}

pub(crate) struct Access {
    read: Option<blake3::Hash>,
    write: Option<blake3::Hash>,
    hosts: Vec<String>,
}

impl Access {
    pub(crate) fn new(admin: &Admin) -> Result<Self, ConfigProblem> {
        let token = |key, path: &Option<PathBuf>| path.as_deref().map(|path| digest(key, path)).transpose();
        Ok(Self {
            read: token("admin.read_token_file", &admin.read_token_file)?,
            write: token("admin.write_token_file", &admin.write_token_file)?,
            hosts: admin.allowed_hosts.clone(),
        })
    }

    /// Refuses who asks for less than it may not.
    pub(crate) fn grant(&self, head: &Head<'_>, needed: Role) -> Result<Role, Refusal> {
        match self.role(head) {
            Ok(role) if role >= needed => Ok(role),
            Ok(_) => Err(Refusal::Role),
            Err(_) if needed == Role::Anyone => Ok(Role::Anyone),
            Err(refusal) => Err(refusal),
        }
    }

    fn role(&self, head: &Head<'_>) -> Result<Role, Refusal> {
        if self.read.is_none() && self.write.is_none() {
            // Only this machine can reach it.
            return Ok(Role::Write);
        }
        let credentials = head.text("authorization").ok_or(Refusal::NoToken)?;
        let token = credentials.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let (_, token) = token.ok_or(Refusal::NoToken)?;
        let given = Some(blake3::hash(token.trim_ascii().as_bytes()));
        match (given == self.write, given == self.read) {
            (true, _) => Ok(Role::Write),
            (false, true) => Ok(Role::Read),
            (false, false) => Err(Refusal::WrongToken),
        }
    }

    /// Refuses requests of pages that came from elsewhere: whose name was pointed here (`Host`), or that ask across sites (`Origin`).
    /// What anyone may ask is told under any name: those who look after health use whatever they know a server by, and HTTP/1.0 needs none.
    pub(crate) fn admit(&self, head: &Head<'_>, needed: Role) -> Result<(), Refusal> {
        let mut hosts = head.all("host");
        let host = hosts.next().and_then(|host| str::from_utf8(host).ok()).filter(|_| hosts.next().is_none());
        if needed > Role::Anyone && !host.is_some_and(|host| self.knows(host)) {
            return Err(Refusal::Host);
        }
        let is_ours = |origin: &str| {
            let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            site.zip(host).is_some_and(|(site, host)| site.eq_ignore_ascii_case(host))
        };
        if head.all("origin").any(|origin| !str::from_utf8(origin).is_ok_and(is_ours)) {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    /// Addresses cannot be pointed elsewhere, names can.
    fn knows(&self, host: &str) -> bool {
        use std::net::{IpAddr, Ipv6Addr, SocketAddr};
        let is_address = host.parse::<SocketAddr>().is_ok()
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
            || host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => host,
        };
        let is_known = |known: &str| known.eq_ignore_ascii_case(name);
        is_address || is_known("localhost") || self.hosts.iter().any(|known| is_known(known))
    }
}

/// The digest of the token in a file: digests are compared, which takes as long whatever is in them. White space around it does not count,
/// as it does not in a header.
fn digest(key: &str, path: &Path) -> Result<blake3::Hash, ConfigProblem> {
    match secret(key, path)?.trim_ascii() {
        "" => Err(ConfigProblem::new(format!("{key}: {} is empty", path.display()))),
        token if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            let message = "is no token: no header can carry it; write one word of letters and digits";
            Err(ConfigProblem::new(format!("{key}: what is in {} {message}", path.display())))
        }
        token => Ok(blake3::hash(token.as_bytes())),
    }
}
