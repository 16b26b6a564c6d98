//! Command buffers and encoders that record, with the checks of Metal's validation layer: for every device that executes
//! MSL compiled by this crate.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metal::device::{
    Bound, Buffer, CommandBuffer, ComputeEncoder, DispatchMode, Encoding, Limits, Pipeline, Result, Size,
    Submission, checks,
};

/// What executes recordings.
pub trait Target: Sized {
    /// The device's buffers.
    type Buffer: Buffer;
    /// The device's pipelines.
    type Pipeline: Pipeline;
    /// Work on its way.
    type Submission: Submission;

    /// Tells buffers apart: the same for all handles on one.
    fn identity(buffer: &Self::Buffer) -> usize;

    /// Checks what only the device knows about a dispatch.
    ///
    /// # Errors
    /// [`Error::Device`](metal::device::Error::Device).
    fn check(&self, pipeline: &Self::Pipeline) -> Result<()>;

    /// The barrier of every command buffer, counted from 0, that is to be left out.
    fn without_barrier(&self) -> Option<u64> {
        None
    }

    /// Takes a recording.
    ///
    /// # Errors
    /// [`Error::Device`](metal::device::Error::Device).
    fn submit(self, label: &str, commands: Vec<Command<Self>>) -> Result<Self::Submission>;
}

/// What is bound to a buffer slot.
#[derive(Clone, Debug)]
pub enum Binding<B> {
    /// A buffer, from an offset on.
    Buffer(B),
    /// Bytes that were copied into the command buffer.
    Bytes(Arc<InlineBytes>),
}

/// Bytes that were copied into the command buffer, aligned for any object.
#[derive(Debug)]
pub struct InlineBytes {
    words: Vec<u128>,
    length: usize,
}

impl InlineBytes {
    fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0u128; bytes.len().div_ceil(size_of::<u128>())];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(size_of::<u128>())) {
            let mut full = [0; size_of::<u128>()];
            full[..chunk.len()].copy_from_slice(chunk);
            *word = u128::from_ne_bytes(full);
        }
        Self { words, length: bytes.len() }
    }

    /// Address of the first byte.
    pub fn address(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }

    /// The bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_ne_bytes()).take(self.length).collect()
    }
}

/// One recorded command.
pub enum Command<T: Target> {
    /// A kernel with everything bound.
    Dispatch(Box<Dispatch<T>>),
    /// A copy between buffers. Both ranges lie inside; they may overlap.
    Copy(Box<Copy<T::Buffer>>),
}

/// One recorded copy.
pub struct Copy<B> {
    /// Where the bytes come from.
    pub source: B,
    /// The first of them.
    pub source_offset: usize,
    /// Where they go.
    pub destination: B,
    /// The first byte that is overwritten.
    pub destination_offset: usize,
    /// How many there are.
    pub length: usize,
}

/// One recorded dispatch: everything bound when it was recorded.
pub struct Dispatch<T: Target> {
    /// The encoder's label.
    pub label: String,
    /// The kernel.
    pub pipeline: T::Pipeline,
    /// What is bound, by slot.
    pub buffers: Vec<Option<Bound<Binding<T::Buffer>>>>,
    /// Bytes of dynamic threadgroup memory, by slot.
    pub threadgroup_memory: Vec<usize>,
    /// Threadgroups along each axis; every count of this and the next two fits in 32 bits.
    pub threadgroups: Size,
    /// Threads of a whole threadgroup.
    pub threads: Size,
    /// Threads of the whole grid.
    pub grid: Size,
    /// Dispatches of the same interval may overlap.
    pub interval: u64,
    /// A number that grows from dispatch to dispatch of an interval.
    pub number: u64,
    /// By slot: a barrier orders what the interval's dispatches below this number do to the buffer before this one.
    pub ordered_before: Vec<u64>,
}

/// A number above all before it.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A recording of work.
pub struct Recording<T: Target> {
    label: String,
    limits: Limits,
    commands: Vec<Command<T>>,
    /// Barriers so far.
    barriers: u64,
    target: T,
}

impl<T: Target> Recording<T> {
    /// An empty recording for a device with such limits.
    pub fn new(label: &str, limits: Limits, target: T) -> Self {
        Self { label: label.to_owned(), limits, commands: Vec::new(), barriers: 0, target }
    }
}

