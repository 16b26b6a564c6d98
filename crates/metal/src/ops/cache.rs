//! Writing to the KV cache (`kernels/cache.metal`).

use super::checks::{int, require};
use super::inputs::{check_indices, check_operand};
use super::matmul::nothing;
use crate::device::{Device, Result, Size};
use crate::families::cache::{KvStoreArgs, LIBRARY, QkvArgs};
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::{LibraryLoader, Loader, PipelineId};
use crate::tensor::{Tensor, Weight};
use graph::ops::{Rope, RopeStyle};
use graph::{BackendError, DType, Operand, StatePart};
use quant::Format;

/// Heads of a threadgroup of the fused kernel, a SIMD-group each.
const QKV_HEADS: usize = 4;
/// Elements of eight threads, a block of the packed type.
const RUN: usize = 32;

/// A kernel for every type of cache that it is made for.
pub(super) struct ByCache(Vec<(DType, PipelineId)>);

impl ByCache {
    /// The types of the cache, and their names in kernels.
    const TYPES: [(DType, &str); 4] = [
        (DType::F32, "f32"),
        (DType::F16, "f16"),
        (DType::Packed(Format::Q8_0), "q8_0"),
        (DType::BF16, "bf16"),
    ];

    /// Loads `prefix`, the type's name, `suffix` for each type.
    pub(super) fn load<D: Device>(
        library: &mut LibraryLoader<'_, '_, D>,
        prefix: &str,
        suffix: &str,
    ) -> ByCache {
        ByCache::load_types(library, &ByCache::TYPES, prefix, suffix)
    }

    /// As [`ByCache::load`], without bf16: a cache that no one asks for where speed counts.
    pub(super) fn load_fast<D: Device>(
        library: &mut LibraryLoader<'_, '_, D>,
        prefix: &str,
        suffix: &str,
    ) -> ByCache {
        ByCache::load_types(library, &ByCache::TYPES[..3], prefix, suffix)
    }

    fn load_types<D: Device>(
        library: &mut LibraryLoader<'_, '_, D>,
        types: &[(DType, &str)],
        prefix: &str,
        suffix: &str,
    ) -> ByCache {
        let kernel =
            |&(dtype, name): &(DType, &str)| (dtype, library.kernel(&format!("{prefix}{name}{suffix}")));
        ByCache(types.iter().map(kernel).collect())
    }

    /// The kernel for a cache whose keys and values are of this type, if there is one.
    pub(super) fn find(&self, dtype: DType) -> Option<PipelineId> {
        self.0.iter().find(|(other, _)| *other == dtype).map(|(_, kernel)| *kernel)
    }

    /// The kernel for a cache of this type.
    pub(super) fn get(&self, dtype: DType) -> std::result::Result<PipelineId, BackendError> {
        self.find(dtype).ok_or_else(|| invariant("type of the cache", "f32, f16, bf16 or q8_0", dtype))
    }
}

/// Keys and values of a layer's cache: one type, as many rows.
pub(super) struct Cache<B> {
    pub keys: Tensor<B>,
    pub values: Tensor<B>,
}

impl<B: crate::device::Buffer> Cache<B> {
    /// The state of the node's layer.
    pub(super) fn of<D: Device<Buffer = B>>(
        pass: &Pass<'_, D>,
    ) -> std::result::Result<Cache<B>, BackendError> {
        let (keys, values) = (pass.state(StatePart::Key)?, pass.state(StatePart::Value)?);
        require(keys.dtype == values.dtype, "type of the values", keys.dtype, values.dtype)?;
        equal("rows of the values", values.shape.rows, keys.shape.rows)?;
        Ok(Cache { keys, values })
    }

    /// Bytes of a row of keys and of one of values.
    pub(super) fn row_bytes(&self) -> std::result::Result<[u64; 2], BackendError> {
        let bytes = |tensor: &Tensor<B>| {
            let bytes = tensor.dtype.row_bytes(tensor.shape.cols);
            let expected = format!("whole blocks of {}", tensor.dtype);
            bytes.map(|bytes| bytes as u64).ok_or_else(|| invariant("columns", expected, tensor.shape.cols))
        };
        Ok([bytes(&self.keys)?, bytes(&self.values)?])
    }
}

