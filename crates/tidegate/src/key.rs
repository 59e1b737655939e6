//! Keys: which state a hit touches under a policy. The encoding is injective, whatever bytes users send, and small: an
//! id of up to 21 bytes stands for itself, anything longer is a digest of 160 bits.

use std::fmt;

/// The bytes of a key that stand for themselves.
const INLINE: usize = 21;
const DIGEST: usize = 20;
/// In the place of the length: the bytes are a digest.
const DIGESTED: u8 = 0xff;

/// The id of a hit under one policy: the values of the policy's key attributes.
///
/// It prints as those values, separated by commas and with anything unusual escaped, or as `~` and a digest in
/// hexadecimal where they are long.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Unused bytes are 0, so that comparing and hashing need no length.
    bytes: [u8; INLINE],
    length: u8,
}

impl Key {
    /// The key of no values.
    pub(crate) const EMPTY: Self = Self { bytes: [0; INLINE], length: 0 };

    /// The value itself if there is one; else every value behind its length.
    #[inline]
    pub(crate) fn new<'v>(digester: &Digester, values: impl ExactSizeIterator<Item = &'v [u8]> + Clone) -> Self {
        let mut bytes = [0; INLINE];
        let mut at = 0;
        let alone = values.len() == 1;
        for value in values.clone() {
            let prefix = usize::from(!alone);
            if at + prefix + value.len() > INLINE {
                return Self::digest(digester, values);
            }
            if !alone {
                bytes[at] = value.len() as u8;
                at += 1;
            }
            bytes[at..at + value.len()].copy_from_slice(value);
            at += value.len();
        }
        Self { bytes, length: at as u8 }
    }

    #[cold]
    fn digest<'v>(digester: &Digester, values: impl Iterator<Item = &'v [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&digester.0);
        for value in values {
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(value);
        }
        let mut bytes = [0; INLINE];
        bytes[..DIGEST].copy_from_slice(&hasher.finalize().as_bytes()[..DIGEST]);
        Self { bytes, length: DIGESTED }
    }

    /// The key as three words, for hashing.
    #[inline]
    pub(crate) fn words(&self) -> [u64; 3] {
        let mut all = [0; 24];
        all[..INLINE].copy_from_slice(&self.bytes);
        all[INLINE] = self.length;
        let word = |i: usize| {
            u64::from_le_bytes([all[i], all[i + 1], all[i + 2], all[i + 3], all[i + 4], all[i + 5], all[i + 6], all[i + 7]])
        };
        [word(0), word(8), word(16)]
    }

    /// The key as it travels in a receipt.
    pub(crate) fn to_bytes(self) -> [u8; INLINE + 1] {
        let mut all = [0; INLINE + 1];
        all[..INLINE].copy_from_slice(&self.bytes);
        all[INLINE] = self.length;
        all
    }

    pub(crate) fn from_bytes(all: [u8; INLINE + 1]) -> Option<Self> {
        let mut bytes = [0; INLINE];
        bytes.copy_from_slice(&all[..INLINE]);
        let length = all[INLINE];
        let used = if length == DIGESTED { DIGEST } else { usize::from(length) };
        let canonical = used <= INLINE && bytes[used..].iter().all(|byte| *byte == 0);
        canonical.then_some(Self { bytes, length })
    }

    /// As `Display`, for a policy of this many key attributes.
    pub(crate) fn display(&self, attributes: usize) -> impl fmt::Display + use<> {
        struct Shown(Key, usize);
        impl fmt::Display for Shown {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(key, attributes) = self;
                if key.length == DIGESTED {
                    f.write_str("~")?;
                    return key.bytes[..DIGEST].iter().try_for_each(|byte| write!(f, "{byte:02x}"));
                }
                let mut rest = &key.bytes[..usize::from(key.length)];
                if *attributes == 1 {
                    return write!(f, "{}", rest.escape_ascii());
                }
                let mut comma = "";
                while let Some((length, tail)) = rest.split_first() {
                    let (value, tail) = tail.split_at(usize::from(*length).min(tail.len()));
                    write!(f, "{comma}{}", value.escape_ascii())?;
                    (rest, comma) = (tail, ",");
                }
                Ok(())
            }
        }
        Shown(*self, attributes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.display(1))
    }
}

/// Makes digests, the same on every instance that has the same secret.
#[derive(Clone)]
pub(crate) struct Digester([u8; 32]);

impl Digester {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(blake3::derive_key("tidegate 2026 key digest v1", secret))
    }
}
