//! Writing to and reading from a layer's KV cache.

use crate::exec::{Exec, In, StateMatrix, equal, index, invariant};
use crate::rows::decode_cached;
use crate::simd::Kernels;
use graph::ops::{KvLoad, KvStore};
use graph::{BackendError, DType, StatePart};
use half::f16;
use quant::{BlockQ8_0, Format};

/// Whether a cache can hold rows of this type.
pub(crate) fn is_cache_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Packed(Format::Q8_0))
}

/// Stores a key and a value row per token.
pub(crate) fn kv_store(exec: &mut Exec<'_>, _op: &KvStore) -> Result<(), BackendError> {
    let (keys, values) = (exec.input(0)?, exec.input(1)?);
    store(exec, keys, values, 2)
}

/// Stores keys and values in the rows that input `rows` names.
pub(crate) fn store(
    exec: &mut Exec<'_>,
    keys: In<'_>,
    values: In<'_>,
    rows: usize,
) -> Result<(), BackendError> {
    let rows = exec.ints(rows)?;
    for (part, x) in [(StatePart::Key, keys), (StatePart::Value, values)] {
        let matrix = exec.state_part(part)?;
        equal("rows to store", x.rows, rows.len())?;
        equal("columns to store", x.cols, matrix.cols)?;
        for (i, &row) in rows.iter().enumerate() {
            index("cache row", i, row, matrix.rows)?;
        }
        // One after the other: two tokens may name the same row (the last one stays), and the rows are few.
        for (i, &row) in rows.iter().enumerate() {
            // SAFETY: `cols` elements; stores write to states, which share no memory with buffers.
            let src = unsafe { std::slice::from_raw_parts(x.row(i), x.cols) };
            // SAFETY: a row of the state, which this thread alone accesses during the operation.
            let dst = unsafe { std::slice::from_raw_parts_mut(matrix.row(row as usize), matrix.row_bytes) };
            encode(exec.kernels, matrix.dtype, src, dst)?;
        }
    }
    Ok(())
}

/// Encodes a row for the cache.
fn encode(kernels: &Kernels, dtype: DType, src: &[f32], dst: &mut [u8]) -> Result<(), BackendError> {
    match dtype {
        DType::F32 => dst.copy_from_slice(bytemuck::cast_slice(src)),
        // SAFETY: the table is for this processor.
        DType::F16 => unsafe { (kernels.f32_to_f16)(dst, src) },
        // SAFETY: as above.
        DType::BF16 => unsafe { (kernels.f32_to_bf16)(dst, src) },
        DType::Packed(Format::Q8_0) => {
            for (block, x) in dst.chunks_exact_mut(size_of::<BlockQ8_0>()).zip(src.chunks_exact(32)) {
                block.copy_from_slice(bytemuck::bytes_of(&encode_q8_0(x)));
            }
        }
        _ => return Err(invariant("cache type", "f32, f16, bf16 or q8_0", dtype)),
    }
    Ok(())
}

/// A block of `Q8_0`. A NaN or an infinity makes the scale NaN, so that it is not lost.
fn encode_q8_0(x: &[f32]) -> BlockQ8_0 {
    let top = x.iter().fold(0u32, |top, v| top.max(v.to_bits() & 0x7fff_ffff));
    let top = f32::from_bits(top);
    let d = if top.is_finite() { top / 127.0 } else { f32::NAN };
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let mut qs = [0i8; 32];
    for (q, v) in qs.iter_mut().zip(x) {
        // Saturates; NaN becomes 0.
        *q = (v * inverse).round() as i8;
    }
    BlockQ8_0 { d: f16::from_f32(d), qs }
}

/// Reads cache rows.
pub(crate) fn kv_load(exec: &mut Exec<'_>, op: &KvLoad) -> Result<(), BackendError> {
    let (out, rows) = (exec.output()?, exec.ints(1)?);
    let matrix = exec.state_part(op.part)?;
    equal("rows of the result", out.rows, rows.len())?;
    equal("columns of the result", out.cols, matrix.cols)?;
    for (i, &row) in rows.iter().enumerate() {
        let row = index("cache row", i, row, matrix.rows)?;
        // SAFETY: each row of the result is written once, here.
        let dst = unsafe { out.row_mut(i) };
        decode_cached(exec.kernels, matrix.dtype, cached_rows(&matrix, row, 1), dst)?;
    }
    Ok(())
}

/// The bytes of cache rows that follow each other. Nothing may write to the state meanwhile: only stores do, which run
/// alone.
pub(crate) fn cached_rows<'a>(matrix: &StateMatrix<'a>, first: usize, rows: usize) -> &'a [u8] {
    assert!(first + rows <= matrix.rows, "{rows} cache rows from {first} on, of {}", matrix.rows);
    // SAFETY: inside the state, which is always initialised (it starts as zeros), and not written meanwhile.
    unsafe { std::slice::from_raw_parts(matrix.row(first), rows * matrix.row_bytes) }
}
