//! What single accesses say: outside of everything, without a value, unordered with another one.

use std::fmt::Write;
use std::sync::Arc;

use super::super::layout::{Region, RegionKind, ShadowCell};
use super::super::memory::{Owner, lock};
use super::super::order::{Reach, Stamp};
use super::super::report::{Action, Kind, Memory};
use super::super::shadow::{ATOMIC, COARSEST_SHIFT, OUTSIDE};
use super::{Access, Atomic, CheckedBinding, Checker, Dispatch, Side, Target};
use crate::runtime::layout::Uint3;

impl Checker {
    /// The region that holds all of an access.
    pub(in crate::sanitize) fn region_of(&self, access: Access) -> Option<&Region> {
        let holds = |region: &&Region| {
            let offset = access.address.wrapping_sub(region.start);
            offset < region.length && access.size <= region.length - offset
        };
        self.regions.iter().find(holds)
    }

    /// Reports an access that no region holds.
    pub(in crate::sanitize) fn outside(&mut self, access: Access) -> String {
        let owner = self
            .registry
            .as_ref()
            .and_then(|sanitizer| lock(&sanitizer.registry).owner(access.address as usize));
        let (kind, memory, message) = match owner {
            Some(Owner::Dead(memory)) => {
                (Kind::UseAfterFree, memory, "access of a buffer that is gone".to_owned())
            }
            Some(Owner::Live(memory)) => {
                let message = match self.nearest(access.address) {
                    Some(Memory::Buffer { label, .. }) if matches!(&memory, Memory::Unbound { label: other, .. } if *other == label) => {
                        "access before the start of the binding"
                    }
                    _ => "access of a buffer that is not bound",
                };
                (Kind::OutOfBounds, memory, message.to_owned())
            }
            None => match self.nearest(access.address) {
                Some(memory) => (Kind::OutOfBounds, memory, "access outside of what is bound".to_owned()),
                None => {
                    let memory = Memory::Address(access.address);
                    let message = "access of memory that belongs to nothing bound".to_owned();
                    (Kind::OutOfBounds, memory, message)
                }
            },
        };
        // A binding's own memory tells more than the buffer's.
        let memory = match (&memory, self.nearest(access.address)) {
            (Memory::Unbound { label, .. }, Some(near @ Memory::Buffer { .. }))
                if kind == Kind::OutOfBounds
                    && matches!(&near, Memory::Buffer { label: other, .. } if other == label) =>
            {
                near
            }
            _ => memory,
        };
        let side = self.here(access.action, access.place, Some(access.thread));
        self.find_fault(kind, side, None, Some(memory), access.size, message.clone());
        message
    }

    /// Reports an access between threadgroup variables.
    pub(in crate::sanitize) fn outside_threadgroup_memory(&mut self, access: Access) -> String {
        let message = "access outside of threadgroup memory".to_owned();
        let memory = self.nearest_variable(access.address);
        let side = self.here(access.action, access.place, Some(access.thread));
        self.find_fault(Kind::OutOfBounds, side, None, memory, access.size, message.clone());
        message
    }

    /// What an address belongs to.
    pub(super) fn memory_at(&self, address: u64) -> Memory {
        let index = self.regions.iter().position(|region| address.wrapping_sub(region.start) < region.length);
        match index.map(|index| &self.targets[index]) {
            Some(Target::Binding(binding)) => describe(binding, address),
            Some(Target::Arena) => self.nearest_variable(address).unwrap_or(Memory::Address(address)),
            _ => Memory::Address(address),
        }
    }

    fn nearest(&self, address: u64) -> Option<Memory> {
        /// Further away an address has nothing to do with a binding.
        const FAR: u64 = 1 << 40;
        let bindings = self.targets.iter().filter_map(|target| match target {
            Target::Binding(binding) => Some(binding),
            _ => None,
        });
        let distance =
            |binding: &&CheckedBinding| distance(address, binding.start as u64, binding.length as u64);
        bindings
            .min_by_key(distance)
            .filter(|binding| distance(binding) < FAR)
            .map(|binding| describe(binding, address))
    }

    fn nearest_variable(&self, address: u64) -> Option<Memory> {
        let variable = self
            .variables
            .iter()
            .min_by_key(|variable| distance(address, variable.start, variable.length))?;
        let (offset, length) = (address.wrapping_sub(variable.start) as i64, variable.length);
        Some(match variable.slot {
            Some(slot) => Memory::Threadgroup { slot, offset, length },
            None => Memory::Variable { offset, length },
        })
    }

    /// Makes the granules of a region small enough for an access.
    pub(in crate::sanitize) fn refine(&mut self, number: u32, access: Access) -> std::io::Result<()> {
        let shift = (access.address | access.size).trailing_zeros().min(COARSEST_SHIFT);
        match &self.targets[number as usize] {
            Target::Binding(CheckedBinding { memory: Some(memory), .. }) => memory.refine(shift),
            Target::Arena => self.arena.as_mut().map_or(Ok(()), |arena| arena.refine(shift)),
            _ => Ok(()),
        }
    }

