//! Element-by-element operations (`kernels/elementwise.metal`).

use super::checks::require;
use crate::device::{ConstantValue, Device, FunctionConstants, Result, Size};
use crate::families::elementwise::{
    BINARY_ADD, BINARY_GATED, BINARY_MUL, ElementwiseArgs, LIBRARY, UNARY_ACTIVATION, UNARY_SCALE,
    UNARY_SOFT_CAP,
};
use crate::families::{ACTIVATION_CLAMPED, ACTIVATION_GELU, ACTIVATION_SIGMOID, ACTIVATION_SILU};
use crate::pass::{Pass, equal, invariant};
use crate::pipelines::{Loader, PipelineId};
use crate::tensor::Tensor;
use graph::BackendError;
use graph::ops::{Activation, ClampedSwiGlu};

/// The number of an activation in the shaders; 0 is none.
pub(super) const fn activation_number(activation: Activation) -> i32 {
    match activation {
        Activation::Silu => ACTIVATION_SILU,
        Activation::Gelu => ACTIVATION_GELU,
        Activation::Sigmoid => ACTIVATION_SIGMOID,
    }
}

/// What a gate is multiplied with is let through by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gate {
    /// Its number in the shaders.
    pub number: i32,
    /// Of the clamped gate.
    pub alpha: f32,
    /// Of the clamped gate.
    pub limit: f32,
}

impl From<Activation> for Gate {
    fn from(activation: Activation) -> Gate {
        Gate { number: activation_number(activation), alpha: 0.0, limit: 0.0 }
    }
}

impl From<&ClampedSwiGlu> for Gate {
    fn from(op: &ClampedSwiGlu) -> Gate {
        Gate { number: ACTIVATION_CLAMPED, alpha: op.alpha, limit: op.limit }
    }
}

/// Threads of a threadgroup.
const WIDTH: usize = 256;
/// Elements of a thread.
const PER_THREAD: usize = 4;

/// The pipelines of the family.
pub(crate) struct Kernels {
    scale: PipelineId,
    soft_cap: PipelineId,
    activations: [PipelineId; 3],
    add: PipelineId,
    mul: PipelineId,
    /// By the gate's number, from 1 on.
    gated: [PipelineId; 4],
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        let mut kernel = |name: &str, operation: i32, activation: i32| {
            let constants = FunctionConstants::new()
                .set(0, ConstantValue::I32(operation))
                .set(1, ConstantValue::I32(activation));
            library.kernel_with(name, constants)
        };
        let mut unary = |activation: i32| kernel("unary", UNARY_ACTIVATION, activation);
        let activations = [unary(1), unary(2), unary(3)];
        let mut gated = |activation: i32| kernel("binary", BINARY_GATED, activation);
        Ok(Kernels {
            activations,
            gated: [gated(1), gated(2), gated(3), gated(ACTIVATION_CLAMPED)],
            scale: kernel("unary", UNARY_SCALE, 0),
            soft_cap: kernel("unary", UNARY_SOFT_CAP, 0),
            add: kernel("binary", BINARY_ADD, 0),
            mul: kernel("binary", BINARY_MUL, 0),
        })
    }
}

fn of(kernels: [PipelineId; 3], activation: Activation) -> PipelineId {
    match activation {
        Activation::Silu => kernels[0],
        Activation::Gelu => kernels[1],
        Activation::Sigmoid => kernels[2],
    }
}

/// `factor * x`.
pub(super) fn scale<D: Device>(pass: &mut Pass<'_, D>, factor: f32) -> std::result::Result<(), BackendError> {
    unary(pass, pass.kernels().elementwise.scale, factor)
}

/// `cap * tanh(x / cap)`.
pub(super) fn soft_cap<D: Device>(pass: &mut Pass<'_, D>, cap: f32) -> std::result::Result<(), BackendError> {
    require(cap > 0.0, "soft cap", "a positive number", cap)?;
    unary(pass, pass.kernels().elementwise.soft_cap, cap)
}

