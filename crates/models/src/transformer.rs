//! The decoder that all supported architectures are instances of: what its parts are, and how they are read.
//!
//! An architecture starts from [`Transformer::read`] (the tensors that all have), and adds or changes parts. The
//! graph that the parts make is in `transformer/build.rs`.

mod build;
mod experts;
mod shard;

use crate::{Error, keys::Keys, tensors::Tensors};
use graph::ops::{Activation, ClampedSwiGlu, RopeStyle, RopeTable};
use graph::{CacheGroup, GroupId, WeightInfo};
use std::sync::Arc;

pub(crate) use experts::ExpertShape;
pub use experts::{ExpertLinear, Experts, Routing, SharedExpert};
pub use shard::WeightCut;

/// A model, part by part.
#[derive(Clone, Debug)]
pub struct Transformer {
    /// Token embedding, `[vocabulary, hidden size]`.
    pub embedding: WeightInfo,
    /// Multiplies embeddings.
    pub embedding_scale: Option<f32>,
    /// Norm of embeddings.
    pub embedding_norm: Option<Norm>,
    /// The decoder layers.
    pub layers: Vec<Layer>,
    /// The norm before the output head.
    pub output_norm: Norm,
    /// The output head, `[vocabulary, hidden size]`; the embedding again where the file has none.
    pub output: Linear,
    /// Multiplies logits.
    pub logit_scale: Option<f32>,
    /// `cap * tanh(logit / cap)`, after the scale.
    pub soft_cap: Option<f32>,
    /// The cache groups that the layers refer to.
    pub groups: Vec<CacheGroup>,
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Self-attention.
    pub attention: Attention,
    /// The feed-forward network.
    pub feed_forward: FeedForward,
}

/// The self-attention of a layer, with the norms around it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Norm of the layer's input.
    pub norm: Norm,
    /// Query, key and value projections.
    pub qkv: [Linear; 3],
    /// Norms of every query head and every key head.
    pub head_norms: Option<[Norm; 2]>,
    /// The rotation of queries and keys.
    pub rope: Option<(RopeStyle, Arc<RopeTable>)>,
    /// A projection of the normed input whose sigmoid multiplies the attention output.
    pub gate: Option<Linear>,
    /// The output projection.
    pub output: Linear,
    /// Norm of what is added to the residual stream.
    pub post_norm: Option<Norm>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// Keys that a query sees, itself included.
    pub window: Option<usize>,
    /// The cache group, of the same window.
    pub group: GroupId,
    /// A logit for each query head that takes part in the softmax, of no key.
    pub sinks: Option<WeightInfo>,
}

/// The gated feed-forward network of a layer, with the norms around it.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// Norm of the sub-layer's input.
    pub norm: Norm,
    /// The projections.
    pub network: Network,
    /// How gate and up meet.
    pub gating: Gating,
    /// Norm of what is added to the residual stream.
    pub post_norm: Option<Norm>,
}

/// The projections of a feed-forward network.
#[derive(Clone, Debug)]
pub enum Network {
    /// The same for every token.
    Dense(Box<Dense>),
    /// Those of the experts that are chosen for a token.
    Experts(Box<Experts>),
}

/// The projections of a gated network.
#[derive(Clone, Debug)]
pub struct Dense {
    /// The projection that goes through the activation.
    pub gate: Linear,
    /// The projection that it multiplies.
    pub up: Linear,
    /// The projection back to the hidden size.
    pub down: Linear,
}

/// How the results of the gate and up projections meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// `activation(gate) * up`.
    Activation(Activation),
    /// The gate of gpt-oss.
    Clamped(ClampedSwiGlu),
}

/// A product with a weight matrix.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: WeightInfo,
    /// A vector of `out` elements.
    pub bias: Option<WeightInfo>,
}

