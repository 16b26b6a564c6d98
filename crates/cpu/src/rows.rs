//! Gathering rows by index, and decoding rows of any format to f32.

use crate::exec::{Exec, In, Out, index, invariant};
use crate::simd::Kernels;
use graph::ops::GetRows;
use graph::{BackendError, DType};
use quant::Format;

/// Decodes elements that follow each other.
pub(crate) fn decode_row(
    kernels: &Kernels,
    format: Format,
    src: &[u8],
    dst: &mut [f32],
) -> Result<(), BackendError> {
    match format {
        // SAFETY: the table is for this processor.
        Format::F16 => unsafe { (kernels.f16_to_f32)(dst, src) },
        // SAFETY: as above.
        Format::BF16 => unsafe { (kernels.bf16_to_f32)(dst, src) },
        _ => quant::decode(format, src, dst)
            .map_err(|error| invariant("row", "whole blocks of its format", error))?,
    }
    Ok(())
}

/// Decodes elements of a cache row.
pub(crate) fn decode_cached(
    kernels: &Kernels,
    dtype: DType,
    src: &[u8],
    dst: &mut [f32],
) -> Result<(), BackendError> {
    let format = match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::Packed(format) => format,
        DType::I32 => return Err(invariant("cache type", "a float type", dtype)),
    };
    decode_row(kernels, format, src, dst)
}

/// Rows of a weight or of an activation.
pub(crate) fn get_rows(exec: &mut Exec<'_>, op: &GetRows) -> Result<(), BackendError> {
    let out = exec.output()?;
    match op.table {
        Some(id) => {
            let (weight, indices) = (exec.weight(id)?, exec.ints(0)?);
            let rows = check(exec, indices, weight.rows, out)?;
            crate::exec::equal("columns of the result", out.cols, weight.cols)?;
            let kernels = exec.kernels;
            let failed = std::sync::Mutex::new(None);
            exec.pool.run(rows.len(), 4, &|_, range| {
                for i in range {
                    // SAFETY: each row of the result is written by one worker.
                    let dst = unsafe { out.row_mut(i) };
                    let row = weight.row(rows[i] as usize);
                    if let Err(error) = decode_row(kernels, weight.format, row, dst) {
                        *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                    }
                }
            })?;
            failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
        }
        None => {
            let (x, indices) = (exec.input(0)?, exec.ints(1)?);
            let rows = check(exec, indices, x.rows, out)?;
            crate::exec::equal("columns of the result", out.cols, x.cols)?;
            copy(x, rows, out);
            Ok(())
        }
    }
}

/// The indices, all of them rows of the table.
fn check<'i>(
    exec: &Exec<'_>,
    indices: &'i [i32],
    limit: usize,
    out: Out<'_>,
) -> Result<&'i [i32], BackendError> {
    crate::exec::equal("indices", indices.len(), out.rows)?;
    let what = if exec.call.graph.params().tokens == indices.len() { "token" } else { "row index" };
    for (row, &found) in indices.iter().enumerate() {
        index(what, row, found, limit)?;
    }
    Ok(indices)
}

fn copy(x: In<'_>, rows: &[i32], out: Out<'_>) {
    for (i, &row) in rows.iter().enumerate() {
        // SAFETY: both rows have `cols` elements, and the result shares no memory with the input.
        unsafe { std::ptr::copy_nonoverlapping(x.row(row as usize), out.row(i), x.cols) };
    }
}
