//! The gate: an accelerator takes part only if every weight that it would read is registered on it.

use super::{Scheduler, failure};
use crate::passes::assign::may_run;
use crate::{Backend, Graph, GraphError, NodeId, Participation, WeightData};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

impl Scheduler {
    /// Tells every backend of the bytes of a file, before the weights in it are registered, and of the ranges of those
    /// that it will be given, by its name.
    ///
    /// # Errors
    /// [`GraphError::Backend`].
    pub fn register_part(
        &mut self,
        part: &Bytes,
        weights: impl Fn(&str) -> Vec<Range<usize>>,
    ) -> Result<(), GraphError> {
        for backend in &mut self.backends {
            let weights = weights(backend.name());
            let registered = backend.register_part(part, &weights);
            registered.map_err(|source| failure(backend.as_ref(), "part of a file", source))?;
        }
        Ok(())
    }

    /// The backends that had to copy weights which they were to read where the file is mapped, with the bytes.
    pub fn unmapped_bytes(&self) -> impl Iterator<Item = (&str, usize)> {
        let all = self.backends.iter().map(|backend| (backend.name(), backend.unmapped_bytes()));
        all.filter(|&(_, bytes)| bytes > 0)
    }

    /// Makes a weight available on every backend; its bytes are shared, not copied.
    ///
    /// Only the last backend must take it. An accelerator that cannot fails the gate; why is in
    /// [`refused_weights`](Scheduler::refused_weights).
    pub fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), GraphError> {
        self.register_weight_where(name, data, |_| true)
    }

    /// The same for the accelerators alone whose name the predicate is true of, and the last backend: those that
    /// [read](Scheduler::readers) the weight, where each has a part of the layers.
    pub fn register_weight_where(
        &mut self,
        name: &str,
        data: WeightData,
        takes: impl Fn(&str) -> bool,
    ) -> Result<(), GraphError> {
        let last = self.backends.len() - 1;
        for (index, backend) in self.backends.iter_mut().enumerate() {
            if index != last && !takes(backend.name()) {
                continue;
            }
            if let Err(source) = backend.register_weight(name, data.clone()) {
                let error = failure(backend.as_ref(), name, source);
                if index == last {
                    return Err(error);
                }
                self.refused_weights.push(error);
            }
        }
        Ok(())
    }

    /// The weights that each accelerator of the graph's participation may have to read, by its name: with partial offload
    /// those of the last layers and the head, with a split those of its share.
    pub fn readers(graph: &Graph) -> BTreeMap<String, BTreeSet<String>> {
        let mut weights = BTreeMap::new();
        for name in &graph.params().participation.accelerators {
            let nodes = (0..graph.nodes().len()).map(NodeId).filter(|&id| may_run(graph, id, name));
            let names = nodes.flat_map(|id| graph.node(id).op.weights());
            let names = names.map(|weight| graph.weight(weight).name.clone()).collect();
            weights.insert(name.clone(), names);
        }
        weights
    }

    /// The weights that accelerators could not take, as errors that name backend and weight.
    pub fn refused_weights(&self) -> &[GraphError] {
        &self.refused_weights
    }

    /// The gate for a model that runs as a whole: of the accelerators named, those on which every one of these
    /// weights is registered, in order of priority.
    pub fn eligible<'a>(
        &self,
        wanted: &[String],
        weights: impl Iterator<Item = &'a str> + Clone,
    ) -> Vec<String> {
        let all = |backend: &dyn Backend| weights.clone().all(|name| backend.has_weight(name));
        let accelerators = &self.backends[..self.backends.len() - 1];
        let eligible = accelerators.iter().filter(|b| wanted.iter().any(|name| name == b.name()));
        eligible.filter(|b| all(b.as_ref())).map(|b| b.name().to_string()).collect()
    }

    /// The gate for a graph built with the participation that is wanted: the same, less the accelerators that lack a
    /// weight of the nodes that would be theirs. Where layers are split, one that lacks a weight leaves all others out:
    /// nobody else has room for its share.
    pub fn participation(&self, graph: &Graph) -> Participation {
        let wanted = &graph.params().participation;
        if wanted.layers == Some(0) {
            return Participation::cpu_only();
        }
        let readers = Scheduler::readers(graph);
        let mut accelerators = wanted.accelerators.clone();
        accelerators.retain(|name| {
            let weights = readers.get(name).into_iter().flatten().map(String::as_str);
            !self.eligible(std::slice::from_ref(name), weights).is_empty()
        });
        let shared = !wanted.split.is_empty() || wanted.tensor_parallel.is_some();
        if shared && accelerators.len() < wanted.accelerators.len() {
            return Participation::cpu_only();
        }
        let layers = wanted.layers.filter(|_| !accelerators.is_empty());
        Participation { accelerators, layers, ..wanted.clone() }
    }
}
