//! The order in which the threads of one threadgroup run, and what kernels call to wait for each other.
//!
//! Threads run one at a time, each until it waits. A SIMD-group operation completes when every live thread of
//! the group waits; where they wait at different places, the earliest place in the source goes first, which is
//! how divergent threads come together again. A threadgroup barrier opens when nothing else can run.
//!
//! Of the threads of a SIMD-group the last one runs first. This makes most code right that counts on lockstep where a
//! barrier would be due: sums in a tree, and a first lane that overwrites what all lanes have read. The sanitizer, which
//! reports such code, picks threads at random.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::fiber;
use super::layout::{EXCHANGE_BYTES, Lane, Runtime, SimdGroup};
use super::sanitize;
use super::worker::{Worker, outside_kernel};
use crate::sanitize::Checker;

/// The functions that compiled kernels call.
pub(super) static RUNTIME: Runtime = Runtime { simd_arrive, threadgroup_barrier, local_memory, fail };

/// The lane's worker.
unsafe fn worker_of(lane: *mut Lane) -> *mut Worker {
    // SAFETY: lanes point to their threadgroup and threadgroups to their worker as long as they run.
    unsafe { (*(*lane).threadgroup).worker.cast() }
}

/// The checker of a group's dispatch, null without a sanitizer.
unsafe fn checker_of(group: *mut SimdGroup) -> *mut Checker {
    // SAFETY: called with a group of a running threadgroup, whose lanes point to it.
    unsafe { (*(*(*group).lanes).threadgroup).sanitizer }
}

unsafe extern "C" fn simd_arrive(lane: *mut Lane, site: u32) -> bool {
    // SAFETY: kernels pass the lane that runs; lane and group belong to this OS thread's worker, and no other
    // reference to them is alive while a kernel runs.
    unsafe {
        let group = (*lane).simdgroup;
        let bit = 1u32 << (*lane).lane;
        (*lane).site = site;
        count_step(lane);
        if (*group).waiting_simd == 0 {
            (*group).site = site;
            (*group).sites_differ = 0;
        } else if (*group).site != site {
            (*group).sites_differ = 1;
        }
        (*group).waiting_simd |= bit;
        (*group).runnable &= !bit;
        if (*group).waiting_simd == (*group).members & !(*group).finished && (*group).sites_differ == 0 {
            complete(group);
            if !checker_of(group).is_null() {
                return true;
            }
            // This was the first lane; the last one goes on.
            (*group).combine_pending = 1;
        }
        block(lane);
        if (*group).combine_pending != 0 {
            (*group).combine_pending = 0;
            return true;
        }
        false
    }
}

unsafe extern "C" fn threadgroup_barrier(lane: *mut Lane, flags: u32, site: u32) {
    // SAFETY: as in `simd_arrive`.
    unsafe {
        let group = (*lane).simdgroup;
        let bit = 1u32 << (*lane).lane;
        (*lane).site = site;
        (*lane).barrier_flags = flags;
        count_step(lane);
        (*group).waiting_barrier |= bit;
        (*group).runnable &= !bit;
        block(lane);
    }
}

/// Tells the sanitizer, if there is one, that a lane is going to wait.
unsafe fn count_step(lane: *mut Lane) {
    // SAFETY: called with the lane that runs; the checker is locked for the dispatch.
    unsafe {
        let checker = (*(*lane).threadgroup).sanitizer;
        if !checker.is_null() {
            (*checker).take_step(lane, (*lane).place);
        }
    }
}

unsafe extern "C" fn local_memory(
    lane: *mut Lane,
    key: *const c_void,
    size: usize,
    alignment: usize,
) -> *mut c_void {
    // SAFETY: as in `simd_arrive`.
    unsafe {
        let worker = worker_of(lane);
        match outside_kernel(lane, || (*worker).memory.local(key, size, alignment)) {
            Ok(address) => address,
            Err(needed) => {
                let limit = (*worker).memory.limit();
                (*worker).fail(lane, &format!("{needed} bytes of threadgroup memory, the limit is {limit}"))
            }
        }
    }
}

unsafe extern "C" fn fail(lane: *mut Lane, reason: *const c_char) {
    // SAFETY: as in `simd_arrive`; the shim passes string literals.
    unsafe {
        let reason = CStr::from_ptr(reason).to_string_lossy().into_owned();
        (*worker_of(lane)).fail(lane, &reason);
    }
}

