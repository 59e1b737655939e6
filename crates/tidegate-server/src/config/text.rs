//! Settings that are one text with a meaning: quotas, spans of time, addresses. They are read once, here; who uses a setting has
//! what it means, and errors, the schema and the docs have the text.

use std::{fmt, marker::PhantomData, net::SocketAddr, ops::Deref, path::PathBuf, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate::{Algorithm, Network, Quota, Redis};

/// A text and what it means; reads like the latter.
#[derive(Clone)]
pub struct Text<T> {
    text: String,
    value: T,
}

/// What a text can mean.
pub trait Meaning: Sized {
    /// What it is, as in "expected ...".
    const WHAT: &'static str;
    /// Some that are right.
    const EXAMPLES: &'static [&'static str];

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    fn read(text: &str) -> Result<Self, String>;

    /// The text as others may see it.
    fn shown(text: &str) -> String {
        text.to_owned()
    }

    /// Every text there is, where they are few.
    fn all() -> Option<Vec<&'static str>> {
        None
    }
}

impl<T: Meaning> Text<T> {
    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn read(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.to_owned(), value: T::read(text)? })
    }

    /// A default.
    pub(crate) fn known(text: &str) -> Self {
        Self::read(text).expect("defaults are right")
    }
}

impl<T> Deref for Text<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// By meaning: `60s` is `1m`. What was written only matters to people.
impl<T: PartialEq> PartialEq for Text<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Meaning> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&T::shown(&self.text))
    }
}

impl<T: Meaning> fmt::Debug for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", T::shown(&self.text))
    }
}

impl<T: Meaning> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: Meaning> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<T: Meaning> de::Visitor<'_> for Reader<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} in quotes, such as \"{}\"", T::WHAT, T::EXAMPLES[0])
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                Text::read(text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Reader(PhantomData))
    }
}

impl<T: Meaning> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::WHAT.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match T::all() {
            Some(all) => json_schema!({ "type": "string", "enum": all }),
            None => json_schema!({ "type": "string", "examples": T::EXAMPLES }),
        }
    }
}

impl Meaning for Quota {
    const WHAT: &'static str = "a quota";
    const EXAMPLES: &'static [&'static str] = &["100/min", "10/s burst 20", "5000/day", "20/10s"];

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate::QuotaError| error.to_string())
    }
}

impl Meaning for Algorithm {
    const WHAT: &'static str = "an algorithm";
    const EXAMPLES: &'static [&'static str] = &["sliding-window"];

    fn read(text: &str) -> Result<Self, String> {
        let unknown = || super::words::unknown("algorithm", text, &Self::all().unwrap_or_default());
        text.parse().map_err(|_| unknown())
    }

    fn all() -> Option<Vec<&'static str>> {
        Some(Self::ALL.iter().map(|algorithm| algorithm.name()).collect())
    }
}

impl Meaning for Duration {
    const WHAT: &'static str = "a span of time";
    const EXAMPLES: &'static [&'static str] = &["15ms", "10s", "1m30s", "1h"];

    fn read(text: &str) -> Result<Self, String> {
        let text = text.escape_debug();
        match humantime::parse_duration(&text.to_string()) {
            Ok(span) if span <= Self::from_hours(366 * 24) => Ok(span),
            Ok(_) => Err(format!("`{text}` is longer than a year; write less")),
            Err(_) => {
                Err(format!("`{text}` is not a span of time; write numbers with units, such as \"15ms\", \"10s\" or \"1m30s\""))
            }
        }
    }
}

impl Meaning for Network {
    const WHAT: &'static str = "a network";
    const EXAMPLES: &'static [&'static str] = &["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"];

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: tidegate::NetworkError| format!("`{}` is {error}", text.escape_debug()))
    }
}

/// Where to listen, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Not at all.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl Listener {
    /// The address, if there is one.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl Meaning for Listener {
    const WHAT: &'static str = "an address";
    const EXAMPLES: &'static [&'static str] = &["127.0.0.1:8080", "[::1]:8080", "0.0.0.0:8080", "off"];

    fn read(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            let text = text.escape_debug();
            format!(
                "`{text}` is not an address to listen at; write an IP address and a port, such as \"127.0.0.1:8080\", or \"off\""
            )
        })
    }
}

/// Where states are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory,
    /// On the server of this address. It may hold a password.
    Redis(String),
}

