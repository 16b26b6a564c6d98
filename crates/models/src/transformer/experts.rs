//! Mixtures of experts: how they are read, and their part of the graph.

use super::{Dense, Gating, Linear, dense, linear};
use crate::{Error, keys::Keys, tensors::Tensors};
use graph::ops::{Activation, ExpertMatMul, Softmax, TopK};
use graph::{GraphBuilder, GraphError, NodeId, Op, WeightInfo};

/// Many gated networks, of which a router chooses a few for each token.
#[derive(Clone, Debug)]
pub struct Experts {
    /// Gives each token a logit for each expert.
    pub router: Linear,
    /// What the logits of the chosen become.
    pub routing: Routing,
    /// Multiplies the weights of the chosen.
    pub scale: Option<f32>,
    /// The projections that go through the activation.
    pub gate: ExpertLinear,
    /// The projections that these multiply.
    pub up: ExpertLinear,
    /// The projections back to the hidden size.
    pub down: ExpertLinear,
    /// Experts.
    pub count: usize,
    /// Experts chosen for each token.
    pub used: usize,
    /// A network that every token goes through besides.
    pub shared: Option<SharedExpert>,
}

/// How the weights of the chosen experts come from the router's logits. The largest logits choose in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// The softmax of the chosen: that of all, divided by its sum over the chosen.
    SoftmaxOfChosen,
    /// The softmax of all: the weights of the chosen add up to less than 1.
    Softmax,
}

/// The products with a weight matrix for each expert.
#[derive(Clone, Debug)]
pub struct ExpertLinear {
    /// `[experts * out, in]`.
    pub weight: WeightInfo,
    /// `[experts, out]`.
    pub bias: Option<WeightInfo>,
}

/// A network whose result is multiplied by the sigmoid of a projection to one number.
#[derive(Clone, Debug)]
pub struct SharedExpert {
    /// `[1, hidden size]`.
    pub router: Linear,
    /// The projections.
    pub network: Dense,
}

/// Experts of a token, many times as many as any model has: the choice is made for a few of many.
const MOST_USED: usize = 256;

/// The hyper-parameters of experts.
pub(crate) struct ExpertShape {
    pub count: usize,
    pub used: usize,
    pub feed_forward: usize,
    pub routing: Routing,
    pub scale: Option<f32>,
    /// Feed-forward size of the shared expert.
    pub shared: Option<usize>,
}

impl ExpertShape {
    /// Reads the keys that all architectures with experts have, but for the experts' feed-forward size.
    pub fn read(keys: &Keys<'_>, routing: Routing, feed_forward: usize) -> Result<ExpertShape, Error> {
        let (count, used) = (keys.count("expert_count")?, keys.count("expert_used_count")?);
        if used > count.min(MOST_USED) {
            let expected = match count {
                0..=MOST_USED => format!("at most the {count} experts"),
                _ => format!("at most {MOST_USED}"),
            };
            return Err(keys.value("expert_used_count", used.to_string(), expected));
        }
        // Zero stands for "not scaled" in files.
        let scale = keys.optional_number("expert_weights_scale")?.filter(|&s| s != 0.0 && s != 1.0);
        Ok(ExpertShape { count, used, feed_forward, routing, scale, shared: None })
    }

    /// The experts of a layer.
    pub(super) fn tensors(
        &self,
        tensors: &mut Tensors<'_>,
        il: usize,
        hidden: usize,
    ) -> Result<Experts, Error> {
        let name = |part: &str| format!("blk.{il}.{part}");
        let mut projection = |part: &str, rows, cols| -> Result<ExpertLinear, Error> {
            let weight = tensors.stack(&name(&format!("{part}.weight")), self.count, rows, cols)?;
            let bias = tensors.optional_vectors(&name(&format!("{part}.bias")), self.count, rows)?;
            Ok(ExpertLinear { weight, bias })
        };
        let gate = projection("ffn_gate_exps", self.feed_forward, hidden)?;
        let up = projection("ffn_up_exps", self.feed_forward, hidden)?;
        let down = projection("ffn_down_exps", hidden, self.feed_forward)?;
        let shared = self.shared.map(|feed_forward| -> Result<SharedExpert, Error> {
            let router = linear(tensors, &name("ffn_gate_inp_shexp"), 1, hidden)?;
            Ok(SharedExpert { router, network: dense(tensors, il, "_shexp", feed_forward, hidden)? })
        });
        Ok(Experts {
            shared: shared.transpose()?,
            router: linear(tensors, &name("ffn_gate_inp"), self.count, hidden)?,
            routing: self.routing,
            scale: self.scale,
            gate,
            up,
            down,
            count: self.count,
            used: self.used,
        })
    }
}

impl Experts {
    /// The experts' results for `x`, summed.
    pub(super) fn build(
        &self,
        b: &mut GraphBuilder,
        gating: Gating,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        // Few numbers that decide much, as logits are.
        let logits = self.router.build_logits(b, "ffn_gate_inp", x)?;
        let chosen = b.op("ffn_experts", Op::TopK(TopK { k: self.used }), &[logits])?;
        let softmax = Op::Softmax(Softmax { scale: 1.0 });
        let mut weights = match self.routing {
            Routing::SoftmaxOfChosen => {
                let logits = b.op("ffn_expert_logits", Op::GatherCols, &[logits, chosen])?;
                b.op("ffn_expert_weights", softmax, &[logits])?
            }
            Routing::Softmax => {
                let all = b.op("ffn_expert_probs", softmax, &[logits])?;
                b.op("ffn_expert_weights", Op::GatherCols, &[all, chosen])?
            }
        };
        if let Some(scale) = self.scale {
            weights = b.op("ffn_expert_weights_scaled", Op::Scale(scale), &[weights])?;
        }
        let gate = self.product(b, "ffn_gate_exps", &self.gate, x, chosen)?;
        let up = self.product(b, "ffn_up_exps", &self.up, x, chosen)?;
        let gated = gating.build(b, "_exps", gate, up)?;
        let down = self.product(b, "ffn_down_exps", &self.down, gated, chosen)?;
        let sum = b.op("ffn_experts_sum", Op::CombineExperts, &[down, weights])?;
        let Some(shared) = &self.shared else { return Ok(sum) };

        let weight = shared.router.build(b, "ffn_gate_inp_shexp", x)?;
        let sigmoid = Op::Activation(Activation::Sigmoid);
        let weight = b.op("ffn_gate_inp_shexp_sigmoid", sigmoid, &[weight])?;
        let fed = shared.network.build(b, gating, "_shexp", x)?;
        // One more expert, chosen by all.
        let fed = b.op("ffn_shexp_weighted", Op::CombineExperts, &[fed, weight])?;
        b.op("ffn_all_experts_sum", Op::Add, &[sum, fed])
    }

    fn product(
        &self,
        b: &mut GraphBuilder,
        label: &str,
        linear: &ExpertLinear,
        x: NodeId,
        chosen: NodeId,
    ) -> Result<NodeId, GraphError> {
        let weight = b.weight(&linear.weight);
        let bias = linear.bias.as_ref().map(|bias| b.weight(bias));
        let op = ExpertMatMul { weight, bias, experts: self.count, used: self.used };
        b.op(label, Op::ExpertMatMul(op), &[x, chosen])
    }
}
