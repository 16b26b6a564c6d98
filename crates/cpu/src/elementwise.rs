//! Element-by-element operations.

use crate::exec::{Exec, In, Out, equal, invariant};
use crate::pool::Pool;
use graph::BackendError;
use graph::ops::{Activation, ClampedSwiGlu};

/// Elements of a chunk of work: some microseconds.
const CHUNK: usize = 8192;

/// Calls `f(first, count)` on ranges of the elements of `out`, after checking that `inputs` have its shape.
fn each_range(
    pool: &mut Pool,
    out: Out<'_>,
    inputs: &[In<'_>],
    f: impl Fn(usize, usize) + Sync,
) -> Result<(), BackendError> {
    for (i, input) in inputs.iter().enumerate() {
        equal(format_args!("rows of input {i}"), input.rows, out.rows)?;
        equal(format_args!("columns of input {i}"), input.cols, out.cols)?;
    }
    pool.run(out.rows * out.cols, CHUNK, &|_, range| f(range.start, range.len()))?;
    Ok(())
}

/// `a + b` or `a * b`.
pub(crate) fn binary(exec: &mut Exec<'_>, multiply: bool) -> Result<(), BackendError> {
    let (out, a, b) = (exec.output()?, exec.input(0)?, exec.input(1)?);
    let kernel = if multiply { exec.kernels.mul } else { exec.kernels.add };
    if b.rows == a.rows {
        return each_range(exec.pool, out, &[a, b], |first, n| {
            let at = |p: *const f32| p.wrapping_add(first);
            // SAFETY: all three have the elements; the result is one of the inputs or apart from them.
            unsafe { kernel(out.row(0).wrapping_add(first), at(a.row(0)), at(b.row(0)), n) }
        });
    }
    equal("rows of input 1", b.rows, 1)?;
    equal("columns of input 1", b.cols, out.cols)?;
    equal("rows of input 0", a.rows, out.rows)?;
    equal("columns of input 0", a.cols, out.cols)?;
    exec.pool.run(out.rows, (CHUNK / out.cols.max(1)).max(1), &|_, range| {
        for row in range {
            // SAFETY: as above, row by row; the one row of `b` is apart from the result, or its only row.
            unsafe { kernel(out.row(row), a.row(row), b.row(0), out.cols) }
        }
    })?;
    Ok(())
}

/// `factor * a`, or a soft cap.
pub(crate) fn with_factor(
    exec: &mut Exec<'_>,
    kernel: unsafe fn(*mut f32, *const f32, f32, usize),
    factor: f32,
) -> Result<(), BackendError> {
    let (out, a) = (exec.output()?, exec.input(0)?);
    each_range(exec.pool, out, &[a], |first, n| {
        // SAFETY: both have the elements; the result is the input or apart from it.
        unsafe { kernel(out.row(0).wrapping_add(first), a.row(0).wrapping_add(first), factor, n) }
    })
}

/// `cap * tanh(a / cap)`.
pub(crate) fn soft_cap(exec: &mut Exec<'_>, cap: f32) -> Result<(), BackendError> {
    if cap.is_nan() || cap <= 0.0 {
        return Err(invariant("soft cap", "a positive number", cap));
    }
    with_factor(exec, exec.kernels.soft_cap, cap)
}

/// An activation function of every element.
pub(crate) fn activation(exec: &mut Exec<'_>, kind: Activation) -> Result<(), BackendError> {
    let (out, a, kernel) = (exec.output()?, exec.input(0)?, exec.kernels.activation);
    each_range(exec.pool, out, &[a], |first, n| {
        // SAFETY: both have the elements; the result is the input or apart from it.
        unsafe { kernel(out.row(0).wrapping_add(first), a.row(0).wrapping_add(first), kind, n) }
    })
}

/// The gate of gpt-oss.
pub(crate) fn clamped_swiglu(exec: &mut Exec<'_>, op: &ClampedSwiGlu) -> Result<(), BackendError> {
    let (out, a, b) = (exec.output()?, exec.input(0)?, exec.input(1)?);
    let kernel = exec.kernels.clamped_swiglu;
    each_range(exec.pool, out, &[a, b], |first, n| {
        let at = |p: *const f32| p.wrapping_add(first);
        // SAFETY: all three have the elements; the result is one of the inputs or apart from them.
        unsafe { kernel(out.row(0).wrapping_add(first), at(a.row(0)), at(b.row(0)), n, *op) }
    })
}

/// `activation(a) * b`.
pub(crate) fn gated(exec: &mut Exec<'_>, kind: Activation) -> Result<(), BackendError> {
    let (out, a, b) = (exec.output()?, exec.input(0)?, exec.input(1)?);
    let kernel = exec.kernels.gated;
    each_range(exec.pool, out, &[a, b], |first, n| {
        let at = |p: *const f32| p.wrapping_add(first);
        // SAFETY: all three have the elements; the result is one of the inputs or apart from them.
        unsafe { kernel(out.row(0).wrapping_add(first), at(a.row(0)), at(b.row(0)), kind, n) }
    })
}
