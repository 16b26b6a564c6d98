//! When an access happens, and what is ordered with what.
//!
//! A stamp says when a thread accessed memory: in which run of a threadgroup, and after how many barriers for
//! that kind of memory of its threadgroup and of its SIMD-group. Two accesses of one threadgroup are ordered by a
//! `threadgroup_barrier` between them, or by a `simdgroup_barrier` if their threads share a SIMD-group. Nothing
//! else orders memory: SIMD-group functions do not, and the lanes of a SIMD-group need not run in lockstep.
//! Fences with atomics order accesses by the release and acquire rule of the C++ memory model.

use std::collections::HashMap;
use std::sync::Arc;

use crate::runtime::SIMD_WIDTH;

/// Barriers that a stamp can count.
const COUNT_LIMIT: u64 = 1 << 11;
const GROUPS: usize = 32;

const MEM_DEVICE: u32 = 1;
const MEM_THREADGROUP: u32 = 2;

/// Which memory a barrier or fence with these `mem_flags` orders, by kind.
pub(super) fn orders(flags: u32) -> [bool; 2] {
    [flags & MEM_DEVICE != 0, flags & MEM_THREADGROUP != 0]
}

/// How far a fence reaches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// The kinds of memory that it orders.
    pub memory: [bool; 2],
    /// Whether it orders them for other threadgroups, too.
    pub device: bool,
}

impl Reach {
    pub const EVERYWHERE: Self = Self { memory: [true; 2], device: true };

    fn covers(self, kind: usize, other_threadgroup: bool) -> bool {
        self.memory[kind] && (self.device || !other_threadgroup)
    }
}

/// When a thread accessed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Stamp(pub u64);

impl Stamp {
    /// The run of a threadgroup.
    pub fn run(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The thread's index in its threadgroup.
    pub fn thread(self) -> u32 {
        ((self.0 >> 16 & 31) << 5 | self.0 & 31) as u32
    }

    fn group(self) -> u64 {
        self.0 >> 16 & 31
    }

    fn barriers(self) -> u64 {
        self.0 >> 21 & (COUNT_LIMIT - 1)
    }

    fn group_barriers(self) -> u64 {
        self.0 >> 5 & (COUNT_LIMIT - 1)
    }

    /// Whether it may be unordered with a later access; stamps of other runs from `from` on may be.
    pub fn may_be_unordered(self, later: Self, from: u64) -> bool {
        if self.run() == later.run() { self.is_concurrent(later) } else { self.0 >= from }
    }

    /// Whether no barrier orders this earlier access with a later one of the same run, by another thread.
    pub fn is_concurrent(self, later: Self) -> bool {
        self.run() == later.run()
            && self.thread() != later.thread()
            && self.barriers() == later.barriers()
            && (self.group() != later.group() || self.group_barriers() == later.group_barriers())
    }
}

/// The barriers that the threads of the running threadgroup have passed. Memory is of two kinds: device memory
/// (0) and threadgroup memory (1).
pub(super) struct Epochs {
    pub run: u32,
    barriers: [u64; 2],
    group_barriers: [[u64; 2]; GROUPS],
    /// Barriers for whatever memory, of all threads and of each SIMD-group.
    passes: u64,
    group_passes: [u64; GROUPS],
}

impl Epochs {
    pub fn new() -> Self {
        Self {
            run: 0,
            barriers: [0; 2],
            group_barriers: [[0; 2]; GROUPS],
            passes: 0,
            group_passes: [0; GROUPS],
        }
    }

    /// Starts a run.
    pub fn begin(&mut self, run: u32) {
        *self = Self { run, ..Self::new() };
    }

    /// The stamps of a SIMD-group's first lane, by kind of memory.
    pub fn stamps(&self, group: usize) -> [u64; 2] {
        [0, 1].map(|kind| {
            u64::from(self.run) << 32
                | self.barriers[kind] << 21
                | (group as u64) << 16
                | self.group_barriers[group][kind] << 5
        })
    }

    /// All threads have passed a barrier; false when the counters are full and a new run must begin.
    #[must_use]
    pub fn pass(&mut self, orders: [bool; 2]) -> bool {
        self.passes += 1;
        for (count, orders) in self.barriers.iter_mut().zip(orders) {
            *count += u64::from(orders);
        }
        self.barriers.iter().all(|&count| count < COUNT_LIMIT)
    }

