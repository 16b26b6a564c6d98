//! What the sanitizer knows about each buffer, alive or gone.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::Sanitizer;
use super::layout::Shadow;
use super::report::{Action, Kind, Memory, Party, Report};
use super::shadow::ShadowMemory;

/// Address ranges of dead buffers that are kept from being used again.
const QUARANTINE: usize = 512;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is consistent at every instruction that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a queue's work is known to the host to be done.
pub(crate) struct Timeline {
    id: u64,
    committed: AtomicU64,
    observed: AtomicU64,
}

impl Default for Timeline {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, committed: AtomicU64::new(0), observed: AtomicU64::new(0) }
    }
}

impl Timeline {
    /// Tells queues apart.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The last submission whose end the host has seen.
    pub fn observed(&self) -> u64 {
        self.observed.load(Ordering::Relaxed)
    }

    /// The number of a submission that is being committed.
    pub fn commit(&self) -> u64 {
        self.committed.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The host has seen the end of a submission, and so of all before it.
    pub fn observe(&self, number: u64) {
        self.observed.fetch_max(number, Ordering::Relaxed);
    }
}

/// One use of a buffer by a submission.
#[derive(Clone)]
pub(crate) struct Use {
    /// The queue of the submission.
    pub timeline: Arc<Timeline>,
    /// Its number in the queue.
    pub number: u64,
    /// Its label.
    pub submission: Arc<str>,
    /// The kernel that uses the buffer, or "copy".
    pub kernel: String,
    /// The dispatch's label.
    pub dispatch: String,
    /// The slot that it is bound to, unless it is copied.
    pub slot: Option<usize>,
    /// The first byte that may be used.
    pub offset: usize,
    /// One past the last byte that may be used.
    pub end: usize,
    /// Whether it may be written to.
    pub writes: bool,
}

/// A buffer under watch.
pub(crate) struct Tracked {
    sanitizer: Weak<Sanitizer>,
    label: String,
    start: usize,
    length: usize,
    /// A bit for each byte that was written.
    written: OnceLock<Box<[AtomicBits]>>,
    all_written: AtomicBool,
    uses: Mutex<Vec<Use>>,
    shadow: Mutex<Option<Box<ShadowMemory>>>,
}

type AtomicBits = std::sync::atomic::AtomicU8;

impl Tracked {
    fn new(sanitizer: &Arc<Sanitizer>, label: &str, start: usize, length: usize, all_written: bool) -> Self {
        Self {
            sanitizer: Arc::downgrade(sanitizer),
            label: label.to_owned(),
            start,
            length,
            written: OnceLock::new(),
            all_written: AtomicBool::new(all_written),
            uses: Mutex::new(Vec::new()),
            shadow: Mutex::new(None),
        }
    }

    /// The buffer's label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Address of its first byte.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Notes that everything may have been written in ways that nobody sees.
    pub fn assume_written(&self) {
        self.all_written.store(true, Ordering::Relaxed);
    }

    /// Notes that a range was written.
    pub fn mark_written(&self, offset: usize, length: usize) {
        if self.all_written.load(Ordering::Relaxed) {
            return;
        }
        if offset == 0 && length == self.length {
            self.assume_written();
            return;
        }
        let bits = self.bits();
        let (first, end) = (offset.div_ceil(8), (offset + length) / 8);
        if first < end {
            for byte in &bits[first..end] {
                byte.store(0xff, Ordering::Relaxed);
            }
        }
        let edges = (offset..(first * 8).min(offset + length)).chain((end * 8).max(offset)..offset + length);
        for bit in edges {
            bits[bit / 8].fetch_or(1 << (bit % 8), Ordering::Relaxed);
        }
    }

    /// Carries over what a copy copies.
    pub fn copy_written(&self, offset: usize, from: &Self, from_offset: usize, length: usize) {
        if from.all_written.load(Ordering::Relaxed) {
            self.mark_written(offset, length);
            return;
        }
        if self.all_written.load(Ordering::Relaxed) {
            return;
        }
        let (bits, from_bits) = (self.bits(), from.bits());
        let whole = if offset.is_multiple_of(8) && from_offset.is_multiple_of(8) { length / 8 } else { 0 };
        // The ranges may overlap: everything is read before anything is written.
        let bytes: Vec<u8> = from_bits[from_offset / 8..]
            .iter()
            .take(whole)
            .map(|byte| byte.load(Ordering::Relaxed))
            .collect();
        let rest: Vec<bool> = (from_offset + 8 * whole..from_offset + length)
            .map(|bit| from_bits[bit / 8].load(Ordering::Relaxed) >> (bit % 8) & 1 != 0)
            .collect();
        for (to, byte) in bits[offset / 8..].iter().zip(bytes) {
            to.store(byte, Ordering::Relaxed);
        }
        for (bit, written) in (offset + 8 * whole..).zip(rest) {
            let mask = 1u8 << (bit % 8);
            if written {
                bits[bit / 8].fetch_or(mask, Ordering::Relaxed);
            } else {
                bits[bit / 8].fetch_and(!mask, Ordering::Relaxed);
            }
        }
    }