/// The pipelines of the family.
pub(crate) struct Kernels {
    kv_store: ByCache,
    qkv_finish: ByCache,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        Ok(Kernels {
            kv_store: ByCache::load(&mut library, "kv_store_", ""),
            qkv_finish: ByCache::load(&mut library, "qkv_finish_", ""),
        })
    }
}

/// Stores a row of keys and one of values per token.
pub(super) fn kv_store<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    let (keys, values, rows) = (pass.input(0)?, pass.input(1)?, pass.input(2)?);
    let cache = Cache::of(pass)?;
    equal("columns of the keys", keys.shape.cols, cache.keys.shape.cols)?;
    equal("columns of the values", values.shape.cols, cache.values.shape.cols)?;
    equal("rows of the values", values.shape.rows, keys.shape.rows)?;
    equal("cache rows", rows.shape.elements(), keys.shape.rows)?;
    check_indices(pass, 2, "cache row", cache.keys.shape.rows)?;
    let [key_row_bytes, value_row_bytes] = cache.row_bytes()?;
    let args = KvStoreArgs {
        key_row_bytes,
        value_row_bytes,
        key_cols: int("columns of the keys", keys.shape.cols)?,
        value_cols: int("columns of the values", values.shape.cols)?,
        cache_rows: int("rows of the cache", cache.keys.shape.rows)?,
        reserved: 0,
    };
    // Padded to whole runs of eight threads, which find the scale of a block together.
    let threads = keys.shape.cols.max(values.shape.cols).next_multiple_of(RUN) / 4;
    let kernel = pass.kernels().cache.kv_store.get(cache.keys.dtype)?;
    pass.launch(kernel, "")
        .reads(0, &keys)
        .reads(1, &values)
        .writes_some(2, &cache.keys, key_row_bytes as usize * keys.shape.rows)
        .writes_some(3, &cache.values, value_row_bytes as usize * keys.shape.rows)
        .reads(4, &rows)
        .bytes(5, &args)
        .threads(Size::new(threads, keys.shape.rows, 2), Size::width(threads.clamp(8, 128)))
}

/// What follows the products of query, key and value, which lie side by side: norms of heads, rotation, store.
pub(super) struct QkvFinish<'a, B> {
    pub qkv: &'a Tensor<B>,
    pub queries: &'a Tensor<B>,
    pub positions: &'a Operand,
    pub rows: &'a Operand,
    /// Of query, key and value, where the products have none yet.
    pub biases: Option<&'a [Weight<B>; 3]>,
    pub norms: Option<(&'a [Weight<B>; 2], f32)>,
    pub rope: Option<&'a Rope>,
    pub head_dim: usize,
}