/// Completes the pending operation of a group whose live lanes all wait for it.
unsafe fn complete(group: *mut SimdGroup) {
    // SAFETY: called with a group of this worker.
    unsafe {
        let mut mask = (*group).waiting_simd;
        if (*group).sites_differ != 0 {
            mask = earliest(group);
        }
        if let Some(flush) = (*group).matrix_flush {
            flush(group);
        }
        let checker = checker_of(group);
        if !checker.is_null() {
            sanitize::complete(&mut *checker, group, mask);
        }
        (*group).active = mask;
        (*group).waiting_simd &= !mask;
        (*group).runnable |= mask;
        // Values of lanes that go on waiting move along to the half that the next operation uses.
        let mut rest = (*group).waiting_simd;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            let half = ((*group).generation & 1) as usize;
            let from = (&raw const (*group).exchange[half].0[index]).cast::<u8>();
            let to = (&raw mut (*group).exchange[half ^ 1].0[index]).cast::<u8>();
            ptr::copy_nonoverlapping(from, to, EXCHANGE_BYTES);
            rest &= rest - 1;
        }
        (*group).generation = (*group).generation.wrapping_add(1);
    }
}

/// The lanes that wait at the earliest site; the rest stay.
unsafe fn earliest(group: *mut SimdGroup) -> u32 {
    // SAFETY: called with a group of this worker.
    unsafe {
        let waiting = (*group).waiting_simd;
        let all_lanes = (*group).lanes;
        let site_of = |index: u32| (*all_lanes.add(index as usize)).site;
        let lanes = || (0..32u32).filter(move |index| waiting >> index & 1 != 0);
        let first = lanes().map(site_of).min().unwrap_or(0);
        let mask =
            lanes().filter(|&index| site_of(index) == first).fold(0u32, |mask, index| mask | 1 << index);
        let rest = waiting & !mask;
        (*group).sites_differ = 0;
        if rest != 0 {
            let site = site_of(rest.trailing_zeros());
            let differ = lanes().any(|index| rest >> index & 1 != 0 && site_of(index) != site);
            (*group).site = site;
            (*group).sites_differ = u32::from(differ);
        }
        mask
    }
}

/// Lets another lane run until this one may go on.
unsafe fn block(lane: *mut Lane) {
    // SAFETY: as in `simd_arrive`; a lane that waits is in one of the masks, so that there is a next lane.
    unsafe {
        let worker = worker_of(lane);
        let next = next_lane(worker, lane);
        if next == lane || next.is_null() {
            return;
        }
        if (*next).stack_pointer.is_null() {
            (*worker).start_lane(next);
        }
        fiber::switch(&raw mut (*lane).stack_pointer, (*next).stack_pointer);
    }
}

/// Picks the lane to run after `lane`; null when all have finished.
pub(super) unsafe fn next_lane(worker: *mut Worker, lane: *mut Lane) -> *mut Lane {
    // SAFETY: called with a worker and one of its lanes.
    unsafe {
        let mut group = (*lane).simdgroup;
        let groups = (*worker).simdgroups.as_mut_ptr();
        let count = (*worker).threadgroup.simdgroup_count;
        loop {
            let runnable = (*group).runnable;
            let checker = (*worker).threadgroup.sanitizer;
            if !checker.is_null() {
                if let Some(next) = sanitize::pick(&mut *checker, group, groups, count) {
                    return next;
                }
            } else if runnable != 0 {
                return (*group).lanes.add(runnable.ilog2() as usize);
            }
            if (*group).waiting_simd != 0 {
                complete(group);
                (*group).combine_pending = 1;
                continue;
            }
            let ready = (1..=count)
                .map(|step| groups.add((((*group).index + step) % count) as usize))
                .find(|&other| (*other).runnable != 0 || (*other).waiting_simd != 0);
            if let Some(other) = ready {
                group = other;
                continue;
            }
            if !open_barrier(worker) {
                return ptr::null_mut();
            }
            group = groups;
            while (*group).runnable == 0 {
                group = group.add(1);
            }
        }
    }
}

/// Lets the lanes at the threadgroup barrier go on; false where no lane waits.
unsafe fn open_barrier(worker: *mut Worker) -> bool {
    // SAFETY: called with the worker of this OS thread.
    unsafe {
        let count = (*worker).threadgroup.simdgroup_count as usize;
        let groups = (*worker).simdgroups.as_mut_ptr();
        let checker = (*worker).threadgroup.sanitizer;
        if !checker.is_null() {
            sanitize::open_barrier(&mut *checker, groups, count);
        }
        let mut opens = false;
        for index in 0..count {
            let group = groups.add(index);
            let waiting = (*group).waiting_barrier;
            if waiting == 0 {
                continue;
            }
            if let Some(flush) = (*group).matrix_flush {
                flush(group);
            }
            (*group).runnable |= waiting;
            (*group).waiting_barrier = 0;
            opens = true;
        }
        opens
    }
}
