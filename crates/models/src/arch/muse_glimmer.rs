//! `muse-glimmer`: the text model of Muse Glimmer.
//!
//! An RMS norm without weight after the embedding; three layers with a sliding window and RoPE, then one that sees
//! everything and has no RoPE; norms of query and key heads; the attention output multiplied, element by element, by
//! the sigmoid of a projection of the normed layer input; norms after both sub-layers; logits scaled, then soft-capped.

use crate::transformer::{Norm, Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;
use std::sync::Arc;

/// Epsilon of the norms after attention and feed-forward; files do not carry it.
const POST_NORM_EPSILON: f32 = 1e-8;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let shape = Shape::read(keys)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.embedding_norm = Some(Norm { weight: None, epsilon: shape.epsilon });
    model.logit_scale = Some(keys.number("logit_scale")?);
    model.soft_cap = keys.optional_number("final_logit_softcapping")?.filter(|&cap| cap > 0.0);
    model.read_head_norms(&shape, tensors)?;
    model.read_post_norms(&shape, tensors, POST_NORM_EPSILON)?;
    model.read_attention_gates(&shape, tensors)?;

    let window = keys.count("attention.sliding_window")?;
    let windowed = keys.window_pattern(4, shape.layers)?;
    model.set_windows(&windowed, window);
    let default = rope::base(keys, "rope.freq_base", 10_000.0)? as f32;
    let base = rope::base(keys, "rope.freq_base_swa", default)?;
    let rotary_dim = rope::rotary_dim(keys, shape.head_dim)?;
    let table = Arc::new(rope::rope_table(rotary_dim, base, &rope::read_scaling(keys)?, None));
    for (layer, windowed) in model.layers.iter_mut().zip(windowed) {
        layer.attention.rope = windowed.then(|| (RopeStyle::Interleaved, Arc::clone(&table)));
    }
    Ok(model)
}