impl Meaning for StoreUrl {
    const WHAT: &'static str = "a store";
    const EXAMPLES: &'static [&'static str] =
        &["memory", "redis://127.0.0.1:6379/", "rediss://cache.example.com/", "unix:///run/redis.sock"];

    fn read(text: &str) -> Result<Self, String> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let store = || Self::Redis(text.to_owned());
        // The text is not repeated: it may hold a password.
        Redis::new(text).map(|_| store()).map_err(|_| {
            "not a store; write \"memory\", \"redis://host:port/\", \"rediss://host:port/\" or \"unix:///path\"".to_owned()
        })
    }

    fn shown(text: &str) -> String {
        match text.split_once("://") {
            Some((scheme, rest)) => {
                // A password may have all of these in it: what is not surely the host is not shown.
                let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host).split('?').next().unwrap_or_default();
                match rest.find('?').is_some_and(|at| rest[at..].contains('@')) {
                    true => format!("{scheme}://***"),
                    false if rest.contains('@') => format!("{scheme}://***@{host}"),
                    false => format!("{scheme}://{host}"),
                }
            }
            None if text.contains(['@', '?']) => "***".to_owned(),
            None => text.to_owned(),
        }
    }
}

/// What of a request that a proxy asks about becomes an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client's address, as far as proxies are trusted; of IPv6 its /64.
    Address,
    /// The method.
    Method,
    /// The path, without the query.
    Path,
    /// The host that was asked for.
    Host,
    /// A header, its name in lower case.
    Header(String),
}

impl Meaning for Origin {
    const WHAT: &'static str = "a part of a request";
    const EXAMPLES: &'static [&'static str] = &["address", "method", "path", "host", "header:x-api-key"];

    fn read(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
        };
        match text {
            "address" => Ok(Self::Address),
            "method" => Ok(Self::Method),
            "path" => Ok(Self::Path),
            "host" => Ok(Self::Host),
            _ => match text.strip_prefix("header:") {
                Some(name) if is_name(name) => Ok(Self::Header(name.to_ascii_lowercase())),
                _ => {
                    let text = text.escape_debug();
                    Err(format!(
                        "`{text}` is no part of a request; write \"address\", \"method\", \"path\", \"host\" or \"header:\" and a header's name"
                    ))
                }
            },
        }
    }
}

/// Where lines are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard error of the process.
    Stderr,
    /// A file, at its end.
    File(PathBuf),
}

impl Meaning for Destination {
    const WHAT: &'static str = "`stderr` or a path";
    const EXAMPLES: &'static [&'static str] = &["stderr", "/var/log/tidegate/decisions.log"];

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("nowhere to write to; write \"stderr\" or the path of a file".to_owned()),
            "stderr" => Ok(Self::Stderr),
            "stdout" => Err("this is for what is said at the start; write \"stderr\" or the path of a file".to_owned()),
            path => Ok(Self::File(path.into())),
        }
    }
}

/// A collector of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub String);

impl Meaning for Endpoint {
    const WHAT: &'static str = "an endpoint";
    const EXAMPLES: &'static [&'static str] = &["http://127.0.0.1:4317"];

    fn read(text: &str) -> Result<Self, String> {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        match host {
            Some(host) if host.contains('@') => {
                Err("no password can be here, as it is logged; write the address alone".to_owned())
            }
            Some(host) if !host.is_empty() && !host.starts_with('/') && !host.contains(char::is_whitespace) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err("not an endpoint; write its address, such as \"http://127.0.0.1:4317\"".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_right() {
        fn check<T: Meaning>() {
            for example in T::EXAMPLES {
                assert!(T::read(example).is_ok(), "{example}");
            }
        }
        check::<Quota>();
        check::<Algorithm>();
        check::<Duration>();
        check::<Network>();
        check::<Listener>();
        check::<StoreUrl>();
        check::<Origin>();
        check::<Destination>();
        check::<Endpoint>();
    }

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("redis://host:1/", "redis://host:1/"),
            ("redis://:hunter2@host/", "redis://***@host/"),
            ("rediss://me:hun@ter2@host:1/", "rediss://***@host:1/"),
            ("redis://:hun/ter2@host/2", "redis://***@host/2"),
            ("redis://:hun?ter2@host/", "redis://***"),
            ("unix:///run/redis.sock?pass=hunter2", "unix:///run/redis.sock"),
            ("unix:///run/redis.sock?pass=hun@ter2", "unix://***"),
            ("unix:/run/redis.sock?pass=hunter2", "***"),
            ("memory", "memory"),
        ] {
            assert_eq!(StoreUrl::shown(url), shown, "{url}");
        }
        assert!(!format!("{:?}", Text::<StoreUrl>::known("redis://:hunter2@host/")).contains("hunter2"));
        assert!(Endpoint::read("http://me:hunter2@host").is_err_and(|said| !said.contains("hunter2")));
    }
}
