//! What devices that share every layer exchange. The graph is that of one device; all of them run it at the same time.

use super::{arity, typed};
use crate::{DType, Shape};

/// The matrices of all devices, one below the other, in the order of the devices: `[n, c]` on each becomes
/// `[devices * n, c]`, the same on all. Input f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllGather {
    /// How many devices there are.
    pub devices: usize,
}

/// Of an all-reduce, `y = sum over devices of x`, element by element and the same on all: the result is like the input.
pub(super) fn infer_reduce(inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
    let [x] = arity(inputs)?;
    Ok((typed("input 0", x, DType::F32)?, DType::F32))
}

impl AllGather {
    pub(super) fn infer(&self, inputs: &[(Shape, DType)]) -> Result<(Shape, DType), String> {
        let [x] = arity(inputs)?;
        let x = typed("input 0", x, DType::F32)?;
        match x.rows.checked_mul(self.devices).filter(|_| self.devices > 0) {
            Some(rows) => Ok((Shape::new(rows, x.cols), DType::F32)),
            None => Err(format!(
                "devices: expected at least 1, and rows that can be counted, found {}",
                self.devices
            )),
        }
    }
}
