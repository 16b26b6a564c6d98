//! Where every value lies: buffers shared by liveness.
//!
//! A slot is a buffer of one backend. Values whose lives do not overlap share a slot of their size class; a result
//! takes over the slot of an input that dies there, where the operation allows it. Inputs, outputs and copies from
//! other backends have slots of their own that are never shared: the host or another backend writes them while shared
//! slots may still be in use.

use super::split::{Split, executes};
use super::{root_of, split};
use crate::{Graph, NodeId, Op};
use std::collections::HashMap;

/// A buffer to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub backend: usize,
    pub bytes: usize,
    /// Never shared.
    pub fresh: bool,
}

/// The places of all values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub slots: Vec<Slot>,
    /// The slot of each node's value on each backend that has it: of the roots only, views lie inside.
    pub places: HashMap<(NodeId, usize), usize>,
}

/// Sizes are rounded up to four steps per power of two, at least 256 bytes: values of nearly the same size can share
/// a slot, and less than a fifth is wasted.
pub(crate) fn size_class(bytes: usize) -> usize {
    let step = (bytes.max(1).next_power_of_two() / 8).max(64);
    bytes.max(256).next_multiple_of(step)
}

pub(crate) fn plan(graph: &Graph, assigned: &[usize], splits: &[Split]) -> Plan {
    let last_use = last_uses(graph);
    let mut plan = Plan::default();
    let mut free: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    let bytes = |id: NodeId| graph.node(id).shape.bytes(graph.node(id).dtype).unwrap_or(usize::MAX / 2);
    for split in splits {
        for &import in &split.imports {
            plan.add_fresh(import, split.backend, bytes(import));
        }
    }
    for id in (0..graph.nodes().len()).map(NodeId) {
        let node = graph.node(id);
        for &input in &node.inputs {
            let (root, _) = root_of(graph, input);
            if matches!(graph.node(root).op, Op::Input(_)) && executes(graph, id) {
                plan.add_fresh(root, assigned[id.0], bytes(root));
            }
        }
        if !split::executes(graph, id) {
            continue;
        }
        let backend = assigned[id.0];
        let class = size_class(bytes(id));
        if last_use[id.0] == usize::MAX {
            plan.add_fresh(id, backend, bytes(id));
        } else if let Some(slot) = plan.takes_over(graph, id, backend, &last_use) {
            plan.places.insert((id, backend), slot);
        } else if let Some(slot) = free.get_mut(&(backend, class)).and_then(Vec::pop) {
            plan.places.insert((id, backend), slot);
        } else {
            plan.places.insert((id, backend), plan.slots.len());
            plan.slots.push(Slot { backend, bytes: class, fresh: false });
        }
        // What dies here is free for what follows; a slot that was taken over lives on.
        let mut dying: Vec<NodeId> = node.inputs.iter().map(|&input| root_of(graph, input).0).collect();
        // A value that nobody reads dies at once.
        dying.push(id);
        dying.sort_unstable();
        dying.dedup();
        let own = plan.places[&(id, backend)];
        for root in dying.into_iter().filter(|root| last_use[root.0] <= id.0) {
            let Some(&slot) = plan.places.get(&(root, assigned[root.0])) else { continue };
            let kept = slot == own && root != id;
            if !plan.slots[slot].fresh && !kept {
                free.entry((plan.slots[slot].backend, plan.slots[slot].bytes)).or_default().push(slot);
            }
        }
    }
    plan
}

/// The last node that reads each root's value, itself or through views; the node itself if none does, and the end of
/// time for outputs.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last: Vec<usize> = (0..graph.nodes().len()).collect();
    for id in (0..graph.nodes().len()).map(NodeId) {
        for &input in &graph.node(id).inputs {
            let (root, _) = root_of(graph, input);
            last[root.0] = last[root.0].max(id.0);
        }
    }
    for &output in graph.outputs() {
        last[root_of(graph, output).0.0] = usize::MAX;
    }
    last
}

impl Plan {
    fn add_fresh(&mut self, id: NodeId, backend: usize, bytes: usize) {
        if let std::collections::hash_map::Entry::Vacant(place) = self.places.entry((id, backend)) {
            place.insert(self.slots.len());
            self.slots.push(Slot { backend, bytes: size_class(bytes), fresh: true });
        }
    }

    /// The slot of an input that the result may be written over: it dies here, is whole, of the same size, on the
    /// same backend, and shared by no other input in a way that the operation does not allow.
    fn takes_over(&self, graph: &Graph, id: NodeId, backend: usize, last_use: &[usize]) -> Option<usize> {
        let node = graph.node(id);
        node.inputs.iter().enumerate().find_map(|(index, &input)| {
            let (root, offset) = root_of(graph, input);
            let from = graph.node(root);
            let same_size = from.shape.bytes(from.dtype) == node.shape.bytes(node.dtype)
                && graph.node(input).shape == node.shape;
            let allowed = node.inputs.iter().enumerate().all(|(other, &also)| {
                root_of(graph, also).0 != root || (node.op.may_alias(other) && also == input)
            });
            let slot = *self.places.get(&(root, backend))?;
            (node.op.may_alias(index)
                && offset == 0
                && same_size
                && allowed
                && last_use[root.0] == id.0
                && !self.slots[slot].fresh)
                .then_some(slot)
        })
    }
}