/// An RMS norm.
#[derive(Clone, Debug)]
pub struct Norm {
    /// A vector of the normed width.
    pub weight: Option<WeightInfo>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The hyper-parameters that give tensors their shapes.
pub(crate) struct Shape {
    pub layers: usize,
    pub hidden_size: usize,
    pub feed_forward: Vec<usize>,
    pub heads: Vec<usize>,
    pub kv_heads: Vec<usize>,
    pub head_dim: usize,
    pub value_dim: usize,
    pub epsilon: f32,
    pub scale: f32,
    /// The name of the norm before the feed-forward network.
    pub feed_forward_norm: &'static str,
    /// The experts, for architectures that have them in every layer.
    pub experts: Option<ExpertShape>,
}

impl Shape {
    /// Reads the keys that every supported architecture has.
    pub fn read(keys: &Keys<'_>) -> Result<Shape, Error> {
        let layers = keys.count("block_count")?;
        let hidden_size = keys.count("embedding_length")?;
        let per_layer = |name: &str| match keys.counts(name, layers)? {
            Some(counts) => Ok(counts),
            None => Ok::<_, Error>(vec![keys.count(name)?; layers]),
        };
        let feed_forward = per_layer("feed_forward_length")?;
        let heads = per_layer("attention.head_count")?;
        let kv_heads = keys.counts("attention.head_count_kv", layers)?.unwrap_or_else(|| heads.clone());
        for (&heads, &kv_heads) in heads.iter().zip(&kv_heads) {
            if !heads.is_multiple_of(kv_heads) {
                let expected = format!("a divisor of the {heads} heads");
                return Err(keys.value("attention.head_count_kv", kv_heads.to_string(), expected));
            }
        }
        let head_dim = match keys.optional_count("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(heads[0]) => hidden_size / heads[0],
            None => {
                let expected = format!("a divisor of the hidden size {hidden_size}");
                return Err(keys.value("attention.head_count", heads[0].to_string(), expected));
            }
        };
        let value_dim = keys.count_or("attention.value_length", head_dim)?;
        let epsilon = keys.number("attention.layer_norm_rms_epsilon")?;
        if epsilon < 0.0 {
            let name = "attention.layer_norm_rms_epsilon";
            return Err(keys.value(name, epsilon.to_string(), "a number that is not negative".into()));
        }
        let scale = keys.optional_number("attention.scale")?.filter(|&scale| scale != 0.0);
        let scale = scale.unwrap_or_else(|| 1.0 / (head_dim as f32).sqrt());
        Ok(Shape {
            layers,
            hidden_size,
            feed_forward,
            heads,
            kv_heads,
            head_dim,
            value_dim,
            epsilon,
            scale,
            feed_forward_norm: "ffn_norm",
            experts: None,
        })
    }
}

impl Transformer {
    /// Reads the tensors that every supported architecture has, and the biases where a file has them: full attention
    /// without rotation, and SwiGLU.
    pub(crate) fn read(
        shape: &Shape,
        keys: &Keys<'_>,
        tensors: &mut Tensors<'_>,
    ) -> Result<Transformer, Error> {
        let hidden = shape.hidden_size;
        let embedding = tensors.rows_of("token_embd.weight", hidden)?;
        if let Some(expected) = keys.optional_count("vocab_size")?
            && expected != embedding.rows
        {
            let found = format!("{expected} (the embedding has {} rows)", embedding.rows);
            return Err(keys.value("vocab_size", found, "the rows of the embedding".into()));
        }
        let output = match tensors.optional_matrix("output.weight", embedding.rows, hidden)? {
            Some(weight) => weight,
            None => embedding.clone(),
        };
        let output = Linear { weight: output, bias: tensors.optional_vector("output.bias", embedding.rows)? };
        let norm = |tensors: &mut Tensors<'_>, name: &str| -> Result<Norm, Error> {
            Ok(Norm { weight: Some(tensors.vector(name, hidden)?), epsilon: shape.epsilon })
        };
        let output_norm = norm(tensors, "output_norm.weight")?;
        let mut layers = Vec::with_capacity(shape.layers.min(1024));
        for il in 0..shape.layers {
            let (heads, kv_heads) = (shape.heads[il], shape.kv_heads[il]);
            let name = |part: &str| format!("blk.{il}.{part}");
            let query = linear(tensors, &name("attn_q"), heads * shape.head_dim, hidden)?;
            let key = linear(tensors, &name("attn_k"), kv_heads * shape.head_dim, hidden)?;
            let value = linear(tensors, &name("attn_v"), kv_heads * shape.value_dim, hidden)?;
            let attention = Attention {
                norm: norm(tensors, &name("attn_norm.weight"))?,
                qkv: [query, key, value],
                head_norms: None,
                rope: None,
                gate: None,
                output: linear(tensors, &name("attn_output"), hidden, heads * shape.value_dim)?,
                post_norm: None,
                heads,
                kv_heads,
                head_dim: shape.head_dim,
                value_dim: shape.value_dim,
                scale: shape.scale,
                window: None,
                group: GroupId(0),
                sinks: None,
            };
            let feed_forward = FeedForward {
                norm: norm(tensors, &name(&format!("{}.weight", shape.feed_forward_norm)))?,
                network: match &shape.experts {
                    None => Network::Dense(Box::new(dense(tensors, il, "", shape.feed_forward[il], hidden)?)),
                    Some(experts) => Network::Experts(Box::new(experts.tensors(tensors, il, hidden)?)),
                },
                gating: Gating::Activation(Activation::Silu),
                post_norm: None,
            };
            layers.push(Layer { attention, feed_forward });
        }
        Ok(Transformer {
            embedding,
            embedding_scale: None,
            embedding_norm: None,
            layers,
            output_norm,
            output,
            logit_scale: None,
            soft_cap: None,
            groups: vec![CacheGroup { window: None }],
        })
    }

