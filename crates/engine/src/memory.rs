//! What a model needs of a device's memory, known from the file before anything is copied.

use graph::{CacheParams, DType};
use models::Model;
use std::fmt;

/// Bytes that a device with memory of its own needs for all of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Weights, in the file's blocks.
    pub(crate) weights: usize,
    /// Keys and values of every layer, for all pages.
    pub(crate) cache: usize,
}

impl Need {
    /// The need of a model with this cache.
    pub(crate) fn of(model: &Model, cache: &CacheParams) -> Need {
        let row = |dtype: DType, cols| dtype.row_bytes(cols).unwrap_or(usize::MAX);
        let weights = model.weights().iter().map(|weight| {
            weight.format.row_bytes(weight.cols).unwrap_or(usize::MAX).saturating_mul(weight.rows)
        });
        let layers = model.cache_cols().map(|(group, key_cols, value_cols)| {
            let pages = cache.pages.get(usize::from(group.0)).copied().unwrap_or(0);
            let columns = row(cache.key, key_cols).saturating_add(row(cache.value, value_cols));
            pages.saturating_mul(cache.page_len).saturating_mul(columns)
        });
        Need { weights: weights.fold(0, usize::saturating_add), cache: layers.fold(0, usize::saturating_add) }
    }

    /// Why it does not fit in this many bytes; `None` if it does.
    pub(crate) fn beyond(self, usable: usize) -> Option<String> {
        let all = self.weights.saturating_add(self.cache);
        (all > usable).then(|| format!("{self}; {} can be had", gib(usable)))
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.weights.saturating_add(self.cache);
        write!(
            f,
            "the model needs {} of its memory: {} of weights and {} of cache",
            gib(all),
            gib(self.weights),
            gib(self.cache)
        )
    }
}

fn gib(bytes: usize) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_in_numbers() {
        let need = Need { weights: 5 << 30, cache: 1 << 30 };
        assert_eq!(need.beyond(6 << 30), None);
        assert_eq!(
            need.beyond((6 << 30) - 1).unwrap(),
            "the model needs 6.0 GiB of its memory: 5.0 GiB of weights and 1.0 GiB of cache; 6.0 GiB can be had"
        );
        let huge = Need { weights: usize::MAX, cache: usize::MAX };
        assert!(huge.beyond(usize::MAX - 1).is_some());
    }
}
