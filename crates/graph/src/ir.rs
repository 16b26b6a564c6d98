//! The graph itself: nodes in topological order, the table of weights, and the layers' states.

use crate::{DType, GraphError, GraphParams, InputKind, Op, StateSpec};
use quant::Format;
use std::collections::HashMap;
use std::fmt;

/// Index of a node: nodes are in topological order, so an input's id is below its consumer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Index into a graph's table of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Rows and columns of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows: tokens, usually.
    pub rows: usize,
    /// Columns: features.
    pub cols: usize,
}

impl Shape {
    /// A shape of `rows` by `cols`.
    pub const fn new(rows: usize, cols: usize) -> Shape {
        Shape { rows, cols }
    }

    /// Elements, saturating.
    pub const fn elements(self) -> usize {
        self.rows.saturating_mul(self.cols)
    }

    /// Bytes in this element type; `None` where a row is no whole number of blocks or the size overflows.
    pub const fn bytes(self, dtype: DType) -> Option<usize> {
        match dtype.row_bytes(self.cols) {
            Some(row) => self.rows.checked_mul(row),
            None => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// A weight as the graph knows it: its bytes are registered with the backends under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// The tensor's name in the file, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// How its elements are stored.
    pub format: Format,
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl WeightInfo {
    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.rows.saturating_mul(self.cols)
    }
}

/// One operation of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The nodes whose results it takes, in order.
    pub inputs: Vec<NodeId>,
    /// Shape of the result.
    pub shape: Shape,
    /// Element type of the result.
    pub dtype: DType,
    /// The layer that the node belongs to; `None` for embedding, head and inputs.
    pub layer: Option<usize>,
    /// A name for traces and errors, such as `blk.3.attn_q`.
    pub label: String,
}

/// One forward pass, as pure data.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    params: GraphParams,
    nodes: Vec<Node>,
    weights: Vec<WeightInfo>,
    states: Vec<StateSpec>,
    outputs: Vec<NodeId>,
}

impl Graph {
    /// The parameters that the graph was built for.
    pub fn params(&self) -> &GraphParams {
        &self.params
    }

    /// All nodes, in topological order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// All weights that the graph reads.
    pub fn weights(&self) -> &[WeightInfo] {
        &self.weights
    }

    /// A weight.
    pub fn weight(&self, id: WeightId) -> &WeightInfo {
        &self.weights[id.0]
    }

    /// The states of the layers, by layer.
    pub fn states(&self) -> &[StateSpec] {
        &self.states
    }

    /// The state of a layer.
    pub fn state(&self, layer: usize) -> Option<&StateSpec> {
        self.states.get(layer)
    }

    /// The results that the host reads: the logits, `[outputs, vocabulary]`.
    pub fn outputs(&self) -> &[NodeId] {
        &self.outputs
    }

    /// The same graph with its nodes replaced, for passes. Ids in `outputs` are of the new nodes.
    pub(crate) fn with_nodes(&self, nodes: Vec<Node>, outputs: Vec<NodeId>) -> Graph {
        Graph {
            params: self.params.clone(),
            nodes,
            weights: self.weights.clone(),
            states: self.states.clone(),
            outputs,
        }
    }
}

/// Builds a [`Graph`] node by node. Shapes and types are inferred and checked as nodes are added.
pub struct GraphBuilder {
    graph: Graph,
    layer: Option<usize>,
    weight_ids: HashMap<String, WeightId>,
    input_ids: HashMap<InputKind, NodeId>,
}

impl GraphBuilder {
    /// Starts a graph; `states` holds the state of each layer, by layer.
    pub fn new(params: &GraphParams, states: Vec<StateSpec>) -> GraphBuilder {
        let graph = Graph {
            params: params.clone(),
            nodes: Vec::new(),
            weights: Vec::new(),
            states,
            outputs: Vec::new(),
        };
        GraphBuilder { graph, layer: None, weight_ids: HashMap::new(), input_ids: HashMap::new() }
    }

    /// The parameters of the graph being built.
    pub fn params(&self) -> &GraphParams {
        &self.graph.params
    }

    /// Nodes added from now on belong to this layer, or to none.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    /// The id of a weight, entered into the table on first use.
    pub fn weight(&mut self, info: &WeightInfo) -> WeightId {
        if let Some(&id) = self.weight_ids.get(&info.name) {
            return id;
        }
        let id = WeightId(self.graph.weights.len());
        self.graph.weights.push(info.clone());
        self.weight_ids.insert(info.name.clone(), id);
        id
    }

    /// The node of an input, added on first use.
    pub fn input(&mut self, kind: InputKind) -> NodeId {
        if let Some(&id) = self.input_ids.get(&kind) {
            return id;
        }
        let node = Node {
            op: Op::Input(kind),
            inputs: Vec::new(),
            shape: kind.shape(&self.graph.params),
            dtype: DType::I32,
            layer: None,
            label: kind.name(),
        };
        let id = self.push(node);
        self.input_ids.insert(kind, id);
        id
    }

    /// Adds an operation. `label` is its name within the layer, such as `attn_q`.
    pub fn op(&mut self, label: &str, op: Op, inputs: &[NodeId]) -> Result<NodeId, GraphError> {
        let label = self.label(label);
        let mut types = Vec::with_capacity(inputs.len());
        for &input in inputs {
            let node = self.graph.nodes.get(input.0).ok_or_else(|| GraphError::Build {
                node: label.clone(),
                message: format!("input {}: expected one of {} nodes", input.0, self.graph.nodes.len()),
            })?;
            types.push((node.shape, node.dtype));
        }
        if let Some(weight) = op.weights().into_iter().find(|weight| weight.0 >= self.graph.weights.len()) {
            let message = format!("weight {}: expected one of {}", weight.0, self.graph.weights.len());
            return Err(GraphError::Build { node: label, message });
        }
        let (shape, dtype) = op
            .infer(&self.graph, &types)
            .map_err(|message| GraphError::Build { node: label.clone(), message })?;
        Ok(self.push(Node { op, inputs: inputs.to_vec(), shape, dtype, layer: self.layer, label }))
    }

    /// Adds a reshape: the same elements as another matrix.
    pub fn reshape(&mut self, label: &str, input: NodeId, shape: Shape) -> Result<NodeId, GraphError> {
        let label = self.label(label);
        let error = |message: String| GraphError::Build { node: label.clone(), message };
        let from = self.graph.nodes.get(input.0).ok_or_else(|| {
            error(format!("input {}: expected one of {} nodes", input.0, self.graph.nodes.len()))
        })?;
        if from.shape.elements() != shape.elements() {
            let (elements, from) = (from.shape.elements(), from.shape);
            return Err(error(format!("expected the {elements} elements of {from}, found {shape}")));
        }
        let (op, inputs, dtype) = (Op::Reshape, vec![input], from.dtype);
        Ok(self.push(Node { op, inputs, shape, dtype, layer: self.layer, label }))
    }

    /// The shape of a node's result.
    ///
    /// # Panics
    /// If the node is of another graph.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    /// Ends the graph; `outputs` are what the host reads.
    pub fn finish(mut self, outputs: &[NodeId]) -> Graph {
        self.graph.outputs = outputs.to_vec();
        self.graph
    }

    /// A node's label: its name, after that of its layer.
    fn label(&self, name: &str) -> String {
        match self.layer {
            Some(layer) => format!("blk.{layer}.{name}"),
            None => name.to_string(),
        }
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.graph.nodes.push(node);
        NodeId(self.graph.nodes.len() - 1)
    }
}
