//! What a model needs of a device's memory, known from the file before anything is copied.

use graph::{Graph, GraphError, NodeId, StatePart, StateSpec, activation_bytes};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Bytes that a device with memory of its own needs for a model, part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Weights that are read before the first layer, in the file's blocks: the embedding.
    embedding: usize,
    /// Weights and cache of each layer.
    layers: Vec<[usize; 2]>,
    /// Weights that are read behind the last layer: the output head, which is a copy of its own where it is tied.
    head: usize,
    /// Buffers of the largest forward.
    activations: usize,
}

/// Bytes of one device's share of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights, in the file's blocks.
    pub weights: usize,
    /// Keys and values of every layer, for all pages.
    pub cache: usize,
    /// Buffers of the largest forward.
    pub activations: usize,
}

impl MemoryNeed {
    /// All of it.
    pub fn total(self) -> usize {
        self.weights.saturating_add(self.cache).saturating_add(self.activations)
    }
}

impl Need {
    /// The need of a model whose largest graph this is.
    ///
    /// # Errors
    /// [`GraphError::Build`] for a graph that fits in no memory.
    pub(crate) fn of(graph: &Graph) -> Result<Need, GraphError> {
        let total = graph.states().len();
        // A weight that several nodes of a place read is there once.
        let mut places = vec![BTreeSet::new(); total + 2];
        let mut place = 0;
        for id in (0..graph.nodes().len()).map(NodeId) {
            let node = graph.node(id);
            place = match node.layer {
                Some(layer) => layer.min(total) + 1,
                // Inputs are made on the way, and read nothing.
                None if place == 0 => 0,
                None => total + 1,
            };
            places[place.min(total + 1)].extend(node.op.weights());
        }
        let bytes = |place: &BTreeSet<_>| {
            let weights = place.iter().map(|&id| {
                let weight = graph.weight(id);
                weight.format.row_bytes(weight.cols).unwrap_or(usize::MAX).saturating_mul(weight.rows)
            });
            weights.fold(0, usize::saturating_add)
        };
        let layers = graph.states().iter().zip(&places[1..]);
        Ok(Need {
            embedding: bytes(&places[0]),
            layers: layers.map(|(state, place)| [bytes(place), state_bytes(state)]).collect(),
            head: bytes(&places[total + 1]),
            activations: activation_bytes(graph)?,
        })
    }

    /// Layers of the model.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The need of some of the layers; the first brings the embedding along, the last the head.
    pub(crate) fn of_layers(&self, layers: Range<usize>) -> MemoryNeed {
        if layers.is_empty() {
            return MemoryNeed::default();
        }
        let ends = [(layers.start == 0, self.embedding), (layers.end == self.layers.len(), self.head)];
        let ends = ends.into_iter().filter_map(|(has, bytes)| has.then_some(bytes));
        let [weights, cache] =
            [0, 1].map(|part| self.layers[layers.clone()].iter().map(move |layer| layer[part]));
        MemoryNeed {
            weights: weights.chain(ends).fold(0, usize::saturating_add),
            cache: cache.fold(0, usize::saturating_add),
            activations: self.activations,
        }
    }

    /// The need of the last layers and the head.
    pub(crate) fn of_last(&self, layers: usize) -> MemoryNeed {
        let total = self.layers.len();
        self.of_layers(total - layers.min(total)..total)
    }

    /// How many of the last layers fit in this many bytes.
    pub(crate) fn most_layers(&self, usable: usize) -> usize {
        (1..=self.layers.len()).rev().find(|&n| self.of_last(n).total() <= usable).unwrap_or(0)
    }

    /// How many of these layers each of several devices has, by their shares of all bytes. A share of 0 has no layers.
    pub(crate) fn split(&self, layers: Range<usize>, shares: &[f64]) -> Vec<usize> {
        let mut counts = vec![0; shares.len()];
        let cost = |layer: usize| {
            let end = [(layer == 0, self.embedding), (layer + 1 == self.layers.len(), self.head)];
            let end = end.iter().filter(|(has, _)| *has).map(|&(_, bytes)| bytes as f64).sum::<f64>();
            self.layers[layer].iter().map(|&bytes| bytes as f64).sum::<f64>() + end
        };
        let all: f64 = layers.clone().map(cost).sum();
        let shared: f64 = shares.iter().sum();
        let mut before = 0.0;
        for layer in layers {
            let middle = (before + cost(layer) / 2.0) / all * shared;
            before += cost(layer);
            let mut end = 0.0;
            let home = shares.iter().position(|share| {
                end += share;
                middle < end
            });
            // Rounding can leave the last layer beyond the last share.
            let last = shares.iter().rposition(|&share| share > 0.0).unwrap_or(0);
            counts[home.unwrap_or(last)] += 1;
        }
        counts
    }

