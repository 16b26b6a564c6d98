//! The device trait: what a Metal backend needs from a GPU, and nothing else.
//!
//! The shape is Metal's own. A [`Device`] makes buffers, libraries, pipelines and queues; a [`Queue`] makes
//! command buffers; a [`CommandBuffer`] records compute encoders and copies and is committed once; what
//! [`CommandBuffer::commit`] returns is a [`Submission`], which is waited for with a deadline. There is one way
//! to submit work, so what a test exercises on one device is what runs on another.
//!
//! Implementations check what Metal's validation layer would check and return an [`Error`] that names the
//! kernel, the slot and both numbers. Encoder methods only record; [`ComputeEncoder::dispatch_threadgroups`],
//! [`ComputeEncoder::dispatch_threads`] and [`CommandBuffer::commit`] report what is wrong with the recorded
//! state. Errors of the running kernel arrive through [`Submission::wait`].

mod bindings;
pub mod checks;
mod encoding;
mod error;
mod limits;
mod memory;
#[cfg(target_os = "macos")]
pub mod objc;
mod options;
mod progress;
mod size;

use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

pub use bindings::{Bindings, Bound, Interface, Parameter, ParameterSpace};
pub use encoding::Encoding;
pub use error::{Error, Result};
pub use limits::{Capabilities, Limits};
pub use memory::HostMemory;
pub use options::{CompileOptions, ConstantValue, FunctionConstants, LanguageVersion, MathMode};
pub use progress::{LastDispatches, Progress};
pub use size::Size;

/// Whether the dispatches of one encoder may overlap on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DispatchMode {
    /// Each dispatch sees what the dispatches before it wrote.
    #[default]
    Serial,
    /// Dispatches may overlap unless a [`ComputeEncoder::barrier`] stands between them.
    Concurrent,
}

/// Where a submission stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Committed and not yet taken up by the device.
    Scheduled,
    /// Being executed.
    Running,
    /// Executed without an error.
    Completed,
    /// Ended with an error, which [`Submission::wait`] returns.
    Failed,
}

/// When the device executed a submission, in seconds of the device's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct GpuInterval {
    /// Start of the first command.
    pub start: f64,
    /// End of the last command.
    pub end: f64,
}

impl GpuInterval {
    /// How long the device was busy with the submission.
    pub fn duration(&self) -> Duration {
        Duration::try_from_secs_f64(self.end - self.start).unwrap_or_default()
    }
}

/// A GPU: the factory of every other object.
pub trait Device: Send + Sync + 'static {
    /// Memory that both host and device reach.
    type Buffer: Buffer;
    /// Compiled MSL.
    type Library: Send + Sync;
    /// One kernel with its function constants, ready to be dispatched.
    type Pipeline: Pipeline;
    /// A queue of command buffers.
    type Queue: Queue<Buffer = Self::Buffer, Pipeline = Self::Pipeline>;

    /// The device's name, as shown to people.
    fn name(&self) -> &str;

    /// What the device can hold and launch.
    fn limits(&self) -> &Limits;

    /// Optional language features of the device.
    fn capabilities(&self) -> &Capabilities;

    /// Allocates `length` bytes that host and device share, all zero. A checking device reports reads of what nobody wrote all the
    /// same. The memory is the device's as a whole from the first work on that uses the buffer.
    ///
    /// # Errors
    /// [`Error::BufferLength`] for zero bytes or more than [`Limits::max_buffer_length`].
    fn new_buffer(&self, label: &str, length: usize) -> Result<Self::Buffer>;

    /// Wraps `length` bytes that someone else owns, such as a memory-mapped file, without a copy.
    ///
    /// # Errors
    /// [`Error::NoCopyAlignment`] unless pointer and length are multiples of
    /// [`Limits::no_copy_alignment`], and [`Error::BufferLength`] as for [`Device::new_buffer`].
    ///
    /// # Safety
    /// The range must stay valid for reads, and for writes if any kernel writes to it, until the last clone of
    /// the buffer and the last submission that uses it are gone.
    unsafe fn new_buffer_no_copy(
        &self,
        label: &str,
        memory: NonNull<u8>,
        length: usize,
    ) -> Result<Self::Buffer>;

    /// Compiles MSL source text.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's diagnostics.
    fn new_library(&self, label: &str, source: &str, options: &CompileOptions) -> Result<Self::Library>;

    /// Loads a library that was compiled beforehand, from the bytes of its file: a `.metallib` on macOS. Another
    /// device has a form of its own or none, and refuses every other.
    ///
    /// # Errors
    /// [`Error::Compile`] with what the bytes are and what was expected.
    fn new_library_with_data(&self, label: &str, data: &[u8]) -> Result<Self::Library>;

    /// Makes the kernel called `name` ready to run with the given function constants.
    ///
    /// # Errors
    /// [`Error::KernelNotFound`]; [`Error::FunctionConstant`] for a value of another type than its constant, and
    /// for a constant that the kernel needs and that has no value.
    fn new_pipeline(
        &self,
        library: &Self::Library,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<Self::Pipeline>;

    /// Makes a queue. Command buffers of one queue execute in the order of their commits; two queues are
    /// independent of each other.
    ///
    /// # Errors
    /// [`Error::Device`] where the device has no queue left.
    fn new_queue(&self, label: &str) -> Result<Self::Queue>;

    /// Makes the queue's residency set, empty: one a queue, since Metal lets a queue have few of them. `None` where the
    /// device has no such thing.
    ///
    /// # Errors
    /// [`Error::Device`] where the device has it and refuses.
    fn new_residency_set(&self, queue: &Self::Queue) -> Result<Option<Box<dyn ResidencySet<Self::Buffer>>>> {
        let _ = queue;
        Ok(None)
    }

    /// Bytes of the device's memory that this process has taken so far; 0 where the device does not tell.
    fn allocated_memory(&self) -> usize {
        0
    }

    /// Runs what calls the device, and then gives up the objects that the device's interface made for it in passing: threads
    /// of Rust have no pool of their own that would be emptied, as macOS expects.
    fn scope<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Starts to record everything that the device executes, for a debugger, into a new file at `path`.
    ///
    /// # Errors
    /// [`Error::Device`] where the device cannot, or not now.
    fn start_capture(&self, path: &Path) -> Result<()> {
        Err(Error::Device(format!("{}: no capture to {}: not supported", self.name(), path.display())))
    }

    /// Ends what [`Device::start_capture`] began; without one it does nothing.
    fn stop_capture(&self) {}
}

