//! The bars: what we promise, beside what was measured. It prints, and never fails: a clock is no test.

use std::fmt;

/// A ceiling, and figures that must not be above it.
pub(crate) struct Bar {
    /// What is promised, without the ceiling.
    pub(crate) claim: String,
    /// The most that a figure may be.
    pub(crate) ceiling: f64,
    /// Where each was measured, and what it was. At least one.
    pub(crate) figures: Vec<(String, f64)>,
}

impl fmt::Display for Bar {
    /// One line with the worst figure, then one for each figure that misses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, ceiling, figures } = self;
        let worst = figures.iter().map(|(_, figure)| *figure).fold(f64::NEG_INFINITY, f64::max);
        let misses: Vec<_> = figures.iter().filter(|(_, figure)| figure > ceiling).collect();
        let verdict = if misses.is_empty() { "pass" } else { "MISS" };
        write!(f, "{verdict}  {claim:<58} <= {ceiling:.2}  worst {worst:.3}")?;
        if figures.len() > 1 {
            write!(f, ", {} of {} hold", figures.len() - misses.len(), figures.len())?;
        }
        // A bar of one figure has said it all.
        misses.iter().filter(|_| figures.len() > 1).try_for_each(|(place, figure)| write!(f, "\n        {figure:.3}  {place}"))
    }
}

/// The middle of the samples, of which there is at least one.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
