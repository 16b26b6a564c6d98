//! Nodes that are held for a later one, whose dispatch computes them: what happens where the later one does not come, or does
//! not fit.

mod common;

use common::{info, params, start};
use graph::ops::{GetRows, RmsNorm};
use graph::{
    Backend, BackendError, BufferId, DType, Graph, GraphBuilder, InputKind, NodeCall, NodeId, Op, Operand,
    Shape,
};
use metal::MetalBackend;
use metal_sim::device::SimDevice;
use quant::Format;

const COLS: usize = 8;

/// A sum and the norm of it, one dispatch; and a node beside them.
struct Chain {
    backend: MetalBackend<SimDevice>,
    graph: Graph,
    scaled: NodeId,
    sum: NodeId,
    norm: NodeId,
    /// Two inputs, the sum, the norm, and the result of the node beside them.
    buffers: [BufferId; 5],
}

impl Chain {
    fn new() -> Chain {
        let mut b = GraphBuilder::new(&params(2), vec![]);
        let table = Some(b.weight(&info("table", Format::F32, 2, COLS)));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table }), &[tokens]).unwrap();
        let scaled = b.op("scaled", Op::Scale(3.0), &[x]).unwrap();
        let sum = b.op("sum", Op::Add, &[x, scaled]).unwrap();
        let norm = b.op("norm", Op::RmsNorm(RmsNorm { weight: None, epsilon: 0.0 }), &[sum]).unwrap();
        let graph = b.finish(&[sum, norm, scaled]);
        let mut backend = start();
        for node in [scaled, sum, norm] {
            backend.prepare_node(&graph, node).unwrap();
        }
        // A row more than there is, so that a result can begin behind the first one.
        let buffers = [(); 5].map(|()| backend.alloc_buffer(3 * COLS * 4).unwrap());
        for buffer in &buffers[..2] {
            backend.write_host(*buffer, 0, &2f32.to_le_bytes().repeat(2 * COLS)).unwrap();
        }
        Chain { backend, graph, scaled, sum, norm, buffers }
    }

    /// Executes one of the nodes with operands of these shapes.
    fn execute(&mut self, id: NodeId, inputs: &[Shape], output: Shape) -> Result<(), BackendError> {
        self.execute_to(id, inputs, output, None)
    }

    /// The same with a result in some other buffer, from some byte on.
    fn execute_to(
        &mut self,
        id: NodeId,
        inputs: &[Shape],
        output: Shape,
        place: Option<(BufferId, usize)>,
    ) -> Result<(), BackendError> {
        let node = self.graph.node(id);
        let [a, b, sum, norm, scaled] = self.buffers;
        let (from, to) = match id {
            id if id == self.sum => (vec![a, b], sum),
            id if id == self.norm => (vec![sum], norm),
            _ => (vec![a], scaled),
        };
        let operand =
            |buffer, shape, producer| Operand { buffer, offset: 0, dtype: DType::F32, shape, producer };
        let (buffer, offset) = place.unwrap_or((to, 0));
        let inputs: Vec<Operand> = from
            .into_iter()
            .zip(inputs)
            .zip(&node.inputs)
            .map(|((buffer, shape), &producer)| operand(buffer, *shape, producer))
            .collect();
        self.backend.execute_node(&NodeCall {
            id,
            node,
            graph: &self.graph,
            inputs: &inputs,
            output: Operand { offset, ..operand(buffer, output, id) },
            state: None,
            epoch: 1,
        })
    }

    /// What a broken invariant is of.
    #[track_caller]
    fn what(result: Result<(), BackendError>) -> String {
        match result {
            Err(BackendError::Invariant { what, .. }) => what,
            other => panic!("expected a broken invariant, found {other:?}"),
        }
    }
}

const WHOLE: Shape = Shape::new(2, COLS);

#[test]
fn a_sum_waits_for_its_norm() {
    let mut chain = Chain::new();
    let before = chain.backend.counts();
    chain.execute(chain.sum, &[WHOLE; 2], WHOLE).unwrap();
    assert_eq!(chain.backend.counts(), before);
    chain.execute(chain.norm, &[WHOLE], WHOLE).unwrap();
    assert_eq!(chain.backend.counts().dispatches, before.dispatches + 1);
    chain.backend.synchronize().unwrap();
    for (buffer, expected) in [(chain.buffers[2], 4.0f32), (chain.buffers[3], 1.0)] {
        let mut bytes = [0; 2 * COLS * 4];
        chain.backend.read_host(buffer, 0, &mut bytes).unwrap();
        assert_eq!(bytes.to_vec(), expected.to_le_bytes().repeat(2 * COLS));
    }
}

#[test]
fn a_chain_that_does_not_end_is_an_error_and_leaves_nothing_behind() {
    let mut chain = Chain::new();
    chain.execute(chain.sum, &[WHOLE; 2], WHOLE).unwrap();
    assert_eq!(Chain::what(chain.backend.synchronize()), "end of a split");
    chain.backend.synchronize().unwrap();

    chain.execute(chain.sum, &[WHOLE; 2], WHOLE).unwrap();
    assert_eq!(Chain::what(chain.execute(chain.scaled, &[WHOLE], WHOLE)), "order of nodes");
    chain.execute(chain.scaled, &[WHOLE], WHOLE).unwrap();
    chain.backend.synchronize().unwrap();
}

/// A norm may lie where an input of the sum lay: each row is read before it is written. A row further on, it would be written over
/// the input of the next.
#[test]
fn a_norm_across_the_rows_of_an_input_is_a_dispatch_of_its_own() {
    for (offset, dispatches) in [(0, 1), (COLS * 4, 2)] {
        let mut chain = Chain::new();
        let (before, input) = (chain.backend.counts().dispatches, chain.buffers[0]);
        chain.execute(chain.sum, &[WHOLE; 2], WHOLE).unwrap();
        chain.execute_to(chain.norm, &[WHOLE], WHOLE, Some((input, offset))).unwrap();
        assert_eq!(chain.backend.counts().dispatches, before + dispatches);
        chain.backend.synchronize().unwrap();
        let mut bytes = [0; 2 * COLS * 4];
        chain.backend.read_host(input, offset, &mut bytes).unwrap();
        assert_eq!(bytes.to_vec(), 1f32.to_le_bytes().repeat(2 * COLS));
    }
}

#[test]
fn held_operands_fit_the_last_node() {
    let narrow = Shape::new(2, COLS - 1);
    for (inputs, sum, what) in
        [([WHOLE, narrow], WHOLE, "shape of the residual"), ([WHOLE, WHOLE], narrow, "shape of the sum")]
    {
        let mut chain = Chain::new();
        chain.execute(chain.sum, &inputs, sum).unwrap();
        assert_eq!(Chain::what(chain.execute(chain.norm, &[sum], WHOLE)), what);
    }
}
