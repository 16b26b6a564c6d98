use crate::Error;
use crate::math::{max_or_nan, sum_exp};
use crate::select::top_k;

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogProb {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of the probability; `-inf` for probability 0.
    pub log_prob: f64,
}

/// One row of logits with its normaliser: the model's own distribution, before temperature, penalties
/// and truncation. `ln p = (logit - max) - ln(sum of exp(logit - max))`, in `f64`.
#[derive(Debug, Clone, Copy)]
pub struct LogProbs<'a> {
    logits: &'a [f32],
    max: f32,
    /// `ln(sum of exp(logit - max))`; where the maximum is `+inf`, the logarithm of how many are.
    log_sum: f64,
}

impl<'a> LogProbs<'a> {
    /// Computes the normaliser of a row.
    ///
    /// # Errors
    /// [`Error::NanLogit`], [`Error::NoCandidate`] and [`Error::EmptyLogits`].
    pub fn new(logits: &'a [f32]) -> Result<Self, Error> {
        let vocab = logits.len();
        if vocab == 0 {
            return Err(Error::EmptyLogits);
        }
        let max = max_or_nan(logits).map_err(|index| Error::NanLogit { index, vocab })?;
        let sum = match max {
            f32::NEG_INFINITY => return Err(Error::NoCandidate { vocab }),
            f32::INFINITY => logits.iter().filter(|l| **l == max).count() as f64,
            _ => sum_exp(logits, max),
        };
        Ok(Self { logits, max, log_sum: sum.ln() })
    }

    /// The log-probability of token `id`.
    ///
    /// # Errors
    /// [`Error::TokenOutOfVocab`].
    pub fn of(&self, id: u32) -> Result<f64, Error> {
        match self.logits.get(id as usize) {
            Some(&logit) => Ok(self.of_logit(logit)),
            None => Err(Error::TokenOutOfVocab { id, vocab: self.logits.len() }),
        }
    }

    /// The `n` most likely tokens, highest first, lowest id first on ties. Tokens of probability 0 are
    /// left out, so there may be fewer.
    pub fn top(&self, n: usize) -> Vec<TokenLogProb> {
        let mut best = Vec::new();
        top_k(self.logits, n.min(self.logits.len()), &mut best);
        best.iter()
            .map(|c| TokenLogProb { id: c.id, log_prob: self.of_logit(c.logit) })
            .filter(|t| t.log_prob > f64::NEG_INFINITY)
            .collect()
    }

    fn of_logit(&self, logit: f32) -> f64 {
        if logit == self.max {
            // Also where both are +inf and the difference would be NaN.
            return 0.0 - self.log_sum;
        }
        (f64::from(logit) - f64::from(self.max)) - self.log_sum
    }
}

/// The `n_top` most likely tokens of a row: see [`LogProbs::top`].
///
/// # Errors
/// As [`LogProbs::new`].
pub fn log_probs(logits: &[f32], n_top: usize) -> Result<Vec<TokenLogProb>, Error> {
    Ok(LogProbs::new(logits)?.top(n_top))
}

/// The log-probability of one token of a row: see [`LogProbs::of`].
///
/// # Errors
/// As [`LogProbs::new`], and [`Error::TokenOutOfVocab`].
pub fn log_prob_of(logits: &[f32], id: u32) -> Result<f64, Error> {
    LogProbs::new(logits)?.of(id)
}
