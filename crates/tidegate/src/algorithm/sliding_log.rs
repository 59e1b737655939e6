//! `sliding-log`: every hit with its time. It is the sliding window with a grain of one microsecond, the finest time
//! there is: each microsecond's hits are one entry, nothing is late, and memory grows with the hits in the window.

pub(crate) type Log = super::Grains;