    /// A SIMD-group has passed a barrier; false when the counters are full and a new run must begin.
    #[must_use]
    pub fn pass_group(&mut self, group: usize, orders: [bool; 2]) -> bool {
        self.group_passes[group] += 1;
        for (count, orders) in self.group_barriers[group].iter_mut().zip(orders) {
            *count += u64::from(orders);
        }
        self.group_barriers[group].iter().all(|&count| count < COUNT_LIMIT)
    }

    fn now(&self, thread: u32) -> Moment {
        let group = thread as usize / SIMD_WIDTH;
        Moment {
            thread,
            stamps: self.stamps(group).map(|stamp| Stamp(stamp | u64::from(thread) & 31)),
            passes: self.passes,
            group_passes: self.group_passes[group],
        }
    }
}

/// A point in a thread's life.
#[derive(Clone, Copy, Debug)]
struct Moment {
    thread: u32,
    stamps: [Stamp; 2],
    passes: u64,
    group_passes: u64,
}

impl Moment {
    /// Whether the thread was here before `later`, by program order or by barriers of whatever memory.
    fn is_before(&self, later: &Self) -> bool {
        self.thread == later.thread
            || self.passes < later.passes
            || (self.thread as usize / SIMD_WIDTH == later.thread as usize / SIMD_WIDTH
                && self.group_passes < later.group_passes)
    }
}

/// A release: what a thread had done before its fence is told to whoever reads the atomic.
#[derive(Clone)]
struct Release {
    /// The first run of the threadgroup, which stays when its counters begin again.
    first_run: u32,
    moment: Moment,
    reach: Reach,
    /// What the releasing threadgroup had acquired itself.
    acquired: Arc<Vec<Acquired>>,
}

/// What a thread has acquired: the first releases of an atomic.
#[derive(Clone, Copy)]
struct Acquired {
    atomic: u64,
    count: usize,
    moment: Moment,
    reach: Reach,
}

#[derive(Default)]
struct Pending {
    /// The last release fence.
    release: Option<(Moment, Reach)>,
    /// Atomics read since the last acquire fence.
    reads: Vec<(u64, usize)>,
}

/// Order by fences and atomics.
#[derive(Default)]
pub(super) struct Fences {
    releases: HashMap<u64, Vec<Release>>,
    pending: HashMap<u32, Pending>,
    acquired: Arc<Vec<Acquired>>,
}

impl Fences {
    /// Dispatches before this point are ordered with all after it.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Another threadgroup runs.
    pub fn begin_threadgroup(&mut self) {
        self.pending.clear();
        if !self.acquired.is_empty() {
            self.acquired = Arc::default();
        }
    }

    /// A thread passes a fence.
    pub fn fence(&mut self, epochs: &Epochs, thread: u32, reach: Reach, acquires: bool, releases: bool) {
        let moment = epochs.now(thread);
        let pending = self.pending.entry(thread).or_default();
        if releases {
            pending.release = Some((moment, reach));
        }
        if acquires && !pending.reads.is_empty() {
            let new =
                pending.reads.drain(..).map(|(atomic, count)| Acquired { atomic, count, moment, reach });
            Arc::make_mut(&mut self.acquired).extend(new);
        }
    }

    /// A thread accesses an atomic.
    pub fn access(&mut self, thread: u32, first_run: u32, atomic: u64, reads: bool, writes: bool) {
        // What is read is what was there before.
        let count = self.releases.get(&atomic).map_or(0, Vec::len);
        if reads && count > 0 {
            self.pending.entry(thread).or_default().reads.push((atomic, count));
        }
        let release = self.pending.get(&thread).and_then(|pending| pending.release);
        if let Some((moment, reach)) = release.filter(|_| writes) {
            let release = Release { first_run, moment, reach, acquired: Arc::clone(&self.acquired) };
            self.releases.entry(atomic).or_default().push(release);
        }
    }

    /// Whether fences order an earlier access to memory of some kind before what a thread does now.
    pub fn order(&self, epochs: &Epochs, earlier: Stamp, first_run: u32, kind: usize, thread: u32) -> bool {
        if self.acquired.is_empty() {
            return false;
        }
        let now = epochs.now(thread);
        let visible: Vec<Acquired> =
            self.acquired.iter().filter(|acquired| acquired.moment.is_before(&now)).copied().collect();
        let mut seen = HashMap::new();
        self.covers(&visible, earlier, first_run, kind, &mut seen)
    }

