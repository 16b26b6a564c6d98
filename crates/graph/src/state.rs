//! Per-layer state that outlives a forward pass: KV pages today, a recurrent state tomorrow.

use crate::DType;

/// Index of a [`CacheGroup`] among a model's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u8);

/// Layers that keep the same positions share a group, and with it one page table: all full-attention layers
/// form one, all layers with a sliding window of the same width another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheGroup {
    /// Keys visible to a query, itself included; `None` when all are. Pages that fell out of the window of every
    /// query to come can be given to new positions.
    pub window: Option<usize>,
}

/// What a layer keeps from one forward to the next. The scheduler asks the layer's backend for one region each,
/// which lives until the scheduler is dropped or the state's shape changes, over all rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateSpec {
    /// Two matrices, keys and values, of `rows` cache rows each. A row holds one token of one sequence; page
    /// tables say which.
    Kv {
        /// The group whose page table addresses the rows.
        group: GroupId,
        /// Cache rows: pages times rows per page.
        rows: usize,
        /// Columns of a key row: KV heads times head dim.
        key_cols: usize,
        /// Columns of a value row.
        value_cols: usize,
        /// Element type of the keys.
        key: DType,
        /// Element type of the values.
        value: DType,
    },
    /// A fixed-size state per sequence (convolution tails, linear-attention states), `slots` sequences at most.
    Recurrent {
        /// Sequences that can be resident.
        slots: usize,
        /// f32 elements per sequence.
        elements: usize,
    },
}

/// One matrix of a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatePart {
    /// The keys of a [`StateSpec::Kv`].
    Key,
    /// The values of a [`StateSpec::Kv`].
    Value,
    /// The rows of a [`StateSpec::Recurrent`].
    Recurrent,
}

impl StateSpec {
    /// Rows, columns and element type of one part; `None` if this kind of state has no such part.
    pub fn part(&self, part: StatePart) -> Option<(usize, usize, DType)> {
        match (*self, part) {
            (StateSpec::Kv { rows, key_cols, key, .. }, StatePart::Key) => Some((rows, key_cols, key)),
            (StateSpec::Kv { rows, value_cols, value, .. }, StatePart::Value) => {
                Some((rows, value_cols, value))
            }
            (StateSpec::Recurrent { slots, elements }, StatePart::Recurrent) => {
                Some((slots, elements, DType::F32))
            }
            _ => None,
        }
    }
}
