//! What can go wrong on a device.

use std::fmt;
use std::time::Duration;

use super::Size;

/// The result of a device operation.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong on a device: what was found, what was expected, and where.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A buffer of no bytes, or of more than the device can hold.
    BufferLength {
        /// The buffer's label.
        label: String,
        /// The length asked for.
        length: usize,
        /// The largest length.
        limit: usize,
    },
    /// Foreign memory that the device cannot map as it is.
    NoCopyAlignment {
        /// The buffer's label.
        label: String,
        /// Address of the first byte.
        address: usize,
        /// Length in bytes.
        length: usize,
        /// What both must be a multiple of.
        alignment: usize,
    },
    /// An access past the end of a buffer.
    BufferRange {
        /// The buffer's label.
        label: String,
        /// First byte of the access.
        offset: usize,
        /// Bytes of the access.
        length: usize,
        /// The buffer's length.
        buffer_length: usize,
    },
    /// The source does not compile.
    Compile {
        /// The library's label.
        label: String,
        /// Diagnostics, one a line, with file, line and column.
        diagnostics: String,
    },
    /// A library has no kernel of that name.
    KernelNotFound {
        /// The name asked for.
        name: String,
        /// The library's label.
        library: String,
    },
    /// A function constant is missing or has another type.
    FunctionConstant {
        /// The kernel being specialised.
        kernel: String,
        /// What is wrong with which constant.
        reason: String,
    },
    /// A binding slot past the device's limit.
    Slot {
        /// The slot asked for.
        slot: usize,
        /// The number of slots.
        limit: usize,
    },
    /// Inline bytes of no length or past the limit.
    InlineBytes {
        /// The slot asked for.
        slot: usize,
        /// Number of bytes.
        length: usize,
        /// The largest number.
        limit: usize,
    },
    /// Threadgroup memory that is not in the device's granularity or past its limit.
    ThreadgroupMemory {
        /// The kernel, where known.
        kernel: String,
        /// Bytes asked for.
        length: usize,
        /// The largest number of bytes.
        limit: usize,
        /// What the length must be a multiple of.
        alignment: usize,
    },
    /// A dispatch before any pipeline was set.
    NoPipeline,
    /// A dispatch of no threads.
    EmptyGrid {
        /// The kernel.
        kernel: String,
        /// The grid.
        grid: Size,
    },
    /// A threadgroup larger than the kernel or the device allows.
    ThreadgroupSize {
        /// The kernel.
        kernel: String,
        /// The size asked for.
        size: Size,
        /// The largest number of threads.
        limit: usize,
    },
    /// A kernel parameter that nothing is bound to.
    Unbound {
        /// The kernel.
        kernel: String,
        /// `buffer(n)` or `threadgroup(n)`.
        slot: String,
        /// The parameter's name.
        parameter: String,
    },
    /// A binding that is shorter than the object which the kernel reads through it, or not aligned for it.
    BindingTooSmall {
        /// The kernel.
        kernel: String,
        /// The slot.
        slot: usize,
        /// The parameter's name.
        parameter: String,
        /// What is wrong, with both numbers.
        reason: String,
    },
    /// The work did not end before the deadline.
    Timeout {
        /// The command buffer's label.
        label: String,
        /// How long was waited.
        waited: Duration,
        /// Labels of the last dispatches.
        last_dispatches: Vec<String>,
    },
    /// The work ended with an error.
    Execution {
        /// The command buffer's label.
        label: String,
        /// The kernel at fault, where known.
        kernel: String,
        /// What happened.
        reason: String,
        /// Labels of the last dispatches.
        last_dispatches: Vec<String>,
    },
    /// The device or its driver refused.
    Device(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferLength { label, length, limit } => {
                write!(f, "buffer '{label}': length {length}, expected 1 to {limit} bytes")
            }
            Self::NoCopyAlignment { label, address, length, alignment } => write!(
                f,
                "buffer '{label}': memory at {address:#x} of {length} bytes cannot be wrapped without a copy, \
                 both must be multiples of {alignment}"
            ),
            Self::BufferRange { label, offset, length, buffer_length } => {
                write!(
                    f,
                    "buffer '{label}': {length} bytes at offset {offset}, the buffer has {buffer_length}"
                )
            }
            Self::Compile { label, diagnostics } => write!(f, "library '{label}': {diagnostics}"),
            Self::KernelNotFound { name, library } => {
                write!(f, "library '{library}' has no kernel '{name}'")
            }
            Self::FunctionConstant { kernel, reason } => write!(f, "kernel '{kernel}': {reason}"),
            Self::Slot { slot, limit } => {
                write!(f, "slot {slot} does not exist, the last one is {}", limit.saturating_sub(1))
            }
            Self::InlineBytes { slot, length, limit } => {
                write!(f, "buffer({slot}): {length} inline bytes, expected 1 to {limit}")
            }
            Self::ThreadgroupMemory { kernel, length, limit, alignment } => write!(
                f,
                "kernel '{kernel}': {length} bytes of threadgroup memory, expected a multiple of {alignment} up \
                 to {limit}"
            ),
            Self::NoPipeline => write!(f, "dispatch without a pipeline"),
            Self::EmptyGrid { kernel, grid } => {
                write!(f, "kernel '{kernel}': dispatch of an empty grid {grid}")
            }
            Self::ThreadgroupSize { kernel, size, limit } => {
                write!(f, "kernel '{kernel}': threadgroup of {size} threads, the limit is {limit}")
            }
            Self::Unbound { kernel, slot, parameter } => {
                write!(f, "kernel '{kernel}': nothing is bound to {slot} ('{parameter}')")
            }
            Self::BindingTooSmall { kernel, slot, parameter, reason } => {
                write!(f, "kernel '{kernel}': buffer({slot}) ('{parameter}'): {reason}")
            }
            Self::Timeout { label, waited, last_dispatches } => write!(
                f,
                "command buffer '{label}': not done after {waited:?}; last dispatches: {}",
                last_dispatches.join(", ")
            ),
            Self::Execution { label, kernel, reason, last_dispatches } => write!(
                f,
                "command buffer '{label}': kernel '{kernel}': {reason}; last dispatches: {}",
                last_dispatches.join(", ")
            ),
            Self::Device(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}