    /// Whether an earlier access that the stamps leave unordered is a fault, and which.
    fn conflict_with(
        &self,
        region: usize,
        earlier: Stamp,
        thread: u32,
    ) -> Option<(Kind, Arc<Dispatch>, Uint3)> {
        let kind = self.regions[region].kind as usize;
        let run = earlier.run();
        if run == self.epochs.run {
            let is_ordered = self.fences.order(&self.epochs, earlier, self.first_run, kind, thread);
            return (!is_ordered).then(|| (Kind::Race, Arc::clone(&self.current), self.position));
        }
        if run >= self.first_run {
            return None;
        }
        let index = self.pieces.partition_point(|piece| piece.first_run <= run).checked_sub(1)?;
        let piece = &self.pieces[index];
        let ordered_before = match &self.targets[region] {
            Target::Binding(binding) => binding.ordered_before,
            Target::Arena | Target::Ignored => 0,
        };
        let conflict = if Arc::ptr_eq(&piece.dispatch, &self.current) {
            Kind::ThreadgroupRace
        } else if self.current.overlaps_queue_of(&piece.dispatch) {
            Kind::QueueHazard
        } else if piece.dispatch.interval == self.current.interval && piece.dispatch.number >= ordered_before
        {
            Kind::DispatchHazard
        } else {
            return None;
        };
        let first_run = piece.continues.filter(|_| run == piece.first_run).unwrap_or(run);
        if self.fences.order(&self.epochs, earlier, first_run, kind, thread) {
            return None;
        }
        let at = piece.dispatch.order.at(piece.first_index + u64::from(run - piece.first_run));
        Some((conflict, Arc::clone(&piece.dispatch), piece.dispatch.threadgroups.position(at)))
    }

    /// Two accesses that the stamps leave unordered.
    pub(in crate::sanitize) fn conflict(
        &mut self,
        number: u32,
        access: Access,
        earlier: Stamp,
        action: Action,
        place: u32,
    ) {
        let kind_of_memory = self.regions[number as usize].kind as usize;
        let Some((kind, dispatch, position)) = self.conflict_with(number as usize, earlier, access.thread)
        else {
            return;
        };
        let other = Side {
            action,
            place: dispatch.library + u64::from(place),
            thread: Some(earlier.thread()),
            position,
            dispatch,
        };
        if self.seen.contains(&(kind, access.place, other.place)) {
            return;
        }
        let between = match kind {
            Kind::Race if kind_of_memory == 0 => "no barrier for device memory",
            Kind::Race => "no barrier for threadgroup memory",
            Kind::ThreadgroupRace => "threadgroups of one dispatch, which run in any order,",
            Kind::QueueHazard => {
                "command buffers of two queues, the first of which the host did not wait for"
            }
            _ => "no barrier between the two dispatches",
        };
        let what = match (access.writes(), action) {
            (true, Action::Write | Action::AtomicWrite) => "two threads write to the same memory",
            (true, _) => "a thread writes to memory that another one reads",
            (false, _) => "a thread reads memory that another one writes to",
        };
        let mut message = String::new();
        let _ = match kind {
            Kind::Race => write!(message, "{what}, with {between} between"),
            Kind::ThreadgroupRace => write!(message, "{what}, in two {between} with nothing between"),
            Kind::QueueHazard => write!(message, "{what}, in {between}"),
            _ => write!(message, "{what}, with {between}"),
        };
        if access.is_atomic() != matches!(action, Action::AtomicRead | Action::AtomicWrite) {
            message.push_str("; only one of them is atomic");
        }
        let memory = self.memory_at(access.address);
        let side = self.here(access.action, access.place, Some(access.thread));
        self.find_fault(kind, side, Some(other), Some(memory), access.size, message);
    }

    /// A plain access of a granule with flags. Returns the reason if the access lies outside.
    pub(in crate::sanitize) fn flagged(
        &mut self,
        number: u32,
        access: Access,
        stamp: Stamp,
        cell: &mut ShadowCell,
    ) -> Option<String> {
        if cell.flags & OUTSIDE != 0 {
            return Some(self.outside_threadgroup_memory(access));
        }
        let from = self.state.unordered_from[self.regions[number as usize].kind as usize];
        let Some(atomic) = self.atomics.get(&(access.address & !3)) else {
            // Of an earlier dispatch.
            cell.flags &= !ATOMIC;
            return None;
        };
        for (earlier, place, writes) in atomic.accesses.into_iter().flatten() {
            if (access.writes() || writes) && earlier.may_be_unordered(stamp, from) {
                let action = if writes { Action::AtomicWrite } else { Action::AtomicRead };
                let relative = place.wrapping_sub(self.state.library) as u32;
                self.conflict(number, access, earlier, action, relative);
            }
        }
        None
    }

