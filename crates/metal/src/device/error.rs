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
    /// The source does not compile, or the bytes are no library.
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
        /// The kernel at fault; empty where the device does not tell.
        kernel: String,
        /// What happened.
        reason: String,
        /// Labels of the last dispatches.
        last_dispatches: Vec<String>,
    },
    /// The device or its driver refused.
    Device(String),
}

impl Error {
    /// The device has no memory for a new buffer.
    pub fn no_memory(label: &str, length: usize) -> Self {
        Self::Device(format!("buffer '{label}': no memory for {length} bytes"))
    }

    /// A source, or a compiled library, that the device refuses.
    pub fn compile(label: impl ToString, diagnostics: impl ToString) -> Self {
        Self::Compile { label: label.to_string(), diagnostics: diagnostics.to_string() }
    }
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
            Self::Execution { label, kernel, reason, last_dispatches } => {
                write!(f, "command buffer '{label}': ")?;
                if !kernel.is_empty() {
                    write!(f, "kernel '{kernel}': ")?;
                }
                write!(f, "{reason}; last dispatches: {}", last_dispatches.join(", "))
            }
            Self::Device(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_says_what_was_found_and_what_was_expected() {
        let (kernel, label) = (String::from("gemm"), String::from("w"));
        let cases = [
            (
                Error::BufferLength { label: label.clone(), length: 0, limit: 8 },
                "buffer 'w': length 0, expected 1 to 8 bytes",
            ),
            (
                Error::NoCopyAlignment { label: label.clone(), address: 0x4010, length: 5, alignment: 16384 },
                "buffer 'w': memory at 0x4010 of 5 bytes cannot be wrapped without a copy, both must be multiples of 16384",
            ),
            (
                Error::BufferRange { label: label.clone(), offset: 6, length: 4, buffer_length: 8 },
                "buffer 'w': 4 bytes at offset 6, the buffer has 8",
            ),
            (
                Error::Compile { label: label.clone(), diagnostics: "w:1:2: no".into() },
                "library 'w': w:1:2: no",
            ),
            (
                Error::KernelNotFound { name: kernel.clone(), library: label.clone() },
                "library 'w' has no kernel 'gemm'",
            ),
            (
                Error::FunctionConstant { kernel: kernel.clone(), reason: "3 is a bool".into() },
                "kernel 'gemm': 3 is a bool",
            ),
            (Error::Slot { slot: 40, limit: 31 }, "slot 40 does not exist, the last one is 30"),
            (
                Error::InlineBytes { slot: 2, length: 5000, limit: 4096 },
                "buffer(2): 5000 inline bytes, expected 1 to 4096",
            ),
            (
                Error::ThreadgroupMemory { kernel: kernel.clone(), length: 8, limit: 32768, alignment: 16 },
                "kernel 'gemm': 8 bytes of threadgroup memory, expected a multiple of 16 up to 32768",
            ),
            (Error::NoPipeline, "dispatch without a pipeline"),
            (
                Error::EmptyGrid { kernel: kernel.clone(), grid: Size::new(4, 0, 1) },
                "kernel 'gemm': dispatch of an empty grid 4x0x1",
            ),
            (
                Error::ThreadgroupSize { kernel: kernel.clone(), size: Size::new(64, 32, 1), limit: 1024 },
                "kernel 'gemm': threadgroup of 64x32x1 threads, the limit is 1024",
            ),
            (
                Error::Unbound { kernel: kernel.clone(), slot: "buffer(1)".into(), parameter: "x".into() },
                "kernel 'gemm': nothing is bound to buffer(1) ('x')",
            ),
            (
                Error::BindingTooSmall {
                    kernel: kernel.clone(),
                    slot: 1,
                    parameter: "x".into(),
                    reason: "4 of 8 bytes".into(),
                },
                "kernel 'gemm': buffer(1) ('x'): 4 of 8 bytes",
            ),
            (
                Error::Timeout {
                    label: label.clone(),
                    waited: Duration::from_secs(2),
                    last_dispatches: vec!["a".into(), "b".into()],
                },
                "command buffer 'w': not done after 2s; last dispatches: a, b",
            ),
            (
                Error::Execution {
                    label: label.clone(),
                    kernel,
                    reason: "fault".into(),
                    last_dispatches: vec!["a".into()],
                },
                "command buffer 'w': kernel 'gemm': fault; last dispatches: a",
            ),
            (
                Error::Execution {
                    label,
                    kernel: String::new(),
                    reason: "fault".into(),
                    last_dispatches: vec![],
                },
                "command buffer 'w': fault; last dispatches: ",
            ),
            (Error::Device("no queue left".into()), "no queue left"),
        ];
        for (error, message) in cases {
            assert_eq!(error.to_string(), message);
        }
    }
}
