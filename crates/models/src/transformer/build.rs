//! The graph of one forward pass.

use super::{Attention, Dense, FeedForward, Gating, Layer, Linear, Network, Norm, Transformer};
use graph::ops::{
    self, Activation, AllGather, FusedFfn, FusedQkv, GetRows, KvStore, MatMul, Permute, QkNorm, RmsNorm,
    Rope, View,
};
use graph::{Graph, GraphBuilder, GraphError, GraphParams, InputKind, NodeId, Op, Shape, StateSpec};

impl Transformer {
    pub(crate) fn graph(&self, params: &GraphParams) -> Result<Graph, GraphError> {
        let states =
            self.layers.iter().map(|layer| layer.attention.state(params)).collect::<Result<_, _>>()?;
        let mut b = GraphBuilder::new(params, states);
        let tokens = b.input(InputKind::Tokens);
        let table = Some(b.weight(&self.embedding));
        let mut x = b.op("token_embd", Op::GetRows(GetRows { table }), &[tokens])?;
        if let Some(scale) = self.embedding_scale {
            x = b.op("embedding_scaled", Op::Scale(scale), &[x])?;
        }
        if let Some(norm) = &self.embedding_norm {
            x = norm.build(&mut b, "embedding_norm", x)?;
        }
        for (il, layer) in self.layers.iter().enumerate() {
            b.set_layer(Some(il));
            let last = il + 1 == self.layers.len();
            match layer.build(&mut b, il, x, last)? {
                Some(next) => x = next,
                // Nothing is asked for: the last layer only fills its cache.
                None => return Ok(b.finish(&[])),
            }
        }
        b.set_layer(None);
        let x = self.output_norm.build(&mut b, "output_norm", x)?;
        if !b.params().head {
            return Ok(b.finish(&[x]));
        }
        let logits = self.output.build_logits(&mut b, "output", x)?;
        let mut logits = gather(&mut b, logits, self.embedding.rows)?;
        if let Some(scale) = self.logit_scale {
            logits = b.op("logits_scaled", Op::Scale(scale), &[logits])?;
        }
        if let Some(cap) = self.soft_cap {
            logits = b.op("logits_capped", Op::SoftCap(cap), &[logits])?;
        }
        Ok(b.finish(&[logits]))
    }
}

impl Layer {
    /// The layer's output; `None` in the last layer if no outputs are asked for. In the last layer, rows shrink to
    /// those asked for once attention has read them all.
    fn build(
        &self,
        b: &mut GraphBuilder,
        il: usize,
        x: NodeId,
        last: bool,
    ) -> Result<Option<NodeId>, GraphError> {
        let normed = self.attention.norm.build(b, "attn_norm", x)?;
        let attends = !(last && b.params().outputs == 0);
        let (Some(query), store) = self.attention.project(b, il, normed, attends)? else { return Ok(None) };
        let mut attended = self.attention.attend(b, il, normed, query, store)?;
        let mut x = x;
        let params = b.params();
        if last && (params.outputs, params.tokens) != (1, 1) {
            let rows = b.input(InputKind::OutRows);
            attended = b.op("attn_out_rows", Op::GetRows(GetRows { table: None }), &[attended, rows])?;
            x = b.op("residual_out_rows", Op::GetRows(GetRows { table: None }), &[x, rows])?;
        }
        let attended = self.attention.output.build(b, "attn_output", attended)?;
        let attended = sum(b, "attn_output_sum", attended)?;
        let attended = build_optional(&self.attention.post_norm, b, "post_attention_norm", attended)?;
        let x = b.op("attn_residual", Op::Add, &[x, attended])?;
        let fed = self.feed_forward.build(b, x)?;
        Ok(Some(b.op("ffn_residual", Op::Add, &[x, fed])?))
    }
}

impl Attention {
    /// The cache of the layer.
    fn state(&self, params: &GraphParams) -> Result<StateSpec, GraphError> {
        let group = usize::from(self.group.0);
        let pages = params.cache.pages.get(group).ok_or_else(|| GraphError::Build {
            node: "cache".into(),
            message: format!(
                "group {group}: expected pages for every cache group, found {}",
                params.cache.pages.len()
            ),
        })?;
        Ok(StateSpec::Kv {
            group: self.group,
            rows: pages.saturating_mul(params.cache.page_len),
            key_cols: self.kv_heads * self.head_dim,
            value_cols: self.kv_heads * self.value_dim,
            key: params.cache.key,
            value: params.cache.value,
        })
    }

    fn rope(&self) -> Option<Rope> {
        let (style, table) = self.rope.as_ref()?;
        Some(Rope { head_dim: self.head_dim, style: *style, table: table.clone() })
    }

