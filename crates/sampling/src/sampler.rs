use crate::chain::{Candidate, narrow, truncate};
use crate::history::History;
use crate::math::max_or_nan;
use crate::rng::{Rng, fresh_seed};
use crate::select::by_rank;
use crate::{Error, SamplerParams};

/// The token that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Token id: the index of its logit.
    pub id: u32,
}

/// Chooses tokens for one sequence: the settings, the history that penalties read, and the generator.
///
/// Buffers are kept between calls: once the first token is drawn, no call allocates.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    seed: u64,
    rng: Rng,
    /// `None` when no penalty is on.
    history: Option<History>,
    /// The row after penalties, bias and the removal of infinities; used only where one of them applies.
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Makes a sampler after checking the settings; the error names the one that is out of range.
    pub fn new(params: SamplerParams) -> Result<Self, Error> {
        params.validate()?;
        let seed = params.seed.unwrap_or_else(fresh_seed);
        Ok(Self {
            seed,
            rng: Rng::new(seed),
            history: params.has_penalties().then(|| History::new(params.repeat_last_n)),
            adjusted: Vec::new(),
            candidates: Vec::new(),
            params,
        })
    }

    /// The seed in use: the one asked for, or the one taken from the operating system.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The settings this sampler was made with.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// Adds a token to the history that the penalties look at; for tokens of the prompt too.
    pub fn accept(&mut self, token: u32) {
        if let Some(history) = &mut self.history {
            history.push(token);
        }
    }

    /// Forgets the history and starts the generator again from the seed.
    pub fn reset(&mut self) {
        self.rng = Rng::new(self.seed);
        if let Some(history) = &mut self.history {
            history.clear();
        }
    }

    /// Chooses one token. `logits[id]` belongs to token `id`; the row is the whole vocabulary.
    ///
    /// A logit of `+inf` takes all the probability (shared where there are several), `-inf` none.
    ///
    /// # Errors
    /// [`Error::NanLogit`], [`Error::NoCandidate`] and [`Error::EmptyLogits`] for a row that nothing can
    /// be drawn from, [`Error::BiasOutOfVocab`] for a bias on a token that the row does not have.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Choice, Error> {
        if self.params.temperature == 0.0 {
            let max = self.adjust(logits)?;
            return Ok(Choice { id: first_equal(self.row(logits), max) });
        }
        self.candidates(logits)?;
        Ok(Choice { id: draw(&self.candidates, self.rng.next_f64()) })
    }

    /// How many of the highest logits of a row of `vocab` the next token depends on, also after `ahead` more tokens were
    /// accepted: with these, [`sample_highest`](Self::sample_highest) chooses what [`sample`](Self::sample) would. `None`
    /// where it needs all: top-k is off, or penalties or a bias may raise a logit.
    pub fn highest_needed(&self, vocab: usize, ahead: usize) -> Option<usize> {
        let params = &self.params;
        // Each token whose logit is lowered may make room for one that comes after it.
        let penalised = self.history.as_ref().map_or(0, |history| history.distinct().saturating_add(ahead));
        let needed = params.most_kept()?.saturating_add(penalised).saturating_add(params.logit_bias.len());
        let all_known = params.logit_bias.iter().all(|&(id, _)| (id as usize) < vocab);
        (params.only_lowers() && all_known && needed < vocab).then_some(needed)
    }

    /// Chooses one token from the highest logits of a row, at least as many as are
    /// [needed](Self::highest_needed): tokens with their logits, the highest first and the lowest id first on ties.
    ///
    /// # Errors
    /// [`Error::NanLogit`], and [`Error::NoCandidate`] if no logit is above `-inf`.
    pub fn sample_highest(&mut self, highest: impl IntoIterator<Item = (u32, f32)>) -> Result<Choice, Error> {
        let params = &self.params;
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend(highest.into_iter().map(|(id, logit)| Candidate { id, logit, weight: 0.0 }));
        let vocab = candidates.len();
        if let Some(nan) = candidates.iter().find(|c| c.logit.is_nan()) {
            return Err(Error::NanLogit { index: nan.id as usize, vocab });
        }
        if let Some(history) = &self.history {
            candidates.iter_mut().for_each(|c| c.logit = history.penalised(params, c.id, c.logit));
        }
        for &(id, bias) in &params.logit_bias {
            if let Some(c) = candidates.iter_mut().find(|c| c.id == id) {
                c.logit = biased(c.logit, bias);
            }
        }
        candidates.retain(|c| c.logit > f32::NEG_INFINITY);
        candidates.sort_unstable_by(by_rank);
        candidates.truncate(params.most_kept().unwrap_or(usize::MAX));
        let Some(&best) = candidates.first() else { return Err(Error::NoCandidate { vocab }) };
        if params.temperature == 0.0 {
            return Ok(Choice { id: best.id });
        }
        narrow(params, best.logit, params.top_p < 1.0, candidates);
        Ok(Choice { id: draw(candidates, self.rng.next_f64()) })
    }

    /// What [`sample`](Self::sample) draws from: the tokens that the chain keeps and their weights. The
    /// order is fixed but not specified. Consumes no random number. At temperature 0, the one token.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn candidates(&mut self, logits: &[f32]) -> Result<&[Candidate], Error> {
        let max = self.adjust(logits)?;
        // Moved out for the call, so that the row can stay borrowed from self; moved back, not copied.
        let mut candidates = std::mem::take(&mut self.candidates);
        let row = self.row(logits);
        if self.params.temperature == 0.0 {
            candidates.clear();
            candidates.push(Candidate { id: first_equal(row, max), logit: max, weight: 1.0 });
        } else {
            truncate(&self.params, row, max, &mut candidates);
        }
        self.candidates = candidates;
        Ok(&self.candidates)
    }

    /// The row that the chain works on: the adjusted copy where [`adjust`](Self::adjust) made one.
    fn row<'a>(&'a self, logits: &'a [f32]) -> &'a [f32] {
        if self.adjusted.is_empty() { logits } else { &self.adjusted }
    }

    /// Applies penalties and bias and checks the row. Returns its maximum, which is finite.
    fn adjust(&mut self, logits: &[f32]) -> Result<f32, Error> {
        let vocab = logits.len();
        if vocab == 0 {
            return Err(Error::EmptyLogits);
        }
        self.adjusted.clear();
        let mut max = max_or_nan(logits).map_err(|index| Error::NanLogit { index, vocab })?;
        if self.history.is_some() || !self.params.logit_bias.is_empty() {
            self.adjusted.extend_from_slice(logits);
            if let Some(history) = &self.history {
                history.penalise(&self.params, &mut self.adjusted);
            }
            for &(id, bias) in &self.params.logit_bias {
                let logit = self.adjusted.get_mut(id as usize).ok_or(Error::BiasOutOfVocab { id, vocab })?;
                *logit = biased(*logit, bias);
            }
            max = max_or_nan(&self.adjusted).map_err(|index| Error::NanLogit { index, vocab })?;
        }
        if max == f32::NEG_INFINITY {
            return Err(Error::NoCandidate { vocab });
        }
        if max == f32::INFINITY {
            if self.adjusted.is_empty() {
                self.adjusted.extend_from_slice(logits);
            }
            for logit in &mut self.adjusted {
                *logit = if *logit == f32::INFINITY { 0.0 } else { f32::NEG_INFINITY };
            }
            max = 0.0;
        }
        Ok(max)
    }
}

/// A logit with its bias. A forbidden token stays forbidden, whichever of the two says so: the plain sum of opposite
/// infinities would be NaN.
fn biased(logit: f32, bias: f32) -> f32 {
    let forbidden = bias == f32::NEG_INFINITY || logit == f32::NEG_INFINITY;
    if forbidden { f32::NEG_INFINITY } else { logit + bias }
}

/// The lowest index that holds `max`, which is the row's maximum.
fn first_equal(row: &[f32], max: f32) -> u32 {
    row.iter().zip(0u32..).find(|(l, _)| **l == max).map_or(0, |(_, id)| id)
}

/// The candidate under the point `u` of `[0, 1)` when the weights are laid end to end.
fn draw(candidates: &[Candidate], u: f64) -> u32 {
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let point = u * total;
    let mut sum = 0.0;
    let mut last = 0;
    for c in candidates.iter().filter(|c| c.weight > 0.0) {
        sum += c.weight;
        last = c.id;
        if point < sum {
            break;
        }
    }
    last
}
