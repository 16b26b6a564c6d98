//! A node that was recorded, with all that its kernels need to know.

use crate::weights::Weights;
use graph::{BackendError, DType, Graph, Node, NodeCall, NodeId, Op, Operand, StateId, WeightInfo};
use std::ops::Range;

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

/// What tells the calls of a run of steps, side by side in memory: a decode step has hundreds of them, and the GPU has nothing to
/// do while they are recorded.
#[derive(Debug)]
pub(crate) struct Calls {
    /// The label of the first.
    label: String,
    calls: Vec<Call>,
    /// The inputs of all.
    inputs: Vec<Operand>,
}

#[derive(Debug)]
struct Call {
    id: NodeId,
    output: Operand,
    state: Option<StateId>,
    inputs: Range<usize>,
}

impl Calls {
    /// Those of these steps.
    pub(crate) fn new(steps: &[Step]) -> Calls {
        let mut inputs = Vec::new();
        let calls = steps.iter().map(|step| {
            let first = inputs.len();
            inputs.extend_from_slice(&step.inputs);
            Call { id: step.id, output: step.output, state: step.state, inputs: first..inputs.len() }
        });
        let calls = calls.collect();
        Calls { label: steps.first().map_or_else(String::new, |step| step.node.label.clone()), calls, inputs }
    }

    /// Whether this is the call with this number as when it was recorded. Whoever asks forgets what was recorded with a graph when
    /// nodes of another are prepared, and the label of the first call is compared besides.
    pub(crate) fn is(&self, index: usize, call: &NodeCall<'_>) -> bool {
        self.calls.get(index).is_some_and(|known| {
            known.id == call.id
                && known.output == call.output
                && known.state == call.state
                && self.inputs[known.inputs.clone()] == *call.inputs
                && (index > 0 || self.label == call.node.label)
        })
    }
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
