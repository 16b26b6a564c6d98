//! `gpt-oss`: the open-weight models of OpenAI.
//!
//! Every other layer has a sliding window, the first among them; attention has sinks and biases; YaRN, whose ramp does not
//! begin and end at whole dimensions here; a mixture of experts in every layer, with biases and a clamped gate. What files
//! call the norm after attention is the one before the experts.

use crate::transformer::{ExpertShape, Gating, Routing, Shape, Transformer};
use crate::{Error, RopeScaling, YarnScaling, keys::Keys, rope, tensors::Tensors};
use graph::ops::{ClampedSwiGlu, RopeStyle};
use std::sync::Arc;

/// The gate's constants; files do not carry them.
const GATE: ClampedSwiGlu = ClampedSwiGlu { alpha: 1.702, limit: 7.0 };

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let mut shape = Shape::read(keys)?;
    let feed_forward = keys.count("expert_feed_forward_length")?;
    shape.experts = Some(ExpertShape::read(keys, Routing::SoftmaxOfChosen, feed_forward)?);
    shape.feed_forward_norm = "post_attention_norm";
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.read_sinks(tensors)?;

    let window = keys.count("attention.sliding_window")?;
    model.set_windows(&keys.window_pattern(2, shape.layers)?, window);
    let scaling = match rope::read_scaling(keys)? {
        RopeScaling::Yarn(yarn) => RopeScaling::Yarn(YarnScaling { whole_pairs: false, ..yarn }),
        other => other,
    };
    let (rotary_dim, base) =
        (rope::rotary_dim(keys, shape.head_dim)?, rope::base(keys, "rope.freq_base", 150_000.0)?);
    let table = Arc::new(rope::rope_table(rotary_dim, base, &scaling, None));
    model.rotate_all(RopeStyle::SplitHalf, &table);
    for layer in &mut model.layers {
        layer.feed_forward.gating = Gating::Clamped(GATE);
    }
    Ok(model)
}
