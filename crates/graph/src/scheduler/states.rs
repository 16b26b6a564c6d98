//! The layers' states over rebuilds: kept, moved to another backend, carried over into another shape, or dropped.

use super::{Scheduler, failure};
use crate::{Backend, Graph, GraphError, StateId, StatePart, StateSpec};

/// Where a layer's state is.
pub(super) struct LayerState {
    pub backend: usize,
    pub id: StateId,
    pub spec: StateSpec,
}

const PARTS: [StatePart; 3] = [StatePart::Key, StatePart::Value, StatePart::Recurrent];

/// Bytes that are copied at a time, at least a row.
const CHUNK: usize = 1 << 20;

impl Scheduler {
    /// Makes every layer's state be on the backend of its operations, with the shape that the graph says. What it
    /// holds is kept: rows are moved between backends, and carried over while their width and type stay. A state
    /// that cannot be moved stays where it was, and the error says why.
    pub(super) fn place_states(&mut self, graph: &Graph, assigned: &[usize]) -> Result<(), GraphError> {
        let mut homes = vec![None; graph.states().len()];
        for (node, &backend) in graph.nodes().iter().zip(assigned) {
            if let Some(layer) = node.op.state_layer() {
                homes[layer] = Some(backend);
            }
        }
        self.states.resize_with(self.states.len().max(homes.len()), || None);
        self.dropped_states.clear();
        for (layer, (home, spec)) in homes.into_iter().zip(graph.states()).enumerate() {
            let Some(home) = home else { continue };
            let old = self.states[layer].as_ref();
            if old.is_some_and(|old| old.backend == home && old.spec == *spec) {
                continue;
            }
            let backend = &mut self.backends[home];
            let label = format!("state of layer {layer}");
            let id = backend.alloc_state(spec).map_err(|source| failure(backend.as_ref(), &label, source))?;
            let new = LayerState { backend: home, id, spec: *spec };
            if let Some(old) = old {
                match carry_over(&mut self.backends, old, &new, &label) {
                    Ok(true) => {}
                    Ok(false) => self.dropped_states.push(layer),
                    Err(error) => {
                        self.backends[home].free_state(id);
                        return Err(error);
                    }
                }
                self.backends[old.backend].free_state(old.id);
            }
            self.states[layer] = Some(new);
        }
        Ok(())
    }
}

impl Scheduler {
    /// Copies `rows` cache rows of a group from one place to another, in the states of all its layers: a sequence gets
    /// a page of its own in place of one that it shared. To be called between forwards.
    ///
    /// # Errors
    /// [`GraphError::Backend`], for instance for rows that a state does not have.
    pub fn copy_rows(&mut self, group: usize, from: usize, to: usize, rows: usize) -> Result<(), GraphError> {
        for (layer, state) in self.states.iter().enumerate() {
            let Some(state) = state else { continue };
            if !matches!(state.spec, StateSpec::Kv { group: of, .. } if usize::from(of.0) == group) {
                continue;
            }
            let backend = &mut self.backends[state.backend];
            let copied = backend.copy_state_rows(state.id, &state.spec, from, to, rows);
            copied.map_err(|source| failure(backend.as_ref(), &format!("state of layer {layer}"), source))?;
        }
        Ok(())
    }
}

/// Copies the rows that both states have. False, with nothing copied, if the parts, their columns or types differ.
fn carry_over(
    backends: &mut [Box<dyn Backend>],
    old: &LayerState,
    new: &LayerState,
    label: &str,
) -> Result<bool, GraphError> {
    let row_type = |spec: &StateSpec, part| spec.part(part).map(|(_, cols, dtype)| (cols, dtype));
    if PARTS.iter().any(|&part| row_type(&old.spec, part) != row_type(&new.spec, part)) {
        return Ok(false);
    }
    for part in PARTS {
        let (Some((old_rows, cols, dtype)), Some((new_rows, ..))) =
            (old.spec.part(part), new.spec.part(part))
        else {
            continue;
        };
        let Some(row) = dtype.row_bytes(cols).filter(|&row| row > 0) else { continue };
        let rows = old_rows.min(new_rows);
        let step = (CHUNK / row).max(1);
        let mut bytes = vec![0; step.min(rows) * row];
        for first in (0..rows).step_by(step) {
            let chunk = &mut bytes[..step.min(rows - first) * row];
            let from = &mut backends[old.backend];
            let read = from.read_state(old.id, part, first, chunk);
            read.map_err(|source| failure(from.as_ref(), label, source))?;
            // A new state is zero, so rows that were never used need not become memory.
            if chunk.iter().all(|&byte| byte == 0) {
                continue;
            }
            let to = &mut backends[new.backend];
            let written = to.write_state(new.id, part, first, chunk);
            written.map_err(|source| failure(to.as_ref(), label, source))?;
        }
    }
    Ok(true)
}