impl<T: Target> CommandBuffer for Recording<T> {
    type Buffer = T::Buffer;
    type Pipeline = T::Pipeline;
    type Encoder<'a>
        = RecordingEncoder<'a, T>
    where
        T: 'a;
    type Submission = T::Submission;

    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> RecordingEncoder<'_, T> {
        RecordingEncoder {
            encoding: Encoding::new(label, mode, &self.limits),
            interval: next_number(),
            ordered: HashMap::new(),
            recording: self,
        }
    }

    fn copy(
        &mut self,
        source: &T::Buffer,
        source_offset: usize,
        destination: &T::Buffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()> {
        checks::copy(source, source_offset, destination, destination_offset, length)?;
        let (source, destination) = (source.clone(), destination.clone());
        let copy = Copy { source, source_offset, destination, destination_offset, length };
        self.commands.push(Command::Copy(Box::new(copy)));
        Ok(())
    }

    fn commit(self) -> Result<T::Submission> {
        self.target.submit(&self.label, self.commands)
    }
}

/// Records dispatches.
pub struct RecordingEncoder<'a, T: Target> {
    encoding: Encoding<Binding<T::Buffer>, T::Pipeline>,
    interval: u64,
    /// By buffer: which dispatches of the interval a barrier orders.
    ordered: HashMap<usize, u64>,
    recording: &'a mut Recording<T>,
}

impl<T: Target> RecordingEncoder<'_, T> {
    fn dispatch(&mut self, threadgroups: Size, threads: Size, grid: Size) -> Result<()> {
        let pipeline = self.encoding.check_dispatch(grid, threads)?.clone();
        self.recording.target.check(&pipeline)?;
        let bindings = self.encoding.bindings();
        let buffers = bindings.buffers().to_vec();
        let ordered_before = |bound: &Option<Bound<Binding<T::Buffer>>>| match bound {
            Some(Bound { value: Binding::Buffer(buffer), .. }) => {
                self.ordered.get(&T::identity(buffer)).copied().unwrap_or(0)
            }
            _ => 0,
        };
        self.recording.commands.push(Command::Dispatch(Box::new(Dispatch {
            label: self.encoding.label().to_owned(),
            pipeline,
            ordered_before: buffers.iter().map(ordered_before).collect(),
            buffers,
            threadgroup_memory: bindings.threadgroup_memory().to_vec(),
            threadgroups,
            threads,
            grid,
            interval: self.interval,
            number: next_number(),
        })));
        if !self.encoding.is_concurrent() {
            self.order_everything();
        }
        Ok(())
    }

    fn order_everything(&mut self) {
        self.interval = next_number();
        self.ordered.clear();
    }

    /// Counts a barrier; whether it is one.
    fn is_barrier(&mut self) -> bool {
        let number = self.recording.barriers;
        self.recording.barriers += 1;
        self.recording.target.without_barrier() != Some(number)
    }
}

impl<T: Target> ComputeEncoder for RecordingEncoder<'_, T> {
    type Buffer = T::Buffer;
    type Pipeline = T::Pipeline;

    fn set_label(&mut self, label: &str) {
        self.encoding.set_label(label);
    }

    fn set_pipeline(&mut self, pipeline: &T::Pipeline) {
        self.encoding.set_pipeline(pipeline);
    }

    fn set_buffer(&mut self, slot: usize, buffer: &T::Buffer, offset: usize) -> Result<()> {
        self.encoding.set_buffer(slot, buffer, offset, Binding::Buffer(buffer.clone()))
    }

    fn limit_buffer(&mut self, slot: usize, length: usize) {
        self.encoding.limit_buffer(slot, length);
    }

    fn set_bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        self.encoding.set_bytes(slot, bytes, Binding::Bytes(Arc::new(InlineBytes::new(bytes))))
    }

    fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        self.encoding.set_threadgroup_memory(slot, length)
    }

    fn dispatch_threadgroups(&mut self, threadgroups: Size, threads_per_threadgroup: Size) -> Result<()> {
        self.dispatch(threadgroups, threads_per_threadgroup, threadgroups.times(threads_per_threadgroup))
    }

    fn dispatch_threads(&mut self, threads: Size, threads_per_threadgroup: Size) -> Result<()> {
        let block = threads_per_threadgroup;
        // The check of sizes reports a zero.
        let groups = if block.to_array().contains(&0) { threads } else { threads.div_ceil(block) };
        self.dispatch(groups, block, threads)
    }

    /// Dispatches run one after the other, which every barrier allows; the sanitizer remembers it.
    fn barrier(&mut self) {
        if self.is_barrier() {
            self.order_everything();
        }
    }

    fn barrier_for(&mut self, buffers: &[&T::Buffer]) {
        if self.is_barrier() {
            let now = next_number();
            self.ordered.extend(buffers.iter().map(|buffer| (T::identity(buffer), now)));
        }
    }
}