    /// Projects to queries, keys and values and stores the latter two: the turned queries, and the store. Without
    /// `attends` nothing reads the queries, and there are none.
    fn project(
        &self,
        b: &mut GraphBuilder,
        il: usize,
        x: NodeId,
        attends: bool,
    ) -> Result<(Option<NodeId>, NodeId), GraphError> {
        let positions = b.input(InputKind::Positions);
        let rows = b.input(InputKind::CacheRows(self.group));
        let store = KvStore { layer: il, group: self.group };
        // On a GPU one launch for all three: keys and values alone would take more, and may round otherwise.
        if b.params().fuse_qkv
            && (attends || b.params().participation.gpu())
            && let Some(fused) = self.fused_qkv(b, store)
        {
            let query = b.op("fused_qkv", Op::FusedQkv(fused), &[x, positions, rows])?;
            return Ok((attends.then_some(query), query));
        }
        let [q, k, v] = &self.qkv;
        let mut query = attends.then(|| q.build(b, "attn_q", x)).transpose()?;
        let mut key = k.build(b, "attn_k", x)?;
        let value = v.build(b, "attn_v", x)?;
        if let Some([query_norm, key_norm]) = &self.head_norms {
            let normed = |query| query_norm.build_heads(b, "attn_q_norm", query, self.head_dim);
            query = query.map(normed).transpose()?;
            key = key_norm.build_heads(b, "attn_k_norm", key, self.head_dim)?;
        }
        if let Some(rope) = self.rope() {
            let turned = |query| b.op("rope_q", Op::Rope(rope.clone()), &[query, positions]);
            query = query.map(turned).transpose()?;
            key = b.op("rope_k", Op::Rope(rope), &[key, positions])?;
        }
        let store = b.op("kv_store", Op::KvStore(store), &[key, value, rows])?;
        Ok((query, store))
    }

    /// The fused projection, where the weights allow it: on a GPU one format; biases on all or on none, and norms with
    /// weights.
    fn fused_qkv(&self, b: &mut GraphBuilder, store: KvStore) -> Option<FusedQkv> {
        let [q, k, v] = &self.qkv;
        // One kernel of a GPU reads one format; the CPU takes each weight as it is.
        let formats_differ = q.weight.format != k.weight.format || q.weight.format != v.weight.format;
        if formats_differ && b.params().participation.gpu() {
            return None;
        }
        let biases = match (&q.bias, &k.bias, &v.bias) {
            (Some(q), Some(k), Some(v)) => Some([b.weight(q), b.weight(k), b.weight(v)]),
            (None, None, None) => None,
            _ => return None,
        };
        let norms = match &self.head_norms {
            None => None,
            Some([query, key]) => {
                let (query_weight, key_weight) = (query.weight.as_ref()?, key.weight.as_ref()?);
                Some(([b.weight(query_weight), b.weight(key_weight)], query.epsilon))
            }
        };
        let weights = [b.weight(&q.weight), b.weight(&k.weight), b.weight(&v.weight)];
        Some(FusedQkv { weights, biases, norms, rope: self.rope(), store })
    }

    /// Attention over the cache, and the gate.
    fn attend(
        &self,
        b: &mut GraphBuilder,
        il: usize,
        normed: NodeId,
        query: NodeId,
        store: NodeId,
    ) -> Result<NodeId, GraphError> {
        let inputs = [
            query,
            store,
            b.input(InputKind::Positions),
            b.input(InputKind::QueryRanges),
            b.input(InputKind::KvLens),
            b.input(InputKind::PageTable(self.group)),
        ];
        let op = ops::Attention {
            layer: il,
            group: self.group,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            scale: self.scale,
            window: self.window,
            soft_cap: None,
            sinks: self.sinks.as_ref().map(|sinks| b.weight(sinks)),
        };
        let attended = b.op("attention", Op::Attention(op), &inputs)?;
        let Some(gate) = &self.gate else { return Ok(attended) };
        let gate = gate.build(b, "attn_gate", normed)?;
        let gate = b.op("attn_gate_sigmoid", Op::Activation(Activation::Sigmoid), &[gate])?;
        b.op("attn_gated", Op::Mul, &[gate, attended])
    }
}

impl FeedForward {
    fn build(&self, b: &mut GraphBuilder, x: NodeId) -> Result<NodeId, GraphError> {
        let x = self.norm.build(b, "ffn_norm", x)?;
        let fed = match &self.network {
            Network::Dense(network) => network.build(b, self.gating, "", x)?,
            Network::Experts(experts) => experts.build(b, self.gating, x)?,
        };
        let fed = sum(b, "ffn_down_sum", fed)?;
        build_optional(&self.post_norm, b, "post_ffw_norm", fed)
    }
}

