//! What instrumented kernels call. Each hook runs on the stack of a fiber: it notes and does not explain.

use std::ffi::{CStr, c_char};

use super::checker::{Access, Checker};
use super::layout::{Hooks, Region, ShadowCell};
use super::order::{Reach, Stamp, orders};
use super::report::Action;
use crate::runtime::layout::Lane;
use crate::runtime::{abandon_kernel, outside_kernel};

/// The functions that instrumented kernels call.
pub(super) static HOOKS: Hooks = Hooks {
    find,
    refine,
    conflict,
    flagged,
    unwritten,
    out_of_steps,
    misaligned,
    bad_index,
    atomic_access,
    fence,
};

/// The checker of the dispatch that a lane belongs to.
///
/// # Safety
/// The lane must run under a sanitizer; the reference must be gone before the kernel goes on.
unsafe fn checker_of<'a>(lane: *mut Lane) -> &'a mut Checker {
    // SAFETY: as the caller says; the checker is locked for the dispatch, and its hooks do not overlap.
    unsafe { &mut *(*(*lane).threadgroup).sanitizer }
}

unsafe fn access_of(lane: *mut Lane, address: u64, size: u64, action: Action, place: u64) -> Access {
    // SAFETY: kernels pass the lane that runs.
    Access { address, size, action, place, thread: unsafe { (*lane).thread } }
}

/// The stamp of what a lane does now with memory of some kind.
unsafe fn stamp_of(lane: *mut Lane, region: *const Region) -> Stamp {
    // SAFETY: kernels pass the lane that runs and a region of its dispatch, which is not an ignored one.
    unsafe {
        let stamps = (*(*lane).simdgroup).stamps;
        Stamp(stamps[((*region).kind as usize).min(1)] | u64::from((*lane).lane))
    }
}

fn plain(writes: u32) -> Action {
    if writes != 0 { Action::Write } else { Action::Read }
}

unsafe extern "C" fn find(
    lane: *mut Lane,
    address: u64,
    size: u64,
    writes: u32,
    place: u64,
) -> *const Region {
    // SAFETY: kernels pass the lane that runs.
    unsafe {
        outside_kernel(lane, || {
            let checker = checker_of(lane);
            let access = access_of(lane, address, size, plain(writes), place);
            if let Some(region) = checker.region_of(access) {
                return &raw const *region;
            }
            let reason = checker.outside(access);
            abandon_kernel(lane, &reason)
        })
    }
}

unsafe extern "C" fn refine(lane: *mut Lane, region: *const Region, address: u64, size: u64) {
    // SAFETY: kernels pass the lane that runs and a region that `find` has returned.
    unsafe {
        outside_kernel(lane, || {
            let access = access_of(lane, address, size, Action::Read, 0);
            if checker_of(lane).refine((*region).number, access).is_err() {
                abandon_kernel(lane, "no memory for the sanitizer");
            }
        });
    }
}

unsafe extern "C" fn conflict(
    lane: *mut Lane,
    region: *const Region,
    address: u64,
    size: u64,
    writes: u32,
    place: u64,
    cell: *const ShadowCell,
    which: u32,
) {
    // SAFETY: kernels pass the lane that runs, a region that `find` has returned and a cell of its shadow.
    unsafe {
        outside_kernel(lane, || {
            let access = access_of(lane, address, size, plain(writes), place);
            let cell = *cell;
            let (stamp, action, place) = match which {
                0 => (cell.write, Action::Write, cell.write_place),
                1 => (cell.reads[0], Action::Read, cell.read_places[0]),
                _ => (cell.reads[1], Action::Read, cell.read_places[1]),
            };
            checker_of(lane).conflict((*region).number, access, Stamp(stamp), action, place);
        });
    }
}

unsafe extern "C" fn flagged(
    lane: *mut Lane,
    region: *const Region,
    address: u64,
    size: u64,
    writes: u32,
    place: u64,
    cell: *mut ShadowCell,
) {
    // SAFETY: as for `conflict`.
    unsafe {
        outside_kernel(lane, || {
            let access = access_of(lane, address, size, plain(writes), place);
            let stamp = stamp_of(lane, region);
            if let Some(reason) = checker_of(lane).flagged((*region).number, access, stamp, &mut *cell) {
                abandon_kernel(lane, &reason);
            }
        });
    }
}