/// Memory that both host and device reach. A clone is another handle on the same memory.
pub trait Buffer: Clone + Send + Sync + 'static {
    /// The memory behind it. Only the device's own code touches it directly.
    fn memory(&self) -> &HostMemory;

    /// Length in bytes.
    fn length(&self) -> usize {
        self.memory().length()
    }

    /// The name given at creation.
    fn label(&self) -> &str {
        self.memory().label()
    }

    /// The first byte. The caller must not touch the memory while a submission that uses it is in flight;
    /// [`Buffer::read`] and [`Buffer::write`] let a checking device see the access.
    fn contents(&self) -> NonNull<u8> {
        self.memory().start()
    }

    /// Copies `out.len()` bytes from `offset` on to `out`.
    ///
    /// # Errors
    /// [`Error::BufferRange`] past the end.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.memory().read(offset, out)
    }

    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::BufferRange`] past the end.
    fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.memory().write(offset, data)
    }
}

/// Memory that the device has mapped before work needs it, so that no submission pays for that. It is part of what the work
/// of its queue may use until it is dropped.
pub trait ResidencySet<B>: Send {
    /// Takes buffers in, and others out. The memory of those that someone else owns must outlive their time in the set.
    fn change(&mut self, added: &[B], removed: &[B]);

    /// Asks that all of it be mapped now. A system may take the memory out again soon after the queue's last work, unless it is
    /// asked again.
    fn request(&mut self);
}

/// One kernel, ready to be dispatched. A clone is another handle on the same pipeline.
pub trait Pipeline: Clone + Send + Sync {
    /// What the kernel asks of those who dispatch it.
    fn interface(&self) -> &Interface;

    /// The kernel's name in its library.
    fn name(&self) -> &str {
        &self.interface().name
    }

    /// The largest threadgroup that this kernel can be launched with.
    fn max_threads_per_threadgroup(&self) -> usize {
        self.interface().max_threads
    }

    /// Threads in one SIMD-group.
    fn simd_width(&self) -> usize;
}

/// A queue of command buffers.
pub trait Queue: Send + Sync {
    /// The device's buffers.
    type Buffer: Buffer;
    /// The device's pipelines.
    type Pipeline: Pipeline;
    /// What this queue records into.
    type CommandBuffer: CommandBuffer<Buffer = Self::Buffer, Pipeline = Self::Pipeline>;

    /// Opens a command buffer.
    ///
    /// # Errors
    /// [`Error::Device`] where the device refuses.
    fn new_command_buffer(&self, label: &str) -> Result<Self::CommandBuffer>;
}

/// A recording of work, committed once.
pub trait CommandBuffer: Sized {
    /// The device's buffers.
    type Buffer: Buffer;
    /// The device's pipelines.
    type Pipeline: Pipeline;
    /// The encoder for dispatches.
    type Encoder<'a>: ComputeEncoder<Buffer = Self::Buffer, Pipeline = Self::Pipeline>
    where
        Self: 'a;
    /// Work on its way.
    type Submission: Submission;

    /// Opens an encoder; it ends when it is dropped.
    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> Self::Encoder<'_>;

    /// Copies `length` bytes between buffers, after everything recorded before and before everything after.
    ///
    /// # Errors
    /// [`Error::BufferRange`] past the end of either buffer.
    fn copy(
        &mut self,
        source: &Self::Buffer,
        source_offset: usize,
        destination: &Self::Buffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()>;

    /// Hands the recording to the device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device refuses.
    fn commit(self) -> Result<Self::Submission>;
}

/// Records dispatches. Bindings stay until they are replaced, as in Metal.
pub trait ComputeEncoder {
    /// The device's buffers.
    type Buffer: Buffer;
    /// The device's pipelines.
    type Pipeline: Pipeline;

    /// Names the dispatches that follow; a failed submission reports the names of its last dispatches.
    fn set_label(&mut self, label: &str);

    /// Selects the kernel of the dispatches that follow.
    fn set_pipeline(&mut self, pipeline: &Self::Pipeline);

    /// Binds a buffer from `offset` on to the slot `[[buffer(slot)]]`.
    ///
    /// # Errors
    /// [`Error::Slot`] for a slot past the limit, [`Error::BufferRange`] for an offset past the end.
    fn set_buffer(&mut self, slot: usize, buffer: &Self::Buffer, offset: usize) -> Result<()>;

    /// Promises that the kernel touches no more than the first `length` bytes of what is bound to the slot, until something
    /// else is bound. A checking device reports it if it does; Metal has nothing of the kind.
    fn limit_buffer(&mut self, slot: usize, length: usize) {
        let _ = (slot, length);
    }

    /// Copies `bytes` into the command buffer and binds the copy to the slot `[[buffer(slot)]]`.
    ///
    /// # Errors
    /// [`Error::Slot`], and [`Error::InlineBytes`] for nothing or more than [`Limits::max_inline_bytes`].
    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()>;

    /// Gives the slot `[[threadgroup(slot)]]` memory of `length` bytes per threadgroup; 0 takes it away.
    ///
    /// # Errors
    /// [`Error::Slot`], and [`Error::ThreadgroupMemory`] unless `length` is a multiple of 16 within the limit.
    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()>;

    /// Launches `threadgroups` whole threadgroups of `threads_per_threadgroup` threads.
    ///
    /// # Errors
    /// [`Error::NoPipeline`], [`Error::ThreadgroupSize`], [`Error::EmptyGrid`], [`Error::Unbound`],
    /// [`Error::BindingTooSmall`] and [`Error::ThreadgroupMemory`].
    fn dispatch_threadgroups(&mut self, threadgroups: Size, threads_per_threadgroup: Size) -> Result<()>;

    /// Launches exactly `threads` threads; threadgroups at the far edges of the grid are cut to fit.
    ///
    /// # Errors
    /// As for [`ComputeEncoder::dispatch_threadgroups`].
    fn dispatch_threads(&mut self, threads: Size, threads_per_threadgroup: Size) -> Result<()>;

    /// Makes the buffer writes of all dispatches before it visible to all dispatches after it: Metal's memory barrier
    /// with the scope of buffers. Needed in a [`DispatchMode::Concurrent`] encoder alone.
    fn barrier(&mut self);

    /// The same for some buffers alone, Metal's memory barrier with a list of resources: dispatches that touch
    /// others may still overlap. A device may order more than it is asked to.
    fn barrier_for(&mut self, buffers: &[&Self::Buffer]) {
        if !buffers.is_empty() {
            self.barrier();
        }
    }
}

/// Work on its way.
pub trait Submission: Send {
    /// The command buffer's name.
    fn label(&self) -> &str;

    /// Where the work stands.
    fn status(&self) -> Status;

    /// Waits for the end of the work, at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] when the deadline passes, [`Error::Execution`] when the work failed; both carry the
    /// labels of the last dispatches.
    fn wait(&self, timeout: Duration) -> Result<GpuInterval>;
}
