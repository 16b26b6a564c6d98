//! One dispatch as the runtime sees it, and how it can fail.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::SLOTS;
use super::layout::{Lane, Uint3};
use crate::sanitize::{Checker, Checks};

/// One dispatch, checked and resolved to addresses.
#[derive(Clone)]
pub struct Launch {
    /// The kernel's name, for errors.
    pub kernel: String,
    /// The kernel's entry point for one thread.
    pub run: unsafe extern "C" fn(*mut Lane),
    /// Number of threadgroups.
    pub threadgroups: Uint3,
    /// Threads per threadgroup.
    pub threads: Uint3,
    /// Threads of the whole grid; threadgroups at its far edges are cut to fit.
    pub grid: Uint3,
    /// Bound memory by slot, null where nothing is bound.
    pub buffers: [*mut c_void; SLOTS],
    /// Bytes of each binding, to explain a bad address.
    pub buffer_lengths: [usize; SLOTS],
    /// Bytes of dynamic threadgroup memory by slot.
    pub dynamic_memory: [u32; SLOTS],
    /// Bytes of threadgroup memory at most.
    pub memory_limit: usize,
    /// Function constants by index.
    pub constants: Arc<[u64]>,
    /// Which function constants have a value.
    pub constants_defined: Arc<[u8]>,
    /// Bytes of a SIMD-group's matrix queue, from the library.
    pub queue_size: usize,
    /// Processor time that one threadgroup may take.
    pub budget: Duration,
    /// What the sanitizer needs, for a kernel that was compiled with it.
    pub(crate) checks: Option<Arc<Checks>>,
    /// The sanitizer's checker while the dispatch runs, else null.
    pub(crate) checker: *mut Checker,
}

/// Why a dispatch did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kernel at fault.
    pub kernel: String,
    /// What happened, and in which threadgroup and thread.
    pub reason: String,
}
