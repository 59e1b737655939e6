//! Which address a request comes from: the peer's, or what proxies that are trusted say of it. It is told the peer and the lines of a
//! header, and knows nothing of requests.
//!
//! Each proxy appends the address of whoever spoke to it, so the list is true from its right end for as long as those who wrote it are
//! trusted. What stands further to the left anybody can have written, and it is not even looked at.

use std::net::{IpAddr, Ipv6Addr};

use tidegate::{Network, NetworkError};

/// Which proxies are believed, and by which header.
///
/// ```
/// use tidegate_tower::Proxies;
///
/// let proxies = Proxies::networks(["10.0.0.0/8"])?;
/// let lines = [&b"6.6.6.6, 203.0.113.7, 10.0.0.2"[..]];
/// let client = |peer: &str| proxies.client(peer.parse().ok(), lines.into_iter()).unwrap().to_string();
/// assert_eq!(client("10.0.0.1"), "203.0.113.7"); // the first from the right that is no proxy of ours
/// assert_eq!(client("198.51.100.9"), "198.51.100.9"); // who is not trusted is not believed
/// # Ok::<(), tidegate::NetworkError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Proxies {
    trusted: Trusted,
    header: Header,
}

#[derive(Clone, Debug)]
enum Trusted {
    Networks(Vec<Network>),
    Hops(usize),
}

#[derive(Clone, Copy, Debug)]
enum Header {
    XForwardedFor,
    Forwarded,
}

impl Proxies {
    /// No proxy is trusted: the client is the peer, whatever headers say.
    pub fn none() -> Self {
        Self::hops(0)
    }

    /// Proxies in these networks are trusted: `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.1`.
    ///
    /// # Errors
    /// When one of them is no network.
    pub fn networks<N: AsRef<str>>(networks: impl IntoIterator<Item = N>) -> Result<Self, NetworkError> {
        let networks = networks.into_iter().map(|network| network.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self { trusted: Trusted::Networks(networks), header: Header::XForwardedFor })
    }

    /// The last so many hops are proxies of ours, whatever their addresses: 1 where one proxy is in front of this server. Only for a server
    /// that nobody can reach but through them: who comes by a shorter way writes its own address.
    pub fn hops(hops: usize) -> Self {
        Self { trusted: Trusted::Hops(hops), header: Header::XForwardedFor }
    }

    /// Believes `Forwarded` (RFC 7239) and not `X-Forwarded-For`. One of them only: a proxy that writes one hands on what a client has
    /// written in the other.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self { header: Header::Forwarded, ..self }
    }

    /// The header whose lines [`client`](Self::client) is to be told; nothing where nobody is trusted.
    pub fn header(&self) -> Option<&'static str> {
        match (&self.trusted, self.header) {
            (Trusted::Hops(0), _) => None,
            (_, Header::XForwardedFor) => Some("x-forwarded-for"),
            (_, Header::Forwarded) => Some("forwarded"),
        }
    }

    /// The client: the nearest hop that is not trusted. Where a proxy says what is no address, that proxy; where all are trusted, the
    /// farthest. `lines` are those of the [header](Self::header), in their order. A peer that is not known, as on a Unix socket, is
    /// trusted only by a number of hops.
    #[inline]
    pub fn client<'l>(&self, peer: Option<IpAddr>, lines: impl DoubleEndedIterator<Item = &'l [u8]>) -> Option<IpAddr> {
        match (&self.trusted, peer) {
            // The usual case.
            (Trusted::Hops(0), Some(IpAddr::V4(_))) => peer,
            _ => self.nearest(peer, lines),
        }
    }

    fn nearest<'l>(&self, peer: Option<IpAddr>, lines: impl DoubleEndedIterator<Item = &'l [u8]>) -> Option<IpAddr> {
        let mut client = peer.map(|peer| peer.to_canonical());
        let mut entries = lines.rev().flat_map(|line| Entries { rest: Some(line), header: self.header });
        let mut hop = 0;
        while self.trusts(hop, client) {
            match entries.next().map(|entry| self.header.address(entry)) {
                Some(Some(address)) => client = Some(address.to_canonical()),
                Some(None) | None => break,
            }
            hop += 1;
        }
        client
    }

    fn trusts(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match &self.trusted {
            Trusted::Networks(networks) => {
                address.is_some_and(|address| networks.iter().any(|network| network.contains(address)))
            }
            Trusted::Hops(hops) => hop < *hops,
        }
    }
}

/// What a client is counted by: its IPv4 address, however it is written, or the /64 of its IPv6 address, which is what a subscriber has.
///
/// ```
/// use tidegate_tower::subscriber;
///
/// let counted_by = |address: &str| subscriber(address.parse().unwrap()).to_string();
/// assert_eq!(counted_by("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
/// assert_eq!(counted_by("::ffff:203.0.113.7"), "203.0.113.7");
/// ```
pub fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// The entries of a line, from the right.
struct Entries<'l> {
    rest: Option<&'l [u8]>,
    header: Header,
}

