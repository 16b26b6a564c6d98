//! What compiled kernels and the runtime share. Every struct mirrors one in `shim/runtime.h`, where the
//! fields are described; the loader compares the sizes before it runs anything.

use std::ffi::{c_char, c_void};

use super::SIMD_WIDTH;
use crate::sanitize::Checker;

/// Version of this layout.
pub const ABI_VERSION: u32 = 3;
/// Added to the version of a library that was compiled for the sanitizer.
pub const SANITIZED: u32 = 1 << 16;
/// The widest value that a SIMD-group operation passes, in bytes.
pub const EXCHANGE_BYTES: usize = 32;
/// Set in [`Lane::barrier_flags`] while the lane waits at a `simdgroup_barrier`.
pub const SIMDGROUP_BARRIER: u32 = 1 << 31;

/// A three-dimensional index or size.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Uint3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

impl Uint3 {
    /// An index or size along all three axes.
    pub const fn new(x: u32, y: u32, z: u32) -> Self {
        Self { x, y, z }
    }

    /// The position of an element that is counted along x first, then y, then z.
    pub const fn position(self, index: u64) -> Self {
        let (x, y) = (self.x as u64, self.y as u64);
        Self::new((index % x) as u32, (index / x % y) as u32, (index / x / y) as u32)
    }

    /// The number of elements.
    pub const fn volume(self) -> u64 {
        self.x as u64 * self.y as u64 * self.z as u64
    }
}

/// One Metal thread.
#[repr(C)]
pub struct Lane {
    pub threadgroup: *mut Threadgroup,
    pub simdgroup: *mut SimdGroup,
    pub lane: u32,
    pub thread: u32,
    pub position: Uint3,
    pub site: u32,
    pub barrier_flags: u32,
    pub matrix_operations: u32,
    pub matrix_tiles: u32,
    pub stack: u32,
    pub stack_pointer: *mut c_void,
    pub place: u64,
    pub silent_barriers: u64,
    pub silent_place: u64,
}

/// One SIMD-group.
#[repr(C)]
pub struct SimdGroup {
    pub members: u32,
    pub finished: u32,
    pub runnable: u32,
    pub waiting_simd: u32,
    pub waiting_barrier: u32,
    pub generation: u32,
    pub active: u32,
    pub site: u32,
    pub sites_differ: u32,
    pub combine_pending: u32,
    pub index: u32,
    pub lanes: *mut Lane,
    pub matrix_queue: *mut c_void,
    pub matrix_flush: Option<unsafe extern "C" fn(*mut SimdGroup)>,
    pub stamps: [u64; 2],
    pub exchange: [ExchangeHalf; 2],
    pub result: [ResultSlot; 2],
}

/// The values of all lanes in one operation.
#[repr(C, align(64))]
pub struct ExchangeHalf(pub [[u8; EXCHANGE_BYTES]; SIMD_WIDTH]);

/// The result of one reduction.
#[repr(C, align(64))]
pub struct ResultSlot(pub [u8; 64]);

/// One threadgroup while it runs.
#[repr(C)]
pub struct Threadgroup {
    pub position: Uint3,
    pub size: Uint3,
    pub dispatch_size: Uint3,
    pub threadgroups: Uint3,
    pub grid: Uint3,
    pub thread_count: u32,
    pub simdgroup_count: u32,
    pub buffers: *const *mut c_void,
    pub dynamic_memory: *const *mut c_void,
    pub constants: *const u64,
    pub constants_defined: *const u8,
    pub worker: *mut c_void,
    pub sanitizer: *mut Checker,
}

/// What the runtime offers to kernels.
#[repr(C)]
pub struct Runtime {
    pub simd_arrive: unsafe extern "C" fn(*mut Lane, u32) -> bool,
    pub threadgroup_barrier: unsafe extern "C" fn(*mut Lane, u32, u32),
    pub local_memory: unsafe extern "C" fn(*mut Lane, *const c_void, usize, usize) -> *mut c_void,
    pub fail: unsafe extern "C" fn(*mut Lane, *const c_char),
}

/// One parameter of a compiled kernel.
#[repr(C)]
pub struct ArgumentDescriptor {
    pub kind: u32,
    pub slot: u32,
    pub read_only: u32,
    pub reference: u32,
    pub size: u64,
    pub alignment: u64,
}

/// One entry point of a compiled library.
#[repr(C)]
pub struct KernelDescriptor {
    pub name: *const c_char,
    pub run: unsafe extern "C" fn(*mut Lane),
    pub arguments: *const ArgumentDescriptor,
    pub argument_names: *const *const c_char,
    pub optional: u64,
    pub argument_count: u32,
    pub max_threads: u32,
}

/// One function constant of a compiled library.
#[repr(C)]
pub struct ConstantDescriptor {
    pub name: *const c_char,
    pub type_name: *const c_char,
    pub index: u32,
    pub size: u32,
}

/// The table of contents of a compiled library.
#[repr(C)]
pub struct LibraryDescriptor {
    pub abi: u32,
    pub lane_size: u32,
    pub simdgroup_size: u32,
    pub threadgroup_size: u32,
    pub queue_size: u32,
    pub kernel_count: u32,
    pub constant_count: u32,
    pub kernels: *const KernelDescriptor,
    pub constants: *const ConstantDescriptor,
}
