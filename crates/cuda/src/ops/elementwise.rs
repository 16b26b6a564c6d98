//! Element by element, copies, and products of activations.

use super::Lowering;
use crate::kernels::Spec;
use crate::step::{Step, invariant};
use graph::ops::{Activation, ClampedSwiGlu, View};
use graph::{BackendError, Operand};

// The numbers of the operations in `elementwise.cu`.
pub(super) const ADD: i32 = 0;
pub(super) const MUL: i32 = 1;
pub(super) const SCALE: i32 = 2;
pub(super) const ACTIVATION: i32 = 3;
pub(super) const SOFT_CAP: i32 = 4;
pub(super) const GATED: i32 = 5;
pub(super) const CLAMPED: i32 = 6;

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementwiseArgs {
    a: u64,
    b: u64,
    out: u64,
    elements: u32,
    b_elements: u32,
    op: i32,
    activation: i32,
    factor: f32,
    limit: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct WindowArgs {
    x: u64,
    out: u64,
    x_cols: u32,
    first_row: u32,
    first_col: u32,
    rows: u32,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PermuteArgs {
    x: u64,
    out: u64,
    tokens: u32,
    heads: u32,
    width: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct BatchArgs {
    a: u64,
    b: u64,
    out: u64,
    m: u32,
    n: u32,
    k: u32,
    rows: u32,
}

/// The number of an activation function in the kernels.
pub(super) fn activation(kind: Activation) -> i32 {
    match kind {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::Sigmoid => 2,
    }
}

impl Lowering<'_> {
    fn elementwise(
        &mut self,
        [a, out]: [Operand; 2],
        b: Option<Operand>,
        (op, factor, activation): (i32, f32, i32),
        limit: f32,
    ) -> Result<(), BackendError> {
        let args = ElementwiseArgs {
            a: self.floats(&a)?,
            b: b.map(|b| self.floats(&b)).transpose()?.unwrap_or(0),
            out: self.floats(&out)?,
            elements: out.shape.elements() as u32,
            b_elements: b.map_or(1, |b| b.shape.elements().max(1)) as u32,
            op,
            activation,
            factor,
            limit,
        };
        let grid = self.elements_grid(out.shape.elements());
        self.launch(Spec::Plain("elementwise.cu", "elementwise"), grid, 256, 0, args)
    }

    pub(super) fn binary(&mut self, step: &Step, op: i32) -> Result<(), BackendError> {
        self.elementwise([step.input(0)?, step.output], Some(step.input(1)?), (op, 0.0, 0), 0.0)
    }

    pub(super) fn unary(&mut self, step: &Step, op: i32, factor: f32, kind: i32) -> Result<(), BackendError> {
        self.elementwise([step.input(0)?, step.output], None, (op, factor, kind), 0.0)
    }

    pub(super) fn gated(&mut self, step: &Step, kind: Activation) -> Result<(), BackendError> {
        let (a, b) = (step.input(0)?, step.input(1)?);
        self.elementwise([a, step.output], Some(b), (GATED, 0.0, activation(kind)), 0.0)
    }

    pub(super) fn clamped_swiglu(&mut self, step: &Step, op: &ClampedSwiGlu) -> Result<(), BackendError> {
        let (gate, up) = (step.input(0)?, step.input(1)?);
        self.elementwise([gate, step.output], Some(up), (CLAMPED, op.alpha, 0), op.limit)
    }

    /// `activation(a) * b`, of memory that no operand stands for.
    pub(super) fn gated_at(
        &mut self,
        [a, b, out]: [u64; 3],
        elements: usize,
        kind: Activation,
    ) -> Result<(), BackendError> {
        let (elements, grid) = (elements as u32, self.elements_grid(elements));
        let activation = activation(kind);
        let args = ElementwiseArgs {
            a,
            b,
            out,
            elements,
            b_elements: elements,
            op: GATED,
            activation,
            factor: 0.0,
            limit: 0.0,
        };
        self.launch(Spec::Plain("elementwise.cu", "elementwise"), grid, 256, 0, args)
    }

    pub(super) fn window(&mut self, step: &Step, view: &View) -> Result<(), BackendError> {
        let x = step.input(0)?;
        if x.dtype.row_bytes(1) != Some(4) {
            return Err(invariant("view", "elements of 4 bytes", x.dtype));
        }
        let args = WindowArgs {
            x: self.address("input 0", &x, x.dtype)?,
            out: self.address("output", &step.output, x.dtype)?,
            x_cols: x.shape.cols as u32,
            first_row: view.first_row as u32,
            first_col: view.first_col as u32,
            rows: view.rows as u32,
            cols: view.cols as u32,
        };
        let grid = self.elements_grid(step.output.shape.elements());
        self.launch(Spec::Plain("elementwise.cu", "window"), grid, 256, 0, args)
    }

    /// A reshape that is no mere view.
    pub(super) fn copy(&mut self, step: &Step) -> Result<(), BackendError> {
        let cols = step.input(0)?.shape.elements();
        let x = step.input(0)?;
        let args = WindowArgs {
            x: self.address("input 0", &x, x.dtype)?,
            out: self.address("output", &step.output, x.dtype)?,
            x_cols: cols as u32,
            first_row: 0,
            first_col: 0,
            rows: 1,
            cols: cols as u32,
        };
        let grid = self.elements_grid(cols);
        self.launch(Spec::Plain("elementwise.cu", "window"), grid, 256, 0, args)
    }

    pub(super) fn permute(&mut self, step: &Step, heads: usize) -> Result<(), BackendError> {
        let x = step.input(0)?;
        let args = PermuteArgs {
            x: self.floats(&x)?,
            out: self.floats(&step.output)?,
            tokens: x.shape.rows as u32,
            heads: heads as u32,
            width: step.output.shape.cols as u32,
        };
        let grid = self.elements_grid(step.output.shape.elements());
        self.launch(Spec::Plain("elementwise.cu", "permute"), grid, 256, 0, args)
    }

    pub(super) fn batch_matmul(&mut self, step: &Step, batch: usize) -> Result<(), BackendError> {
        let (a, b) = (step.input(0)?, step.input(1)?);
        let args = BatchArgs {
            a: self.floats(&a)?,
            b: self.floats(&b)?,
            out: self.floats(&step.output)?,
            m: (a.shape.rows / batch) as u32,
            n: step.output.shape.cols as u32,
            k: a.shape.cols as u32,
            rows: a.shape.rows as u32,
        };
        let grid = self.elements_grid(step.output.shape.elements());
        self.launch(Spec::Plain("elementwise.cu", "batch_matmul"), grid, 256, 0, args)
    }
}
