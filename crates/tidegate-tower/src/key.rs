//! Where the attributes of a hit come from: facts of a request. It knows what can be asked of a request, and not which framework has
//! made it.

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
};

use http::{Extensions, HeaderMap, Method, Uri, Version};
use tidegate::Short;

use crate::{Proxies, subscriber};

/// What facts are made of: a request's head, whichever framework has it.
pub trait Request: 'static {
    /// The value of a header; the first, where there are several.
    fn header(&self, name: &str) -> Option<&[u8]>;

    /// All values of a header, in their order.
    fn header_lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]>;

    /// Who is at the other end of the connection.
    fn peer(&self) -> Option<IpAddr>;

    /// The pattern of the route that was chosen: `/users/{id}`.
    fn route(&self) -> Option<Cow<'_, str>>;

    /// The value of a parameter of that route.
    fn parameter(&self, name: &str) -> Option<String>;

    /// What was put into the request by type.
    fn extension<T: Send + Sync + 'static, U>(&self, look: impl FnOnce(&T) -> U) -> Option<U>;
}

/// The peer's address, where the server does not tell it by itself: put it into the request's extensions. What axum
/// (`into_make_service_with_connect_info::<SocketAddr>`) and tonic tell is found without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// A request of `http`, whatever its body: all that settings are told of it.
pub trait HttpRequest {
    /// The method.
    fn method(&self) -> &Method;
    /// What is asked for.
    fn uri(&self) -> &Uri;
    /// The version of HTTP.
    fn version(&self) -> Version;
    /// The headers.
    fn headers(&self) -> &HeaderMap;
    /// What others have put there.
    fn extensions(&self) -> &Extensions;
    /// The same, to put something there.
    fn extensions_mut(&mut self) -> &mut Extensions;
}

/// A request as closures of a [`RateLimitLayer`](crate::RateLimitLayer) see it: where it is, without its body.
pub type Head = dyn HttpRequest;

impl<B> HttpRequest for http::Request<B> {
    fn method(&self) -> &Method {
        self.method()
    }

    fn uri(&self) -> &Uri {
        self.uri()
    }

    fn version(&self) -> Version {
        self.version()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn extensions(&self) -> &Extensions {
        self.extensions()
    }

    fn extensions_mut(&mut self) -> &mut Extensions {
        self.extensions_mut()
    }
}

impl Request for Head {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().get(name).map(|value| value.as_bytes())
    }

    fn header_lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers().get_all(name).iter().map(|value| value.as_bytes())
    }

    #[inline(always)]
    fn peer(&self) -> Option<IpAddr> {
        let extensions = self.extensions();
        let peer = extensions.get().map(|Peer(address)| *address);
        #[cfg(feature = "axum")]
        let peer = peer.or_else(|| {
            let info = extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>()?;
            Some(info.0.ip())
        });
        #[cfg(feature = "grpc")]
        let peer = peer.or_else(|| {
            let info = extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
            info.remote_addr().map(|address| address.ip())
        });
        peer
    }

    fn route(&self) -> Option<Cow<'_, str>> {
        #[cfg(feature = "axum")]
        let route = self.extensions().get::<axum::extract::MatchedPath>().map(|path| path.as_str().into());
        #[cfg(not(feature = "axum"))]
        let route = None;
        route
    }

    #[cfg(feature = "axum")]
    fn parameter(&self, name: &str) -> Option<String> {
        use std::task::{Context, Poll, Waker};

        use axum::extract::{FromRequestParts, RawPathParams};

        // What axum knows of parameters it tells to extractors alone, which are given parts to change.
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.extensions = self.extensions().clone();
        let extracted = std::pin::pin!(RawPathParams::from_request_parts(&mut parts, &()));
        let Poll::Ready(Ok(parameters)) = extracted.poll(&mut Context::from_waker(Waker::noop())) else { return None };
        parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
    }

    #[cfg(not(feature = "axum"))]
    fn parameter(&self, _name: &str) -> Option<String> {
        None
    }

    fn extension<T: Send + Sync + 'static, U>(&self, look: impl FnOnce(&T) -> U) -> Option<U> {
        self.extensions().get().map(look)
    }
}

