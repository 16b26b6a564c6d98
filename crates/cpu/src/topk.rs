//! The largest elements of rows, and elements by their columns.

use crate::exec::{Exec, equal, index, invariant};
use graph::BackendError;
use graph::ops::TopK;
use std::cmp::Ordering;

/// Elements of a chunk of work.
const CHUNK: usize = 4096;

/// Columns of the `k` largest elements of each row.
pub(crate) fn top_k(exec: &mut Exec<'_>, op: &TopK) -> Result<(), BackendError> {
    let (out, x) = (exec.int_output()?, exec.input(0)?);
    let shape = exec.call.output.shape;
    equal("rows of the result", shape.rows, x.rows)?;
    equal("columns of the result", shape.cols, op.k)?;
    if op.k == 0 || op.k > x.cols || i32::try_from(x.cols).is_err() {
        return Err(invariant("k", format!("1 to {} columns", x.cols), op.k));
    }
    exec.pool.run(x.rows, (CHUNK / x.cols).max(1), &|_, range| {
        for row in range {
            // SAFETY: `cols` elements, which nothing writes to; and each row of the result has one worker.
            let (values, top) = unsafe { (std::slice::from_raw_parts(x.row(row), x.cols), out.row(row)) };
            select(values, top);
        }
    })?;
    Ok(())
}

/// The order of [`TopK`]: falling, and what is no number last.
fn falling(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Keeps the best columns so far in order. A router's rows are short, and so is what is wanted of them.
fn select(values: &[f32], top: &mut [i32]) {
    let mut len = 0;
    for (column, &value) in values.iter().enumerate() {
        let before = |&best: &i32| falling(values[best as usize], value) != Ordering::Greater;
        if len == top.len() && before(&top[len - 1]) {
            continue;
        }
        let place = top[..len].partition_point(before);
        len = (len + 1).min(top.len());
        top.copy_within(place..len - 1, place + 1);
        top[place] = column as i32;
    }
}

/// Elements of each row by their columns.
pub(crate) fn gather_cols(exec: &mut Exec<'_>) -> Result<(), BackendError> {
    let (out, x, indices) = (exec.output()?, exec.input(0)?, exec.ints(1)?);
    equal("rows of the result", out.rows, x.rows)?;
    equal("indices", indices.len(), out.rows * out.cols)?;
    if out.cols == 0 {
        return Ok(());
    }
    for (row, columns) in indices.chunks_exact(out.cols).enumerate() {
        for (i, &column) in columns.iter().enumerate() {
            let column = index("column", row, column, x.cols)?;
            // SAFETY: both elements are inside their rows, and the result is apart from the input.
            unsafe { *out.row(row).wrapping_add(i) = *x.row(row).wrapping_add(column) };
        }
    }
    Ok(())
}
