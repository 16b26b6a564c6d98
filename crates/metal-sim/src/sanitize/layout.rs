//! What instrumented kernels and the sanitizer share. Every struct mirrors one in `shim/sanitizer.h`, where the
//! fields are described.

use std::ffi::c_char;

use crate::runtime::layout::Lane;

/// Call sites that remember the region they last met.
pub const HINTS: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ShadowCell {
    pub write: u64,
    pub reads: [u64; 2],
    pub write_place: u32,
    pub read_places: [u32; 2],
    pub flags: u32,
}

#[repr(C)]
pub struct Shadow {
    pub cells: *mut ShadowCell,
    pub start: u64,
    pub granule_shift: u32,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    Device,
    Threadgroup,
    Ignored,
}

#[repr(C)]
pub struct Region {
    pub start: u64,
    pub length: u64,
    pub shadow: *const Shadow,
    pub written: *mut u8,
    pub memory_start: u64,
    pub kind: RegionKind,
    pub number: u32,
}

#[repr(C)]
pub struct Sanitizer {
    pub regions: *const Region,
    pub hooks: *const Hooks,
    pub unordered_from: [u64; 2],
    pub steps: i64,
    pub library: u64,
    pub last_end: u64,
    pub last_place: u64,
    pub last_lane: *const Lane,
    pub region_of_place: [u8; HINTS],
}

#[repr(C)]
pub struct Hooks {
    pub find: unsafe extern "C" fn(*mut Lane, u64, u64, u32, u64) -> *const Region,
    pub refine: unsafe extern "C" fn(*mut Lane, *const Region, u64, u64),
    pub conflict: unsafe extern "C" fn(*mut Lane, *const Region, u64, u64, u32, u64, *const ShadowCell, u32),
    pub flagged: unsafe extern "C" fn(*mut Lane, *const Region, u64, u64, u32, u64, *mut ShadowCell),
    pub unwritten: unsafe extern "C" fn(*mut Lane, *const Region, u64, u64, u64),
    pub out_of_steps: unsafe extern "C" fn(*mut Lane, u64),
    pub misaligned: unsafe extern "C" fn(*mut Lane, *const c_char, u64, u64, u32, u64),
    pub bad_index: unsafe extern "C" fn(*mut Lane, *const c_char, u64, u64),
    pub atomic_access: unsafe extern "C" fn(*mut Lane, u64, u64, u32, u32, u64),
    pub fence: unsafe extern "C" fn(*mut Lane, u32, u32, u32),
}