/// Where the value of an attribute comes from; what [`RateLimit::key`](crate::RateLimit::key) takes.
///
/// ```
/// use tidegate_tower::{Fact, Head, extension, from_async_fn, from_fn, header, path_parameter, route};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let facts: [Fact; 6] = [
///     header("x-api-key"),
///     route(),                                             // `/users/{id}`, by axum
///     path_parameter("id"),
///     extension(|user: &User| Some(user.id.to_string())), // put there by authentication
///     from_fn(|request: &Head| Some(request.uri().path().to_owned())),
///     from_async_fn(|request: &Head| {
///         let host = request.uri().host().map(str::to_owned);
///         async move { host }
///     }),
/// ];
/// ```
///
/// Any bytes of any length do: a key is a digest of what is long.
pub struct Fact<Q: ?Sized = Head>(pub(crate) Kind<Q>);

pub(crate) enum Kind<Q: ?Sized> {
    Address(Proxies),
    Now(Box<Now<Q>>),
    Late(Box<Late<Q>>),
}

type Now<Q> = dyn for<'q> Fn(&'q Q) -> Option<Cow<'q, [u8]>> + Send + Sync;
type Late<Q> = dyn Fn(&Q) -> Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>> + Send + Sync;

impl<Q: ?Sized> Fact<Q> {
    fn now(fact: impl for<'q> Fn(&'q Q) -> Option<Cow<'q, [u8]>> + Send + Sync + 'static) -> Self {
        Self(Kind::Now(Box::new(fact)))
    }
}

/// The peer's address; headers are not believed. IPv6 addresses count by their /64, IPv4-mapped ones as IPv4.
///
/// Where the server does not tell the peer the request is refused with 500: it would not be limited otherwise. With axum, serve
/// `app.into_make_service_with_connect_info::<SocketAddr>()`; elsewhere put a [`Peer`] into the extensions.
pub fn client_ip<Q: Request + ?Sized>() -> Fact<Q> {
    client_ip_behind(Proxies::none())
}

/// The client's address as these proxies tell it. See [`client_ip`].
///
/// ```
/// use tidegate_tower::{Fact, Proxies, client_ip_behind};
///
/// let client: Fact = client_ip_behind(Proxies::networks(["10.0.0.0/8"])?);
/// # Ok::<(), tidegate::NetworkError>(())
/// ```
pub fn client_ip_behind<Q: Request + ?Sized>(proxies: Proxies) -> Fact<Q> {
    Fact(Kind::Address(proxies))
}

/// The value of a header; the first, where there are several. Who may write it must be known: a client can send what it likes.
///
/// # Panics
/// When that is no name of a header.
pub fn header<Q: Request + ?Sized>(name: &str) -> Fact<Q> {
    let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap_or_else(|_| panic!("`{name}` cannot name a header"));
    Fact::now(move |request: &Q| request.header(name.as_str()).map(Cow::Borrowed))
}

/// The pattern of the route that was chosen, such as `/users/{id}`.
pub fn route<Q: Request + ?Sized>() -> Fact<Q> {
    Fact::now(|request: &Q| match request.route()? {
        Cow::Borrowed(route) => Some(Cow::Borrowed(route.as_bytes())),
        Cow::Owned(route) => Some(Cow::Owned(route.into_bytes())),
    })
}

/// The value of a parameter of the route, decoded.
pub fn path_parameter<Q: Request + ?Sized>(name: impl Into<String>) -> Fact<Q> {
    let name = name.into();
    Fact::now(move |request: &Q| request.parameter(&name).map(|value| Cow::Owned(value.into_bytes())))
}

/// Something of what was put into the request's extensions, as by authentication.
pub fn extension<Q: Request + ?Sized, T: Send + Sync + 'static, V: Into<Vec<u8>>>(
    look: impl Fn(&T) -> Option<V> + Send + Sync + 'static,
) -> Fact<Q> {
    Fact::now(move |request: &Q| request.extension(&look).flatten().map(|value| Cow::Owned(value.into())))
}

/// What a closure makes of a request.
pub fn from_fn<Q: Request + ?Sized, V: Into<Vec<u8>>>(fact: impl Fn(&Q) -> Option<V> + Send + Sync + 'static) -> Fact<Q> {
    Fact::now(move |request: &Q| fact(request).map(|value| Cow::Owned(value.into())))
}

/// What a closure makes of a request in a while. Its future takes with it what it needs of the request.
pub fn from_async_fn<Q: Request + ?Sized, V: Into<Vec<u8>>, F: Future<Output = Option<V>> + Send + 'static>(
    fact: impl Fn(&Q) -> F + Send + Sync + 'static,
) -> Fact<Q> {
    Fact(Kind::Late(Box::new(move |request: &Q| {
        let value = fact(request);
        Box::pin(async move { value.await.map(Into::into) })
    })))
}

