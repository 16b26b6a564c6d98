//! A node that was recorded, with all that its kernels need to know.

use crate::weights::Weights;
use graph::{BackendError, DType, Graph, Node, NodeCall, NodeId, Op, Operand, StateId, WeightInfo};

/// A recorded node.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) id: NodeId,
    pub(crate) node: Node,
    pub(crate) inputs: Vec<Operand>,
    pub(crate) output: Operand,
    pub(crate) state: Option<StateId>,
    /// The weights that it reads, in the order of [`Op::weights`].
    pub(crate) weights: Vec<WeightInfo>,
    /// How often the graph reads its value, outputs included.
    pub(crate) uses: usize,
    /// Rows of the cache in a page.
    pub(crate) page_len: usize,
    /// Tokens of the batch.
    pub(crate) tokens: usize,
}

/// An error about something that the graph or its plan promised.
pub(crate) fn invariant(what: impl ToString, expected: impl ToString, found: impl ToString) -> BackendError {
    BackendError::Invariant {
        what: what.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// How often each value of a graph is read.
pub(crate) fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.nodes().len()];
    for node in graph.nodes() {
        for input in &node.inputs {
            uses[input.0] += 1;
        }
    }
    for output in graph.outputs() {
        uses[output.0] += 1;
    }
    uses
}

impl Step {
    /// A step for a call.
    ///
    /// # Errors
    /// What the call promised and does not keep: weights that are missing or of another shape, and memory that
    /// overlaps.
    pub(crate) fn new(call: &NodeCall<'_>, uses: usize, weights: &Weights) -> Result<Step, BackendError> {
        let infos: Vec<WeightInfo> =
            call.node.op.weights().into_iter().map(|id| call.graph.weight(id).clone()).collect();
        for info in &infos {
            weights.check(&info.name, info.format, info.rows, info.cols)?;
        }
        if let Op::SoftCap(cap) = call.node.op
            && (cap.is_nan() || cap <= 0.0)
        {
            return Err(invariant("soft cap", "a positive number", cap));
        }
        let page_len = call.graph.params().cache.page_len;
        if matches!(call.node.op, Op::Attention(_)) && page_len == 0 {
            return Err(invariant("page length", "at least 1", 0));
        }
        let step = Step {
            id: call.id,
            node: call.node.clone(),
            inputs: call.inputs.to_vec(),
            output: call.output,
            state: call.state,
            weights: infos,
            uses,
            page_len,
            tokens: call.graph.params().tokens,
        };
        step.check_overlap()?;
        step.check_sizes()?;
        Ok(step)
    }

    /// Whether this is the same call as when the step was recorded, of the same graph.
    pub(crate) fn is(&self, call: &NodeCall<'_>) -> bool {
        self.id == call.id
            && self.output == call.output
            && self.inputs == call.inputs
            && self.state == call.state
            && self.node.label == call.node.label
    }

    fn check_overlap(&self) -> Result<(), BackendError> {
        let output = self.output;
        for (i, input) in self.inputs.iter().enumerate() {
            let overlap = input.buffer == output.buffer
                && input.offset < output.offset + output.bytes()
                && output.offset < input.offset + input.bytes();
            let same = input.offset == output.offset && input.bytes() == output.bytes();
            if overlap && !(same && self.node.op.may_alias(i)) {
                return Err(invariant(
                    "output",
                    format!("no memory of input {i}, at byte {} of buffer {}", input.offset, input.buffer.0),
                    format!("byte {} of it", output.offset),
                ));
            }
        }
        Ok(())
    }

    /// Kernels count elements of a value, rows and columns in 32 bits.
    fn check_sizes(&self) -> Result<(), BackendError> {
        let most = (1 << 31) - 1;
        let weights = self.weights.iter().map(|w| (w.name.as_str(), w.rows.max(w.cols)));
        let values = self.inputs.iter().chain([&self.output]).map(|o| ("a value", o.shape.elements()));
        match weights.chain(values).find(|&(_, size)| size > most) {
            Some((what, size)) => Err(invariant(what, format!("at most {most} elements"), size)),
            None => Ok(()),
        }
    }

    /// An input.
    pub(crate) fn input(&self, index: usize) -> Result<Operand, BackendError> {
        self.inputs
            .get(index)
            .copied()
            .ok_or_else(|| invariant("inputs", format!("at least {}", index + 1), self.inputs.len()))
    }

    /// The weight with this number.
    pub(crate) fn weight(&self, index: usize) -> Result<&WeightInfo, BackendError> {
        self.weights
            .get(index)
            .ok_or_else(|| invariant("weights", format!("at least {}", index + 1), self.weights.len()))
    }
}

/// Checks an operand's type.
pub(crate) fn typed(what: &str, operand: Operand, expected: DType) -> Result<Operand, BackendError> {
    if operand.dtype == expected { Ok(operand) } else { Err(invariant(what, expected, operand.dtype)) }
}
