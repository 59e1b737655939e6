//! Receipts: the proof of a charge, with which it can be refunded or settled once. As text they can leave the process
//! and come back.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    str::FromStr,
};

use crate::{Algorithm, Quota, algorithm::Terms, error::ReceiptError, key::Key};

/// Proof of what one decision charged. It is used up by [`crate::Limiter::refund`] or [`crate::Limiter::settle`]; a
/// second use, also of a clone or of its text, gives nothing back.
///
/// ```
/// use tidegate::{Limiter, Quota, Receipt};
///
/// let limiter = Limiter::in_memory(Quota::per_minute(10));
/// let text = limiter.check_n("user:42", 4).take_receipt().unwrap().to_string();
/// assert_eq!(limiter.remaining("user:42"), Some(6));
///
/// let receipt: Receipt = text.parse()?; // later, perhaps elsewhere
/// limiter.refund(receipt);
/// assert_eq!(limiter.remaining("user:42"), Some(10));
/// # Ok::<(), tidegate::ReceiptError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a receipt that is dropped can no longer be refunded"]
pub struct Receipt {
    pub(crate) id: u64,
    pub(crate) origin: Origin,
    pub(crate) charges: Vec<Charged>,
}

/// Where it was charged, and so is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Store,
    /// In the process that decided while the store did not answer.
    Local,
}

/// What one policy charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charged {
    pub(crate) policy: String,
    pub(crate) algorithm: Algorithm,
    pub(crate) key: Key,
    pub(crate) terms: Terms,
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

impl Receipt {
    pub(crate) fn new(origin: Origin, charges: Vec<Charged>) -> Self {
        // Keyed anew for each, from the system's randomness: nobody guesses one.
        let id = RandomState::new().hash_one(charges.len());
        Self { id, origin, charges }
    }
}

impl Origin {
    /// With which texts begin: the version of the format, and where the charge was made.
    fn mark(self) -> &'static str {
        match self {
            Self::Store => "tg1",
            Self::Local => "tg1-local",
        }
    }
}

impl Receipt {
    /// Appends its text, which is ASCII without quotes, backslashes or anything that is not printed. Every decision of a server has one, and
    /// formats take several times as long.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota};
    ///
    /// let receipt = Limiter::in_memory(Quota::per_minute(10)).check("user:42").take_receipt().unwrap();
    /// let mut text = Vec::new();
    /// receipt.append_to(&mut text);
    /// assert_eq!(text, receipt.to_string().into_bytes());
    /// ```
    pub fn append_to(&self, text: &mut Vec<u8>) {
        text.reserve(32 + self.charges.len() * 160);
        text.extend_from_slice(self.origin.mark().as_bytes());
        text.push(b':');
        text.extend_from_slice(hex(self.id.to_be_bytes()).as_flattened());
        for Charged { policy, algorithm, key, terms, at, cost } in &self.charges {
            for (before, part) in [(b':', policy.as_bytes()), (b',', algorithm.name().as_bytes())] {
                text.push(before);
                text.extend_from_slice(part);
            }
            text.push(b',');
            text.extend_from_slice(hex(key.to_bytes()).as_flattened());
            for number in [terms.0, terms.1, *at, *cost] {
                text.push(b',');
                decimal(text, number);
            }
        }
        text.push(b';');
    }
}

impl fmt::Display for Receipt {
    /// Opaque to the reader: `tg1:` and what [`FromStr`] needs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.append_to(&mut text);
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Receipt {
    type Err = ReceiptError;

    fn from_str(text: &str) -> Result<Self, ReceiptError> {
        parse(text).ok_or(ReceiptError)
    }
}

fn parse(text: &str) -> Option<Receipt> {
    // The last character says that nothing was cut off.
    let mut parts = text.strip_suffix(';')?.split(':');
    let mark = parts.next()?;
    let origin = [Origin::Store, Origin::Local].into_iter().find(|origin| origin.mark() == mark)?;
    let id = parts.next().filter(|id| id.len() == 16).and_then(|id| u64::from_str_radix(id, 16).ok())?;
    let charges = parts.map(parse_charged).collect::<Option<Vec<_>>>()?;
    let once = |(index, charged): (usize, &Charged)| charges[..index].iter().all(|other| other.policy != charged.policy);
    let sound = !charges.is_empty() && charges.iter().enumerate().all(once);
    sound.then_some(Receipt { id, origin, charges })
}

fn parse_charged(text: &str) -> Option<Charged> {
    let mut fields = text.split(',');
    let policy = fields.next()?.to_owned();
    let algorithm = fields.next()?.parse().ok()?;
    let key = parse_key(fields.next()?)?;
    let mut number = || fields.next()?.parse().ok().filter(|number| *number <= Quota::MAX);
    let terms = Terms(number()?, number()?);
    let (at, cost) = (number()?, number()?);
    fields.next().is_none().then_some(Charged { policy, algorithm, key, terms, at, cost })
}

fn hex<const N: usize>(bytes: [u8; N]) -> [[u8; 2]; N] {
    bytes.map(|byte| DIGITS[usize::from(byte)])
}

/// The two digits of each byte.
static DIGITS: [[u8; 2]; 256] = {
    const OF: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [[0; 2]; 256];
    let mut byte = 0;
    while byte < digits.len() {
        digits[byte] = [OF[byte >> 4], OF[byte & 15]];
        byte += 1;
    }
    digits
};

fn decimal(text: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return text.extend_from_slice(&digits[first..]);
        }
    }
}

fn parse_key(hex: &str) -> Option<Key> {
    let mut bytes = [0; Key::BYTES];
    if !hex.is_ascii() || hex.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Key::from_bytes(bytes)
}
