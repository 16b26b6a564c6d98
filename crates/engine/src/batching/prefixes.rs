//! What finished requests have left in the KV cache.

use crate::{Engine, Sequence};

/// Most sequences kept: looking for the longest common prefix goes through all of them.
const MOST: usize = 512;

/// Tokens that are worth a page of their own.
const LEAST: usize = 16;

/// Finished sequences, least recently used first.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    entries: Vec<Sequence>,
}

impl Prefixes {
    /// Keeps a sequence. One that is the beginning of another is dropped.
    pub fn insert(&mut self, sequence: Sequence, engine: &mut Engine) {
        if sequence.len() < LEAST {
            engine.release(sequence);
            return;
        }
        if let Some(at) = self.entries.iter().position(|entry| entry.tokens().starts_with(sequence.tokens()))
        {
            engine.release(sequence);
            self.entries[at..].rotate_left(1);
            return;
        }
        let mut at = 0;
        while at < self.entries.len() {
            if sequence.tokens().starts_with(self.entries[at].tokens()) {
                engine.release(self.entries.remove(at));
            } else {
                at += 1;
            }
        }
        if self.entries.len() == MOST {
            self.evict(engine);
        }
        self.entries.push(sequence);
    }

    /// Gives the pages of the least recently used one back; false if there is none.
    pub fn evict(&mut self, engine: &mut Engine) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        engine.release(self.entries.remove(0));
        true
    }

    /// A sequence with as much of `tokens`, the last one left out, as a finished one or one of `running` has.
    pub fn find<'a>(
        &mut self,
        tokens: &[u32],
        running: impl Iterator<Item = &'a Sequence>,
        engine: &mut Engine,
    ) -> Sequence {
        let wanted = &tokens[..tokens.len() - 1];
        let best = |(at, sequence): (usize, &Sequence)| (common(wanted, sequence.tokens()), at);
        let finished = self.entries.iter().enumerate().map(best).max();
        let running = running.map(|sequence| (common(wanted, sequence.tokens()), sequence));
        let running = running.max_by_key(|&(len, _)| len);
        let (finished_len, at) = finished.unwrap_or_default();
        let running_len = running.map_or(0, |(len, _)| len);
        if finished_len.max(running_len) < LEAST {
            return engine.sequence();
        }
        let found = if running_len > finished_len {
            running.and_then(|(len, sequence)| engine.fork(sequence, len))
        } else if self.entries[at].len() == finished_len {
            // It goes on: no copy, and one sequence less to look through.
            Some(self.entries.remove(at))
        } else {
            self.entries[at..].rotate_left(1);
            self.entries.last().and_then(|sequence| engine.fork(sequence, finished_len))
        };
        found.unwrap_or_else(|| engine.sequence())
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
