//! The registered weights: their bytes stay where they are, in the mapped file.

use crate::exec::invariant;
use crate::pack::{Arena, Layout, Packed};
use crate::pack_cache::PackCache;
use crate::pool::Pool;
use crate::rows::decode_row;
use crate::simd::Kernels;
use bytes::Bytes;
use graph::{BackendError, Release, WeightData};
use quant::Format;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// A weight.
pub(crate) struct Weight {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Aligned as the format's blocks need.
    pub(crate) bytes: Bytes,
    /// Gives up the memory of `bytes`.
    release: Option<Release>,
    pub(crate) row_bytes: usize,
    /// The elements of a vector of floats (a norm or a bias), decoded.
    vector: Option<Vec<f32>>,
    /// The same numbers in the order of the kernels, once [`Weight::pack`] was called.
    packed: OnceLock<Arc<Packed>>,
}

impl Weight {
    /// The bytes of a row.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }

    /// The packed form, if there is one.
    pub(crate) fn packed(&self) -> Option<&Packed> {
        self.packed.get().map(Arc::as_ref)
    }

    /// Makes the packed form, unless there is one or the format has none, and gives up the memory of the bytes that
    /// it was made from. A cache gives it ready where it can.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn pack(
        &self,
        kernels: &Kernels,
        name: &str,
        pool: &mut Pool,
        arena: &mut Arena,
        cache: Option<&PackCache>,
    ) -> Result<(), BackendError> {
        let shape = [self.rows, self.cols];
        if let (None, Some(layout)) = (self.packed.get(), Layout::of(self.format)) {
            let found = cache.and_then(|cache| cache.take(pool, name, self.format, shape));
            let packed = match found {
                Some(packed) => packed,
                None => {
                    let packed =
                        Arc::new(Packed::new(kernels, pool, arena, self.format, layout, shape, &self.bytes)?);
                    if let Some(cache) = cache {
                        cache.add(name, self.format, shape, &packed);
                    }
                    packed
                }
            };
            // Nobody else packs: operations run one at a time.
            let _ = self.packed.set(packed);
            if let Some(release) = &self.release {
                release.release();
            }
        }
        Ok(())
    }

    /// The elements of a vector.
    pub(crate) fn vector(&self) -> Result<&[f32], BackendError> {
        self.vector.as_deref().ok_or_else(|| {
            invariant("weight", "a vector of floats", format!("{} x {}", self.rows, self.cols))
        })
    }
}

/// All weights, by their names in the file.
#[derive(Default)]
pub(crate) struct Weights {
    weights: HashMap<String, Weight>,
    arena: Arena,
}

impl Weights {
    pub(crate) fn get(&self, name: &str) -> Result<&Weight, BackendError> {
        self.weights.get(name).ok_or_else(|| BackendError::MissingWeight { name: name.into() })
    }

    /// Makes the packed form of a weight: see [`Weight::pack`].
    ///
    /// # Errors
    /// [`BackendError::MissingWeight`], [`BackendError::OutOfMemory`].
    pub(crate) fn pack(
        &mut self,
        kernels: &Kernels,
        name: &str,
        pool: &mut Pool,
        cache: Option<&PackCache>,
    ) -> Result<(), BackendError> {
        let weight = self.weights.get(name);
        let weight = weight.ok_or_else(|| BackendError::MissingWeight { name: name.into() })?;
        weight.pack(kernels, name, pool, &mut self.arena, cache)
    }

    /// Bytes of all packed forms.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.weights.values().filter_map(Weight::packed).map(Packed::bytes).sum()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    pub(crate) fn register(
        &mut self,
        kernels: &Kernels,
        name: &str,
        data: WeightData,
    ) -> Result<(), BackendError> {
        let WeightData { format, rows, cols, bytes, release } = data;
        let what = || format!("weight '{name}'");
        let row_bytes = format.row_bytes(cols).ok_or_else(|| {
            invariant(what(), format!("rows of whole blocks of {}", format.block_len()), cols)
        })?;
        let expected = rows.checked_mul(row_bytes);
        if expected != Some(bytes.len()) {
            return Err(BackendError::Length {
                what: what(),
                expected: expected.unwrap_or(usize::MAX),
                found: bytes.len(),
            });
        }
        // A copy is no page of the file.
        let release = release.filter(|_| is_aligned(&bytes));
        let bytes = aligned(bytes);
        let is_vector = rows == 1 || cols == 1;
        let vector = if is_vector && matches!(format, Format::F32 | Format::F16 | Format::BF16) {
            let mut vector = vec![0.0; rows * cols];
            decode_row(kernels, format, &bytes, &mut vector)?;
            Some(vector)
        } else {
            None
        };
        self.weights.insert(
            name.to_string(),
            Weight { format, rows, cols, bytes, release, row_bytes, vector, packed: OnceLock::new() },
        );
        Ok(())
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(4)
}

/// The bytes at an address that is a multiple of 4, which every block's alignment divides. In a file they are (data
/// is aligned to 32 bytes); bytes from elsewhere are copied if need be.
fn aligned(bytes: Bytes) -> Bytes {
    if is_aligned(&bytes) {
        return bytes;
    }
    // An over-long copy always contains an aligned start.
    let mut copy = vec![0; bytes.len() + 4];
    let offset = copy.as_ptr().addr().next_multiple_of(4) - copy.as_ptr().addr();
    copy[offset..offset + bytes.len()].copy_from_slice(&bytes);
    Bytes::from(copy).slice(offset..offset + bytes.len())
}