impl<'l> Iterator for Entries<'l> {
    type Item = &'l [u8];

    fn next(&mut self) -> Option<&'l [u8]> {
        let rest = self.rest.take()?;
        let comma = match self.header {
            Header::XForwardedFor => rest.iter().rposition(|byte| *byte == b','),
            Header::Forwarded => last_unquoted_comma(rest),
        };
        let entry = match comma {
            Some(comma) => {
                self.rest = Some(&rest[..comma]);
                &rest[comma + 1..]
            }
            None => rest,
        };
        Some(entry.trim_ascii())
    }
}

/// From the right as well: a quote that a client has left open does not swallow what a proxy appends.
fn last_unquoted_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' => {
                let escapes = line[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                quoted = !quoted || escapes % 2 == 1;
            }
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

impl Header {
    fn address(self, entry: &[u8]) -> Option<IpAddr> {
        match self {
            Self::XForwardedFor => node(entry),
            Self::Forwarded => forwarded_for(entry),
        }
    }
}

/// The address of one element of `Forwarded`: `for=192.0.2.60;proto=http`, `for="[2001:db8::17]:4711"`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in split_unquoted(element, b';') {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None; // whom to believe?
        }
    }
    let value = found?;
    // No address needs an escape; what has one is none.
    node(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

fn split_unquoted(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |byte| {
        let plain = !escaped;
        escaped = plain && quoted && *byte == b'\\';
        quoted ^= plain && *byte == b'"';
        !quoted && *byte == separator
    })
}

/// An address as proxies write it, with or without a port: `192.0.2.60`, `192.0.2.60:4711`, `2001:db8::17`, `[2001:db8::17]:4711`.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let (address, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (IpAddr::V6(address.parse().ok()?), port)
        }
        // One colon only: an IPv6 address without brackets has no port.
        None => match text.split_once(':').filter(|(_, port)| !port.contains(':')) {
            Some((address, port)) => (IpAddr::V4(address.parse().ok()?), Some(port)),
            None => (text.parse().ok()?, None),
        },
    };
    port.is_none_or(is_port).then_some(address)
}

