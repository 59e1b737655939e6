//! What is asked, read from bodies and queries. What is wrong is refused here, before anything is charged.

use std::{borrow::Cow, fmt, marker::PhantomData, str::FromStr};

use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use smallvec::SmallVec;
use tidegate::{Hit, Quota};

use super::problem::Problem;
use crate::{
    object::Object,
    serve::http1::{Head, Request},
};

/// A hit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Hit")]
pub(crate) struct HitBody<'a> {
    /// Named facts of what is to be decided, such as `user` and `ip`. Policies apply by them.
    #[serde(borrow)]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub(crate) attributes: Attributes<'a>,
    /// What it costs; 0 only asks.
    #[serde(default)]
    pub(crate) cost: Cost,
}

/// Several hits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Batch")]
pub(crate) struct BatchBody<'a> {
    /// The hits, decided in their order.
    #[serde(borrow)]
    #[schemars(with = "Vec<HitBody<'_>>")]
    pub(crate) hits: Vec<Object<HitBody<'a>>>,
}

/// A charge to give back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Refund")]
pub(crate) struct RefundBody<'a> {
    /// The receipt of the decision that charged it.
    #[serde(borrow)]
    pub(crate) receipt: Cow<'a, str>,
}

/// A charge to correct.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Settlement")]
pub(crate) struct SettleBody<'a> {
    /// The receipt of the decision that charged it.
    #[serde(borrow)]
    pub(crate) receipt: Cow<'a, str>,
    /// What it has cost.
    #[schemars(required)]
    pub(crate) cost: Cost,
}

/// A hit, and the name of the lease that it is to have.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Acquisition")]
pub(crate) struct AcquireBody<'a> {
    /// Named facts of what is to be decided.
    #[serde(borrow)]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub(crate) attributes: Attributes<'a>,
    /// What it costs policies that are not of concurrency.
    #[serde(default)]
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_u64))]
    pub(crate) cost: Cost,
    /// A name that nobody else uses; one is made up unless given.
    #[serde(default, borrow, deserialize_with = "optional_lease")]
    #[schemars(length(min = 1))]
    pub(crate) lease: Option<Cow<'a, str>>,
}

/// A lease, by the hit that has it and its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Lease")]
pub(crate) struct LeaseBody<'a> {
    /// What the lease was acquired by.
    #[serde(borrow)]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub(crate) attributes: Attributes<'a>,
    /// Its name.
    #[serde(borrow, deserialize_with = "lease")]
    #[schemars(length(min = 1))]
    pub(crate) lease: Cow<'a, str>,
}

/// The attributes of a hit, each once.
#[derive(Debug, Default)]
pub(crate) struct Attributes<'a>(SmallVec<[Attribute<'a>; 2]>);

/// Name and value.
type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// They are compared with each other.
const MAX_ATTRIBUTES: usize = 64;

/// Why an attribute is not taken.
pub(crate) enum Unfit<'a> {
    /// There is another of this name.
    Twice(Cow<'a, str>),
    TooMany,
}

impl fmt::Display for Unfit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Twice(_) => "an attribute is given twice; send each once",
            Self::TooMany => "too many attributes; send 64 at most",
        })
    }
}

impl<'a> Attributes<'a> {
    pub(crate) fn push(&mut self, name: Cow<'a, str>, value: Cow<'a, [u8]>) -> Result<(), Unfit<'a>> {
        if self.0.iter().any(|(known, _)| *known == name) {
            return Err(Unfit::Twice(name));
        }
        if self.0.len() >= MAX_ATTRIBUTES {
            return Err(Unfit::TooMany);
        }
        self.0.push((name, value));
        Ok(())
    }

    pub(crate) fn hit(&self, cost: Cost) -> Hit<'_> {
        self.0.iter().fold(Hit::new(), |hit, (name, value)| hit.attribute(name, value)).cost(cost.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> de::Visitor<'de> for Reader<'a> {
            type Value = Attributes<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts, such as {\"user\": \"42\"}")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'a>, A::Error> {
                let mut attributes = Attributes::default();
                while let Some((Word(name), Word(value))) = map.next_entry()? {
                    let value = match value {
                        Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
                        Cow::Owned(value) => Cow::Owned(value.into_bytes()),
                    };
                    attributes.push(name, value).map_err(de::Error::custom)?;
                }
                Ok(attributes)
            }
        }

        deserializer.deserialize_map(Reader(PhantomData))
    }
}

