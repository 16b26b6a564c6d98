//! Normalisations of rows.

use super::Lowering;
use super::matmul::Norm;
use crate::kernels::Spec;
use crate::step::Step;
use graph::ops::RmsNorm;
use graph::{BackendError, Op};

#[repr(C)]
#[derive(Clone, Copy)]
struct NormArgs {
    x: u64,
    weight: u64,
    out: u64,
    rows: u32,
    cols: u32,
    weight_cols: u32,
    epsilon: f32,
    scale: f32,
}

impl Lowering<'_> {
    fn rows_kernel(
        &mut self,
        step: &Step,
        name: &'static str,
        weight: u64,
        epsilon: f32,
        scale: f32,
    ) -> Result<(), BackendError> {
        let x = step.input(0)?;
        let args = NormArgs {
            x: self.floats(&x)?,
            weight,
            out: self.floats(&step.output)?,
            rows: x.shape.rows as u32,
            cols: x.shape.cols as u32,
            weight_cols: x.shape.cols as u32,
            epsilon,
            scale,
        };
        self.launch(Spec::Plain("norm.cu", name), [x.shape.rows, 1, 1], 256, 0, args)
    }

    pub(super) fn rms_norm(&mut self, step: &Step, op: &RmsNorm) -> Result<(), BackendError> {
        let weight = match op.weight {
            Some(_) => {
                let name = step.weight(0)?.name.clone();
                self.vector(&name)?
            }
            None => 0,
        };
        self.rows_kernel(step, "rms_norm", weight, op.epsilon, 1.0)
    }

    pub(super) fn softmax(&mut self, step: &Step, scale: f32) -> Result<(), BackendError> {
        self.rows_kernel(step, "softmax", 0, 0.0, scale)
    }

    /// The norm, if the products that read it can do it on the way: all of its readers are products among the steps that
    /// follow, and until the last of them has read, nothing is written over what is normed.
    pub(super) fn deferred_norm(
        &mut self,
        steps: &[Step],
        op: &RmsNorm,
    ) -> Result<Option<Norm>, BackendError> {
        let step = &steps[0];
        let x = step.input(0)?;
        let mut left = step.uses;
        if left == 0 {
            return Ok(None);
        }
        for later in &steps[1..] {
            let reads = later.inputs.iter().filter(|input| input.producer == step.id).count();
            let is_product = matches!(later.node.op, Op::MatMul(_) | Op::FusedQkv(_) | Op::FusedFfn(_));
            // A product may run as one with those that follow it, so its own result must not be there either.
            if later.output.buffer == x.buffer && later.output.shape.elements() > 0
                || reads > 0 && !is_product
            {
                return Ok(None);
            }
            left -= reads;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return Ok(None);
        }
        let weight = match op.weight {
            Some(_) => {
                let name = step.weight(0)?.name.clone();
                self.vector(&name)?
            }
            None => 0,
        };
        Ok(Some(Norm { x, weight, epsilon: op.epsilon }))
    }
}
