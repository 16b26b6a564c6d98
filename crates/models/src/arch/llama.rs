//! `llama`: Llama 2 and 3, Mistral, SmolLM2, and Mixtral with experts. Pre-norm, SwiGLU, interleaved RoPE.

use crate::transformer::{ExpertShape, Routing, Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let mut shape = Shape::read(keys)?;
    if keys.optional_count("expert_count")?.is_some() {
        // Of one size in all layers.
        let feed_forward = keys.count("feed_forward_length")?;
        shape.experts = Some(ExpertShape::read(keys, Routing::SoftmaxOfChosen, feed_forward)?);
    }
    let table = rope::read_table(keys, tensors, shape.head_dim, 10_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.rotate_all(RopeStyle::Interleaved, &table);
    // Mistral 7B v0.1 is the one model here with a window, the same in every layer.
    if let Some(window) = keys.optional_count("attention.sliding_window")? {
        model.set_windows(&vec![true; shape.layers], window);
    }
    Ok(model)
}
