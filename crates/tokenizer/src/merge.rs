//! Merging neighbours in order of rank: what byte-pair encoding and SentencePiece have in common.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A stretch of a text, and its token where it is one. Offsets are 32 bits, which halves the memory that merging moves
/// about: see [`MAX_TEXT`].
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    start: u32,
    /// Equal to `start` once the symbol before has taken this one in.
    end: u32,
    pub token: Option<u32>,
    /// Neighbours; [`NONE`] at the ends.
    previous: u32,
    next: u32,
}

impl Symbol {
    /// Bytes of the text.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn alive(&self) -> bool {
        self.start < self.end
    }
}

/// What two neighbours become: the least rank is merged first, the leftmost of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub rank: u32,
    pub token: u32,
}

/// A merge that was possible when it was queued. The order of its fields is that of merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Rank in the upper half, left symbol in the lower: what is compared, in one word.
    rank_and_left: u64,
    /// Where the right symbol ended.
    end: u32,
    token: u32,
}

const NONE: u32 = u32::MAX;

/// The longest text that may be merged as one, in bytes: its offsets and indices fit, even with three bytes for a
/// blank.
pub(crate) const MAX_TEXT: usize = 1 << 30;

/// A text's symbols and the queue of their merges. One serves many pieces of text, so that its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
    /// Queue entries that were handled, over all pieces.
    pub steps: u64,
}

impl Merger {
    /// Forgets the symbols of the last piece.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Adds a symbol at the end: bytes of a text no longer than thrice [`MAX_TEXT`], none of them empty.
    pub fn push(&mut self, range: Range<usize>, token: Option<u32>) {
        let at = self.symbols.len() as u32;
        let mut previous = NONE;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
            previous = at - 1;
        }
        let (start, end) = (range.start as u32, range.end as u32);
        self.symbols.push(Symbol { start, end, token, previous, next: NONE });
    }

    /// Merges until no two neighbours merge, and returns what is left. A merge leaves one symbol fewer and queues at
    /// most two candidates, so `n` symbols take at most `3 n` steps of `log n`.
    pub fn run(&mut self, find: impl Fn(&Symbol, &Symbol) -> Option<Merge>) -> impl Iterator<Item = &Symbol> {
        let candidate = |symbols: &[Symbol], left: u32, right: u32| {
            let (first, second) = (&symbols[left as usize], &symbols[right as usize]);
            let Merge { rank, token } = find(first, second)?;
            let rank_and_left = u64::from(rank) << 32 | u64::from(left);
            Some(Reverse(Candidate { rank_and_left, end: second.end, token }))
        };
        // All at once, the first candidates are made a heap in linear time.
        let mut candidates = std::mem::take(&mut self.queue).into_vec();
        let lefts = 0..(self.symbols.len() as u32).saturating_sub(1);
        candidates.extend(lefts.filter_map(|left| candidate(&self.symbols, left, left + 1)));
        self.queue = candidates.into();
        while let Some(Reverse(Candidate { rank_and_left, end, token })) = self.queue.pop() {
            self.steps += 1;
            let left = rank_and_left as u32;
            let first = &self.symbols[left as usize];
            // Stale once either side has merged with something else: symbols only grow to the right, so there is no
            // other way to the same end.
            if !first.alive() || first.next == NONE {
                continue;
            }
            let right = first.next;
            let second = &self.symbols[right as usize];
            if second.end != end {
                continue;
            }
            let (previous, next) = (first.previous, second.next);
            let absorbed = &mut self.symbols[right as usize];
            absorbed.end = absorbed.start;
            let merged = &mut self.symbols[left as usize];
            merged.end = end;
            merged.token = Some(token);
            merged.next = next;
            if next != NONE {
                self.symbols[next as usize].previous = left;
                self.queue.extend(candidate(&self.symbols, left, next));
            }
            if previous != NONE {
                self.queue.extend(candidate(&self.symbols, previous, left));
            }
        }
        self.symbols.iter().filter(|symbol| symbol.alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges a text's characters; `find` gets the text of both sides.
    fn merge(text: &str, find: impl Fn(&str, &str) -> Option<u32>) -> Vec<String> {
        let mut merger = Merger::default();
        for (at, c) in text.char_indices() {
            merger.push(at..at + c.len_utf8(), None);
        }
        let symbols = merger.run(|left, right| {
            let rank = find(&text[left.range()], &text[right.range()])?;
            Some(Merge { rank, token: 0 })
        });
        symbols.map(|symbol| text[symbol.range()].to_owned()).collect()
    }

    #[test]
    fn the_least_rank_merges_first_and_the_leftmost_of_equals() {
        let rank = |left: &str, right: &str| match (left, right) {
            ("b", "c") => Some(0),
            ("a", "b") | ("a", "bc") => Some(1),
            ("x", "x") => Some(2),
            _ => None,
        };
        assert_eq!(merge("abc", rank), ["abc"]);
        assert_eq!(merge("abab", rank), ["ab", "ab"]);
        assert_eq!(merge("xxx", rank), ["xx", "x"]);
        assert_eq!(merge("", rank), [""; 0]);
        assert_eq!(merge("q", rank), ["q"]);
    }

    #[test]
    fn r09_the_work_grows_with_the_length_not_its_square() {
        let steps = |symbols: usize| {
            let mut merger = Merger::default();
            for at in 0..symbols {
                merger.push(at..at + 1, None);
            }
            // Everything merges with everything, longer unions later: as many merges as there can be.
            let find = |left: &Symbol, right: &Symbol| Some(Merge { rank: right.end - left.start, token: 0 });
            assert_eq!(merger.run(find).count(), 1);
            merger.steps
        };
        let (short, long) = (steps(1 << 16), steps(1 << 17));
        assert!(short <= 3 << 16, "{short}");
        assert!(long <= 3 << 17, "{long}");
    }
}
