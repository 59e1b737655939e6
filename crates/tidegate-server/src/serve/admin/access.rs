//! Who may do what: tokens, and whether a browser was talked into asking.

use http::StatusCode;

use crate::{
    config::{Admin, Problem as ConfigProblem, secret},
    serve::{http::problem::Problem, http1::Head},
};

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
        let token = |key, path: &Option<_>| path.as_deref().map(|path| secret(key, path)).transpose();
        // Digests of tokens are compared, which takes as long whatever is in them.
        let digest = |token: Option<String>| token.map(|token| blake3::hash(token.as_bytes()));
        Ok(Self {
            read: digest(token("admin.read_token_file", &admin.read_token_file)?),
            write: digest(token("admin.write_token_file", &admin.write_token_file)?),
            hosts: admin.allowed_hosts.clone(),
        })
    }

    /// Refuses who asks for less than it may not.
    pub(crate) fn grant(&self, head: &Head<'_>, needed: Role) -> Result<Role, Problem> {
        let role = self.role(head);
        match role {
            Some(role) if role >= needed => Ok(role),
            Some(Role::Read) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "This token lets its bearer look; a change takes the one of write_token_file.",
            )),
            _ if needed == Role::Anyone => Ok(Role::Anyone),
            _ => Err(Problem::unauthorized("Send a token: Authorization: Bearer TOKEN.")),
        }
    }

    fn role(&self, head: &Head<'_>) -> Option<Role> {
        if self.read.is_none() && self.write.is_none() {
            // Only this machine can reach it.
            return Some(Role::Write);
        }
        let (scheme, token) = head.text("authorization")?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let given = Some(blake3::hash(token.trim().as_bytes()));
        match (given == self.write, given == self.read) {
            (true, _) => Some(Role::Write),
            (false, true) => Some(Role::Read),
            (false, false) => None,
        }
    }

    /// Refuses requests of pages that came from elsewhere: whose name was pointed here (`Host`), or that ask across sites (`Origin`).
    pub(crate) fn admit(&self, head: &Head<'_>) -> Result<(), Problem> {
        let refused = |detail| Err(Problem::new(StatusCode::FORBIDDEN, detail));
        let mut hosts = head.all("host");
        let host = hosts.next().and_then(|host| str::from_utf8(host).ok()).filter(|_| hosts.next().is_none());
        let Some(host) = host.filter(|host| self.knows(host)) else {
            return refused("The Host is not known here; use an address or localhost, or name it in admin.allowed_hosts.");
        };
        let is_ours = |origin: &str| {
            let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            site.is_some_and(|site| site.eq_ignore_ascii_case(host))
        };
        if head.all("origin").any(|origin| !str::from_utf8(origin).is_ok_and(is_ours)) {
            return refused("The Origin is another site.");
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
