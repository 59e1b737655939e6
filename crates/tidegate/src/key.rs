//! Keys: which state a hit touches under a policy. The encoding is injective, whatever bytes users send, and small: an
//! id of up to 21 bytes stands for itself, anything longer is a digest of 160 bits.

use std::fmt;

use crate::packed::{Packer, Unpacker};

/// The bytes of a key that stand for themselves.
const INLINE: usize = 21;
const DIGEST: usize = 20;
/// In the place of the length: the bytes are a digest.
const DIGESTED: u8 = 0xff;
/// In the place of the length: there are no bytes, and no values that make such a key.
const NOTHING: u8 = 0xfe;

/// The id of a hit under one policy: the values of the policy's key attributes.
///
/// 21 bytes, those that are not used being 0, then their number, then two bytes of 0 that tables put to their own use.
/// As words and not as bytes: a key is made, hashed and compared in registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u64; 3]);

impl Key {
    /// What no values make: a length that no key has.
    pub(crate) const NONE: Self = Self([0, 0, (NOTHING as u64) << 40]);
    /// A key as bytes, for its way through a receipt.
    pub(crate) const BYTES: usize = INLINE + 1;

    /// The key of one value: the value itself.
    #[inline(always)]
    pub(crate) fn of(digester: &Digester, value: &[u8]) -> Self {
        let [first, second, third] = match value.len() {
            0..=7 => [head(value), 0, 0],
            8..=15 => [word(value, 0), tail(value, 8), 0],
            16..=INLINE => [word(value, 0), word(value, 8), tail(value, 16)],
            _ => {
                // Taken apart and put together: what another function returns lies in memory, and what may come from
                // there lies there always; on the way of every hit that costs more than to hash the key.
                let Self([first, second, third]) = Self::digest(digester, [value].into_iter());
                return Self([first, second, third]);
            }
        };
        Self([first, second, third | (value.len() as u64) << 40])
    }

    /// The same, of a value that is in registers.
    #[inline(always)]
    pub(crate) fn of_short(value: Short) -> Self {
        Self([value.bytes as u64, (value.bytes >> 64) as u64, u64::from(value.length) << 40])
    }

