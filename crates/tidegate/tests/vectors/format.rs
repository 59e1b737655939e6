//! The tables of vectors as they are written, read into what a test can run. Knows the format and nothing of any
//! limiter; each table says in its own head what the words mean.

use serde::Deserialize;

/// What `t` is counted from: 2026-01-01T00:00:00Z in epoch microseconds.
pub(crate) const START: u64 = 1_767_225_600_000_000;

/// Reads one table.
pub(crate) fn parse(text: &str) -> Result<Table, toml::de::Error> {
    toml::from_str(text)
}

/// The cases of one algorithm.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) algorithm: String,
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Case>,
}

/// One key from its first hit on.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) why: String,
    pub(crate) quota: String,
    pub(crate) resolution: Option<u32>,
    pub(crate) steps: Vec<Step>,
}

/// What is done at one moment, and what must be seen then.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Written")]
pub(crate) struct Step {
    /// Microseconds after [`START`].
    pub(crate) t: u64,
    pub(crate) action: Action,
    /// Nothing for a reconfiguration, which has no answer.
    pub(crate) expected: Option<Expected>,
}

impl Step {
    pub(crate) fn epoch_micros(&self) -> u64 {
        START + self.t
    }
}

#[derive(Debug)]
pub(crate) enum Action {
    Check { cost: u64 },
    Peek { cost: u64 },
    Charge { cost: u64 },
    Refund { step: usize },
    Settle { step: usize, actual: u64 },
    Reconfigure { quota: String },
    Forget,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Of a check or a peek; the other actions are not asked.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) used: u64,
    pub(crate) reset: u64,
    /// Where the table says it outright; the capacity of the quota in force is checked in any case.
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    Denied { retry: u64 },
    Never,
}

/// A step as typed: exactly one of the actions, and the fields that go with it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    t: u64,
    check: Option<u64>,
    peek: Option<u64>,
    charge: Option<u64>,
    refund: Option<usize>,
    settle: Option<usize>,
    actual: Option<u64>,
    reconfigure: Option<String>,
    forget: Option<bool>,
    allowed: Option<bool>,
    never: Option<bool>,
    retry: Option<u64>,
    used: Option<u64>,
    reset: Option<u64>,
    limit: Option<u64>,
}

impl TryFrom<Written> for Step {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { t, check, peek, charge, refund, settle, actual, reconfigure, forget, .. } = written;
        let actions = [
            check.map(|cost| Action::Check { cost }),
            peek.map(|cost| Action::Peek { cost }),
            charge.map(|cost| Action::Charge { cost }),
            refund.map(|step| Action::Refund { step }),
            settle.zip(actual).map(|(step, actual)| Action::Settle { step, actual }),
            reconfigure.map(|quota| Action::Reconfigure { quota }),
            forget.filter(|forget| *forget).map(|_| Action::Forget),
        ];
        let mut actions = actions.into_iter().flatten();
        let (Some(action), None) = (actions.next(), actions.next()) else {
            return Err(format!("the step at t = {t} needs exactly one action"));
        };
        if settle.is_some() != actual.is_some() {
            return Err(format!("the step at t = {t} needs `settle` and `actual` together"));
        }

        let asked = matches!(action, Action::Check { .. } | Action::Peek { .. });
        let verdict = match (asked, written.allowed, written.never, written.retry) {
            (false, None, None, None) => None,
            (true, Some(true), None, None) => Some(Verdict::Allowed),
            (true, Some(false), None, Some(retry)) => Some(Verdict::Denied { retry }),
            (true, Some(false), Some(true), None) => Some(Verdict::Never),
            _ => return Err(format!("the step at t = {t} needs `allowed`, and with a denial either `retry` or `never`")),
        };
        let limit = written.limit;
        let expected = match (&action, written.used, written.reset) {
            (Action::Reconfigure { .. }, None, None) => None,
            (Action::Reconfigure { .. }, ..) => return Err(format!("the step at t = {t} has no answer to look at")),
            (_, Some(used), Some(reset)) => Some(Expected { verdict, used, reset, limit }),
            _ => return Err(format!("the step at t = {t} needs `used` and `reset`")),
        };
        Ok(Self { t, action, expected })
    }
}
