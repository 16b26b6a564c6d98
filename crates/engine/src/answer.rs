//! From rows of logits to the text of one answer.

use crate::stop::StopStrings;
use crate::{Constraint, Error, FinishReason, GenerateOptions, Needed, Row, Token};
use sampling::{LogProbs, Sampler};
use std::sync::Arc;
use tokenizer::{Detokenizer, Tokenizer};

/// The state of one answer: what chooses its tokens, turns them into text, and knows when it ends.
pub(crate) struct Answer {
    tokenizer: Arc<Tokenizer>,
    options: GenerateOptions,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    /// The logits that a constraint has masked.
    masked: Vec<f32>,
    detokenizer: Detokenizer,
    stop: StopStrings,
    generated: usize,
    finished: Option<FinishReason>,
    /// A stop string ended the text: what is still held back comes after it.
    stopped: bool,
}

impl Answer {
    /// An answer without tokens. A constraint ends it where it is complete.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        options: GenerateOptions,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Answer, Error> {
        Ok(Answer {
            tokenizer: Arc::clone(tokenizer),
            sampler: Sampler::new(options.sampler.clone())?,
            constraint,
            masked: Vec::new(),
            detokenizer: Detokenizer::new(Arc::clone(tokenizer)),
            stop: StopStrings::new(options.stop.clone()),
            options,
            generated: 0,
            finished: None,
            stopped: false,
        })
    }

    /// How it is generated.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// Takes a token of the prompt, for the penalties.
    pub fn accept_prompt(&mut self, token: u32) {
        self.sampler.accept(token);
    }

    /// The seed that the sampler uses.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// Tokens so far.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Why it ended, if it did.
    pub fn finished(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Ends it, unless it has ended.
    pub fn finish(&mut self, reason: FinishReason) {
        self.finished.get_or_insert(reason);
    }

    /// Whether its limit of tokens is reached already, which is so from the start where it is 0.
    pub fn is_full(&self) -> bool {
        Some(self.generated) == self.options.max_tokens
    }

    /// Tokens that may still come, by its own limit.
    pub fn room(&self) -> usize {
        self.options.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(self.generated))
    }

    /// What of a row of logits, one for each of `vocabulary`, the next token depends on, and what is told of it; also after
    /// `guessed` more tokens.
    pub fn needed(&self, vocabulary: usize, guessed: usize) -> Needed {
        // Rows that stand for no token could be among the highest.
        let padded = vocabulary > self.tokenizer.vocab_size();
        let free = self.constraint.is_none() && self.options.logprobs.is_none() && !padded;
        let highest = if free { self.sampler.highest_needed(vocabulary, guessed) } else { None };
        highest.map_or(Needed::All, Needed::Highest)
    }

    /// Chooses the next token, and tells the text that is certain with it. `last` tells that the context has no room
    /// for another.
    pub fn choose(&mut self, row: Row<'_>, last: bool) -> Result<(Token, String), Error> {
        match row {
            Row::Logits(logits) => self.sample(logits, last),
            Row::Highest(highest) => {
                let highest = highest.iter().map(|largest| (largest.index as u32, largest.value));
                let id = self.sampler.sample_highest(highest)?.id;
                self.sampler.accept(id);
                self.take(Token { id, logprob: None, top: Vec::new() }, last)
            }
        }
    }

    fn sample(&mut self, logits: &[f32], last: bool) -> Result<(Token, String), Error> {
        // A matrix may have more rows than there are tokens, to be of a convenient size.
        let logits = &logits[..self.tokenizer.vocab_size().min(logits.len())];
        let row = match &mut self.constraint {
            None => logits,
            Some(constraint) => {
                self.masked.clear();
                self.masked.extend_from_slice(logits);
                constraint.mask(&mut self.masked).map_err(Error::Constraint)?;
                &self.masked
            }
        };
        let id = self.sampler.sample(row)?.id;
        self.sampler.accept(id);
        let mut token = Token { id, logprob: None, top: Vec::new() };
        if let Some(top) = self.options.logprobs {
            let probs = LogProbs::new(logits)?;
            token.logprob = Some(probs.of(id)?);
            token.top = probs.top(top);
        }
        self.take(token, last)
    }

    fn take(&mut self, token: Token, last: bool) -> Result<(Token, String), Error> {
        let id = token.id;
        self.generated += 1;
        if self.tokenizer.is_end_of_generation(id) && !self.options.ignore_end {
            self.finished = Some(FinishReason::Stop);
            return Ok((token, String::new()));
        }
        let complete = match &mut self.constraint {
            None => false,
            Some(constraint) => constraint.accept(id).map_err(Error::Constraint)?,
        };
        let (text, stopped) = self.stop.push(&self.detokenizer.push(id));
        if stopped {
            self.finished = Some(FinishReason::Stop);
            self.stopped = true;
        } else if complete {
            self.finished = Some(FinishReason::Stop);
        } else if self.is_full() || last {
            self.finished = Some(FinishReason::Length);
        }
        Ok((token, text))
    }

    /// The text that was held back, once it has ended.
    pub fn rest(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let (mut text, stopped) = self.stop.push(&self.detokenizer.finish());
        if !stopped {
            text.push_str(&self.stop.finish());
        }
        text
    }
}