    /// Gives every layer the same rotation.
    pub(crate) fn rotate_all(&mut self, style: RopeStyle, table: &Arc<RopeTable>) {
        for layer in &mut self.layers {
            layer.attention.rope = Some((style, Arc::clone(table)));
        }
    }

    /// Reads the norms of query and key heads.
    pub(crate) fn read_head_norms(&mut self, shape: &Shape, tensors: &mut Tensors<'_>) -> Result<(), Error> {
        for (il, layer) in self.layers.iter_mut().enumerate() {
            let mut norm = |part: &str| -> Result<Norm, Error> {
                let weight = tensors.vector(&format!("blk.{il}.{part}.weight"), shape.head_dim)?;
                Ok(Norm { weight: Some(weight), epsilon: shape.epsilon })
            };
            layer.attention.head_norms = Some([norm("attn_q_norm")?, norm("attn_k_norm")?]);
        }
        Ok(())
    }

    /// Reads the norms after attention and feed-forward.
    pub(crate) fn read_post_norms(
        &mut self,
        shape: &Shape,
        tensors: &mut Tensors<'_>,
        epsilon: f32,
    ) -> Result<(), Error> {
        for (il, layer) in self.layers.iter_mut().enumerate() {
            let mut norm = |part: &str| -> Result<Option<Norm>, Error> {
                let weight = tensors.vector(&format!("blk.{il}.{part}.weight"), shape.hidden_size)?;
                Ok(Some(Norm { weight: Some(weight), epsilon }))
            };
            layer.attention.post_norm = norm("post_attention_norm")?;
            layer.feed_forward.post_norm = norm("post_ffw_norm")?;
        }
        Ok(())
    }

    /// Reads the projections that gate the attention output.
    pub(crate) fn read_attention_gates(
        &mut self,
        shape: &Shape,
        tensors: &mut Tensors<'_>,
    ) -> Result<(), Error> {
        for (il, layer) in self.layers.iter_mut().enumerate() {
            let rows = layer.attention.heads * shape.value_dim;
            layer.attention.gate =
                Some(linear(tensors, &format!("blk.{il}.attn_gate"), rows, shape.hidden_size)?);
        }
        Ok(())
    }

    /// Reads the sinks of all heads.
    pub(crate) fn read_sinks(&mut self, tensors: &mut Tensors<'_>) -> Result<(), Error> {
        for (il, layer) in self.layers.iter_mut().enumerate() {
            let name = format!("blk.{il}.attn_sinks.weight");
            layer.attention.sinks = Some(tensors.vector(&name, layer.attention.heads)?);
        }
        Ok(())
    }

    /// Puts the layers that are flagged into a group with a window, the others into one without.
    pub(crate) fn set_windows(&mut self, windowed: &[bool], window: usize) {
        let full = CacheGroup { window: None };
        let local = CacheGroup { window: Some(window) };
        self.groups = match (windowed.contains(&false), windowed.contains(&true)) {
            (true, true) => vec![full, local],
            (false, true) => vec![local],
            _ => vec![full],
        };
        for (layer, &windowed) in self.layers.iter_mut().zip(windowed) {
            layer.attention.window = windowed.then_some(window);
            layer.attention.group = GroupId(u8::from(windowed && self.groups.len() > 1));
        }
    }

    /// Checks what tensor shapes alone do not: that rows are whole blocks is checked by the file's reader, that a
    /// soft cap or scale is a usable number here.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let usable = |what: &str, value: Option<f32>| match value {
            Some(value) if !(value.is_finite() && value != 0.0) => {
                Err(Error::Unsupported { what: format!("{what} of {value}") })
            }
            _ => Ok(()),
        };
        usable("a logit scale", self.logit_scale)?;
        usable("a soft cap", self.soft_cap)?;
        self.layers.iter().try_for_each(|layer| usable("an attention scale", Some(layer.attention.scale)))
    }
}

/// The projections of a layer's gated network; `suffix` tells them from others of the layer.
fn dense(
    tensors: &mut Tensors<'_>,
    il: usize,
    suffix: &str,
    feed_forward: usize,
    hidden: usize,
) -> Result<Dense, Error> {
    let mut part = |name: &str, rows, cols| linear(tensors, &format!("blk.{il}.{name}{suffix}"), rows, cols);
    Ok(Dense {
        gate: part("ffn_gate", feed_forward, hidden)?,
        up: part("ffn_up", feed_forward, hidden)?,
        down: part("ffn_down", hidden, feed_forward)?,
    })
}

fn linear(tensors: &mut Tensors<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear, Error> {
    let weight = tensors.matrix(&format!("{name}.weight"), rows, cols)?;
    let bias = tensors.optional_vector(&format!("{name}.bias"), rows)?;
    Ok(Linear { weight, bias })
}
