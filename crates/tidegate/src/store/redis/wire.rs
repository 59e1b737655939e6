//! What travels between a store and its script: numbers, packed as decide.lua says. To take apart what is packed is the
//! cheapest that a script can do.

use std::{borrow::Cow, iter::once};

use smallvec::SmallVec;

use crate::algorithm::{Charge, Plan, Stored, Verdict};

/// Writes what is asked.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

/// What an ask has beside its plan, mostly: fields and a key.
const REST: usize = 96;

impl Writer {
    /// Goes on after these bytes.
    pub(super) fn copying(bytes: &[u8]) -> Self {
        let mut copy = Vec::with_capacity(bytes.len() + REST);
        copy.extend_from_slice(bytes);
        Self(copy)
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn short(&mut self, number: u16) {
        self.0.extend(number.to_be_bytes());
    }

    /// Up to 2^53, in seven bytes; more than that, which is above every limit, counts as that.
    pub(super) fn number(&mut self, number: u64) {
        self.0.extend(&number.min(1 << 53).to_be_bytes()[1..]);
    }
}

/// A plan and those before it, packed as decide.lua takes them; each with the time since which it is in force, oldest first. `now` is the
/// server's time, as far as it is known here.
pub(super) fn plans(algorithm: &str, eras: &[(&Plan, u64)], now: u64) -> Writer {
    let mut writer = Writer(Vec::with_capacity(eras.len() * (algorithm.len() + 50) + REST));
    let current = eras.len() - 1;
    for index in once(current).chain(0..current) {
        let (plan, since) = eras[index];
        let [window, grain, interval, tokens, per] = match (plan.calendar, eras.get(index + 1)) {
            (None, _) => [plan.window, plan.grain, plan.interval, plan.tokens, plan.per],
            (Some(calendar), next) => {
                let [previous, current, next, after] = match next {
                    None => calendar.around(now),
                    // Where the same calendar goes on, nobody looks.
                    Some((next, _)) if next.calendar == plan.calendar => [0; 4],
                    Some((_, ended)) => calendar.once_around(*ended),
                };
                [calendar.id(), previous, current, next, after]
            }
        };
        writer.0.extend(algorithm.as_bytes());
        writer.byte(0);
        [plan.capacity, window, grain, interval, tokens, per, since].into_iter().for_each(|number| writer.number(number));
    }
    writer
}

/// What the script answers to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) verdict: Verdict,
    pub(super) used: u64,
    pub(super) reset_after: u64,
    pub(super) charged: Charge,
}

impl Told {
    /// Nothing where a number cannot be.
    fn new([wait, used, reset_after]: [i64; 3], charged: [i64; 2]) -> Option<Self> {
        let number = |number: i64| u64::try_from(number).ok();
        let verdict = match wait {
            ALLOWED => Verdict::Allowed,
            NEVER => Verdict::Never,
            wait => Verdict::Denied { retry_after: number(wait)? },
        };
        let [cost, at] = charged;
        let charged = Charge { at: number(at)?, cost: number(cost)? };
        Some(Self { verdict, used: number(used)?, reset_after: number(reset_after)?, charged })
    }
}

/// What the script answers to a hit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answers {
    Asks(SmallVec<[Told; 1]>),
    /// What is stored, and for how long yet in microseconds.
    Inspection(Stored, u64),
    /// The word by which the server says why it failed.
    Failed(String),
}