/// A text that is not copied unless something in it is escaped.
struct Word<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Word<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> de::Visitor<'de> for Reader {
            type Value = Word<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Word<'de>, E> {
                Ok(Word(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Word<'de>, E> {
                Ok(Word(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(Reader)
    }
}

/// A whole number that every store can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Cost(#[schemars(range(min = 0, max = 9_007_199_254_740_991_u64))] pub(crate) u64);

const NO_COST: &str = "a cost is a whole number from 0 to 9007199254740991";

impl Default for Cost {
    fn default() -> Self {
        Self(1)
    }
}

impl Cost {
    fn new(cost: u64) -> Option<Self> {
        (cost <= Quota::MAX).then_some(Self(cost))
    }
}

impl FromStr for Cost {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_plain).and_then(Self::new).ok_or(NO_COST)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl de::Visitor<'_> for Reader {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 to 9007199254740991")
            }

            fn visit_u64<E: de::Error>(self, cost: u64) -> Result<Cost, E> {
                Cost::new(cost).ok_or_else(|| E::custom(NO_COST))
            }
        }

        deserializer.deserialize_u64(Reader)
    }
}

/// The name of a lease. One that is empty is most likely missing, and would be everybody's.
fn lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    let Word(name) = Word::deserialize(deserializer)?;
    if name.is_empty() { Err(de::Error::custom("a lease has a name; write one")) } else { Ok(name) }
}

fn optional_lease<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    #[derive(Deserialize)]
    struct Lease<'a>(#[serde(borrow, deserialize_with = "lease")] Cow<'a, str>);
    Ok(Option::<Lease<'_>>::deserialize(deserializer)?.map(|Lease(name)| name))
}

/// Reads a hit from a query: `user=42&cost=1`.
pub(crate) fn query(query: &str) -> Result<HitBody<'_>, Problem> {
    let mut attributes = Attributes::default();
    let mut cost = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let undecoded = |field: &str| Problem::of(field, "a % is followed by two hexadecimal digits; write %25 for a % itself");
        let name = decoded(name).ok_or_else(|| undecoded("query"))?;
        let name = match name {
            Cow::Borrowed(name) => str::from_utf8(name).ok().map(Cow::Borrowed),
            Cow::Owned(name) => String::from_utf8(name).ok().map(Cow::Owned),
        };
        let name = name.ok_or_else(|| Problem::of("query", "the name of an attribute is not UTF-8"))?;
        let value = decoded(value).ok_or_else(|| undecoded(&name))?;
        if name == "cost" {
            let text = str::from_utf8(&value).map_err(|_| NO_COST);
            let read = text.and_then(str::parse).map_err(|error| Problem::of("cost", error))?;
            if cost.replace(read).is_some() {
                return Err(Problem::of("cost", "the cost is given twice; send it once"));
            }
            continue;
        }
        attributes.push(name, value).map_err(|unfit| match &unfit {
            Unfit::Twice(name) => Problem::of(&**name, unfit.to_string()),
            Unfit::TooMany => Problem::of("query", unfit.to_string()),
        })?;
    }
    Ok(HitBody { attributes, cost: cost.unwrap_or_default() })
}

/// What a part of a query stands for; nothing where an escape is none.
fn decoded(text: &str) -> Option<Cow<'_, [u8]>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?,
            plain => plain,
        });
    }
    Some(Cow::Owned(bytes))
}

/// Reads a body, which is an object.
pub(crate) fn json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map(|Object(read)| read).map_err(|error| explained::<Object<T>>(body, &error))
}

/// Reads it again, to find out which field is wrong.
#[cold]
fn explained<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let detail = error.to_string();
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
        return Problem::new(StatusCode::BAD_REQUEST, detail);
    };
    // A field that is missing or unknown is in the sentence, and what it is in is the path.
    let named = ["missing field `", "unknown field `", "duplicate field `"];
    let named = named.iter().find_map(|words| detail.strip_prefix(words)?.split('`').next());
    let path = error.path().to_string();
    let field = match (path.as_str(), named) {
        ("." | "?", None) => return Problem::new(StatusCode::BAD_REQUEST, detail),
        ("." | "?", Some(name)) => name.to_owned(),
        (path, Some(name)) if path.rsplit('.').next() != Some(name) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    };
    Problem::of(field, detail)
}

/// The body of a request, which says that it is JSON: no page of a browser can send that to another site unasked.
pub(crate) fn body<'r>(request: &'r Request<'_>) -> Result<&'r [u8], Problem> {
    body_of(&["application/json"], request)
}

/// The same of a patch, which has a name of its own (RFC 7396) as well.
pub(crate) fn patch<'r>(request: &'r Request<'_>) -> Result<&'r [u8], Problem> {
    body_of(&["application/json", "application/merge-patch+json"], request)
}

fn body_of<'r>(kinds: &[&str], request: &'r Request<'_>) -> Result<&'r [u8], Problem> {
    if is_one_of(kinds, &request.head) {
        return Ok(request.body);
    }
    let detail = "Send JSON, and say so: Content-Type: application/json.";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

fn is_one_of(kinds: &[&str], head: &Head<'_>) -> bool {
    let Some(kind) = head.get("content-type") else { return false };
    let is = |kind: &[u8]| kinds.iter().any(|known| kind.eq_ignore_ascii_case(known.as_bytes()));
    // As nearly everybody writes it, with no more to it.
    is(kind) || is(kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii())
}