    /// A read of memory without a value.
    pub(in crate::sanitize) fn unwritten(&mut self, number: u32, access: Access) {
        let region = &self.regions[number as usize];
        let is_local = region.kind == RegionKind::Threadgroup;
        let was_written = |atomic: &Atomic| atomic.written >= self.first_run;
        if is_local && self.atomics.get(&(access.address & !3)).is_some_and(was_written) {
            return;
        }
        if self.seen.contains(&(Kind::UninitializedRead, access.place, 0)) {
            return;
        }
        let message = if is_local {
            "a read of threadgroup memory that no thread of this threadgroup wrote"
        } else {
            "a read of memory that neither the host nor a kernel wrote"
        };
        let memory = self.memory_at(access.address);
        let side = self.here(access.action, access.place, Some(access.thread));
        self.find_fault(Kind::UninitializedRead, side, None, Some(memory), access.size, message.to_owned());
    }

    /// A fence of a thread.
    pub(in crate::sanitize) fn fence(&mut self, thread: u32, reach: Reach, acquires: bool, releases: bool) {
        self.fences.fence(&self.epochs, thread, reach, acquires, releases);
    }

    /// An atomic access to a region. Returns the reason if it lies outside.
    ///
    /// # Safety
    /// The region must be one of this dispatch, and the access inside of it.
    pub(in crate::sanitize) unsafe fn atomic(
        &mut self,
        number: u32,
        access: Access,
        stamp: Stamp,
        reads: bool,
    ) -> Option<String> {
        let (kind, shadow, written, memory_start) = {
            let region = &self.regions[number as usize];
            (region.kind, region.shadow, region.written, region.memory_start)
        };
        let from = self.state.unordered_from[kind as usize];
        let mut is_written = true;
        if !written.is_null() {
            for byte in (access.address - memory_start)..(access.address - memory_start + access.size) {
                // SAFETY: the bits cover the whole memory, which the access lies in.
                unsafe {
                    let bits = written.add((byte / 8) as usize);
                    is_written &= *bits >> (byte % 8) & 1 != 0;
                    if access.writes() {
                        *bits |= 1 << (byte % 8);
                    }
                }
            }
        }
        if !shadow.is_null() {
            if self.refine(number, access).is_err() {
                return Some("no memory for the sanitizer".to_owned());
            }
            // SAFETY: the shadow covers the region, and nothing else looks at it while this hook runs.
            let cells = unsafe {
                let shift = (*shadow).granule_shift;
                let first = (access.address - (*shadow).start) >> shift;
                std::slice::from_raw_parts_mut(
                    (*shadow).cells.add(first as usize),
                    (access.size >> shift) as usize,
                )
            };
            for cell in cells {
                if cell.flags & OUTSIDE != 0 {
                    return Some(self.outside_threadgroup_memory(access));
                }
                if kind == RegionKind::Threadgroup {
                    is_written &= cell.write >= from;
                }
                cell.flags |= ATOMIC;
                let write = Stamp(cell.write);
                if write.may_be_unordered(stamp, from) {
                    self.conflict(number, access, write, Action::Write, cell.write_place);
                }
                for (&read, &place) in cell.reads.iter().zip(&cell.read_places).filter(|_| access.writes()) {
                    if Stamp(read).may_be_unordered(stamp, from) {
                        self.conflict(number, access, Stamp(read), Action::Read, place);
                    }
                }
            }
        }
        if reads && !is_written {
            self.unwritten(number, access);
        }
        for part in (access.address..access.address + access.size).step_by(4) {
            let atomic = self.atomics.entry(part & !3).or_default();
            let entry = Some((stamp, access.place, access.writes()));
            // The last access, and the last one of another thread before it.
            match atomic.accesses[0] {
                Some((last, ..)) if last.run() == stamp.run() && last.thread() == stamp.thread() => {}
                other => atomic.accesses[1] = other,
            }
            atomic.accesses[0] = entry;
            if access.writes() {
                atomic.written = self.epochs.run;
            }
        }
        self.fences.access(access.thread, self.first_run, access.address, reads, access.writes());
        None
    }
}

/// Bytes from an address to the nearest one of a range. Nothing is in an empty range: it is as far away as its start, and one more.
fn distance(address: u64, start: u64, length: u64) -> u64 {
    match address.checked_sub(start) {
        None => start - address,
        Some(behind) => behind.saturating_add(1).saturating_sub(length),
    }
}

fn describe(binding: &CheckedBinding, address: u64) -> Memory {
    Memory::Buffer {
        slot: binding.slot,
        label: binding.memory.as_ref().map_or_else(String::new, |memory| memory.label().to_owned()),
        offset: address.wrapping_sub(binding.start as u64) as i64,
        length: binding.length as u64,
    }
}
