//! The scheduler under the sanitizer: a random order, and a look at every barrier.

use super::layout::{Lane, SIMDGROUP_BARRIER, SimdGroup};
use super::outside_kernel;
use crate::sanitize::{Action, Checker};

const LANES: u32 = super::SIMD_WIDTH as u32;

/// Any lane that can run, more often one of the same SIMD-group.
///
/// # Safety
/// There must be `count` groups of the running threadgroup at `groups`, and `group` one of them.
pub(super) unsafe fn pick(
    checker: &mut Checker,
    group: *mut SimdGroup,
    groups: *mut SimdGroup,
    count: u32,
) -> Option<*mut Lane> {
    let random = checker.random();
    // SAFETY: as the caller says.
    unsafe {
        let stays = (*group).runnable != 0 && random & 7 != 0;
        let chosen = if stays {
            group
        } else {
            let start = (random >> 8) as u32 % count;
            (0..count)
                .map(|step| groups.add(((start + step) % count) as usize))
                .find(|&other| (*other).runnable != 0)?
        };
        let turn = (random >> 40) as u32 % LANES;
        let index = ((*chosen).runnable.rotate_right(turn).trailing_zeros() + turn) % LANES;
        Some((*chosen).lanes.add(index as usize))
    }
}

/// Lanes of a mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES as usize).filter(move |lane| mask >> lane & 1 != 0)
}

/// An operation of a SIMD-group completes for the lanes of `mask`.
///
/// # Safety
/// The group must belong to the running threadgroup.
pub(super) unsafe fn complete(checker: &mut Checker, group: *mut SimdGroup, mask: u32) {
    // SAFETY: as the caller says.
    unsafe {
        let at = |lane: usize| &*(*group).lanes.add(lane);
        let Some(first) = lanes(mask).map(at).next() else { return };
        if mask == (*group).members {
            meet(checker, group);
        }
        if first.barrier_flags & SIMDGROUP_BARRIER == 0 {
            return;
        }
        let lane = (*group).lanes.add(first.lane as usize);
        outside_kernel(lane, || {
            if mask != (*group).members {
                let missing = lanes((*group).members & !mask).map(at).next().unwrap_or(first);
                let has_returned = (*group).finished >> missing.lane & 1 != 0;
                let (action, place) =
                    if has_returned { (Action::Return, 0) } else { (Action::Wait, missing.place) };
                checker.add_divergence(
                    "simdgroup_barrier",
                    (first.place, first.thread),
                    (action, place, missing.thread),
                    "not all threads of the SIMD-group reach it",
                );
            }
            checker.pass_simdgroup_barrier((*group).index as usize, first.barrier_flags);
        });
        (*group).stamps = checker.stamps((*group).index as usize);
    }
}

/// All threads of a SIMD-group meet: they must have passed the same barriers without memory flags, at which they do
/// not wait.
///
/// # Safety
/// The group must belong to the running threadgroup.
unsafe fn meet(checker: &mut Checker, group: *mut SimdGroup) {
    // SAFETY: as the caller says.
    unsafe {
        let at = |lane: usize| (*group).lanes.add(lane);
        let members = (*group).members;
        let Some(first) = lanes(members).map(at).next() else { return };
        let passed = (*first).silent_barriers;
        let Some(other) = lanes(members).map(at).find(|&lane| (*lane).silent_barriers != passed) else {
            return;
        };
        let (one, other) = if (*first).silent_place > 0 { (first, other) } else { (other, first) };
        outside_kernel(first, || {
            checker.add_divergence(
                "simdgroup_barrier",
                ((*one).silent_place, (*one).thread),
                (Action::Run, (*other).silent_place, (*other).thread),
                "not all threads of the SIMD-group pass it before they meet again",
            );
        });
        for lane in lanes(members).map(at) {
            (*lane).silent_barriers = 0;
        }
    }
}

/// A barrier of the threadgroup opens.
///
/// # Safety
/// There must be `count` groups of the running threadgroup at `groups`.
pub(super) unsafe fn open_barrier(checker: &mut Checker, groups: *mut SimdGroup, count: usize) {
    // SAFETY: as the caller says.
    unsafe {
        let all = |mask: fn(&SimdGroup) -> u32| {
            (0..count).flat_map(move |index| {
                let group = &*groups.add(index);
                lanes(mask(group)).map(|lane| &*group.lanes.add(lane))
            })
        };
        let Some(first) = all(|group| group.waiting_barrier).next() else { return };
        let waits = (first.place, first.thread);
        for index in 0..count {
            let group = groups.add(index);
            if (*group).waiting_barrier == (*group).members {
                meet(checker, group);
            }
        }
        let lane = (*groups.add(first.thread as usize / LANES as usize)).lanes.add(first.lane as usize);
        outside_kernel(lane, || {
            if let Some(gone) = all(|group| group.finished).next() {
                let other = (Action::Return, 0, gone.thread);
                checker.add_divergence(
                    "threadgroup_barrier",
                    waits,
                    other,
                    "some threads of the threadgroup have returned",
                );
            }
            if let Some(elsewhere) = all(|group| group.waiting_barrier).find(|lane| lane.site != first.site) {
                let other = (Action::Wait, elsewhere.place, elsewhere.thread);
                checker.add_divergence(
                    "threadgroup_barrier",
                    waits,
                    other,
                    "threads wait at different barriers",
                );
            }
            checker.pass_barrier(first.barrier_flags);
        });
        for index in 0..count {
            (*groups.add(index)).stamps = checker.stamps(index);
        }
    }
}