    /// The key of several values: each behind its length.
    pub(crate) fn of_all<'v>(digester: &Digester, values: impl ExactSizeIterator<Item = &'v [u8]> + Clone) -> Self {
        let mut bytes = [0; INLINE];
        let mut at = 0;
        for value in values.clone() {
            let end = at + 1 + value.len();
            if end > INLINE {
                return Self::digest(digester, values);
            }
            bytes[at] = value.len() as u8;
            bytes[at + 1..end].copy_from_slice(value);
            at = end;
        }
        Self::from_parts(bytes, at as u8)
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
        Self::from_parts(bytes, DIGESTED)
    }

    fn from_parts(bytes: [u8; INLINE], length: u8) -> Self {
        let mut all = [0; 24];
        all[..INLINE].copy_from_slice(&bytes);
        all[INLINE] = length;
        Self([word(&all, 0), word(&all, 8), word(&all, 16)])
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Self {
        Self(words)
    }

    #[inline]
    pub(crate) fn words(&self) -> [u64; 3] {
        self.0
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut all = [0; Self::BYTES];
        let words = self.0.map(u64::to_le_bytes);
        all.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
        all
    }

    /// Nothing where no value could have made it.
    pub(crate) fn from_bytes(all: [u8; Self::BYTES]) -> Option<Self> {
        let mut bytes = [0; INLINE];
        bytes.copy_from_slice(&all[..INLINE]);
        let length = all[INLINE];
        let unused = bytes.get(used(length)..)?;
        let canonical = length != NOTHING && unused.iter().all(|byte| *byte == 0);
        canonical.then(|| Self::from_parts(bytes, length))
    }

    /// Packs what is used of the key, behind its length. [`Key::NONE`] can be packed too.
    pub(crate) fn save(self, to: &mut Packer<'_>) {
        let bytes = self.to_bytes();
        let length = bytes[INLINE];
        to.raw(&[length]);
        to.raw(&bytes[..used(length)]);
    }

    pub(crate) fn load(from: &mut Unpacker<'_>) -> Option<Self> {
        let mut bytes = [0; Self::BYTES];
        let [length] = from.raw()?;
        from.fill_in(bytes.get_mut(..used(length))?)?;
        bytes[INLINE] = length;
        let none = bytes == Self::NONE.to_bytes();
        if none { Some(Self::NONE) } else { Self::from_bytes(bytes) }
    }

    /// Appends the key as part of a name in a store, for a policy of this many key attributes. What is plain stands for itself, values
    /// separated by commas; anything else is `%` and its bytes in hexadecimal, or `~` and a digest. None of these three can be
    /// taken for another, and none is empty.
    #[cfg(feature = "redis")]
    pub(crate) fn append_id(self, attributes: usize, name: &mut Vec<u8>) {
        let bytes = self.to_bytes();
        let length = bytes[INLINE];
        if length == DIGESTED {
            return append_hex(b'~', &bytes[..DIGEST], name);
        }
        let start = name.len();
        let all = &bytes[..usize::from(length)];
        if attributes == 1 {
            name.extend_from_slice(all);
        } else {
            let mut rest = all;
            while let Some((length, tail)) = rest.split_first() {
                let (value, tail) = tail.split_at(usize::from(*length).min(tail.len()));
                name.extend_from_slice(value);
                if !tail.is_empty() {
                    name.push(b',');
                }
                rest = tail;
            }
        }
        // A comma of a value's own would separate.
        let commas = name[start..].iter().filter(|byte| **byte == b',').count();
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:@/+=,".contains(byte);
        if all.is_empty() || commas != attributes.saturating_sub(1) || !name[start..].iter().all(is_name) {
            name.truncate(start);
            append_hex(b'%', all, name);
        }
    }

    /// Appends the key in print, as [`display`](Self::display) has it. Most are plain, and go as they are.
    pub(crate) fn append_shown(self, attributes: usize, text: &mut Vec<u8>) {
        let bytes = self.to_bytes();
        match bytes.get(..usize::from(bytes[INLINE])) {
            Some(value) if attributes == 1 && value.iter().all(is_plain) => text.extend_from_slice(value),
            _ => text.extend_from_slice(self.display(attributes).to_string().as_bytes()),
        }
    }

    /// The key in print, for a policy of this many key attributes: values separated by commas and with anything
    /// unusual escaped, or `~` and a digest in hexadecimal.
    pub(crate) fn display(&self, attributes: usize) -> impl fmt::Display + use<> {
        Shown { bytes: self.to_bytes(), attributes }
    }
}

/// How many bytes of a key are used, by what is in the place of their number.
fn used(length: u8) -> usize {
    match length {
        DIGESTED => DIGEST,
        NOTHING => 0,
        length => length.into(),
    }
}

/// Eight bytes as a number, the first being the lowest.
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What follows the first `from` of at least eight bytes, fewer than eight.
#[inline]
fn tail(bytes: &[u8], from: usize) -> u64 {
    let missing = 8 - (bytes.len() - from) as u32;
    word(bytes, bytes.len() - 8).checked_shr(8 * missing).unwrap_or(0)
}

/// Fewer than eight bytes.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A text that is short enough to be handed on in registers: what is written to memory in some pieces and read back in others is slow to
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The first is the lowest; those that are not used are 0.
    bytes: u128,
    length: u32,
}

impl Short {
    /// So many bytes of a number, the first being the lowest. There are no others in it.
    #[inline(always)]
    pub fn new(bytes: u128, length: u32) -> Self {
        debug_assert!(length < 16 && bytes >> (8 * length) == 0, "{length} of {bytes:x}");
        Self { bytes, length }
    }

