//! Where every value lies: buffers shared by liveness.
//!
//! A slot is a buffer of one backend. Values whose lives do not overlap share a slot of their size class; a result
//! takes over the slot of an input that dies there, where the operation allows it. Views and reshapes have no slot:
//! they are ranges of their base's, and reading them keeps the base alive. Inputs, outputs and copies from other
//! backends have slots of their own that are never shared: the host or another backend writes or reads them while
//! shared slots may still be in use. A value without elements has a slot of the smallest class.

use super::root_of;
use super::split::{Split, executes, split};
use crate::{Graph, GraphError, NodeId, Op};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

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

/// The smallest class, in bytes.
const SMALLEST: usize = 256;

/// Sizes are rounded up to four steps per power of two, at least 256 bytes: 256, 320, 384, 448, 512, 640, 768, 896,
/// 1024, ... Values of nearly the same size can share a slot, and less than a fifth of one is wasted.
pub(crate) fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(SMALLEST);
    let step = (bytes.next_power_of_two() / 8).max(SMALLEST / 4);
    bytes.next_multiple_of(step)
}

pub(crate) fn plan(graph: &Graph, assigned: &[usize], splits: &[Split]) -> Result<Plan, GraphError> {
    let bytes = sizes(graph)?;
    let last_use = last_uses(graph);
    let mut plan = Plan::default();
    let mut free: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
    for split in splits {
        for &import in &split.imports {
            plan.add_fresh(import, split.backend, bytes[import.0]);
        }
    }
    for id in (0..graph.nodes().len()).map(NodeId).filter(|&id| executes(graph, id)) {
        let node = graph.node(id);
        let backend = assigned[id.0];
        let mut dying: Vec<NodeId> = node.inputs.iter().map(|&input| root_of(graph, input).0).collect();
        for &root in dying.iter().filter(|root| matches!(graph.node(**root).op, Op::Input(_))) {
            plan.add_fresh(root, backend, bytes[root.0]);
        }

        let class = size_class(bytes[id.0]);
        let own = if last_use[id.0] == usize::MAX {
            plan.add_fresh(id, backend, bytes[id.0])
        } else {
            let taken = plan.takes_over(graph, &bytes, id, backend, &last_use);
            let recycled = taken.or_else(|| free.get_mut(&(backend, class)).and_then(Vec::pop));
            let slot = recycled.unwrap_or_else(|| {
                plan.slots.push(Slot { backend, bytes: class, fresh: false });
                plan.slots.len() - 1
            });
            plan.places.insert((id, backend), slot);
            slot
        };

        // What dies here is free for what follows; a slot that was taken over lives on. A value that nobody reads
        // dies at once.
        dying.push(id);
        dying.sort_unstable();
        dying.dedup();
        for root in dying.into_iter().filter(|root| last_use[root.0] <= id.0) {
            let Some(&slot) = plan.places.get(&(root, assigned[root.0])) else { continue };
            let kept = slot == own && root != id;
            if !plan.slots[slot].fresh && !kept {
                free.entry((plan.slots[slot].backend, plan.slots[slot].bytes)).or_default().push(slot);
            }
        }
    }
    Ok(plan)
}

/// Bytes of buffers that a graph takes where one backend runs all of it: what its activations need.
///
/// # Errors
/// [`GraphError::Build`] for a value that fits in no memory.
pub fn activation_bytes(graph: &Graph) -> Result<usize, GraphError> {
    let assigned = vec![0; graph.nodes().len()];
    let plan = plan(graph, &assigned, &split(graph, &assigned))?;
    Ok(plan.slots.iter().map(|slot| slot.bytes).fold(0, usize::saturating_add))
}

/// Bytes of every value. The limit is that of any allocation.
fn sizes(graph: &Graph) -> Result<Vec<usize>, GraphError> {
    let sizes = graph.nodes().iter().map(|node| {
        let bytes = node.shape.bytes(node.dtype).filter(|&bytes| bytes <= isize::MAX as usize);
        bytes.ok_or_else(|| GraphError::Build {
            node: node.label.clone(),
            message: format!(
                "expected whole rows that fit in memory, found {} of {}",
                node.shape, node.dtype
            ),
        })
    });
    sizes.collect()
}

/// The last node that reads each root's value, itself or through views; the node itself if none does, and the end of
/// time for outputs.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last: Vec<usize> = (0..graph.nodes().len()).collect();
    for id in (0..graph.nodes().len()).map(NodeId).filter(|&id| executes(graph, id)) {
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
    /// The value's own slot on a backend, added on first use.
    fn add_fresh(&mut self, id: NodeId, backend: usize, bytes: usize) -> usize {
        match self.places.entry((id, backend)) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                self.slots.push(Slot { backend, bytes: size_class(bytes), fresh: true });
                *place.insert(self.slots.len() - 1)
            }
        }
    }

    /// The slot of an input that the result may be written over: one that dies here, with a slot that may be shared on
    /// this backend, of the result's very shape and type, and not read as another input in a way that the operation
    /// does not allow.
    fn takes_over(
        &self,
        graph: &Graph,
        bytes: &[usize],
        id: NodeId,
        backend: usize,
        last_use: &[usize],
    ) -> Option<usize> {
        let node = graph.node(id);
        node.inputs.iter().find_map(|&input| {
            let (root, _) = root_of(graph, input);
            let slot = *self.places.get(&(root, backend))?;
            let dies = last_use[root.0] == id.0 && !self.slots[slot].fresh;
            // As large as its root, a view begins where its root does.
            let same = bytes[root.0] == bytes[id.0]
                && graph.node(input).shape == node.shape
                && graph.node(input).dtype == node.dtype;
            let allowed = node.inputs.iter().enumerate().all(|(index, &other)| {
                root_of(graph, other).0 != root || (other == input && node.op.may_alias(index))
            });
            (dies && same && allowed).then_some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_have_four_steps_per_power_of_two() {
        let classes: Vec<usize> =
            [0, 1, 256, 257, 321, 385, 449, 513, 641, 769, 897, 1025].into_iter().map(size_class).collect();
        assert_eq!(classes, [256, 256, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280]);
    }

    #[test]
    fn a_class_holds_its_size_and_wastes_less_than_a_fifth() {
        for bytes in (256..100_000).chain([1 << 40, (1 << 40) + 1, isize::MAX as usize]) {
            let class = size_class(bytes);
            assert!(class >= bytes && (class - bytes) * 5 < class, "{bytes} in {class}");
            assert_eq!(size_class(class), class, "a class is its own");
        }
    }
}
