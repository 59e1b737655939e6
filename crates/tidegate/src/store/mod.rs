//! What stores speak: asks in, records out. A store looks states up, locks them and applies an algorithm; it knows
//! nothing of hits, matching or sentences.

pub(crate) mod memory;

use smallvec::SmallVec;

use crate::{
    algorithm::{Charge, Verdict},
    key::Key,
    label::Label,
};

/// What one policy is asked about one hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    /// Index of the policy in its set, and of the quota in the policy.
    pub(crate) policy: u16,
    pub(crate) plan: u16,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// What to do with the asks of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Charge all if all enforced policies allow, else none.
    Check,
    /// Charge nothing.
    Peek,
    /// Charge all, above the limit too.
    Charge,
}

impl Intent {
    /// Whether a policy is charged. `admitted`: all enforced policies allow.
    #[inline]
    pub(crate) fn charges(self, cost: u64, verdict: Verdict, admitted: bool) -> bool {
        let charges = match self {
            Self::Check => admitted && verdict == Verdict::Allowed,
            Self::Peek => false,
            Self::Charge => true,
        };
        charges && cost > 0
    }
}

/// Who answered for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store, from the key's own state.
    Store,
    /// The store, from a state that fresh keys share while it is full of keys that are at their limits.
    Overflow,
}

/// What a store answers to an ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) source: Source,
    /// After this hit, if it was charged.
    pub(crate) used: u64,
    pub(crate) reset_after: u64,
    /// A cost of 0 if nothing was charged.
    pub(crate) charged: Charge,
}

/// What one policy was asked and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) ask: Ask,
    /// 0: the key is blocked.
    pub(crate) limit: u64,
    pub(crate) answer: Answer,
    pub(crate) label: Label,
}

/// The asks of one hit, and what was answered to them.
pub(crate) type Asks = SmallVec<[Ask; 4]>;
pub(crate) type Records = SmallVec<[Record; 4]>;