impl Dense {
    /// `suffix` is the end of the labels.
    pub(super) fn build(
        &self,
        b: &mut GraphBuilder,
        gating: Gating,
        suffix: &str,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        let label = |name: &str| format!("{name}{suffix}");
        let fusable = self.gate.weight.format == self.up.weight.format || !b.params().participation.gpu();
        let unbiased = self.gate.bias.is_none() && self.up.bias.is_none();
        let gated = match gating {
            Gating::Activation(activation) if b.params().fuse_ffn && fusable && unbiased => {
                let weights = [b.weight(&self.gate.weight), b.weight(&self.up.weight)];
                b.op(&label("fused_ffn"), Op::FusedFfn(FusedFfn { weights, activation }), &[x])?
            }
            _ => {
                let gate = self.gate.build(b, &label("ffn_gate"), x)?;
                let up = self.up.build(b, &label("ffn_up"), x)?;
                gating.build(b, suffix, gate, up)?
            }
        };
        self.down.build(b, &label("ffn_down"), gated)
    }
}

impl Gating {
    /// `suffix` is the end of the labels.
    pub(super) fn build(
        self,
        b: &mut GraphBuilder,
        suffix: &str,
        gate: NodeId,
        up: NodeId,
    ) -> Result<NodeId, GraphError> {
        let gated = format!("ffn_gated{suffix}");
        match self {
            Gating::Activation(activation) => {
                let label = format!("ffn_activation{suffix}");
                let gate = b.op(&label, Op::Activation(activation), &[gate])?;
                b.op(&gated, Op::Mul, &[gate, up])
            }
            Gating::Clamped(op) => b.op(&gated, Op::ClampedSwiGlu(op), &[gate, up]),
        }
    }
}

impl Linear {
    pub(super) fn build(&self, b: &mut GraphBuilder, label: &str, x: NodeId) -> Result<NodeId, GraphError> {
        let op = self.op(b);
        b.op(label, Op::MatMul(op), &[x])
    }

    pub(super) fn build_logits(
        &self,
        b: &mut GraphBuilder,
        label: &str,
        x: NodeId,
    ) -> Result<NodeId, GraphError> {
        let op = MatMul { logits: true, ..self.op(b) };
        b.op(label, Op::MatMul(op), &[x])
    }

    fn op(&self, b: &mut GraphBuilder) -> MatMul {
        let weight = b.weight(&self.weight);
        let bias = self.bias.as_ref().map(|bias| b.weight(bias));
        MatMul { weight, bias, logits: false }
    }
}

impl Norm {
    fn build(&self, b: &mut GraphBuilder, label: &str, x: NodeId) -> Result<NodeId, GraphError> {
        let weight = self.weight.as_ref().map(|weight| b.weight(weight));
        b.op(label, Op::RmsNorm(RmsNorm { weight, epsilon: self.epsilon }), &[x])
    }

    fn build_heads(
        &self,
        b: &mut GraphBuilder,
        label: &str,
        x: NodeId,
        head_dim: usize,
    ) -> Result<NodeId, GraphError> {
        let Some(weight) = &self.weight else {
            return Err(GraphError::Build {
                node: label.into(),
                message: "expected a weight, found none".into(),
            });
        };
        let weight = b.weight(weight);
        b.op(label, Op::QkNorm(QkNorm { weight, epsilon: self.epsilon, head_dim }), &[x])
    }
}

/// The sum over the devices that share the layer, if there are several.
fn sum(b: &mut GraphBuilder, label: &str, x: NodeId) -> Result<NodeId, GraphError> {
    match b.params().participation.tensor_parallel {
        None => Ok(x),
        Some(_) => b.op(label, Op::AllReduce, &[x]),
    }
}

/// The logits of the whole vocabulary, of which each of several devices has a part.
fn gather(b: &mut GraphBuilder, logits: NodeId, vocabulary: usize) -> Result<NodeId, GraphError> {
    let Some(devices) = b.params().participation.tensor_parallel else { return Ok(logits) };
    let Shape { rows, cols } = b.shape(logits);
    let wide = cols.saturating_mul(devices);
    let mut all = b.op("logits_gathered", Op::AllGather(AllGather { devices }), &[logits])?;
    if rows != 1 {
        // The devices' matrices lie one below the other: the rows of each side by side, as heads are exchanged with tokens.
        all = b.reshape("logits_by_device", all, Shape::new(devices, rows.saturating_mul(cols)))?;
        all = b.op("logits_by_row", Op::Permute(Permute { heads: rows }), &[all])?;
    }
    all = b.reshape("logits_side_by_side", all, Shape::new(rows, wide))?;
    if wide == vocabulary {
        return Ok(all);
    }
    // The last device's part was filled up.
    b.op("logits", Op::View(View { first_row: 0, rows, first_col: 0, cols: vocabulary }), &[all])
}

fn build_optional(
    norm: &Option<Norm>,
    b: &mut GraphBuilder,
    label: &str,
    x: NodeId,
) -> Result<NodeId, GraphError> {
    match norm {
        Some(norm) => norm.build(b, label, x),
        None => Ok(x),
    }
}
