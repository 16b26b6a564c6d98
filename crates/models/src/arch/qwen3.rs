//! `qwen3`: the dense models of Qwen 3. RMS norms of every query and key head before split-half RoPE.

use crate::transformer::{Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let shape = Shape::read(keys)?;
    let table = rope::read_table(keys, tensors, shape.head_dim, 1_000_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.read_head_norms(&shape, tensors)?;
    model.rotate_all(RopeStyle::SplitHalf, &table);
    Ok(model)
}
