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

/// Columns of a matrix that a dispatch touches, in bytes: of every row the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Where the matrix begins in its memory.
    pub matrix: usize,
    /// From one row to the next.
    pub stride: usize,
    /// Of each row.
    pub bytes: Range<usize>,
}

impl Columns {
    /// Whether these are other columns of the same matrix: then the ranges of both overlap, and what they touch does not.
    fn are_beside(&self, other: &Columns) -> bool {
        let apart = self.bytes.end <= other.bytes.start || other.bytes.end <= self.bytes.start;
        (self.matrix, self.stride) == (other.matrix, other.stride) && apart
    }
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
    /// Of the range, these columns alone.
    pub columns: Option<Columns>,
}

/// What was touched since the last barrier.
#[derive(Debug, Default)]
pub struct Tracker {
    touched: HashMap<u64, Vec<Touch>>,
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
            let touches = self.touched.entry(touch.memory).or_default();
            // Many kernels read the same activation: one entry is enough.
            let known = |other: &Touch| {
                other.access == touch.access
                    && (other.columns.is_none() || other.columns == touch.columns)
                    && other.bytes.start <= touch.bytes.start
                    && touch.bytes.end <= other.bytes.end
            };
            if !touches.iter().any(known) {
                touches.push(touch.clone());
            }
        }
        barrier
    }

    /// Forgets everything: all work before is done.
    pub fn reset(&mut self) {
        self.touched.clear();
    }

    fn conflicts(&self, touch: &Touch) -> bool {
        let meets = |other: &Touch| {
            let writes = other.access == Access::Write || touch.access == Access::Write;
            let overlaps = other.bytes.start < touch.bytes.end && touch.bytes.start < other.bytes.end;
            let beside = matches!((&other.columns, &touch.columns), (Some(a), Some(b)) if a.are_beside(b));
            writes && overlaps && !beside
        };
        !touch.bytes.is_empty()
            && self.touched.get(&touch.memory).is_some_and(|touches| touches.iter().any(meets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(memory: u64, bytes: Range<usize>) -> Touch {
        Touch { memory, bytes, access: Access::Read, columns: None }
    }

    fn write(memory: u64, bytes: Range<usize>) -> Touch {
        Touch { memory, bytes, access: Access::Write, columns: None }
    }

    /// Columns of a matrix of four rows of 32 bytes, at byte 64.
    fn write_columns(bytes: Range<usize>) -> Touch {
        let columns = Some(Columns { matrix: 64, stride: 32, bytes: bytes.clone() });
        Touch { columns, ..write(0, 64 + bytes.start..64 + 96 + bytes.end) }
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
    fn columns_beside_each_other_do_not_wait_and_what_meets_them_does() {
        let other_stride = |bytes: Range<usize>| {
            let columns = Some(Columns { matrix: 64, stride: 16, bytes: bytes.clone() });
            Touch { columns, ..write_columns(bytes) }
        };
        let other_matrix = |bytes: Range<usize>| {
            let columns = Some(Columns { matrix: 68, stride: 32, bytes: bytes.clone() });
            Touch { columns, ..write_columns(bytes) }
        };
        for (second, barrier) in [
            (write_columns(8..32), false),
            (write_columns(7..32), true),
            (write_columns(0..1), true),
            (read(0, 64..192), true),
            (write(0, 96..97), true),
            (write(0, 0..64), false),
            (other_stride(8..16), true),
            (other_matrix(8..32), true),
        ] {
            // In either order.
            for [first, second] in [[write_columns(0..8), second.clone()], [second, write_columns(0..8)]] {
                let mut tracker = Tracker::default();
                assert!(!tracker.dispatch(std::slice::from_ref(&first)));
                assert_eq!(tracker.dispatch(std::slice::from_ref(&second)), barrier, "{first:?}, {second:?}");
            }
        }
        let mut tracker = Tracker::default();
        assert!(!tracker.dispatch(&[write_columns(0..8)]));
        // Of the first two rows.
        let upper = Touch { bytes: 72..120, ..write_columns(8..24) };
        assert!(!tracker.dispatch(&[upper]), "the range of the first is around it");
        assert!(tracker.dispatch(&[write_columns(9..10)]), "and does not stand for it");
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
    fn a_longer_range_is_not_known_by_a_shorter_one() {
        for (longer, end) in [(read(0, 0..16), 0..4), (read(0, 8..24), 20..24)] {
            let mut tracker = Tracker::default();
            assert!(!tracker.dispatch(&[read(0, 8..16)]));
            assert!(!tracker.dispatch(&[longer]));
            assert!(tracker.dispatch(&[write(0, end)]));
        }
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
