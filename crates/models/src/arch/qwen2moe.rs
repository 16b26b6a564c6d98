//! `qwen2moe`: Qwen 1.5 and 2 with experts. As `qwen2`, with a mixture of experts in every layer, the weights of the chosen
//! as they come from the softmax of all, and one more expert for every token.

use crate::transformer::{ExpertShape, Routing, Shape, Transformer};
use crate::{Error, keys::Keys, rope, tensors::Tensors};
use graph::ops::RopeStyle;

pub(super) fn load(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<Transformer, Error> {
    let mut shape = Shape::read(keys)?;
    let feed_forward = keys.count("expert_feed_forward_length")?;
    let experts = ExpertShape::read(keys, Routing::Softmax, feed_forward)?;
    let shared = keys.count("expert_shared_feed_forward_length")?;
    shape.experts = Some(ExpertShape { shared: Some(shared), ..experts });
    let table = rope::read_table(keys, tensors, shape.head_dim, 10_000.0)?;
    let mut model = Transformer::read(&shape, keys, tensors)?;
    model.rotate_all(RopeStyle::SplitHalf, &table);
    Ok(model)
}