/// A number, or a name that hides one (RFC 7239, 6.2).
fn is_port(port: &str) -> bool {
    let named = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    port.strip_prefix('_').map_or_else(|| port.parse::<u16>().is_ok() && !port.starts_with('+'), named)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nodes() {
        for (text, address) in [
            ("192.0.2.60", Some("192.0.2.60")),
            ("192.0.2.60:4711", Some("192.0.2.60")),
            ("2001:db8::17", Some("2001:db8::17")),
            ("[2001:db8::17]", Some("2001:db8::17")),
            ("[2001:db8::17]:4711", Some("2001:db8::17")),
            ("[2001:db8::17]:_gw", Some("2001:db8::17")),
            ("::ffff:192.0.2.60", Some("::ffff:192.0.2.60")),
            ("[192.0.2.60]", None),
            ("192.0.2.60:", None),
            ("192.0.2.60:+1", None),
            ("192.0.2.60:70000", None),
            ("192.0.2.060", None),
            ("[2001:db8::17]4711", None),
            ("[2001:db8::17", None),
            ("fe80::1%eth0", None),
            ("unknown", None),
            ("_hidden", None),
            ("", None),
        ] {
            assert_eq!(node(text.as_bytes()), address.map(|address| address.parse().unwrap()), "{text}");
        }
    }

    /// Whom `proxies` take for the client, with the peer 10.0.0.1.
    fn check(proxies: &Proxies, cases: &[(&[&str], &str)]) {
        for (lines, client) in cases {
            let told = proxies.client("10.0.0.1".parse().ok(), lines.iter().map(|line| line.as_bytes()));
            assert_eq!(told.unwrap().to_string(), *client, "{lines:?}");
        }
    }

    #[test]
    fn walks_from_the_right_past_trusted_networks() {
        let proxies = Proxies::networks(["10.0.0.0/8", "2001:db8:ffff::/48"]).unwrap();
        check(
            &proxies,
            &[
                (&[], "10.0.0.1"),
                (&["203.0.113.7"], "203.0.113.7"),
                (&["6.6.6.6, 203.0.113.7"], "203.0.113.7"),
                (&["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
                (&["203.0.113.7, 10.0.0.2 ,10.0.0.3"], "203.0.113.7"),
                (&["203.0.113.7,", "10.0.0.2"], "10.0.0.2"),
                (&["203.0.113.7:4711, [2001:db8:ffff::1]:443"], "203.0.113.7"),
                (&["::ffff:203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7"),
                (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
                (&["6.6.6.6, unknown, 10.0.0.2"], "10.0.0.2"),
                (&["6.6.6.6, \u{fe}, 10.0.0.2"], "10.0.0.2"),
                (&["203.0.113.7, "], "10.0.0.1"),
            ],
        );
    }

    #[test]
    fn walks_a_number_of_hops() {
        check(&Proxies::none(), &[(&["203.0.113.7"], "10.0.0.1")]);
        check(&Proxies::hops(1), &[(&["6.6.6.6, 203.0.113.7"], "203.0.113.7"), (&["nonsense"], "10.0.0.1"), (&[], "10.0.0.1")]);
        check(&Proxies::hops(2), &[(&["6.6.6.6, 203.0.113.7, 192.0.2.1"], "203.0.113.7"), (&["192.0.2.1"], "192.0.2.1")]);
        let no_peer = |proxies: Proxies| proxies.client(None, [&b"203.0.113.7"[..]].into_iter()).map(|client| client.to_string());
        assert_eq!(no_peer(Proxies::hops(1)).as_deref(), Some("203.0.113.7"));
        assert_eq!(no_peer(Proxies::networks(["0.0.0.0/0", "::/0"]).unwrap()), None);
    }

    #[test]
    fn forwarded() {
        check(
            &Proxies::networks(["10.0.0.0/8"]).unwrap().forwarded(),
            &[
                (&["for=203.0.113.7"], "203.0.113.7"),
                (&["For=\"[2001:db8:cafe::17]:4711\";proto=https"], "2001:db8:cafe::17"),
                (&["for=6.6.6.6, for=203.0.113.7;by=10.0.0.1, for=10.0.0.2"], "203.0.113.7"),
                (&["for=203.0.113.7;host=\"a,b;for=6.6.6.6\""], "203.0.113.7"),
                (&["for=203.0.113.7;host=\"a\\\",for=6.6.6.6\""], "203.0.113.7"),
                (&["host=\"\\\\\" , for=203.0.113.7"], "203.0.113.7"),
                // A quote that somebody left open.
                (&["for=\"6.6.6.6, for=203.0.113.7, for=10.0.0.2"], "203.0.113.7"),
                (&["for=\"6.6.6.6", "for=203.0.113.7"], "203.0.113.7"),
                (&["for=6.6.6.6;for=7.7.7.7"], "10.0.0.1"),
                (&["for=unknown"], "10.0.0.1"),
                (&["for=_hidden, for=10.0.0.2"], "10.0.0.2"),
                (&["proto=https"], "10.0.0.1"),
                (&["for"], "10.0.0.1"),
                (&["203.0.113.7"], "10.0.0.1"),
            ],
        );
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())), any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()))]
    }

    fn is_ours(address: IpAddr) -> bool {
        matches!(address.to_canonical(), IpAddr::V4(address) if address.octets()[0] == 10)
    }

    fn both(proxies: Proxies) -> [Proxies; 2] {
        [proxies.clone(), proxies.forwarded()]
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_believe_a_stranger(
            lines in proptest::collection::vec(prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "([fF]or=|[\"\\[\\]\\\\;,:= ]|10\\.0\\.0\\.[0-9]|6\\.6\\.6\\.6|::1){0,12}".prop_map(String::into_bytes),
            ], 0..4),
            peer in address(),
        ) {
            let lines = || lines.iter().map(Vec::as_slice);
            for proxies in both(Proxies::networks(["10.0.0.0/8"]).unwrap()).into_iter().chain(both(Proxies::hops(3))) {
                let _ = proxies.client("10.0.0.1".parse().ok(), lines());
                let _ = proxies.client(None, lines());
            }
            prop_assume!(!is_ours(peer));
            for proxies in both(Proxies::networks(["10.0.0.0/8"]).unwrap()).into_iter().chain([Proxies::none()]) {
                prop_assert_eq!(proxies.client(Some(peer), lines()), Some(peer.to_canonical()));
            }
        }

        /// Whatever a client sends, what trusted proxies append decides.
        #[test]
        fn what_a_client_writes_changes_nothing(
            sent in "[ -~]{0,40}",
            client in address(),
            hops in proptest::collection::vec(any::<[u8; 3]>(), 0..4),
            one_line: bool,
        ) {
            prop_assume!(!is_ours(client));
            let hops: Vec<IpAddr> = hops.iter().map(|[a, b, c]| IpAddr::from([10, *a, *b, *c])).collect();
            let quoted = |address: &IpAddr| match address {
                IpAddr::V4(address) => format!("for={address}"),
                IpAddr::V6(address) => format!("for=\"[{address}]\""),
            };
            let appended: [Vec<String>; 2] = [
                std::iter::once(&client).chain(&hops).map(ToString::to_string).collect(),
                std::iter::once(&client).chain(&hops).map(quoted).collect(),
            ];
            for (proxies, appended) in both(Proxies::networks(["10.0.0.0/8"]).unwrap()).iter().zip(appended) {
                let mut lines = vec![sent.clone()];
                lines.extend(appended);
                let lines = if one_line { vec![lines.join(", ")] } else { lines };
                let told = proxies.client("10.0.0.1".parse().ok(), lines.iter().map(String::as_bytes));
                prop_assert_eq!(told, Some(client.to_canonical()), "{:?}", lines);
            }
        }
    }
}
