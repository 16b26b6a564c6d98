//! Normalisations of rows.

use crate::exec::{Exec, In, Out, equal};
use crate::pool::Pool;
use crate::simd::Kernels;
use graph::BackendError;
use graph::ops::{QkNorm, RmsNorm, Softmax};

/// Elements of a chunk of work.
const CHUNK: usize = 8192;

/// Root-mean-square normalisation of rows.
pub(crate) fn rms_norm(exec: &mut Exec<'_>, op: &RmsNorm) -> Result<(), BackendError> {
    let (out, x) = (exec.output()?, exec.input(0)?);
    let weight = op.weight.map(|id| exec.vector(id)).transpose()?;
    normalise(exec.kernels, exec.pool, x, weight, x.cols, op.epsilon, out)
}

/// Root-mean-square normalisation of heads.
pub(crate) fn qk_norm(exec: &mut Exec<'_>, op: &QkNorm) -> Result<(), BackendError> {
    let (out, x) = (exec.output()?, exec.input(0)?);
    let weight = exec.vector(op.weight)?;
    normalise(exec.kernels, exec.pool, x, Some(weight), op.head_dim, op.epsilon, out)
}

/// Normalises each group of `width` columns of each row.
pub(crate) fn normalise(
    kernels: &Kernels,
    pool: &mut Pool,
    x: In<'_>,
    weight: Option<&[f32]>,
    width: usize,
    epsilon: f32,
    out: Out<'_>,
) -> Result<(), BackendError> {
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, x.cols)?;
    if let Some(weight) = weight {
        equal("elements of the weight", weight.len(), width)?;
    }
    if width == 0 {
        return Ok(());
    }
    equal("columns past whole heads", x.cols % width, 0)?;
    let heads = x.cols / width;
    let weight = Shared(weight.map_or(std::ptr::null(), <[f32]>::as_ptr));
    pool.run(x.rows * heads, (CHUNK / width).max(1), &|_, range| {
        for i in range {
            let (src, dst) = (x.row(0).wrapping_add(i * width), out.row(0).wrapping_add(i * width));
            // SAFETY: `width` elements inside both; the result is the input or apart from it; the weight, if any, has
            // `width` elements.
            unsafe { (kernels.rms_norm)(dst, src, weight.get(), width, epsilon) }
        }
    })?;
    Ok(())
}

/// A pointer that workers read through.
struct Shared(*const f32);

impl Shared {
    fn get(&self) -> *const f32 {
        self.0
    }
}

// SAFETY: read only, and what it points to outlives the job.
unsafe impl Sync for Shared {}

/// `exp(scale * x - max) / sum`, over each row.
pub(crate) fn softmax(exec: &mut Exec<'_>, op: &Softmax) -> Result<(), BackendError> {
    let (out, x, kernel) = (exec.output()?, exec.input(0)?, exec.kernels.softmax);
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, x.cols)?;
    exec.pool.run(x.rows, (CHUNK / x.cols.max(1)).max(1), &|_, range| {
        for row in range {
            // SAFETY: `cols` elements in both; the result is the input or apart from it.
            unsafe { kernel(out.row(row), x.row(row), op.scale, x.cols) }
        }
    })?;
    Ok(())
}