/// Reads a reply; each method gives nothing where it is cut short.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn number(&mut self) -> Option<u64> {
        u64::try_from(self.signed()?).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let bytes: [u8; 7] = self.fixed()?;
        let mut word = [0; 8];
        word[..7].copy_from_slice(&bytes);
        // The sign is in the highest byte: read up there, then moved down with it.
        Some(i64::from_be_bytes(word) >> 8)
    }

    fn short(&mut self) -> Option<u16> {
        self.fixed().map(u16::from_be_bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// The answers to a hit whose asks are of these costs, or to an inspection; `now` is the time of the reply.
    pub(super) fn answers(&mut self, now: u64, asks: Option<impl Iterator<Item = u64>>) -> Option<Answers> {
        if Reader(self.0).signed()? == FAILED {
            return self.failure().map(Answers::Failed);
        }
        match asks {
            Some(costs) => {
                // All of them first: what a damaged state makes of one is no reason to lose the others.
                let numbers = costs.map(|cost| self.numbers(now, cost)).collect::<Option<SmallVec<[_; 1]>>>()?;
                let told = numbers.into_iter().map(|(state, charged)| Told::new(state, charged)).collect::<Option<_>>();
                Some(told.map_or_else(|| Answers::Failed("ERR".to_owned()), Answers::Asks))
            }
            None => self.inspection(),
        }
    }

    /// Wait, used and reset_after; the charged cost and its time.
    fn numbers(&mut self, now: u64, cost: u64) -> Option<([i64; 3], [i64; 2])> {
        Some(match self.signed()? {
            CHARGED => ([self.signed()?, self.signed()?, self.signed()?], [self.signed()?, self.signed()?]),
            taken if taken <= TAKEN => ([ALLOWED, self.signed()?, TAKEN - taken], [cost as i64, now as i64]),
            wait => ([wait, self.signed()?, self.signed()?], [0, 0]),
        })
    }

    fn failure(&mut self) -> Option<String> {
        self.signed()?;
        let length = usize::from(self.short()?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let text = String::from_utf8_lossy(text);
        let word = text.split(' ').next().unwrap_or_default().trim_start_matches('-');
        // An error of the script itself has no such word.
        let is_code = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
        Some(if is_code { word } else { "ERR" }.to_owned())
    }

    fn inspection(&mut self) -> Option<Answers> {
        let lasts = u64::try_from(self.signed()?).unwrap_or(0) * 1_000;
        let names = self.short()?;
        let fields = (0..names).map(|_| Some((self.name()?, self.number()?))).collect::<Option<_>>()?;
        let count = self.short()?;
        let entries = (0..count).map(|_| Some((self.number()?, self.number()?))).collect::<Option<_>>()?;
        Some(Answers::Inspection(Stored { fields, entries }, lasts))
    }

    fn name(&mut self) -> Option<Cow<'static, str>> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        Some(name.into())
    }
}

/// What stands in the place of a wait.
const ALLOWED: i64 = -1;
const NEVER: i64 = -2;
/// Charged, but not as below: the wait comes next, and what was charged at the end.
const CHARGED: i64 = -3;
/// This less reset_after: allowed, and charged as it was asked and at the time of the reply.
const TAKEN: i64 = -4;
/// No wait, not even one that a damaged state makes.
const FAILED: i64 = -(1 << 54);

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: [u64; 4] = [7, 5, 1, 1];

    fn reply() -> Vec<u8> {
        let mut writer = Writer::default();
        let mut negative = |number: i64| writer.0.extend(&number.to_be_bytes()[1..]);
        let charged = [CHARGED, ALLOWED, 5, 60_000_000, 1, (1 << 53) - 1];
        let others = [TAKEN - 9, 5, NEVER, 0, 0, 1_500_000, 10, 2];
        charged.into_iter().chain(others).for_each(&mut negative);
        negative(FAILED);
        writer.short(14);
        writer.0.extend(b"WRONGTYPE Oper");
        writer.0
    }

    #[test]
    fn answers_read_back() {
        let bytes = reply();
        let mut reader = Reader(&bytes);
        let Some(Answers::Asks(told)) = reader.answers(1_000, Some(COSTS.into_iter())) else { panic!("four asks") };
        let charged = Charge { at: (1 << 53) - 1, cost: 1 };
        assert_eq!(told[0], Told { verdict: Verdict::Allowed, used: 5, reset_after: 60_000_000, charged });
        let charged = Charge { at: 1_000, cost: 5 };
        assert_eq!(told[1], Told { verdict: Verdict::Allowed, used: 5, reset_after: 9, charged });
        assert_eq!(told[2].verdict, Verdict::Never);
        let charged = Charge { at: 0, cost: 0 };
        let verdict = Verdict::Denied { retry_after: 1_500_000 };
        assert_eq!(told[3], Told { verdict, used: 10, reset_after: 2, charged });
        assert_eq!(reader.answers(0, Some(COSTS.into_iter())), Some(Answers::Failed("WRONGTYPE".to_owned())));
        assert_eq!(reader.answers(0, Some(COSTS.into_iter())), None);
    }

    #[test]
    fn what_is_cut_short_is_no_answer() {
        let bytes = reply();
        for end in 0..bytes.len() {
            let mut reader = Reader(&bytes[..end]);
            let mut answer = || reader.answers(0, Some(COSTS.into_iter()));
            assert!(answer().is_none() || answer().is_none(), "{end}");
        }
    }
}
