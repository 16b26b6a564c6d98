use crate::Error;

/// Settings of the chain; [`Sampler::new`](crate::Sampler::new) checks them.
///
/// The default is a chat setting: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalties, a
/// fresh seed.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits of the kept tokens; 0 or more. 0 is greedy: the highest logit, lowest id on
    /// ties, whatever the truncation settings.
    pub temperature: f32,
    /// Keeps the `top_k` highest logits (lowest ids on ties); 0 is off.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probability reaches this; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 is off.
    pub min_p: f32,
    /// Keeps the tokens whose information content is nearest to the entropy until their probability
    /// reaches this (locally typical sampling); 1 is off.
    pub typical_p: f32,
    /// Divides positive logits, and multiplies others, of tokens in the history window; 1 is off.
    pub repeat_penalty: f32,
    /// How many of the last accepted tokens the three penalties look at: 0 is none, `usize::MAX` all.
    pub repeat_last_n: usize,
    /// Subtracted once from the logit of a token that is in the history window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the history window; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logit of a token; entries for one token add up. `-inf` forbids the token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; `None` takes one from the operating system
    /// ([`Sampler::seed`](crate::Sampler::seed) tells it).
    pub seed: Option<u64>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplerParams {
    /// The highest logit each time; no penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::unmodified() }
    }

    /// Draws from the model's own distribution: temperature 1, nothing cut, no penalties.
    pub fn unmodified() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Whether a token's history changes its logit.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repeat_last_n > 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    /// How many of the highest logits are kept at most, before top-p and what comes after it; `None` for all.
    pub(crate) fn most_kept(&self) -> Option<usize> {
        if self.temperature == 0.0 { Some(1) } else { Some(self.top_k).filter(|&most| most > 0) }
    }

    /// Whether penalties and bias leave a logit as it is or lower it.
    pub(crate) fn only_lowers(&self) -> bool {
        self.repeat_penalty >= 1.0
            && self.presence_penalty >= 0.0
            && self.frequency_penalty >= 0.0
            && self.logit_bias.iter().all(|&(_, bias)| bias <= 0.0)
    }

    /// Checks every range; the error names the field.
    pub fn validate(&self) -> Result<(), Error> {
        let check = |name, value: f32, ok: bool, expected| {
            if ok { Ok(()) } else { Err(Error::Parameter { name, value, expected }) }
        };
        let fraction = |v: f32| (0.0..=1.0).contains(&v);
        let t = self.temperature;
        check("temperature", t, t.is_finite() && t >= 0.0, "a finite number, 0 or more")?;
        check("top_p", self.top_p, fraction(self.top_p), "a number from 0 to 1")?;
        check("min_p", self.min_p, fraction(self.min_p), "a number from 0 to 1")?;
        check("typical_p", self.typical_p, fraction(self.typical_p), "a number from 0 to 1")?;
        let r = self.repeat_penalty;
        check("repeat_penalty", r, r.is_finite() && r > 0.0, "a finite number above 0")?;
        for (name, v) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(name, v, v.is_finite(), "a finite number")?;
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            Some(&(id, _)) => Err(Error::BiasNan { id }),
            None => Ok(()),
        }
    }
}
