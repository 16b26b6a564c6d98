//! Perplexity: how well a model predicts a text.

use crate::forward::finite;
use crate::{Engine, Error, Wanted};
use sampling::LogProbs;
use std::ops::ControlFlow;

/// Takes the logits of a position.
type ScoreSink<'a> = &'a mut dyn FnMut(usize, &[f32]) -> Result<(), Error>;

/// How a text is scored.
#[derive(Clone, Copy, Debug)]
pub struct PerplexityOptions {
    /// Tokens per chunk; each chunk is scored on its own, what is left over is dropped.
    pub chunk: usize,
    /// Tokens of a chunk that are context only: scored are tokens `skip + 1 ..`.
    pub skip: usize,
}

impl Default for PerplexityOptions {
    /// Chunks of 512 of which the second half is scored, as in llama.cpp's tool.
    fn default() -> PerplexityOptions {
        PerplexityOptions { chunk: 512, skip: 256 }
    }
}

/// A score, after some chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
    /// Tokens scored.
    pub scored: usize,
    /// Chunks done.
    pub chunks: usize,
    /// Chunks in all.
    pub total: usize,
}

impl Engine {
    /// Scores a text that was tokenised with the model's own begin and end tokens. If the model wants a begin token,
    /// the first token of every chunk is replaced by it. `progress` gets the score after each chunk, and may end it.
    ///
    /// # Errors
    /// [`Error::Option`], [`Error::TextTooShort`], and [`Error::NotFinite`] for a model whose logits are.
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        options: &PerplexityOptions,
        progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
    ) -> Result<Perplexity, Error> {
        let PerplexityOptions { chunk, skip } = *options;
        if !(2..=self.context()).contains(&chunk) {
            let message = format!("expected 2 to {} tokens, found {chunk}", self.context());
            return Err(Error::Option { name: "chunk", message });
        }
        if skip > chunk - 2 {
            let message =
                format!("expected at most {} of a chunk of {chunk} tokens, found {skip}", chunk - 2);
            return Err(Error::Option { name: "skip", message });
        }
        let total = tokens.len() / chunk;
        if total == 0 {
            return Err(Error::TextTooShort { tokens: tokens.len(), chunk });
        }
        let begin = self.tokenizer().add_bos().then(|| self.tokenizer().bos()).flatten();
        let (mut sum, mut squares, mut scored) = (0.0, 0.0, 0usize);
        let mut result = Perplexity { value: f64::NAN, error: f64::NAN, scored: 0, chunks: 0, total };
        for (done, part) in tokens.chunks_exact(chunk).enumerate() {
            let mut part = part.to_vec();
            if let Some(begin) = begin {
                part[0] = begin;
            }
            let mut sequence = self.sequence();
            // The last token predicts nothing that is scored.
            let run = self.score(&mut sequence, &part[..chunk - 1], skip, &mut |index, logits| {
                let nll = -LogProbs::new(finite(logits)?)?.of(part[index + 1])?;
                sum += nll;
                squares += nll * nll;
                scored += 1;
                Ok(())
            });
            self.release(sequence);
            run?;
            let mean = sum / scored as f64;
            let variance = (squares / scored as f64 - mean * mean).max(0.0);
            let value = mean.exp();
            let error = value * (variance / (scored.max(2) - 1) as f64).sqrt();
            result = Perplexity { value, error, scored, chunks: done + 1, total };
            if progress(&result).is_break() {
                break;
            }
        }
        Ok(result)
    }

    /// Feeds tokens and gives the logits of those from `skip` on to `sink`.
    fn score(
        &mut self,
        sequence: &mut crate::Sequence,
        tokens: &[u32],
        skip: usize,
        sink: ScoreSink<'_>,
    ) -> Result<(), Error> {
        if skip > 0 {
            let _ = self.prefill(sequence, &tokens[..skip], Wanted::None, &mut |_, _| {
                Ok(ControlFlow::Continue(()))
            })?;
        }
        let _ = self.prefill(sequence, &tokens[skip..], Wanted::All, &mut |index, logits| {
            if let Some(logits) = logits {
                sink(skip + index, logits)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }
}
