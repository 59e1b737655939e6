//! Numbers as bytes and back, with a checksum behind all of them: what a snapshot is made of. A length that is read makes no
//! room for more than has come.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};

use blake3::Hasher;

/// Packs numbers; what is packed is written when the owner says so.
pub(crate) struct Packer<'a> {
    to: &'a mut dyn Write,
    /// Times are told by their distance from this one, which is short.
    base: u64,
    packed: Vec<u8>,
    hasher: Hasher,
    written: u64,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(to: &'a mut dyn Write, base: u64) -> Self {
        Self { to, base, packed: Vec::new(), hasher: Hasher::new(), written: 0 }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.packed.extend_from_slice(bytes);
    }

    /// Seven bits to a byte, the lowest first; the eighth says that more follow.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.packed.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.packed.push(number as u8);
    }

    pub(crate) fn time(&mut self, time: u64) {
        let ahead = time.wrapping_sub(self.base) as i64;
        // The sign goes last, so that what is near is small on either side.
        self.number((ahead << 1 ^ ahead >> 63) as u64);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.raw(text.as_bytes());
    }

    /// Writes what has been packed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.packed);
        self.written += self.packed.len() as u64;
        self.to.write_all(&self.packed)?;
        self.packed.clear();
        Ok(())
    }

    /// Writes the rest and the checksum, and says how many bytes that were in all.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.flush()?;
        let checksum = self.hasher.finalize();
        self.to.write_all(checksum.as_bytes())?;
        Ok(self.written + checksum.as_bytes().len() as u64)
    }
}

/// How many bytes there are before the checksum; nothing where that is not theirs.
pub(crate) fn checked(file: &mut (impl Read + Seek)) -> io::Result<Option<u64>> {
    let length = file.seek(SeekFrom::End(0))?.checked_sub(blake3::OUT_LEN as u64);
    let Some(length) = length else { return Ok(None) };
    file.rewind()?;
    let mut hashed = Hashed(Hasher::new());
    io::copy(&mut file.by_ref().take(length), &mut hashed)?;
    let mut checksum = [0; blake3::OUT_LEN];
    file.read_exact(&mut checksum)?;
    Ok((hashed.0.finalize() == checksum).then_some(length))
}

struct Hashed(Hasher);

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what a [`Packer`] wrote. Nothing is read where nothing of the kind was written.
pub(crate) struct Unpacker<'a> {
    from: &'a mut dyn Read,
    pub(crate) base: u64,
    chunk: Box<[u8]>,
    /// How much of the chunk there is, and how much of that has been taken.
    filled: usize,
    taken: usize,
    /// Why no more could be read, if it is not that there was no more.
    pub(crate) failed: Option<ErrorKind>,
}

const CHUNK: usize = 1 << 16;

impl<'a> Unpacker<'a> {
    pub(crate) fn new(from: &'a mut dyn Read) -> Self {
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Self { from, base: 0, chunk, filled: 0, taken: 0, failed: None }
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        if self.taken == self.filled {
            self.fill()?;
        }
        self.taken += 1;
        Some(self.chunk[self.taken - 1])
    }

    #[cold]
    fn fill(&mut self) -> Option<()> {
        (self.filled, self.taken) = (0, 0);
        loop {
            match self.from.read(&mut self.chunk) {
                Ok(0) => return None,
                Ok(filled) => {
                    self.filled = filled;
                    return Some(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = Some(error.kind());
                    return None;
                }
            }
        }
    }

    pub(crate) fn raw<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill_in(&mut bytes)?;
        Some(bytes)
    }

    pub(crate) fn fill_in(&mut self, bytes: &mut [u8]) -> Option<()> {
        bytes.iter_mut().try_for_each(|byte| self.byte().map(|read| *byte = read))
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A number of at most `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> Option<u64> {
        self.number().filter(|number| *number <= most)
    }

    /// A time that the algorithms can count with: below 2^53, as every number.
    pub(crate) fn time(&mut self) -> Option<u64> {
        let number = self.number()?;
        let ahead = (number >> 1) as i64 ^ -((number & 1) as i64);
        Some(self.base.wrapping_add_signed(ahead)).filter(|time| *time < 1 << 53)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.number()?;
        let bytes: Option<Vec<u8>> = (0..length).map(|_| self.byte()).collect();
        String::from_utf8(bytes?).ok()
    }

    /// As many as are said to follow, each read by `read`.
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.number()?;
        (0..length).map(|_| read(self)).collect()
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&mut self) -> bool {
        self.byte().is_none() && self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn numbers_and_times_come_back(base in 0..1u64 << 53, numbers in prop::collection::vec(any::<u64>(), 0..50), bits in 0..64u32) {
            let mut bytes = Vec::new();
            let mut packer = Packer::new(&mut bytes, base);
            for number in &numbers {
                packer.number(number >> bits);
                packer.time(number >> 11);
            }
            let length = packer.finish().expect("a vector takes all");
            prop_assert_eq!(length, bytes.len() as u64);
            let body = checked(&mut io::Cursor::new(&bytes)).expect("a vector has all");
            prop_assert_eq!(body, Some(length - 32));
            let mut input = &bytes[..bytes.len() - 32];
            let mut unpacker = Unpacker::new(&mut input);
            unpacker.base = base;
            for number in &numbers {
                prop_assert_eq!(unpacker.number(), Some(number >> bits));
                prop_assert_eq!(unpacker.time(), Some(number >> 11));
            }
            prop_assert!(unpacker.is_done());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_none() {
        let read = |bytes: &[u8]| Unpacker::new(&mut &*bytes).number();
        assert_eq!(read(&[[0xff; 9].as_slice(), &[1]].concat()), Some(u64::MAX));
        assert_eq!(read(&[[0xff; 9].as_slice(), &[2]].concat()), None);
        assert_eq!(read(&[0xff; 20]), None);
        assert_eq!(read(&[0x80]), None);
    }

    #[test]
    fn a_length_that_is_not_there_takes_no_memory() {
        let mut bytes = Vec::new();
        let mut packer = Packer::new(&mut bytes, 0);
        packer.number(u64::MAX);
        packer.finish().expect("a vector takes all");
        assert_eq!(Unpacker::new(&mut bytes.as_slice()).text(), None);
        assert_eq!(Unpacker::new(&mut bytes.as_slice()).list(|from| from.number()), None);
    }
}
