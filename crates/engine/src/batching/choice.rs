//! One answer under way.

use super::events::{BatchEvent, Sink};
use super::stats::{Phase, Slot};
use crate::answer::Answer;
use crate::{Engine, FinishReason, Needed, Row, Sequence};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the answers of one request have in common. It ends with the last of them.
pub(super) struct Group {
    pub name: String,
    pub sink: Sink,
    pub cancelled: Arc<AtomicBool>,
    /// Answers that have not ended.
    pub open: usize,
    /// Whether [`BatchEvent::Started`] was told.
    pub started: bool,
}

impl Group {
    /// Tells an event; who does not want it cancels the request.
    pub fn tell(&mut self, event: BatchEvent) {
        if (self.sink)(event).is_break() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// A sequence and the answer that it grows by. Before its prompt is in the cache it stands for all answers of its
/// request.
pub(super) struct Choice {
    /// The request's number; those that came earlier have lower ones.
    pub group: u64,
    pub index: usize,
    /// The prompt and what was generated. All but the first `sequence.len()` are still to go into the cache.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub sequence: Sequence,
    pub answer: Answer,
    /// The request's other answers, until they get sequences of their own.
    pub siblings: Vec<Answer>,
    /// Tokens guessed to come next, of the step that is being computed.
    pub draft: Vec<u32>,
}

impl Choice {
    /// Tokens that are known but not in the cache.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.sequence.len()
    }

    /// Sequences that it is, or will be.
    pub fn width(&self) -> usize {
        1 + self.siblings.len()
    }

    /// What choosing its next tokens needs of their rows of logits.
    pub fn needed(&self, vocabulary: usize) -> Needed {
        let answers = std::iter::once(&self.answer).chain(&self.siblings);
        let needed = answers.map(|answer| answer.needed(vocabulary, self.draft.len()));
        needed.reduce(Needed::and).unwrap_or(Needed::All)
    }

    pub fn phase(&self) -> Phase {
        if self.pending() == 1 && self.answer.generated() > 0 { Phase::Decode } else { Phase::Prefill }
    }

    pub fn slot(&self, name: &str) -> Slot {
        Slot {
            name: name.to_owned(),
            choice: self.index,
            phase: self.phase(),
            prompt_tokens: self.prompt_len,
            cached_tokens: self.sequence.len(),
            generated_tokens: self.answer.generated(),
        }
    }

    /// Takes what a row of logits says: chooses a token and tells it. Whether the answer goes on.
    pub fn advance(&mut self, row: Row<'_>, context: usize, group: &mut Group) -> Result<bool, crate::Error> {
        // What a guess has brought into the cache beyond this token does not count.
        let len = self.tokens.len();
        if self.answer.is_full() {
            self.answer.finish(FinishReason::Length);
        } else {
            let (token, text) = self.answer.choose(row, len >= context)?;
            self.tokens.push(token.id);
            group.tell(BatchEvent::Token { choice: self.index, token, text });
        }
        let Some(reason) = self.answer.finished() else { return Ok(true) };
        let text = self.answer.rest();
        group.tell(BatchEvent::Finished { choice: self.index, text, reason });
        group.open -= 1;
        Ok(false)
    }

    /// The other answers, each with a sequence that shares this one's pages.
    pub fn split(&mut self, engine: &mut Engine) -> Vec<Choice> {
        let answers = std::mem::take(&mut self.siblings).into_iter().enumerate();
        answers
            .map(|(index, answer)| Choice {
                group: self.group,
                index: index + 1,
                tokens: self.tokens.clone(),
                prompt_len: self.prompt_len,
                // The last query has just seen all pages that the next one does, so none is missing.
                sequence: engine
                    .fork(&self.sequence, self.sequence.len())
                    .unwrap_or_else(|| engine.sequence()),
                answer,
                siblings: Vec::new(),
                draft: Vec::new(),
            })
            .collect()
    }
}
