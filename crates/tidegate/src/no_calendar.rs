//! In the place of `calendar.rs` where the feature `calendar` is off: there are no calendars.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calendar {}

impl Calendar {
    pub(crate) fn name(self) -> &'static str {
        match self {}
    }

    pub(crate) fn named(_name: &str) -> Option<Self> {
        None
    }

    pub(crate) fn id(self) -> u64 {
        match self {}
    }

    pub(crate) fn nominal_us(self) -> u64 {
        match self {}
    }

    pub(crate) fn window_of(self, _at: u64) -> (u64, u64) {
        match self {}
    }

    #[cfg(feature = "redis")]
    pub(crate) fn around(self, _at: u64) -> [u64; 4] {
        match self {}
    }

    #[cfg(feature = "redis")]
    pub(crate) fn once_around(self, _at: u64) -> [u64; 4] {
        match self {}
    }
}
