//! `gemma3`: the text models of Gemma 3.
//!
//! Five layers with a sliding window, then one without; each kind has its own RoPE base. Norms before and after both
//! sub-layers, norms of query and key heads, GELU, embeddings scaled by the square root of the hidden size. The norm
//! weights in files already have the 1 added that the original model adds when it runs.

use crate::transformer::{Gating, Shape, Transformer};
use crate::{Error, RopeScaling, keys::Keys, rope, tensors::Tensors};
use graph::ops::{Activation, RopeStyle};
use std::sync::Arc;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let shape = Shape::read(keys)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.embedding_scale = Some((shape.hidden_size as f32).sqrt());
    model.soft_cap = keys.optional_number("final_logit_softcapping")?.filter(|&cap| cap > 0.0);
    model.read_head_norms(&shape, tensors)?;
    model.read_post_norms(&shape, tensors, shape.epsilon)?;

    let full = rope::read_table(keys, tensors, shape.head_dim, 1_000_000.0)?;
    model.rotate_all(RopeStyle::SplitHalf, &full);
    if let Some(window) = keys.optional_count("attention.sliding_window")? {
        let windowed = keys.window_pattern(6, shape.layers)?;
        // Context extension scales the full layers only: a window never sees far.
        let base = rope::base(keys, "rope.freq_base_swa", 10_000.0)?;
        let rotary_dim = rope::rotary_dim(keys, shape.head_dim)?;
        let local = Arc::new(rope::rope_table(rotary_dim, base, &RopeScaling::None, None));
        model.set_windows(&windowed, window);
        for (layer, _) in model.layers.iter_mut().zip(&windowed).filter(|(_, windowed)| **windowed) {
            layer.attention.rope = Some((RopeStyle::SplitHalf, Arc::clone(&local)));
        }
    }
    for layer in &mut model.layers {
        layer.feed_forward.gating = Gating::Activation(Activation::Gelu);
        // The 27B model alone scales by hidden size over heads, not by head dim.
        if shape.layers == 62 {
            layer.attention.scale = 1.0 / ((shape.hidden_size / layer.attention.heads) as f32).sqrt();
        }
    }
    Ok(model)
}
