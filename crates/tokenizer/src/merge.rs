//! Merging neighbours in order of rank: what byte-pair encoding and SentencePiece have in common.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A stretch of a text, and its token where it is one.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    /// Bytes of the text.
    pub range: Range<usize>,
    pub token: Option<u32>,
    /// Neighbours; [`NONE`] at the ends.
    previous: usize,
    next: usize,
    /// False once the symbol before has taken it in.
    alive: bool,
}

/// What two neighbours become: the least rank is merged first, the leftmost of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    pub rank: u32,
    pub token: u32,
}

/// A merge that was possible when it was queued: rank, left symbol, right symbol, end of the right one, token.
type Candidate = Reverse<(u32, usize, usize, usize, u32)>;

const NONE: usize = usize::MAX;

/// A text's symbols and the queue of their merges. One serves many pieces of text, so that its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
    /// Queue entries that were handled, over all pieces.
    pub steps: u64,
}

impl Merger {
    /// Forgets the symbols of the last piece.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Adds a symbol at the end.
    pub fn push(&mut self, range: Range<usize>, token: Option<u32>) {
        let at = self.symbols.len();
        let previous = match self.symbols.last_mut() {
            Some(last) => {
                last.next = at;
                at - 1
            }
            None => NONE,
        };
        self.symbols.push(Symbol { range, token, previous, next: NONE, alive: true });
    }

    /// Merges until no two neighbours merge, and returns what is left. A merge leaves one symbol fewer and queues at
    /// most two candidates, so `n` symbols take at most `3 n` steps of `log n`.
    pub fn run(&mut self, find: impl Fn(&Symbol, &Symbol) -> Option<Merge>) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() {
            self.queue_pair(right - 1, right, &find);
        }
        while let Some(Reverse((_, left, right, end, token))) = self.queue.pop() {
            self.steps += 1;
            let (first, second) = (&self.symbols[left], &self.symbols[right]);
            // Stale once either side has merged with something else.
            if !first.alive || first.next != right || second.range.end != end {
                continue;
            }
            let (previous, next) = (first.previous, second.next);
            self.symbols[right].alive = false;
            let merged = &mut self.symbols[left];
            merged.range.end = end;
            merged.token = Some(token);
            merged.next = next;
            if next != NONE {
                self.symbols[next].previous = left;
                self.queue_pair(left, next, &find);
            }
            if previous != NONE {
                self.queue_pair(previous, left, &find);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.alive)
    }

    fn queue_pair(&mut self, left: usize, right: usize, find: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let (first, second) = (&self.symbols[left], &self.symbols[right]);
        if let Some(Merge { rank, token }) = find(first, second) {
            self.queue.push(Reverse((rank, left, right, second.range.end, token)));
        }
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
            let rank = find(&text[left.range.clone()], &text[right.range.clone()])?;
            Some(Merge { rank, token: 0 })
        });
        symbols.map(|symbol| text[symbol.range.clone()].to_owned()).collect()
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
            let find = |left: &Symbol, right: &Symbol| {
                Some(Merge { rank: (right.range.end - left.range.start) as u32, token: 0 })
            };
            assert_eq!(merger.run(find).count(), 1);
            merger.steps
        };
        let (short, long) = (steps(1 << 16), steps(1 << 17));
        assert!(short <= 3 << 16, "{short}");
        assert!(long <= 3 << 17, "{long}");
    }
}
