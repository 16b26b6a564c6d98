//! The first touch of mapped weights (`kernels/warmup.metal`), at load instead of at the first token.

use crate::device::{
    Buffer, CommandBuffer, ComputeEncoder, Device, DispatchMode, Pipeline, Queue, Result, Size,
};
use crate::families::warmup::{LIBRARY, STRIDE};
use crate::pipelines::{Loader, PipelineId, Pipelines};
use crate::recorder::SubmissionOf;

/// Threads of a threadgroup.
const WIDTH: usize = 256;

/// The kernel.
pub(crate) fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<PipelineId> {
    Ok(loader.library(&LIBRARY)?.kernel("warmup_read"))
}

/// Reads a word of each page of all `buffers`, and does not wait.
pub(crate) fn submit<D: Device>(
    device: &D,
    queue: &D::Queue,
    pipelines: &Pipelines<D>,
    kernel: PipelineId,
    buffers: &[D::Buffer],
) -> Result<SubmissionOf<D>> {
    let sum = device.new_buffer("warm-up", size_of::<u32>())?;
    sum.write(0, &[0; size_of::<u32>()])?;
    let pipeline = pipelines.get(kernel);
    let mut command_buffer = queue.new_command_buffer("warm-up")?;
    let mut encoder = command_buffer.compute_encoder("warm-up", DispatchMode::Serial);
    encoder.set_label("warm-up");
    encoder.set_pipeline(pipeline);
    encoder.set_buffer(1, &sum, 0)?;
    for buffer in buffers {
        let pages = buffer.length() / STRIDE;
        let threads = Size::width(WIDTH.min(pages.max(1))).at_most(pipeline.max_threads_per_threadgroup());
        encoder.set_buffer(0, buffer, 0)?;
        encoder.dispatch_threads(Size::width(pages), threads)?;
    }
    drop(encoder);
    command_buffer.commit()
}
