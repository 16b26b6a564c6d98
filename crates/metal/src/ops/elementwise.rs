//! Element-by-element operations (`kernels/elementwise.metal`).

use crate::device::{Device, Result, Size};
use crate::library::Library;
use crate::pass::{Pass, equal};
use crate::pipelines::{Loader, PipelineId};
use bytemuck::NoUninit;
use graph::BackendError;

/// The sources.
const LIBRARY: Library = Library {
    name: "elementwise",
    files: &[("elementwise.metal", include_str!("../../kernels/elementwise.metal"))],
    constants: &[],
};

/// Threads of a threadgroup.
const WIDTH: usize = 256;

/// The pipelines of the family.
pub(crate) struct Kernels {
    scale: PipelineId,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        let mut library = loader.library(&LIBRARY)?;
        Ok(Kernels { scale: library.kernel("scale_f32")? })
    }
}

/// `ScaleArgs` of the shader.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct ScaleArgs {
    count: u32,
    factor: f32,
}

/// `factor * x`.
pub(super) fn scale<D: Device>(pass: &mut Pass<'_, D>, factor: f32) -> std::result::Result<(), BackendError> {
    let (x, y) = (pass.input(0)?, pass.output()?);
    equal("elements of the result", y.shape.elements(), x.shape.elements())?;
    let count = x.shape.elements();
    let args = ScaleArgs { count: pass.u32("elements", count)?, factor };
    let kernel = pass.kernels().elementwise.scale;
    pass.launch(kernel, "")
        .reads(0, &x)
        .writes(1, &y)
        .bytes(2, &args)
        .threads(Size::width(count), Size::width(WIDTH.min(count.max(1))))
}