    /// Nothing where it is longer than 15 bytes.
    pub fn of(text: &str) -> Option<Self> {
        let bytes = text.bytes().rev().fold(0, |bytes, byte| bytes << 8 | u128::from(byte));
        (text.len() < 16).then(|| Self::new(bytes, text.len() as u32))
    }
}

struct Shown {
    bytes: [u8; Key::BYTES],
    attributes: usize,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes[INLINE];
        if length == DIGESTED {
            f.write_str("~")?;
            return self.bytes[..DIGEST].iter().try_for_each(|byte| write!(f, "{byte:02x}"));
        }
        let mut rest = &self.bytes[..usize::from(length)];
        if self.attributes == 1 {
            return escaped(rest, f);
        }
        let mut comma = "";
        while let Some((length, tail)) = rest.split_first() {
            let (value, tail) = tail.split_at(usize::from(*length).min(tail.len()));
            f.write_str(comma)?;
            // A comma of a value's own does not separate.
            for part in value.split_inclusive(|byte| *byte == b',') {
                match part.strip_suffix(b",") {
                    Some(before) => escaped(before, f).and_then(|()| f.write_str("\\x2c"))?,
                    None => escaped(part, f)?,
                }
            }
            (rest, comma) = (tail, ",");
        }
        Ok(())
    }
}

/// Whether it is printed as it is.
fn is_plain(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'"' | b'\\')
}

/// With anything unusual escaped. Most has nothing of it, and goes as it is.
fn escaped(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(is_plain) => f.write_str(text),
        _ => write!(f, "{}", bytes.escape_ascii()),
    }
}

#[cfg(feature = "redis")]
fn append_hex(mark: u8, bytes: &[u8], name: &mut Vec<u8>) {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).expect("below 16") as u8;
    name.push(mark);
    name.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
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

    /// A number that stands for some bytes.
    pub(crate) fn number(&self, bytes: &[u8]) -> u64 {
        word(blake3::keyed_hash(&self.0, bytes).as_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_keep_their_bytes_and_differ() {
        let digester = Digester::new(b"");
        let text = "abcdefghijklmnopqrstuvwxyz";
        let keys: Vec<Key> = (0..=26).map(|length| Key::of(&digester, &text.as_bytes()[..length])).collect();
        for (length, key) in keys.iter().enumerate() {
            assert_eq!(Key::from_bytes(key.to_bytes()), Some(*key));
            assert_eq!(keys.iter().filter(|other| *other == key).count(), 1);
            let shown = key.display(1).to_string();
            assert_eq!(shown == text[..length], length <= INLINE, "{shown}");
            assert_eq!(key.words()[2] >> 48, 0);
        }
    }

    #[test]
    fn a_short_text_has_the_key_that_its_bytes_have() {
        let text = "abcdefghijklmnop";
        assert_eq!(Short::of(text), None);
        for length in 0..text.len() {
            let short = Short::of(&text[..length]).expect("short enough");
            assert_eq!(Key::of_short(short), Key::of(&Digester::new(b""), &text.as_bytes()[..length]));
        }
    }

    #[test]
    fn a_digest_depends_on_the_secret() {
        let long = [b'x'; 22];
        assert_ne!(Key::of(&Digester::new(b"a"), &long), Key::of(&Digester::new(b"b"), &long));
        assert_eq!(Key::of(&Digester::new(b"a"), &long), Key::of(&Digester::new(b"a"), &long));
    }

    #[test]
    fn values_and_their_concatenation_differ() {
        let digester = Digester::new(b"");
        let of = |values: &[&str]| Key::of_all(&digester, values.iter().map(|value| value.as_bytes()));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["", "a"]), of(&["a", ""]));
        let long = "0123456789abcdefghij";
        assert_ne!(of(&[long, "x"]), of(&["0", "123456789abcdefghijx"]));
        assert_eq!(of(&["a,b", "\u{e9}\n"]).display(2).to_string(), "a\\x2cb,\\xc3\\xa9\\n");
    }
}
