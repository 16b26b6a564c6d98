//! Shape operations: copies, where the plan could not make them ranges of their input's buffer.

use crate::exec::{Exec, equal, invariant};
use graph::ops::{Permute, View};
use graph::{BackendError, DType};

/// A window of a matrix.
pub(crate) fn view(exec: &mut Exec<'_>, op: &View) -> Result<(), BackendError> {
    let operand = exec.operand(0)?;
    let (src, dst) = exec.bytes_in_and_out(0)?;
    let (from, to) = (operand.shape, exec.call.output.shape);
    if !op.is_inside(from) {
        return Err(invariant("window", format!("inside {from}"), format!("{op:?}")));
    }
    equal("rows of the result", to.rows, op.rows)?;
    equal("columns of the result", to.cols, op.cols)?;
    let width = element_bytes(operand.dtype)?;
    for row in 0..op.rows {
        let first = ((op.first_row + row) * from.cols + op.first_col) * width;
        // SAFETY: the window is inside the input and the row inside the result. `copy` allows an overlap: a result
        // that is a range of its input's buffer is copied onto itself.
        unsafe {
            std::ptr::copy(src.wrapping_add(first), dst.wrapping_add(row * op.cols * width), op.cols * width);
        }
    }
    Ok(())
}

/// The same elements.
pub(crate) fn reshape(exec: &mut Exec<'_>) -> Result<(), BackendError> {
    let operand = exec.operand(0)?;
    let (src, dst) = exec.bytes_in_and_out(0)?;
    equal("bytes of the result", exec.call.output.bytes(), operand.bytes())?;
    if src != dst.cast_const() {
        // SAFETY: both have the bytes; see `view` on overlaps.
        unsafe { std::ptr::copy(src, dst, operand.bytes()) };
    }
    Ok(())
}

/// Tokens by heads to heads by tokens.
pub(crate) fn permute(exec: &mut Exec<'_>, op: &Permute) -> Result<(), BackendError> {
    let (out, x) = (exec.output()?, exec.input(0)?);
    if op.heads == 0 || !x.cols.is_multiple_of(op.heads) {
        return Err(invariant("columns", format!("a multiple of {} heads", op.heads), x.cols));
    }
    let width = x.cols / op.heads;
    equal("rows of the result", out.rows, x.rows * op.heads)?;
    equal("columns of the result", out.cols, width)?;
    for head in 0..op.heads {
        for row in 0..x.rows {
            let src = x.row(row).wrapping_add(head * width);
            // SAFETY: `width` elements in both; the result shares no memory with the input.
            unsafe { std::ptr::copy_nonoverlapping(src, out.row(head * x.rows + row), width) };
        }
    }
    Ok(())
}

fn element_bytes(dtype: DType) -> Result<usize, BackendError> {
    match dtype {
        DType::F32 | DType::I32 => Ok(4),
        DType::F16 | DType::BF16 => Ok(2),
        DType::Packed(_) => Err(invariant("element type of a view", "single elements", dtype)),
    }
}