unsafe extern "C" fn unwritten(lane: *mut Lane, region: *const Region, address: u64, size: u64, place: u64) {
    // SAFETY: as for `refine`.
    unsafe {
        outside_kernel(lane, || {
            let access = access_of(lane, address, size, Action::Read, place);
            checker_of(lane).unwritten((*region).number, access);
        });
    }
}

unsafe extern "C" fn out_of_steps(lane: *mut Lane, place: u64) {
    // SAFETY: kernels and the scheduler pass the lane that runs.
    unsafe {
        outside_kernel::<()>(lane, || {
            let reason = checker_of(lane).out_of_steps(place, (*lane).thread);
            abandon_kernel(lane, &reason)
        });
    }
}

unsafe extern "C" fn misaligned(
    lane: *mut Lane,
    type_name: *const c_char,
    address: u64,
    alignment: u64,
    writes: u32,
    place: u64,
) {
    // SAFETY: kernels pass the lane that runs; clang writes the name of the type.
    unsafe {
        outside_kernel::<()>(lane, || {
            let name = CStr::from_ptr(type_name).to_string_lossy();
            let access = access_of(lane, address, 0, plain(writes), place);
            let reason = checker_of(lane).misaligned(access, &name, alignment.max(1));
            abandon_kernel(lane, &reason)
        });
    }
}

unsafe extern "C" fn bad_index(lane: *mut Lane, type_name: *const c_char, index: u64, place: u64) {
    // SAFETY: as for `misaligned`.
    unsafe {
        outside_kernel::<()>(lane, || {
            let name = CStr::from_ptr(type_name).to_string_lossy();
            let reason = checker_of(lane).bad_index(&name, index as i64, place, (*lane).thread);
            abandon_kernel(lane, &reason)
        });
    }
}

const ATOMIC_READ: u32 = 0;
const ATOMIC_WRITE: u32 = 1;
const ORDER_ACQUIRE: u32 = 1;
const ORDER_RELEASE: u32 = 2;
const SCOPE_DEVICE: u32 = 3;

unsafe extern "C" fn atomic_access(
    lane: *mut Lane,
    address: u64,
    size: u64,
    access: u32,
    order: u32,
    place: u64,
) {
    // SAFETY: kernels pass the lane that runs.
    unsafe {
        outside_kernel(lane, || {
            let checker = checker_of(lane);
            let thread = (*lane).thread;
            let action = if access == ATOMIC_READ { Action::AtomicRead } else { Action::AtomicWrite };
            let record = access_of(lane, address, size, action, place);
            checker.take_step(lane, place);
            let Some(region) = checker.region_of(record).map(|region| &raw const *region) else {
                let reason = checker.outside(record);
                abandon_kernel(lane, &reason)
            };
            if order >= ORDER_RELEASE {
                checker.fence(thread, Reach::EVERYWHERE, false, true);
            }
            let stamp = stamp_of(lane, region);
            if let Some(reason) = checker.atomic((*region).number, record, stamp, access != ATOMIC_WRITE) {
                abandon_kernel(lane, &reason);
            }
            if order == ORDER_ACQUIRE || order > ORDER_RELEASE {
                checker.fence(thread, Reach::EVERYWHERE, true, false);
            }
        });
    }
}

unsafe extern "C" fn fence(lane: *mut Lane, flags: u32, order: u32, scope: u32) {
    // SAFETY: kernels pass the lane that runs.
    unsafe {
        outside_kernel(lane, || {
            let (acquires, releases) =
                (order == ORDER_ACQUIRE || order > ORDER_RELEASE, order >= ORDER_RELEASE);
            let reach = Reach { memory: orders(flags), device: scope >= SCOPE_DEVICE };
            checker_of(lane).fence((*lane).thread, reach, acquires, releases);
        });
    }
}

impl Checker {
    /// Counts a step of a lane.
    ///
    /// # Safety
    /// The lane must be the one that runs.
    pub(crate) unsafe fn take_step(&mut self, lane: *mut Lane, place: u64) {
        self.state.steps -= 1;
        if self.state.steps < 0 {
            // SAFETY: as the caller says.
            unsafe { out_of_steps(lane, place) };
        }
    }
}
