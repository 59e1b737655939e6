//! What is asked: the attributes of a request and what it costs.

use smallvec::SmallVec;

use crate::lease::LEASE;

/// One request to be decided: named attributes, and a cost that is 1 unless set.
///
/// ```
/// use tidegate::Hit;
///
/// let hit = Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7").cost(5);
/// let simple: Hit = "user:42".into(); // the attribute `key`, which is what a policy is keyed by unless told otherwise
/// assert_eq!(simple, Hit::new().attribute("key", "user:42"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit<'a> {
    /// Apart from the others: the only one of every simple hit, which so is made in registers.
    first: Option<Attribute<'a>>,
    more: SmallVec<[Attribute<'a>; 3]>,
    cost: u64,
}

/// Name and value.
type Attribute<'a> = (&'a str, &'a [u8]);

/// The attribute of a hit that is just a string.
pub(crate) const KEY: &str = "key";

impl<'a> Hit<'a> {
    /// A hit without attributes that costs 1.
    #[inline]
    pub fn new() -> Self {
        Self { first: None, more: SmallVec::new(), cost: 1 }
    }

    /// Adds an attribute: any bytes. Of two with one name the last one counts.
    #[inline]
    #[must_use]
    pub fn attribute(mut self, name: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        let attribute = (name, value.as_ref());
        match self.first.iter_mut().chain(&mut self.more).find(|(known, _)| *known == name) {
            Some(known) => *known = attribute,
            None => match self.first {
                None => self.first = Some(attribute),
                Some(_) => self.more.push(attribute),
            },
        }
        self
    }

    /// Sets the cost. 0 asks without taking anything, as [`crate::Limiter::peek`] does.
    #[inline]
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Names the lease that policies of [`concurrency`](crate::Policy::concurrency) give: any bytes that nobody else uses for this key at
    /// the time. It is an attribute, `lease`. Asking again for a lease that is held takes no other place.
    #[inline]
    #[must_use]
    pub fn lease(self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.attribute(LEASE, id)
    }

    /// The same with this lease, unless it has one.
    pub(crate) fn leased<'b>(&self, id: &'b [u8]) -> Hit<'b>
    where
        'a: 'b,
    {
        let hit = Hit { first: self.first, more: self.more.iter().copied().collect(), cost: self.cost };
        if hit.get(LEASE).is_some() { hit } else { hit.lease(id) }
    }

    /// The attributes: names and values.
    ///
    /// ```
    /// use tidegate::Hit;
    ///
    /// let hit = Hit::new().attribute("user", "42").attribute("ip", "203.0.113.7");
    /// assert_eq!(hit.attributes().map(|(name, _)| name).collect::<Vec<_>>(), ["user", "ip"]);
    /// ```
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.first.iter().chain(&self.more).copied()
    }

    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.cost
    }

    /// The value of an attribute.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        match self.first {
            Some((known, value)) if same(known, name) => Some(value),
            _ => self.more.iter().find(|(known, _)| same(known, name)).map(|(_, value)| *value),
        }
    }
}

/// Names are short: byte by byte is faster than a call to compare them.
#[inline]
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| a == b)
}

impl Default for Hit<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> From<&'a str> for Hit<'a> {
    #[inline]
    fn from(key: &'a str) -> Self {
        Self::from(key.as_bytes())
    }
}

impl<'a> From<&'a String> for Hit<'a> {
    #[inline]
    fn from(key: &'a String) -> Self {
        Self::from(key.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Hit<'a> {
    #[inline]
    fn from(key: &'a [u8]) -> Self {
        Self::from((KEY, key))
    }
}

impl<'a> From<(&'a str, &'a [u8])> for Hit<'a> {
    /// One attribute: its name and its value.
    #[inline]
    fn from(attribute: (&'a str, &'a [u8])) -> Self {
        Self { first: Some(attribute), more: SmallVec::new(), cost: 1 }
    }
}

impl<'a> From<Option<(&'a str, &'a [u8])>> for Hit<'a> {
    /// One attribute, or none.
    #[inline]
    fn from(first: Option<(&'a str, &'a [u8])>) -> Self {
        Self { first, more: SmallVec::new(), cost: 1 }
    }
}

impl<'a> From<&Hit<'a>> for Hit<'a> {
    fn from(hit: &Hit<'a>) -> Self {
        hit.clone()
    }
}