    fn covers(
        &self,
        acquired: &[Acquired],
        earlier: Stamp,
        first_run: u32,
        kind: usize,
        seen: &mut HashMap<u64, usize>,
    ) -> bool {
        for one in acquired.iter().filter(|one| one.reach.memory[kind]) {
            let Some(releases) = self.releases.get(&one.atomic) else { continue };
            let from = seen.insert(one.atomic, one.count).unwrap_or(0);
            for release in releases.iter().take(one.count).skip(from) {
                let stamp = release.moment.stamps[kind];
                let is_elsewhere = release.moment.stamps[0].run() != one.moment.stamps[0].run();
                if !release.reach.covers(kind, is_elsewhere) || !one.reach.covers(kind, is_elsewhere) {
                    continue;
                }
                let is_covered = release.first_run == first_run
                    && (earlier.run() < stamp.run()
                        || earlier.thread() == stamp.thread()
                        || !earlier.is_concurrent(stamp));
                if is_covered || self.covers(&release.acquired, earlier, first_run, kind, seen) {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(epochs: &Epochs, thread: u32, kind: usize) -> Stamp {
        epochs.now(thread).stamps[kind]
    }

    #[test]
    fn barriers_order_the_memory_that_they_name() {
        let mut epochs = Epochs::new();
        epochs.begin(9);
        let before = [0, 1].map(|kind| stamp(&epochs, 3, kind));
        assert!(
            before[0].is_concurrent(stamp(&epochs, 4, 0)) && before[0].is_concurrent(stamp(&epochs, 40, 0))
        );
        assert!(!before[0].is_concurrent(stamp(&epochs, 3, 0)));
        // A SIMD-group's barrier orders its own threads alone.
        assert!(epochs.pass_group(0, [false, true]));
        assert!(
            !before[1].is_concurrent(stamp(&epochs, 4, 1)) && before[1].is_concurrent(stamp(&epochs, 40, 1))
        );
        assert!(before[0].is_concurrent(stamp(&epochs, 4, 0)));
        assert!(epochs.pass([true, false]));
        assert!(
            !before[0].is_concurrent(stamp(&epochs, 40, 0)) && before[1].is_concurrent(stamp(&epochs, 40, 1))
        );
        assert_eq!((before[0].run(), stamp(&epochs, 1023, 1).thread()), (9, 1023));
    }

    #[test]
    fn counters_tell_when_they_are_full() {
        let mut epochs = Epochs::new();
        assert_eq!((1..).find(|_| !epochs.pass([false, true])), Some(2048));
        epochs.begin(2);
        assert_eq!((1..).find(|_| !epochs.pass_group(31, [true, true])), Some(2048));
    }

    #[test]
    fn a_release_reaches_who_acquires_it() {
        let (mut epochs, mut fences) = (Epochs::new(), Fences::default());
        epochs.begin(1);
        fences.begin_threadgroup();
        let (own, other) = (stamp(&epochs, 0, 0), stamp(&epochs, 50, 0));
        fences.fence(&epochs, 0, Reach::EVERYWHERE, true, true);
        fences.access(0, 1, 0x10, true, true);
        epochs.begin(2);
        fences.begin_threadgroup();
        fences.access(7, 2, 0x10, true, true);
        assert!(!fences.order(&epochs, own, 1, 0, 7), "no acquire yet");
        fences.fence(&epochs, 7, Reach::EVERYWHERE, true, true);
        assert!(fences.order(&epochs, own, 1, 0, 7));
        assert!(!fences.order(&epochs, other, 1, 0, 7), "no barrier before the release");
        assert!(!fences.order(&epochs, own, 1, 0, 8), "another thread");
        assert!(epochs.pass([false, true]));
        assert!(fences.order(&epochs, own, 1, 0, 8), "behind a barrier");
        // And from there to a third one.
        fences.access(7, 2, 0x20, false, true);
        epochs.begin(3);
        fences.begin_threadgroup();
        fences.access(1, 3, 0x20, true, false);
        fences.fence(&epochs, 1, Reach::EVERYWHERE, true, false);
        assert!(fences.order(&epochs, own, 1, 0, 1));
    }
}
