//! Which dispatches must wait for which: a barrier exactly where a hazard is.
//!
//! The dispatches of a concurrent encoder may overlap until a barrier. The tracker keeps the byte ranges that were
//! read and written since the last one. A dispatch needs a barrier before it if it reads what was written (RAW),
//! writes what was read (WAR) or writes what was written (WAW); two reads never conflict. Query, key and value
//! projections of one activation so run side by side, and whatever depends on them waits.

use std::collections::HashMap;
use std::ops::Range;

/// How a kernel touches a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads alone.
    Read,
    /// Writes alone, or both.
    Write,
}

/// A range of bytes that a dispatch touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The identity of the memory.
    pub memory: u64,
    /// The bytes.
    pub bytes: Range<usize>,
    /// How.
    pub access: Access,
}

/// What was touched since the last barrier.
#[derive(Debug, Default)]
pub struct Tracker {
    touched: HashMap<u64, Vec<(Range<usize>, Access)>>,
}

impl Tracker {
    /// Notes a dispatch; whether it needs a barrier before it. The ranges of one dispatch do not conflict with each
    /// other.
    pub fn dispatch(&mut self, touches: &[Touch]) -> bool {
        let barrier = touches.iter().any(|touch| self.conflicts(touch));
        if barrier {
            self.touched.clear();
        }
        for touch in touches.iter().filter(|touch| !touch.bytes.is_empty()) {
            let ranges = self.touched.entry(touch.memory).or_default();
            // Many kernels read the same activation: one entry is enough.
            let known = |(range, access): &(Range<usize>, Access)| {
                *access == touch.access && range.start <= touch.bytes.start && touch.bytes.end <= range.end
            };
            if !ranges.iter().any(known) {
                ranges.push((touch.bytes.clone(), touch.access));
            }
        }
        barrier
    }

    /// Forgets everything: all work before is done.
    pub fn reset(&mut self) {
        self.touched.clear();
    }

    fn conflicts(&self, touch: &Touch) -> bool {
        let overlaps = |range: &Range<usize>| range.start < touch.bytes.end && touch.bytes.start < range.end;
        !touch.bytes.is_empty()
            && self.touched.get(&touch.memory).is_some_and(|ranges| {
                ranges.iter().any(|(range, access)| {
                    (*access == Access::Write || touch.access == Access::Write) && overlaps(range)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(memory: u64, bytes: Range<usize>) -> Touch {
        Touch { memory, bytes, access: Access::Read }
    }

    fn write(memory: u64, bytes: Range<usize>) -> Touch {
        Touch { memory, bytes, access: Access::Write }
    }

    #[test]
    fn each_hazard_makes_a_barrier_and_two_reads_make_none() {
        for (first, second, barrier) in [
            (read(0, 0..8), read(0, 0..8), false),
            (write(0, 0..8), read(0, 7..9), true),
            (read(0, 0..8), write(0, 7..9), true),
            (write(0, 0..8), write(0, 0..1), true),
            (write(0, 0..8), read(0, 8..16), false),
            (write(0, 8..16), read(0, 0..8), false),
            (write(0, 0..8), read(1, 0..8), false),
            (write(0, 0..8), read(0, 3..3), false),
        ] {
            let mut tracker = Tracker::default();
            assert!(!tracker.dispatch(std::slice::from_ref(&first)));
            assert_eq!(tracker.dispatch(std::slice::from_ref(&second)), barrier, "{first:?}, {second:?}");
        }
    }

    #[test]
    fn projections_of_one_activation_share_an_interval() {
        let mut tracker = Tracker::default();
        assert!(!tracker.dispatch(&[read(9, 0..4), write(0, 0..64)]), "the norm");
        assert!(tracker.dispatch(&[read(0, 0..64), write(1, 0..64)]), "query");
        assert!(!tracker.dispatch(&[read(0, 0..64), write(2, 0..32)]), "key");
        assert!(!tracker.dispatch(&[read(0, 0..64), write(2, 32..64)]), "value, beside the key");
        assert!(tracker.dispatch(&[read(1, 0..64), read(2, 0..64), write(3, 0..64)]), "attention");
    }

    #[test]
    fn a_barrier_orders_what_came_before_it_for_good() {
        let mut tracker = Tracker::default();
        tracker.dispatch(&[write(0, 0..8)]);
        tracker.dispatch(&[write(1, 0..8)]);
        assert!(tracker.dispatch(&[read(0, 0..8)]));
        assert!(!tracker.dispatch(&[read(1, 0..8)]), "the barrier ordered both writes");
        assert!(tracker.dispatch(&[write(1, 0..8)]), "but the read came after it");
    }

    #[test]
    fn a_dispatch_does_not_wait_for_itself() {
        let mut tracker = Tracker::default();
        assert!(!tracker.dispatch(&[read(0, 0..8), write(0, 0..8)]));
        assert!(tracker.dispatch(&[read(0, 0..8)]));
    }

    #[test]
    fn after_a_reset_nothing_is_pending() {
        let mut tracker = Tracker::default();
        tracker.dispatch(&[write(0, 0..8)]);
        tracker.reset();
        assert!(!tracker.dispatch(&[read(0, 0..8)]));
    }
}
