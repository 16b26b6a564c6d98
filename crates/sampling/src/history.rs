//! The window of accepted tokens and the penalties that read it.

use std::collections::{HashMap, VecDeque};

use crate::SamplerParams;

/// Entries reserved up front at most; a longer window grows as it fills.
const RESERVE: usize = 4096;

/// How often each token occurs among the last `window` accepted ones.
#[derive(Debug, Clone)]
pub(crate) struct History {
    window: usize,
    /// The window's tokens, oldest first. Empty when the window is unbounded: nothing ever leaves.
    tokens: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl History {
    pub(crate) fn new(window: usize) -> Self {
        // Twice, since a map that also removes may want spare room before it rehashes in place.
        let reserve = window.min(RESERVE);
        Self { window, tokens: VecDeque::with_capacity(reserve), counts: HashMap::with_capacity(2 * reserve) }
    }

    pub(crate) fn push(&mut self, token: u32) {
        if self.window != usize::MAX {
            if self.tokens.len() == self.window
                && let Some(oldest) = self.tokens.pop_front()
                && let Some(count) = self.counts.get_mut(&oldest)
            {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&oldest);
                }
            }
            self.tokens.push_back(token);
        }
        let count = self.counts.entry(token).or_default();
        *count = count.saturating_add(1);
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.counts.clear();
    }

    /// Different tokens in the window.
    pub(crate) fn distinct(&self) -> usize {
        self.counts.len()
    }

    /// Applies the three penalties in place. Tokens outside of the vocabulary have no logit to change.
    pub(crate) fn penalise(&self, params: &SamplerParams, logits: &mut [f32]) {
        // Each token changes its own logit alone, so the map's order does not matter.
        for (&token, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = penalised(params, count, *logit);
            }
        }
    }

    /// The logit of a token after the penalties.
    pub(crate) fn penalised(&self, params: &SamplerParams, token: u32, logit: f32) -> f32 {
        self.counts.get(&token).map_or(logit, |&count| penalised(params, count, logit))
    }
}

/// The logit of a token that is in the window so often.
fn penalised(params: &SamplerParams, count: u32, logit: f32) -> f32 {
    if !logit.is_finite() {
        return logit;
    }
    let repeat = f64::from(params.repeat_penalty);
    let scaled = f64::from(logit);
    let scaled = if scaled > 0.0 { scaled / repeat } else { scaled * repeat };
    let less = f64::from(params.presence_penalty) + f64::from(count) * f64::from(params.frequency_penalty);
    // In f64 nothing overflows; the clamp keeps an extreme setting from becoming an infinity,
    // which would mean "forbidden" or "forced".
    (scaled - less).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(params: &SamplerParams, accepted: &[u32], logits: &[f32]) -> Vec<f32> {
        let mut history = History::new(params.repeat_last_n);
        for &t in accepted {
            history.push(t);
        }
        let mut out = logits.to_vec();
        history.penalise(params, &mut out);
        out
    }

    #[test]
    fn repeat_divides_positive_and_multiplies_negative_logits() {
        let params = SamplerParams { repeat_penalty: 2.0, ..SamplerParams::unmodified() };
        assert_eq!(after(&params, &[0, 1, 1], &[4.0, -4.0, 3.0]), [2.0, -8.0, 3.0]);
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let params =
            SamplerParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..SamplerParams::unmodified() };
        assert_eq!(after(&params, &[0, 2, 2], &[1.0, 1.0, 1.0]), [0.25, 1.0, 0.0]);
    }

    #[test]
    fn only_the_window_counts() {
        let params = SamplerParams { presence_penalty: 1.0, repeat_last_n: 2, ..SamplerParams::unmodified() };
        assert_eq!(after(&params, &[0, 1, 2], &[0.0; 3]), [0.0, -1.0, -1.0]);
        let all = SamplerParams { repeat_last_n: usize::MAX, ..params };
        assert_eq!(after(&all, &[0, 1, 2], &[0.0; 3]), [-1.0; 3]);
    }

    #[test]
    fn infinities_and_foreign_tokens_are_left_alone() {
        let params = SamplerParams {
            repeat_penalty: f32::MIN_POSITIVE,
            frequency_penalty: f32::MAX,
            ..SamplerParams::unmodified()
        };
        let got = after(&params, &[0, 1, 2, 2, 99], &[f32::INFINITY, f32::NEG_INFINITY, 5.0]);
        assert_eq!(got, [f32::INFINITY, f32::NEG_INFINITY, f32::MAX.min(got[2])]);
        assert!(got[2].is_finite());
    }

    #[test]
    fn clear_forgets() {
        let mut history = History::new(4);
        history.push(0);
        history.clear();
        let mut logits = [1.0];
        history.penalise(&SamplerParams { presence_penalty: 1.0, ..SamplerParams::default() }, &mut logits);
        assert_eq!(logits, [1.0]);
    }
}
