//! How long commands take, by estimate, and where a recording is cut into command buffers.
//!
//! A GPU that draws the screen besides has to be let go now and then: macOS ends a command buffer that keeps it for seconds, and
//! windows stutter long before. So a recording becomes as many command buffers as keep each within [`LIMIT`] on the slowest GPU;
//! a single token is always one (see [`Work::of`]).

use crate::device::Limits;
use std::ops::Range;
use std::time::Duration;

/// The longest command buffer by estimate, unless the switches say otherwise.
pub(crate) const LIMIT: Duration = Duration::from_millis(300);

/// Operations on floats a second that tiles reach on the slowest GPU of Apple's, an M1 of seven cores: less than half of its 2.3e12.
const OPERATIONS: f64 = 1e12;
/// Bytes a second that it reads, of 68e9.
const BYTES: f64 = 50e9;
/// The most memory that the GPU of such a Mac uses, in bytes.
const MEMORY: f64 = 12e9;

/// How many times its estimate work may take.
const PATIENCE: u32 = 30;

/// What a device does in a second, and how long a command buffer may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    operations: f64,
    bytes: f64,
    limit: Duration,
}

impl Work {
    /// A device with these limits is taken for as much faster than the slowest as it has more memory, which holds for Apple's GPUs
    /// within a factor of two. All of its memory is then read within the limit: a token, which reads weights and cache once, is
    /// never cut.
    pub fn of(limits: &Limits, limit: Duration) -> Work {
        let scale = (limits.recommended_working_set as f64 / MEMORY).max(1.0);
        Work { operations: OPERATIONS * scale, bytes: BYTES * scale, limit }
    }

    /// The longest command buffer.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long a dispatch takes that does so many operations on floats and touches so many bytes: both at the same time.
    pub fn time(&self, operations: u64, bytes: u64) -> Duration {
        Duration::from_secs_f64((operations as f64 / self.operations).max(bytes as f64 / self.bytes))
    }

    /// Of parts that do `operations` on floats each, how many fit a command buffer; one at least.
    pub fn at_once(&self, operations: u64) -> usize {
        // A conversion from a float ends at the largest number.
        ((self.limit.as_secs_f64() * self.operations / operations as f64) as usize).max(1)
    }
}

/// How long work may take that takes `estimate`: at least `least`, which is long, and many times the estimate.
pub(crate) fn deadline(estimate: Duration, least: Duration) -> Duration {
    least.max(estimate.saturating_mul(PATIENCE))
}

/// A command, for [`cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How long it takes.
    pub time: Duration,
    /// Whether it waits for all before it in any case.
    pub waits: bool,
}

/// Cuts commands into ranges of no more than `limit`, but for a command that is longer by itself. Command buffers of a queue come
/// one after the other, so cuts are where a command waits for those before it in any case, if there is one in reach.
pub(crate) fn cut(steps: &[Step], limit: Duration) -> Vec<(Range<usize>, Duration)> {
    let sum = |range: Range<usize>| steps[range].iter().fold(Duration::ZERO, |a, b| a.saturating_add(b.time));
    let (mut ranges, mut start, mut wait, mut time) = (Vec::new(), 0, 0, Duration::ZERO);
    for (i, step) in steps.iter().enumerate() {
        if step.waits {
            wait = i;
        }
        while i > start && time.saturating_add(step.time) > limit {
            let end = if wait > start { wait } else { i };
            ranges.push((start..end, sum(start..end)));
            (start, time) = (end, sum(end..i));
        }
        time = time.saturating_add(step.time);
    }
    if start < steps.len() {
        ranges.push((start..steps.len(), time));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_memory(gigabytes: usize) -> Limits {
        Limits { recommended_working_set: gigabytes * 1_000_000_000, ..Limits::default() }
    }

    #[test]
    fn a_device_reads_all_of_its_memory_within_the_limit() {
        for gigabytes in [5, 11, 12, 24, 96, 400] {
            let limits = with_memory(gigabytes);
            let work = Work::of(&limits, LIMIT);
            let time = work.time(0, limits.recommended_working_set as u64);
            assert!(time < LIMIT, "{gigabytes} GB take {time:?}");
        }
    }

    #[test]
    fn what_takes_longer_counts_and_large_devices_are_faster() {
        let (small, large) = (Work::of(&with_memory(8), LIMIT), Work::of(&with_memory(48), LIMIT));
        assert_eq!(small.time(2_000_000_000, 50_000), Duration::from_millis(2));
        assert_eq!(small.time(2_000_000, 50_000_000), Duration::from_millis(1));
        assert_eq!(large.time(2_000_000_000, 50_000), Duration::from_micros(500));
        assert_eq!((small.at_once(100_000_000_000), large.at_once(100_000_000_000)), (3, 12));
        assert_eq!((small.at_once(u64::MAX), small.at_once(0)), (1, usize::MAX));
    }

    #[test]
    fn deadlines_grow_with_the_work() {
        let least = Duration::from_secs(10);
        assert_eq!(deadline(LIMIT, least), least);
        assert_eq!(deadline(Duration::from_secs(1), least), Duration::from_secs(30));
        assert_eq!(deadline(Duration::MAX, least), Duration::MAX);
    }

    /// Each command's time in milliseconds; those that wait are negative.
    fn cuts(times: &[i64], limit: u64) -> Vec<(Range<usize>, u64)> {
        let milliseconds = |time: &i64| Duration::from_millis(time.unsigned_abs());
        let steps: Vec<_> =
            times.iter().map(|time| Step { time: milliseconds(time), waits: *time < 0 }).collect();
        let ranges = cut(&steps, Duration::from_millis(limit));
        ranges.into_iter().map(|(range, time)| (range, time.as_millis() as u64)).collect()
    }

    #[test]
    fn cuts_are_where_a_command_waits_if_that_is_in_reach() {
        for (times, limit, expected) in [
            (&[][..], 10, vec![]),
            (&[4, -3, -3][..], 10, vec![(0..3, 10)]),
            (&[4, -3, -4][..], 10, vec![(0..2, 7), (2..3, 4)]),
            // Before the neighbour that does not wait, not between the two.
            (&[4, -3, 4, 3][..], 10, vec![(0..1, 4), (1..4, 10)]),
            // Nothing in reach.
            (&[4, 4, 4][..], 10, vec![(0..2, 8), (2..3, 4)]),
            // The rest behind a wait is too long, too.
            (&[1, -6, 3, 5][..], 8, vec![(0..1, 1), (1..2, 6), (2..4, 8)]),
            // Longer than the limit by itself.
            (&[1, -20, -2, 9][..], 10, vec![(0..1, 1), (1..2, 20), (2..3, 2), (3..4, 9)]),
            (&[20][..], 10, vec![(0..1, 20)]),
        ] {
            assert_eq!(cuts(times, limit), expected, "{times:?}");
        }
    }
}
