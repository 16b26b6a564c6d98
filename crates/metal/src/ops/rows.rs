//! Gathering rows by index (`kernels/rows.metal`).

use super::checks::{int, require};
use super::formats::ByFormat;
use super::inputs::check_indices;
use crate::device::{Device, Result, Size};
use crate::families::rows::{GetRowsArgs, LIBRARY};
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::Loader;
use crate::tensor::{Slice, Tensor};
use graph::ops::{GetRows, KvLoad};
use graph::{BackendError, DType};
use quant::Format;

/// Elements of a thread: a unit of the decoders.
const UNIT: usize = 16;

/// The pipelines of the family.
pub(crate) struct Kernels {
    get_rows: ByFormat,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        Ok(Kernels { get_rows: ByFormat::load(&mut loader.library(&LIBRARY)?, "get_rows_", "") })
    }
}

/// Rows of a weight or of an activation.
pub(super) fn get_rows<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &GetRows,
) -> std::result::Result<(), BackendError> {
    match op.table {
        Some(id) => {
            let (table, indices) = (pass.weight(id)?, pass.input(0)?);
            check(pass, 0, table.rows)?;
            gather(pass, &table.slice, table.format, [table.rows, table.cols], &indices)
        }
        None => {
            let (table, indices) = (pass.input(0)?, pass.input(1)?);
            require(table.dtype == DType::F32, "type of input 0", DType::F32, table.dtype)?;
            check(pass, 1, table.shape.rows)?;
            gather(pass, &table.slice, Format::F32, [table.shape.rows, table.shape.cols], &indices)
        }
    }
}

/// Rows of a cache.
pub(super) fn kv_load<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &KvLoad,
) -> std::result::Result<(), BackendError> {
    let (cache, rows) = (pass.state(op.part)?, pass.input(1)?);
    let format = cache_format(cache.dtype)
        .ok_or_else(|| invariant("type of the cache", "f32, f16, bf16 or packed", cache.dtype))?;
    check_indices(pass, 1, "cache row", cache.shape.rows)?;
    gather(pass, &cache.slice, format, [cache.shape.rows, cache.shape.cols], &rows)
}

/// Indices are token ids where there is one for every token of the batch.
fn check<D: Device>(pass: &Pass<'_, D>, input: usize, rows: usize) -> std::result::Result<(), BackendError> {
    let tokens = pass.call().graph.params().tokens;
    let what = if pass.input(input)?.shape.rows == tokens { "token" } else { "row index" };
    check_indices(pass, input, what, rows)
}

/// The format whose decoder reads a cache of this type.
pub(crate) fn cache_format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::F32 => Some(Format::F32),
        DType::F16 => Some(Format::F16),
        DType::BF16 => Some(Format::BF16),
        DType::Packed(format) => Some(format),
        DType::I32 => None,
    }
}

fn gather<D: Device>(
    pass: &mut Pass<'_, D>,
    table: &Slice<D::Buffer>,
    format: Format,
    [rows, cols]: [usize; 2],
    indices: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let y = pass.output()?;
    equal("columns of the result", y.shape.cols, cols)?;
    equal("indices", indices.shape.elements(), y.shape.rows)?;
    let row_bytes = format
        .row_bytes(cols)
        .ok_or_else(|| invariant("columns", format!("whole blocks of {}", format.block_len()), cols))?;
    equal("bytes of the table", table.length, rows * row_bytes)?;
    let args = GetRowsArgs {
        row_bytes: row_bytes as u64,
        cols: int("columns", cols)?,
        table_rows: int("rows of the table", rows)?,
    };
    let units = cols.div_ceil(UNIT);
    let kernel = pass.kernels().rows.get_rows.get(format);
    let width = units.clamp(1, 64);
    pass.launch(kernel, "")
        .reads_some(0, table, row_bytes * y.shape.rows)
        .reads(1, indices)
        .writes(2, &y)
        .bytes(3, &args)
        .threads(Size::new(units, y.shape.rows, 1), Size::new(width, 1, 1))
}
