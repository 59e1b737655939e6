//! What a decision says of a policy. It is copied into the decision, which so outlives the set of policies that made it
//! and shares no counter with other threads.

use crate::{
    Algorithm, Policy, Quota,
    algorithm::{Plan, Terms},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    /// Then zeros, then the length.
    name: [u8; Self::MAX_NAME + 1],
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    /// How many attributes make the key.
    pub(crate) attributes: u16,
    /// What charges of the policy are in.
    pub(crate) terms: Terms,
}

impl Label {
    /// The longest name of a policy.
    pub(crate) const MAX_NAME: usize = 47;

    /// For a policy whose name is not longer than that, and one of its quotas.
    pub(crate) fn new(policy: &Policy, quota: Quota, plan: &Plan) -> Self {
        // More than fit are shown no differently.
        let attributes = u16::try_from(policy.key.len()).unwrap_or(u16::MAX);
        let mut name = [0; Self::MAX_NAME + 1];
        name[..policy.name.len()].copy_from_slice(policy.name.as_bytes());
        name[Self::MAX_NAME] = policy.name.len() as u8;
        Self { name, quota, algorithm: policy.algorithm, attributes, terms: policy.algorithm.terms(plan) }
    }

    pub(crate) fn name(&self) -> &str {
        str::from_utf8(self.name_bytes()).expect("a whole name was copied")
    }

    #[inline]
    pub(crate) fn name_bytes(&self) -> &[u8] {
        &self.name[..usize::from(self.name[Self::MAX_NAME])]
    }
}