/// `activation(x)`.
pub(super) fn activation<D: Device>(
    pass: &mut Pass<'_, D>,
    activation: Activation,
) -> std::result::Result<(), BackendError> {
    unary(pass, of(pass.kernels().elementwise.activations, activation), 0.0)
}

/// `a + b`.
pub(super) fn add<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    binary(pass, pass.kernels().elementwise.add)
}

/// `a * b`.
pub(super) fn mul<D: Device>(pass: &mut Pass<'_, D>) -> std::result::Result<(), BackendError> {
    binary(pass, pass.kernels().elementwise.mul)
}

/// The gate of gpt-oss.
pub(super) fn clamped_swiglu<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &ClampedSwiGlu,
) -> std::result::Result<(), BackendError> {
    require(op.limit > 0.0, "limit", "a positive number", op.limit)?;
    let (a, b, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    gated_step(pass, "", op.into(), &a, &b, &y)
}

/// `activation(a) * b`.
pub(super) fn gated<D: Device>(
    pass: &mut Pass<'_, D>,
    activation: Activation,
) -> std::result::Result<(), BackendError> {
    let (a, b, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    gated_step(pass, "", activation.into(), &a, &b, &y)
}

fn unary<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    factor: f32,
) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    equal("elements of the result", y.shape.elements(), x.shape.elements())?;
    let elements = x.shape.elements();
    let args = ElementwiseArgs { elements: elements as u64, period: elements as u64, factor, limit: 0.0 };
    let threads = elements.div_ceil(PER_THREAD);
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, &args)
        .threads(Size::width(threads), Size::width(WIDTH.min(threads.max(1))))
}

fn binary<D: Device>(pass: &mut Pass<'_, D>, kernel: PipelineId) -> std::result::Result<(), BackendError> {
    let (a, b, y) = (pass.input(0)?, pass.input(1)?, pass.output()?);
    equal("elements of the result", y.shape.elements(), a.shape.elements())?;
    let fits = b.shape == a.shape || (b.shape.rows == 1 && b.shape.cols == a.shape.cols);
    require(fits, "input 1", format!("the shape of input 0 ({}), or one row of it", a.shape), b.shape)?;
    of_pair(pass, kernel, "", [0.0; 2], &a, &b, &y)
}

/// A gate, alone or as a step of a fused operation.
pub(super) fn gated_step<D: Device>(
    pass: &mut Pass<'_, D>,
    step: &str,
    gate: Gate,
    a: &Tensor<D::Buffer>,
    b: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    require(b.shape == a.shape, "input 1", format!("the shape of input 0 ({})", a.shape), b.shape)?;
    equal("elements of the result", y.shape.elements(), a.shape.elements())?;
    let index = usize::try_from(gate.number - 1).ok();
    let kernel = index.and_then(|index| pass.kernels().elementwise.gated.get(index).copied());
    let kernel = kernel.ok_or_else(|| invariant("gate", "a number from 1 to 4", gate.number))?;
    of_pair(pass, kernel, step, [gate.alpha, gate.limit], a, b, y)
}

fn of_pair<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    step: &str,
    [factor, limit]: [f32; 2],
    a: &Tensor<D::Buffer>,
    b: &Tensor<D::Buffer>,
    y: &Tensor<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let (elements, period) = (a.shape.elements(), b.shape.elements());
    let args = ElementwiseArgs { elements: elements as u64, period: period as u64, factor, limit };
    // A row of the grid for each time that `b` is read.
    let grid = Size::new(period.div_ceil(PER_THREAD), elements.checked_div(period).unwrap_or(0), 1);
    let width = WIDTH.min(grid.width.max(1));
    pass.launch(kernel, step)
        .reads(0, a)
        .reads(1, b)
        .writes(2, y)
        .bytes(3, &args)
        .threads(grid, Size::new(width, (WIDTH / width).min(grid.height.max(1)), 1))
}
