//! `qwen3moe`: the models of Qwen 3 with experts. As `qwen3`, with a mixture of experts in every layer.

use crate::transformer::{ExpertShape, Routing, Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let mut shape = Shape::read(keys)?;
    let feed_forward = keys.count("expert_feed_forward_length")?;
    shape.experts = Some(ExpertShape::read(keys, Routing::SoftmaxOfChosen, feed_forward)?);
    let table = rope::read_table(keys, tensors, shape.head_dim, 1_000_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.read_head_norms(&shape, tensors)?;
    model.rotate_all(RopeStyle::SplitHalf, &table);
    Ok(model)
}
