//! Bodies that come in chunks: they are put together where they lie.

use http::StatusCode;

use super::HEAD_BYTES;
use crate::serve::http::problem::Problem;

/// The longest line between chunks, and after them.
const LINE_BYTES: usize = 1024;

/// The most digits of a size.
const DIGITS: usize = 15;

/// What has been put together: the bytes from `start` to `end` are of the body, those from there on are to be read.
pub(super) struct Chunks {
    start: usize,
    end: usize,
    next: Next,
    /// How much has come that nobody needs. There is no end to it else, whatever the body may have.
    spare: usize,
}

/// What is next.
#[derive(Clone, Copy)]
enum Next {
    /// The line that says how long a chunk is.
    Size,
    /// So many bytes of one.
    Data(usize),
    /// The end of its line.
    DataEnd,
    /// Lines after the last, which nobody reads.
    Trailer,
}

impl Chunks {
    /// Of a body that begins at `start`.
    pub(super) fn new(start: usize) -> Self {
        Self { start, end: start, next: Next::Size, spare: 0 }
    }

    /// Reads what has come, and takes out of it what is not of the body. Says how long that is when it is whole.
    pub(super) fn read(&mut self, input: &mut Vec<u8>, max_bytes: usize) -> Result<Option<usize>, Problem> {
        let mut at = self.end;
        let whole = loop {
            let rest = &input[at..];
            match self.next {
                Next::Data(left) => {
                    let here = left.min(rest.len());
                    input.copy_within(at..at + here, self.end);
                    self.end += here;
                    at += here;
                    if here < left {
                        self.next = Next::Data(left - here);
                        break None;
                    }
                    self.next = Next::DataEnd;
                }
                Next::Size | Next::DataEnd | Next::Trailer => {
                    let Some(line) = line(rest)? else { break None };
                    at += line.len() + 2;
                    self.spare += match self.next {
                        Next::Trailer => line.len() + 2,
                        _ => line.len().saturating_sub(DIGITS),
                    };
                    if self.spare > HEAD_BYTES {
                        return Err(wrong());
                    }
                    self.next = match self.next {
                        Next::DataEnd if line.is_empty() => Next::Size,
                        Next::DataEnd => return Err(wrong()),
                        Next::Trailer if line.is_empty() => break Some(self.end - self.start),
                        Next::Trailer if is_header(line) => Next::Trailer,
                        Next::Trailer => return Err(wrong()),
                        _ => match size(line).ok_or_else(wrong)? {
                            0 => Next::Trailer,
                            bytes if bytes > max_bytes - (self.end - self.start) => return Err(Problem::too_large(max_bytes)),
                            bytes => Next::Data(bytes),
                        },
                    };
                }
            }
        };
        input.drain(self.end..at);
        Ok(whole)
    }
}

/// A line, without its end; nothing while that is not there.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Problem> {
    let here = &bytes[..bytes.len().min(LINE_BYTES)];
    match here.iter().position(|byte| *byte == b'\n') {
        Some(end) => here[..end].strip_suffix(b"\r").filter(|line| is_text(line)).map(Some).ok_or_else(wrong),
        None if bytes.len() < LINE_BYTES => Ok(None),
        None => Err(wrong()),
    }
}

/// Whether no part of a line can be taken for the end of it.
fn is_text(line: &[u8]) -> bool {
    line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

/// Whether it has a name, and no other request begins here.
fn is_header(line: &[u8]) -> bool {
    let name = line.iter().position(|byte| *byte == b':').map_or(&[][..], |end| &line[..end]);
    !name.is_empty() && name.iter().all(u8::is_ascii_graphic)
}

/// What a line says before anything that follows a semicolon.
fn size(line: &[u8]) -> Option<usize> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let is_number = (1..=DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    usize::from_str_radix(str::from_utf8(digits).ok().filter(|_| is_number)?, 16).ok()
}

fn wrong() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "The chunks of the body are not as they have to be.")
}