impl<Q: ?Sized> fmt::Debug for Fact<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Address(proxies) => f.debug_tuple("Fact").field(proxies).finish(),
            Kind::Now(_) | Kind::Late(_) => f.debug_tuple("Fact").finish_non_exhaustive(),
        }
    }
}

/// Room for the value of an attribute, which lies there unless it lies in the request.
#[derive(Default)]
pub(crate) struct Room<'q> {
    pub(crate) text: AddressText,
    pub(crate) value: Option<Cow<'q, [u8]>>,
}

/// An address as text, which is what conditions on networks read: the client's, or of IPv6 its /64's. Written where it is read: what was
/// written in small pieces is slow to copy.
#[derive(Default)]
pub(crate) struct AddressText([u8; 32]);

impl AddressText {
    /// Writes whose request it is, if that is known. The usual case has the address in a register from where it is found to where it is
    /// written: as an `IpAddr` that is handed on it would be read back from memory, in larger pieces than it was written in.
    #[inline(always)]
    pub(crate) fn of<Q: Request + ?Sized>(&mut self, proxies: &Proxies, request: &Q) -> Option<&[u8]> {
        match (proxies.header(), request.peer()) {
            (None, Some(IpAddr::V4(peer))) => Some(self.write_v4(peer)),
            _ => self.of_any(proxies, request),
        }
    }

    #[inline(never)]
    fn of_any<Q: Request + ?Sized>(&mut self, proxies: &Proxies, request: &Q) -> Option<&[u8]> {
        let lines = proxies.header().map(|name| request.header_lines(name));
        let client = proxies.client(request.peer(), lines.into_iter().flatten())?;
        Some(self.write(client))
    }

    fn write(&mut self, address: IpAddr) -> &[u8] {
        match subscriber(address) {
            IpAddr::V4(address) => self.write_v4(address),
            IpAddr::V6(address) => {
                let mut rest = &mut self.0[..];
                let _ = write!(rest, "{address}");
                let left = rest.len();
                &self.0[..self.0.len() - left]
            }
        }
    }

    /// Each request has one, and formatting takes many times as long.
    #[inline]
    fn write_v4(&mut self, address: Ipv4Addr) -> &[u8] {
        let (text, length) = v4(address);
        self.0[..16].copy_from_slice(&text.to_le_bytes());
        &self.0[..length as usize]
    }
}

/// An address as text.
#[inline(always)]
pub(crate) fn short(address: Ipv4Addr) -> Short {
    let (text, length) = v4(address);
    Short::new(text, length)
}

/// The bytes of an address's text, the first being the lowest, and how many they are.
#[inline(always)]
fn v4(address: Ipv4Addr) -> (u128, u32) {
    let [(a, length), b, c, d] = address.octets().map(|octet| OCTETS[usize::from(octet)]);
    let a = (a >> 8, length - 1);
    // Two octets with their dots are eight bytes at most.
    let half = |(first, length): (u32, u32), (second, more): (u32, u32)| {
        (u64::from(first) | u64::from(second) << (8 * length), length + more)
    };
    let ((first, length), (second, more)) = (half(a, b), half(c, d));
    (u128::from(first) | u128::from(second) << (8 * length), length + more)
}

/// A dot and the digits of an octet, the first being the lowest byte, and how many bytes that is.
static OCTETS: [(u32, u32); 256] = {
    let mut octets = [(0, 0); 256];
    let mut at = 0;
    while at < octets.len() {
        let octet = at as u8;
        let [hundreds, tens, ones] = [b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10];
        let (text, length) = match octet {
            100.. => ([b'.', hundreds, tens, ones], 4),
            10.. => ([b'.', tens, ones, 0], 3),
            _ => ([b'.', ones, 0, 0], 2),
        };
        octets[at] = (u32::from_le_bytes(text), length);
        at += 1;
    }
    octets
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_are_written_as_others_write_them(v4: u32, v6: u128) {
            for address in [IpAddr::V4(v4.into()), IpAddr::V6(v6.into()), IpAddr::V6(Ipv4Addr::from(v4).to_ipv6_mapped())] {
                let mut text = AddressText::default();
                let expected = subscriber(address).to_string();
                prop_assert_eq!(text.write(address), expected.as_bytes());
            }
            prop_assert_eq!(Some(short(v4.into())), Short::of(&Ipv4Addr::from(v4).to_string()));
        }
    }
}
