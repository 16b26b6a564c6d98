//! `llama`: Llama 2 and 3, Mistral, SmolLM2. Pre-norm, SwiGLU, interleaved RoPE.

use crate::transformer::{Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    if let Some(experts) = keys.optional_count("expert_count")? {
        return Err(Error::Unsupported {
            what: format!("a mixture of {experts} experts ('llama.expert_count')"),
        });
    }
    let shape = Shape::read(keys)?;
    let table = rope::read_table(keys, tensors, shape.head_dim, 10_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.rotate_all(RopeStyle::Interleaved, &table);
    // Mistral 7B v0.1 is the one model here with a window, the same in every layer.
    if let Some(window) = keys.optional_count("attention.sliding_window")? {
        model.set_windows(&vec![true; shape.layers], window);
    }
    Ok(model)
}
