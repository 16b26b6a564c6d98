//! The loop that turns logits into text.

use crate::answer::Answer;
use crate::forward::finite;
use crate::{Engine, Error, Sequence, Step, Wanted};
use sampling::{LogProbs, SamplerParams, TokenLogProb};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How to generate.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampler: SamplerParams,
    /// Most tokens to generate; by default until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation, and are not part of it.
    pub stop: Vec<String>,
    /// Report the log-probability of each token, and of this many most likely ones.
    pub logprobs: Option<usize>,
    /// Report the most likely tokens after every prompt position, this many.
    pub prompt_logprobs: Option<usize>,
    /// Go on past the model's own end.
    pub ignore_end: bool,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability under the model, if asked for.
    pub logprob: Option<f64>,
    /// The most likely tokens in its place, if asked for.
    pub top: Vec<TokenLogProb>,
}

/// What a step of the generation brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Prompt tokens so far in the cache, of how many.
    Prefill {
        /// Done.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A token, and the text that is certain since: possibly none (half a character, the beginning of a stop string),
    /// never half a character.
    Token {
        /// The token.
        token: Token,
        /// The text.
        text: String,
    },
    /// Nothing follows, but the text that was held back.
    End {
        /// The text.
        text: String,
        /// Why.
        reason: FinishReason,
    },
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string did.
    Stop,
    /// The limit of tokens, or the context, is reached.
    Length,
    /// The caller ended it.
    Cancelled,
}

impl FinishReason {
    /// The name in OpenAI's API.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// One answer being generated. Drive it with [`next`](Generation::next) until [`Event::End`].
pub struct Generation {
    answer: Answer,
    /// Prompt tokens that are not in the cache yet.
    pending: VecDeque<u32>,
    prompt_len: usize,
    prompt_top: Vec<Vec<TokenLogProb>>,
    /// Sampled, but not in the cache yet.
    last: Option<u32>,
    ended: bool,
    prompt_time: Duration,
    generation_time: Duration,
}

impl Generation {
    /// Begins to continue `sequence` by `prompt`. The sequence may hold earlier tokens.
    ///
    /// A prompt that does not fit in the context is refused here.
    pub fn new(
        engine: &Engine,
        sequence: &Sequence,
        prompt: &[u32],
        options: GenerateOptions,
    ) -> Result<Generation, Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let tokens = sequence.len() + prompt.len();
        if tokens > engine.context() {
            return Err(Error::ContextExceeded { tokens, context: engine.context() });
        }
        let mut answer = Answer::new(engine.tokenizer(), options, None)?;
        sequence.tokens().iter().chain(prompt).for_each(|&token| answer.accept_prompt(token));
        Ok(Generation {
            answer,
            pending: prompt.iter().copied().collect(),
            prompt_len: prompt.len(),
            prompt_top: Vec::new(),
            last: None,
            ended: false,
            prompt_time: Duration::ZERO,
            generation_time: Duration::ZERO,
        })
    }

    /// Does the next step: a chunk of the prompt, or one token. `None` after [`Event::End`].
    pub fn next(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Option<Event>, Error> {
        if self.ended {
            return Ok(None);
        }
        if let Some(reason) = self.answer.finished() {
            self.ended = true;
            return Ok(Some(Event::End { text: self.answer.rest(), reason }));
        }
        let start = Instant::now();
        if !self.pending.is_empty() {
            let event = self.prefill(engine, sequence);
            self.prompt_time += start.elapsed();
            return event.map(Some);
        }
        let event = self.step(engine, sequence);
        self.generation_time += start.elapsed();
        event
    }

    /// Ends the generation: the next event is [`Event::End`].
    pub fn cancel(&mut self) {
        self.answer.finish(FinishReason::Cancelled);
    }

    /// The most likely tokens after each prompt token, if they were asked for.
    pub fn prompt_logprobs(&self) -> &[Vec<TokenLogProb>] {
        &self.prompt_top
    }

    /// Prompt tokens that this generation fed.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.answer.generated()
    }

    /// Time spent on the prompt, up to the first token, and on the tokens after it.
    pub fn times(&self) -> (Duration, Duration) {
        (self.prompt_time, self.generation_time)
    }

    /// The seed that the sampler uses.
    pub fn seed(&self) -> u64 {
        self.answer.seed()
    }

    /// Feeds one chunk, and samples the first token after the last one.
    fn prefill(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Event, Error> {
        let chunk: Vec<u32> = self.pending.iter().take(engine.setup.batch_size).copied().collect();
        let top = self.answer.options().prompt_logprobs;
        let wanted = match top {
            Some(_) => Wanted::All,
            None if chunk.len() == self.pending.len() => Wanted::Last,
            None => Wanted::None,
        };
        let prompt_top = &mut self.prompt_top;
        let before = sequence.len();
        let fed = engine.prefill(sequence, &chunk, wanted, &mut |_, logits| {
            if let (Some(top), Some(logits)) = (top, logits) {
                prompt_top.push(LogProbs::new(finite(logits)?)?.top(top));
            }
            Ok(ControlFlow::Continue(()))
        });
        // On an error too: what is in the cache is not to be fed again.
        self.pending.drain(..sequence.len() - before);
        let _ = fed?;
        if self.pending.is_empty() {
            // The time of the first token belongs to the prompt: it costs no forward of its own.
            if self.answer.is_full() {
                self.answer.finish(FinishReason::Length);
            } else {
                return self.sample(engine, sequence);
            }
        }
        Ok(Event::Prefill { done: self.prompt_len - self.pending.len(), total: self.prompt_len })
    }

    /// Feeds the last token and samples the next one.
    fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Option<Event>, Error> {
        if let Some(token) = self.last {
            let mut steps = [Step { sequence, tokens: &[token], wanted: Wanted::Last }];
            engine.forward_choosing(&mut steps, &[self.answer.needed(engine.model.vocabulary(), 0)])?;
            // Only now: after an error the step can be tried again.
            self.last = None;
        }
        self.sample(engine, sequence).map(Some)
    }

    fn sample(&mut self, engine: &Engine, sequence: &Sequence) -> Result<Event, Error> {
        // The last row: all rows of the prompt may have been asked for.
        let row = engine.choice_of(engine.logits.rows - 1)?;
        let (token, text) = self.answer.choose(row, sequence.len() >= engine.context())?;
        self.last = Some(token.id);
        Ok(Event::Token { token, text })
    }
}