    /// How many of these layers each device has if one after the other is filled; `None` if they have no room for all.
    pub(crate) fn fill(&self, layers: Range<usize>, usable: &[usize]) -> Option<Vec<usize>> {
        let mut start = layers.start;
        let counts = usable.iter().map(|&usable| {
            let fits = |end: &usize| self.of_layers(start..*end).total() <= usable;
            let end = (start + 1..=layers.end).rev().find(fits).unwrap_or(start);
            let count = end - start;
            start = end;
            count
        });
        let counts = counts.collect();
        (start == layers.end).then_some(counts)
    }
}

fn state_bytes(state: &StateSpec) -> usize {
    let parts = [StatePart::Key, StatePart::Value, StatePart::Recurrent];
    let bytes = parts.into_iter().filter_map(|part| state.part(part)).map(|(rows, cols, dtype)| {
        dtype.row_bytes(cols).and_then(|row| row.checked_mul(rows)).unwrap_or(usize::MAX)
    });
    bytes.fold(0, usize::saturating_add)
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} of weights, {} of cache and {} of activations",
            readable(self.total()),
            readable(self.weights),
            readable(self.cache),
            readable(self.activations)
        )
    }
}

/// Bytes for people to read.
pub fn readable(bytes: usize) -> String {
    let (gib, mib) = (f64::from(1 << 30), f64::from(1 << 20));
    match bytes as f64 {
        large if large >= gib => format!("{:.1} GiB", large / gib),
        small => format!("{:.0} MiB", small / mib),
    }
}

#[cfg(test)]
impl Need {
    /// Four layers of 10 bytes of weights and 2 of cache, an embedding of 4, a head of 6, and 1 of activations.
    pub(crate) fn for_tests() -> Need {
        Need { embedding: 4, layers: vec![[10, 2]; 4], head: 6, activations: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need() -> Need {
        Need::for_tests()
    }

    #[test]
    fn the_first_layer_brings_the_embedding_and_the_last_the_head() {
        let of = |weights, cache| MemoryNeed { weights, cache, activations: 1 };
        assert_eq!(need().of_layers(0..4), of(50, 8));
        assert_eq!(need().of_layers(0..1), of(14, 2));
        assert_eq!(need().of_layers(1..3), of(20, 4));
        assert_eq!(need().of_last(2), of(26, 4));
        assert_eq!(need().of_last(9).total(), 59);
        assert_eq!(need().of_last(0), MemoryNeed::default());
    }

    #[test]
    fn what_fits_is_counted_from_the_last_layer() {
        for (usable, expected) in [(59, 4), (58, 3), (43, 3), (42, 2), (19, 1), (18, 0), (0, 0)] {
            assert_eq!(need().most_layers(usable), expected, "{usable}");
        }
        let huge = Need { embedding: usize::MAX, layers: vec![[usize::MAX; 2]], head: 1, activations: 1 };
        assert_eq!(huge.most_layers(usize::MAX - 1), 0);
    }

    #[test]
    fn layers_are_split_by_shares_and_filled_by_room() {
        for (shares, expected) in [
            (&[1.0, 1.0][..], &[2, 2][..]),
            (&[3.0, 1.0], &[3, 1]),
            (&[1.0, 0.0], &[4, 0]),
            (&[0.0, 5.0], &[0, 4]),
            (&[1.0, 1.0, 1.0, 1.0], &[1, 1, 1, 1]),
            (&[1e-30, 1.0], &[0, 4]),
        ] {
            assert_eq!(need().split(0..4, shares), expected, "{shares:?}");
        }
        assert_eq!(need().split(3..4, &[1.0, 1.0]).iter().sum::<usize>(), 1);
        assert_eq!(need().fill(0..4, &[41, 31]), Some(vec![3, 1]));
        assert_eq!(need().fill(0..4, &[16, 100]), Some(vec![0, 4]));
        assert_eq!(need().fill(0..4, &[17, 42]), None);
        assert_eq!(need().fill(2..4, &[13, 19]), Some(vec![1, 1]));
    }

    #[test]
    fn bytes_are_told_in_numbers() {
        let need = MemoryNeed { weights: 5 << 30, cache: 1 << 30, activations: 1 << 29 };
        assert_eq!(
            need.to_string(),
            "6.5 GiB: 5.0 GiB of weights, 1.0 GiB of cache and 512 MiB of activations"
        );
    }
}
