//! The angles of rotary position embedding, with every scaling that the supported files use.

use crate::{Error, keys::Keys, tensors::Tensors};
use graph::ops::RopeTable;
use std::f64::consts::PI;
use std::sync::Arc;

/// How positions past the trained context are brought back into it.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every angle divided by the factor (position interpolation).
    Linear {
        /// How many times longer the context is.
        factor: f64,
    },
    /// Interpolation of slow dimensions only.
    Yarn(YarnScaling),
}

/// YaRN (Peng et al. 2023): dimensions that turn often within the original context keep their angles, those that do
/// not even turn once are interpolated, and a ramp lies between.
#[derive(Clone, Debug, PartialEq)]
pub struct YarnScaling {
    /// How many times longer the context is.
    pub factor: f64,
    /// Tokens of the original context.
    pub original_context: f64,
    /// Turns within the original context above which a dimension keeps its angle.
    pub beta_fast: f64,
    /// Turns below which it is interpolated.
    pub beta_slow: f64,
    /// Weight of the extrapolation, usually 1.
    pub extrapolation: f64,
    /// Multiplies the magnitude `1 + 0.1 ln(factor)`.
    pub attention_factor: f64,
    /// Whether the ramp begins and ends at whole pairs of dimensions, as it does in most models.
    pub whole_pairs: bool,
}

/// The table of a rotation of `rotary_dim` elements: angle per position `base^(-2i / rotary_dim)`, scaled, and
/// divided by the `i`-th of `factors` (`rope_freqs.weight`: llama-3's per-dimension scaling comes as those).
pub fn rope_table(rotary_dim: usize, base: f64, scaling: &RopeScaling, factors: Option<&[f32]>) -> RopeTable {
    let pairs = rotary_dim / 2;
    let mut inv_freq = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let factor = factors.and_then(|f| f.get(pair)).map_or(1.0, |&f| f64::from(f));
        let plain = base.powf(-2.0 * pair as f64 / rotary_dim as f64) / factor;
        inv_freq.push(match scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain / factor,
            RopeScaling::Yarn(yarn) => {
                let keep = yarn.keep(pair as f64, rotary_dim as f64, base);
                plain / yarn.factor * (1.0 - keep) + plain * keep
            }
        });
    }
    let magnitude = match scaling {
        RopeScaling::Yarn(yarn) if yarn.extrapolation != 0.0 => {
            yarn.attention_factor * (1.0 + 0.1 * yarn.factor.ln())
        }
        RopeScaling::Yarn(yarn) => yarn.attention_factor,
        _ => 1.0,
    };
    RopeTable { inv_freq, magnitude: magnitude as f32 }
}

impl YarnScaling {
    /// How much of the unscaled angle a pair keeps, 0 to 1.
    fn keep(&self, pair: f64, rotary_dim: f64, base: f64) -> f64 {
        // The pair that turns `turns` times within the original context.
        let pair_of =
            |turns: f64| rotary_dim * (self.original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        let (low, high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        let (low, high) = if self.whole_pairs { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(rotary_dim - 1.0));
        let ramp = ((pair - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        (1.0 - ramp) * self.extrapolation
    }
}

/// Reads the scaling from `<architecture>.rope.*`. A type that is not known is an error, never ignored.
pub(crate) fn read_scaling(keys: &Keys<'_>) -> Result<RopeScaling, Error> {
    let positive = |name: &str| -> Result<Option<f64>, Error> {
        match keys.optional_number(name)? {
            None => Ok(None),
            // Zero stands for "not scaled" in files.
            Some(0.0) => Ok(Some(1.0)),
            Some(value) if value > 0.0 => Ok(Some(f64::from(value))),
            Some(value) => Err(keys.value(name, value.to_string(), "a positive number".into())),
        }
    };
    let factor = match positive("rope.scaling.factor")? {
        Some(factor) => factor,
        None => positive("rope.scale_linear")?.unwrap_or(1.0),
    };
    // Files from before the type was written mean linear.
    match keys.text("rope.scaling.type")?.unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let name = "rope.scaling.yarn_log_multiplier";
            if keys.optional_number(name)?.is_some_and(|n| n != 0.0) {
                return Err(Error::Unsupported { what: format!("YaRN with '{}'", keys.key(name)) });
            }
            let name = "rope.scaling.original_context_length";
            let original = if keys.has(name) { keys.length(name)? } else { keys.length("context_length")? };
            Ok(RopeScaling::Yarn(YarnScaling {
                factor,
                original_context: original as f64,
                beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                extrapolation: keys
                    .optional_number("rope.scaling.yarn_ext_factor")?
                    .filter(|&f| f >= 0.0)
                    .map_or(1.0, f64::from),
                attention_factor: positive("rope.scaling.attn_factor")?.unwrap_or(1.0)
                    * positive("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0),
                whole_pairs: true,
            }))
        }
        other => Err(keys.value("rope.scaling.type", format!("'{other}'"), "none, linear or yarn".into())),
    }
}

/// The rotation of a model's (full-attention) layers, by its keys and `rope_freqs.weight`.
pub(crate) fn read_table(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    head_dim: usize,
    default_base: f32,
) -> Result<Arc<RopeTable>, Error> {
    let rotary_dim = rotary_dim(keys, head_dim)?;
    let base = base(keys, "rope.freq_base", default_base)?;
    let factors = tensors.numbers("rope_freqs.weight", rotary_dim / 2)?;
    if let Some(bad) = factors.iter().flatten().find(|f| !(f.is_finite() && **f > 0.0)) {
        return Err(Error::Unsupported { what: format!("tensor 'rope_freqs.weight' with the factor {bad}") });
    }
    Ok(Arc::new(rope_table(rotary_dim, base, &read_scaling(keys)?, factors.as_deref())))
}

/// Elements of a head that turn: `rope.dimension_count`, or all.
pub(crate) fn rotary_dim(keys: &Keys<'_>, head_dim: usize) -> Result<usize, Error> {
    let name = "rope.dimension_count";
    let rotary_dim = keys.count_or(name, head_dim)?;
    if rotary_dim > head_dim || rotary_dim % 2 != 0 {
        let expected = format!("an even number, at most the head dim {head_dim}");
        return Err(keys.value(name, rotary_dim.to_string(), expected));
    }
    Ok(rotary_dim)
}

/// A base frequency.
pub(crate) fn base(keys: &Keys<'_>, name: &str, default: f32) -> Result<f64, Error> {
    match keys.optional_number(name)?.unwrap_or(default) {
        base if base > 1.0 => Ok(f64::from(base)),
        base => Err(keys.value(name, base.to_string(), "a number above 1".into())),
    }
}