    fn bits(&self) -> &[AtomicBits] {
        // Kernels look at four bytes at a time.
        self.written.get_or_init(|| (0..self.length / 8 + 8).map(|_| AtomicBits::new(0)).collect())
    }

    /// The bits for kernels; null where everything is written.
    pub fn written_bits(&self) -> *mut u8 {
        if self.all_written.load(Ordering::Relaxed) {
            ptr::null_mut()
        } else {
            self.bits().as_ptr().cast::<u8>().cast_mut()
        }
    }

    /// The shadow for kernels, which stays at its address until the buffer is gone.
    pub fn shadow(&self) -> io::Result<*const Shadow> {
        let mut shadow = lock(&self.shadow);
        let memory = match &mut *shadow {
            Some(memory) => memory,
            empty => empty.insert(Box::new(ShadowMemory::new(self.start & !3, self.length + 4)?)),
        };
        Ok(&raw const memory.shadow)
    }

    /// Makes the shadow's granules finer.
    pub fn refine(&self, shift: u32) -> io::Result<()> {
        match &mut *lock(&self.shadow) {
            Some(memory) => memory.refine(shift),
            None => Ok(()),
        }
    }

    /// Forgets all accesses.
    pub fn forget(&self) {
        if let Some(memory) = &mut *lock(&self.shadow) {
            memory.cells().fill(Default::default());
        }
    }

    /// Notes that a submission uses the buffer.
    pub fn add_use(&self, new: Use) {
        let mut uses = lock(&self.uses);
        uses.retain(|old| old.timeline.observed() < old.number);
        // One entry for reads and one for writes of each submission are enough.
        let same = |old: &&mut Use| {
            Arc::ptr_eq(&old.timeline, &new.timeline) && old.number == new.number && old.writes == new.writes
        };
        match uses.iter_mut().find(same) {
            Some(old) => {
                old.offset = old.offset.min(new.offset);
                old.end = old.end.max(new.end);
            }
            None => uses.push(new),
        }
    }

    /// Complains if a submission in flight uses the range: reads concern its writes, writes all its uses.
    ///
    /// # Errors
    /// The report, and the label of the submission.
    pub fn check_host(
        &self,
        offset: usize,
        length: usize,
        action: Action,
        caller: &Location<'_>,
    ) -> Result<(), Box<(Report, Arc<str>)>> {
        let found = lock(&self.uses)
            .iter()
            .find(|used| {
                used.timeline.observed() < used.number
                    && offset < used.end
                    && offset + length > used.offset
                    && (used.writes || action == Action::Write)
            })
            .cloned();
        let (Some(used), Some(sanitizer)) = (found, self.sanitizer.upgrade()) else { return Ok(()) };
        let access = if used.writes { "writes to" } else { "reads" };
        let report = Report {
            kind: Kind::HostAccess,
            kernel: used.kernel.clone(),
            dispatch: used.dispatch.clone(),
            party: Party {
                action,
                place: Some(format!("{}:{}", caller.file(), caller.line())),
                kernel: None,
                thread: None,
                threadgroup: None,
            },
            other: Some(Party {
                action: if used.writes { Action::Write } else { Action::Read },
                place: None,
                kernel: Some(used.kernel.clone()),
                thread: None,
                threadgroup: None,
            }),
            memory: Some(match used.slot {
                Some(slot) => Memory::Buffer {
                    slot,
                    label: self.label.clone(),
                    offset: offset as i64 - used.offset as i64,
                    length: (used.end - used.offset) as u64,
                },
                None => Memory::Unbound {
                    label: self.label.clone(),
                    offset: offset as i64,
                    length: self.length as u64,
                },
            }),
            size: length as u64,
            message: format!(
                "the host {} memory that command buffer '{}' {access}, without having waited for its end",
                if action == Action::Write { "writes to" } else { "reads" },
                used.submission
            ),
            seed: sanitizer.seed(),
        };
        sanitizer.add(report.clone());
        Err(Box::new((report, used.submission)))
    }
}

/// Buffers by address.
#[derive(Default)]
pub(super) struct Registry {
    live: BTreeMap<usize, Weak<Tracked>>,
    /// Starts of dead buffers, the oldest first.
    order: VecDeque<usize>,
    dead: BTreeMap<usize, Dead>,
}

struct Dead {
    label: String,
    length: usize,
    /// Address space that is still ours.
    mapping: Option<(usize, usize)>,
}

/// What an address belongs to.
pub(super) enum Owner {
    /// A buffer that is alive.
    Live(Memory),
    /// A buffer that is gone.
    Dead(Memory),
}

impl Registry {
    /// Starts to watch a buffer. Memory of someone else's counts as written.
    pub fn add(
        &mut self,
        sanitizer: &Arc<Sanitizer>,
        label: &str,
        start: usize,
        length: usize,
        foreign: bool,
    ) -> Arc<Tracked> {
        let tracked = Arc::new(Tracked::new(sanitizer, label, start, length, foreign));
        self.live.insert(start, Arc::downgrade(&tracked));
        tracked
    }