/// Encodes it.
pub(super) fn qkv_finish<D: Device>(
    pass: &mut Pass<'_, D>,
    step: &str,
    finish: &QkvFinish<'_, D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let cache = Cache::of(pass)?;
    let QkvFinish { qkv, queries, head_dim, .. } = *finish;
    let (positions, rows) = (pass.operand(finish.positions)?, pass.operand(finish.rows)?);
    let (key_cols, value_cols) = (cache.keys.shape.cols, cache.values.shape.cols);
    let whole = head_dim > 0
        && head_dim.is_multiple_of(4)
        && key_cols.is_multiple_of(head_dim)
        && queries.shape.cols.is_multiple_of(head_dim)
        && key_cols > 0
        && value_cols.is_multiple_of(key_cols / head_dim);
    let found = format!("{}, {key_cols} and {value_cols}", queries.shape.cols);
    require(whole, "columns of query, key and value", format!("whole heads of {head_dim}"), found)?;
    let kv_heads = key_cols / head_dim;
    let value_dim = value_cols / kv_heads;
    let blocks = match cache.keys.dtype {
        DType::Packed(format) => format.block_len(),
        _ => 4,
    };
    require(
        head_dim.is_multiple_of(blocks) && value_dim.is_multiple_of(blocks),
        "head dims",
        format!("multiples of {blocks}"),
        format!("{head_dim} and {value_dim}"),
    )?;
    equal("columns of the products", qkv.shape.cols, queries.shape.cols + key_cols + value_cols)?;
    equal("rows of the result", queries.shape.rows, qkv.shape.rows)?;
    equal("positions", positions.shape.elements(), qkv.shape.rows)?;
    equal("cache rows", rows.shape.elements(), qkv.shape.rows)?;
    for weight in finish.norms.iter().flat_map(|(weights, _)| weights.iter()) {
        require(weight.format == Format::F32, "format of the norm's weight", Format::F32, weight.format)?;
        equal("elements of the norm's weight", weight.rows * weight.cols, head_dim)?;
    }
    let parts = [queries.shape.cols, key_cols, value_cols];
    for (bias, cols) in finish.biases.into_iter().flatten().zip(parts) {
        require(bias.format == Format::F32, "format of the bias", Format::F32, bias.format)?;
        equal("elements of the bias", bias.rows * bias.cols, cols)?;
    }
    check_operand(pass, finish.positions, "position", i32::MAX as usize)?;
    check_operand(pass, finish.rows, "cache row", cache.keys.shape.rows)?;
    let (turns, pairs, interleaved, magnitude) = match finish.rope {
        Some(rope) => {
            equal("head dim of the rotation", rope.head_dim, head_dim)?;
            require(rope.rotary_dim() <= head_dim, "rotated elements", head_dim, rope.rotary_dim())?;
            let interleaved = rope.style == RopeStyle::Interleaved;
            (pass.rope_table(&rope.table)?, rope.table.inv_freq.len(), interleaved, rope.table.magnitude)
        }
        None => (nothing(&qkv.slice), 0, false, 1.0),
    };
    let heads = queries.shape.cols / head_dim + 2 * kv_heads;
    let scratch_floats = head_dim.max(value_dim);
    let [key_row_bytes, value_row_bytes] = cache.row_bytes()?;
    let args = QkvArgs {
        key_row_bytes,
        value_row_bytes,
        query_heads: int("query heads", queries.shape.cols / head_dim)?,
        kv_heads: int("KV heads", kv_heads)?,
        head_dim: int("head dim", head_dim)?,
        value_dim: int("value dim", value_dim)?,
        cache_rows: int("rows of the cache", cache.keys.shape.rows)?,
        scratch_floats: int("threadgroup memory", scratch_floats)?,
        pairs: int("pairs", pairs)?,
        interleaved: i32::from(interleaved),
        magnitude,
        epsilon: finish.norms.map_or(0.0, |(_, epsilon)| epsilon),
        has_norm: i32::from(finish.norms.is_some()),
        has_bias: i32::from(finish.biases.is_some()),
    };
    let unused = nothing(&qkv.slice);
    let [query_norm, key_norm] = match finish.norms {
        Some(([query, key], _)) => [&query.slice, &key.slice],
        None => [&unused, &unused],
    };
    let bias = |i: usize| finish.biases.map_or(&unused, |biases| &biases[i].slice);
    let kernel = pass.kernels().cache.qkv_finish.get(cache.keys.dtype)?;
    pass.launch(kernel, step)
        .reads(0, qkv)
        .writes(1, queries)
        .writes_some(2, &cache.keys, key_row_bytes as usize * qkv.shape.rows)
        .writes_some(3, &cache.values, value_row_bytes as usize * qkv.shape.rows)
        .reads(4, &rows)
        .reads(5, &positions)
        .bytes(6, &args)
        .reads(7, &turns)
        .reads(8, query_norm)
        .reads(9, key_norm)
        .reads(10, bias(0))
        .reads(11, bias(1))
        .reads(12, bias(2))
        .threadgroup_memory(0, QKV_HEADS * scratch_floats * 4)
        .threadgroups(Size::new(heads.div_ceil(QKV_HEADS), qkv.shape.rows, 1), Size::width(QKV_HEADS * 32))
}
