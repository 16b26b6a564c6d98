//! `qwen2`: Qwen 2 and 2.5. Like llama with biases on query, key and value, and split-half RoPE.

use crate::transformer::{Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let shape = Shape::read(keys)?;
    let table = rope::read_table(keys, tensors, shape.head_dim, 10_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.rotate_all(RopeStyle::SplitHalf, &table);
    Ok(model)
}