    /// The buffer is gone; `mapping` is address space to be unmapped once it leaves the quarantine.
    pub fn remove(&mut self, tracked: &Tracked, mapping: Option<(usize, usize)>) {
        // Two buffers over the same foreign memory share an entry: the younger one's stays.
        if self
            .live
            .get(&tracked.start)
            .is_some_and(|weak| weak.upgrade().is_none_or(|live| ptr::eq(&raw const *live, tracked)))
        {
            self.live.remove(&tracked.start);
        }
        if let Some((start, length)) = mapping {
            // SAFETY: the buffer that owned the mapping is gone.
            unsafe {
                libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED);
                libc::mprotect(start as *mut c_void, length, libc::PROT_NONE);
            }
        }
        let dead = Dead { label: tracked.label.clone(), length: tracked.length, mapping };
        if let Some(before) = self.dead.insert(tracked.start, dead) {
            before.release();
        } else {
            self.order.push_back(tracked.start);
        }
        if self.order.len() > QUARANTINE
            && let Some(oldest) = self.order.pop_front()
            && let Some(dead) = self.dead.remove(&oldest)
        {
            dead.release();
        }
    }

    /// Which buffer an address lies in, alive ones first.
    pub fn owner(&self, address: usize) -> Option<Owner> {
        let live = self.live.range(..=address).next_back().and_then(|(_, weak)| weak.upgrade());
        if let Some(live) = live.filter(|live| address < live.start + live.length) {
            return Some(Owner::Live(Memory::Unbound {
                label: live.label.clone(),
                offset: (address - live.start) as i64,
                length: live.length as u64,
            }));
        }
        let (&start, dead) = self.dead.range(..=address).next_back()?;
        (address < start + dead.length).then(|| {
            Owner::Dead(Memory::Unbound {
                label: dead.label.clone(),
                offset: (address - start) as i64,
                length: dead.length as u64,
            })
        })
    }

    /// All buffers that are alive.
    pub fn live(&self) -> impl Iterator<Item = Arc<Tracked>> {
        self.live.values().filter_map(Weak::upgrade)
    }
}

impl Dead {
    fn release(self) {
        if let Some((start, length)) = self.mapping {
            // SAFETY: the mapping belongs to a buffer that is gone.
            unsafe { libc::munmap(start as *mut c_void, length) };
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        for (_, dead) in std::mem::take(&mut self.dead) {
            dead.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    #[test]
    fn written_ranges_end_at_any_bit() {
        let sanitizer = Sanitizer::new(Settings { seed: 1, ..Settings::default() });
        let tracked = sanitizer.track("b", 0x1000, 100, false);
        tracked.mark_written(3, 2);
        tracked.mark_written(13, 30);
        let written = |tracked: &Tracked| -> Vec<usize> {
            (0..100)
                .filter(|bit| tracked.bits()[bit / 8].load(Ordering::Relaxed) >> (bit % 8) & 1 != 0)
                .collect()
        };
        assert_eq!(written(&tracked), [3, 4].into_iter().chain(13..43).collect::<Vec<_>>());
        let copy = sanitizer.track("c", 0x2000, 100, false);
        copy.mark_written(0, 20);
        copy.copy_written(10, &tracked, 0, 10);
        assert_eq!(written(&copy), (0..10).chain([13, 14]).collect::<Vec<_>>());
        copy.copy_written(16, &copy, 0, 29);
        assert_eq!(written(&copy), (0..10).chain([13, 14]).chain(16..26).chain([29, 30]).collect::<Vec<_>>());
        assert!(!copy.written_bits().is_null());
        copy.mark_written(0, 100);
        assert!(copy.written_bits().is_null());
    }

    #[test]
    fn dead_buffers_are_remembered() {
        let sanitizer = Sanitizer::new(Settings { seed: 1, ..Settings::default() });
        let tracked = sanitizer.track("gone", 0x5000, 64, true);
        let owner = |address| lock(&sanitizer.registry).owner(address);
        assert!(matches!(owner(0x503f), Some(Owner::Live(Memory::Unbound { offset: 63, .. }))));
        assert!(owner(0x5040).is_none());
        sanitizer.forget(&tracked, None);
        assert!(matches!(owner(0x5004), Some(Owner::Dead(Memory::Unbound { offset: 4, .. }))));
    }
}
