//! Executes compiled kernels: one fiber per Metal thread, threadgroups spread over OS threads.

mod executor;
mod fault;
mod fiber;
mod launch;
pub(crate) mod layout;
mod library;
mod place;
mod sanitize;
mod scheduler;
mod worker;

pub use executor::Executor;
pub use launch::{Failure, Launch};
pub use library::{Argument, ArgumentKind, Constant, Kernel, LoadError, Module};
pub(crate) use place::of_instruction as place_of_instruction;
pub(crate) use worker::{abandon_kernel, outside_kernel};

/// Threads in one threadgroup at most.
pub const MAX_THREADS: usize = 1024;
/// Number of `[[buffer(n)]]` and of `[[threadgroup(n)]]` slots.
pub const SLOTS: usize = 31;
/// Number of function constants: indices are below this.
pub const FUNCTION_CONSTANTS: usize = 65536;
/// Threads in one SIMD-group.
pub const SIMD_WIDTH: usize = 32;
