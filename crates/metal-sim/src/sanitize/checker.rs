//! What the sanitizer knows while kernels run, and what it makes of it.

mod accesses;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use super::hooks::HOOKS;
use super::image;
use super::layout::{HINTS, Region, RegionKind, Sanitizer as State};
use super::memory::{Tracked, lock};
use super::order::{Epochs, Fences, Stamp, orders};
use super::report::{Action, Kind, Memory, Party, Report};
use super::shadow::{COARSEST_SHIFT, OUTSIDE, ShadowMemory};
use super::{Sanitizer, Settings};
use crate::runtime::layout::Uint3;
use crate::runtime::{Launch, place_of_instruction};

/// Dispatches that can be looked up by their runs.
const DISPATCH_LIMIT: usize = 4096;
/// Different faults of one dispatch that are reported.
const FINDING_LIMIT: usize = 50;

/// What a launch needs to be checked.
#[derive(Clone)]
pub(crate) struct Checks {
    /// The device's sanitizer.
    pub sanitizer: Arc<Sanitizer>,
    /// The dispatch's label.
    pub label: String,
    /// Dispatches of the same interval may overlap.
    pub interval: u64,
    /// The dispatch's number among those of its interval.
    pub number: u64,
    /// The queue.
    pub queue: u64,
    /// The number of the command buffer in its queue.
    pub submission: u64,
    /// Each queue, and the last submission whose end the host had seen at the commit of this one.
    pub observed: Arc<[(u64, u64)]>,
    /// Everything bound.
    pub bindings: Vec<CheckedBinding>,
}

/// What is bound to one slot.
#[derive(Clone)]
pub(crate) struct CheckedBinding {
    /// The slot.
    pub slot: usize,
    /// Address of its first byte.
    pub start: usize,
    /// Bytes from there to the end.
    pub length: usize,
    /// The buffer, unless the bytes are the command buffer's.
    pub memory: Option<Arc<Tracked>>,
    /// Whether any dispatch of the interval, or of another queue, may write to the buffer.
    pub contended: bool,
    /// A barrier orders what the interval's dispatches below this number do to the buffer.
    pub ordered_before: u64,
}

/// What stopped a kernel, other than the sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It took too much time.
    Endless,
    /// A fault of the processor.
    Fault,
}

/// One dispatch, for reports about it.
struct Dispatch {
    kernel: String,
    label: String,
    interval: u64,
    number: u64,
    queue: u64,
    submission: u64,
    observed: Arc<[(u64, u64)]>,
    library: u64,
    threadgroups: Uint3,
    order: Order,
}

impl Dispatch {
    /// Whether an earlier dispatch is one of another queue, whose end the host did not wait for.
    fn overlaps_queue_of(&self, earlier: &Self) -> bool {
        let seen = self.observed.iter().find(|(queue, _)| *queue == earlier.queue);
        earlier.queue != self.queue && seen.is_none_or(|(_, submission)| *submission < earlier.submission)
    }
}

/// Consecutive runs of threadgroups of a dispatch.
struct Piece {
    dispatch: Arc<Dispatch>,
    first_run: u32,
    first_index: u64,
    /// For a threadgroup whose counters began again: its first run.
    continues: Option<u32>,
}

/// An order of threadgroups.
#[derive(Clone, Copy)]
struct Order {
    factor: u64,
    offset: u64,
    total: u64,
}

impl Order {
    fn new(random: &mut Random, total: u64) -> Self {
        let total = total.max(1);
        let mut factor = random.next() % total;
        while greatest_common_divisor(factor, total) != 1 {
            factor = (factor + 1) % total;
        }
        Self { factor, offset: random.next() % total, total }
    }

    fn at(self, index: u64) -> u64 {
        let product = u128::from(self.factor) * u128::from(index) + u128::from(self.offset);
        (product % u128::from(self.total)) as u64
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// What lies behind a region.
enum Target {
    Binding(CheckedBinding),
    Arena,
    Ignored,
}

/// One stretch of threadgroup memory.
struct Variable {
    start: u64,
    length: u64,
    slot: Option<usize>,
}

/// Accesses of one atomic, the last ones of two threads.
#[derive(Default)]
struct Atomic {
    accesses: [Option<(Stamp, u64, bool)>; 2],
    /// The last run that wrote to it.
    written: u32,
}

/// One side of a finding.
#[derive(Clone)]
pub(super) struct Side {
    pub action: Action,
    /// The instruction behind the access, 0 if unknown.
    pub place: u64,
    pub thread: Option<u32>,
    position: Uint3,
    dispatch: Arc<Dispatch>,
}

struct Finding {
    kind: Kind,
    message: String,
    side: Side,
    other: Option<Side>,
    memory: Option<Memory>,
    size: u64,
}

/// One access, as the hooks see it.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub address: u64,
    pub size: u64,
    pub action: Action,
    pub place: u64,
    pub thread: u32,
}

impl Access {
    fn writes(&self) -> bool {
        matches!(self.action, Action::Write | Action::AtomicWrite)
    }

    fn is_atomic(&self) -> bool {
        matches!(self.action, Action::AtomicRead | Action::AtomicWrite)
    }
}

/// The checker of one device. It starts with what compiled kernels look at.
#[repr(C)]
pub struct Checker {
    pub state: State,
    seed: u64,
    steps: u64,
    random: Random,
    dispatches: u64,
    regions: Vec<Region>,
    targets: Vec<Target>,
    arena: Option<Box<ShadowMemory>>,
    variables: Vec<Variable>,
    next_run: u32,
    pieces: VecDeque<Piece>,
    epochs: Epochs,
    /// The first run of the threadgroup that runs.
    first_run: u32,
    index: u64,
    position: Uint3,
    fences: Fences,
    atomics: HashMap<u64, Atomic>,
    current: Arc<Dispatch>,
    registry: Option<Arc<Sanitizer>>,
    findings: Vec<Finding>,
    seen: HashSet<(Kind, u64, u64)>,
}

// SAFETY: the raw pointers in the regions lead to memory of the running dispatch, and whoever runs one holds the
// lock around the checker.
unsafe impl Send for Checker {}

impl Checker {
    pub(super) fn new(settings: &Settings) -> Box<Self> {
        Box::new(Self {
            state: State {
                regions: ptr::null(),
                hooks: &raw const HOOKS,
                unordered_from: [0; 2],
                steps: 0,
                library: 0,
                last_end: 0,
                last_place: 0,
                last_lane: ptr::null(),
                region_of_place: [0; HINTS],
            },
            seed: settings.seed,
            steps: settings.steps,
            random: Random(settings.seed),
            dispatches: 0,
            regions: Vec::new(),
            targets: Vec::new(),
            arena: None,
            variables: Vec::new(),
            next_run: 1,
            pieces: VecDeque::new(),
            epochs: Epochs::new(),
            first_run: 0,
            index: 0,
            position: Uint3::default(),
            fences: Fences::default(),
            atomics: HashMap::new(),
            current: Arc::new(Dispatch {
                kernel: String::new(),
                label: String::new(),
                interval: 0,
                number: 0,
                queue: 0,
                submission: 0,
                observed: Arc::default(),
                library: 0,
                threadgroups: Uint3::default(),
                order: Order { factor: 0, offset: 0, total: 1 },
            }),
            registry: None,
            findings: Vec::new(),
            seen: HashSet::new(),
        })
    }

    // ---- the course of a dispatch --------------------------------------------------------------------

    /// Gets ready for a dispatch. `arena` is threadgroup memory; `own` is what kernels may touch besides: the
    /// runtime's memory.
    ///
    /// # Errors
    /// If there is no memory for shadows.
    pub(crate) fn begin_dispatch(
        &mut self,
        launch: &Launch,
        checks: &Checks,
        arena: Range<usize>,
        own: &[Range<usize>],
    ) -> std::io::Result<()> {
        let threadgroups = launch.threadgroups.volume();
        if u64::from(self.next_run) + threadgroups > u64::from(u32::MAX / 2) {
            self.forget_everything(checks);
        }
        self.dispatches += 1;
        self.random = Random(self.seed ^ self.dispatches.wrapping_mul(0xa076_1d64_78bd_642f));
        let library = image::containing(launch.run as usize).unwrap_or(0..0);
        let is_new_interval = self.current.interval != checks.interval;
        self.current = Arc::new(Dispatch {
            kernel: launch.kernel.clone(),
            label: checks.label.clone(),
            interval: checks.interval,
            number: checks.number,
            queue: checks.queue,
            submission: checks.submission,
            observed: Arc::clone(&checks.observed),
            library: library.start as u64,
            threadgroups: launch.threadgroups,
            order: Order::new(&mut self.random, threadgroups),
        });
        if is_new_interval {
            self.fences.clear();
            self.atomics.clear();
        }
        if self.pieces.len() >= DISPATCH_LIMIT {
            self.pieces.pop_front();
        }
        self.pieces.push_back(Piece {
            dispatch: Arc::clone(&self.current),
            first_run: self.next_run,
            first_index: 0,
            continues: None,
        });
        let may_overlap = |piece: &&Piece| {
            piece.dispatch.interval == checks.interval || self.current.overlaps_queue_of(&piece.dispatch)
        };
        let first = self.pieces.iter().find(may_overlap).map_or(self.next_run, |piece| piece.first_run);
        self.state.unordered_from = [u64::from(first) << 32, 0];
        self.state.library = library.start as u64;
        self.registry = Some(Arc::clone(&checks.sanitizer));
        self.findings.clear();
        self.seen.clear();
        self.set_up_arena(arena.clone())?;
        self.set_up_regions(launch, checks, arena, library, own)
    }

    /// Forgets all that shadows know, so that runs can be counted from 1 again.
    fn forget_everything(&mut self, checks: &Checks) {
        for tracked in lock(&checks.sanitizer.registry).live() {
            tracked.forget();
        }
        self.arena = None;
        self.pieces.clear();
        self.next_run = 1;
    }

    fn set_up_arena(&mut self, range: Range<usize>) -> std::io::Result<()> {
        let used = self.variables.last().map_or(0, |last| (last.start + last.length) as usize);
        self.variables.clear();
        match &mut self.arena {
            Some(arena)
                if arena.shadow.start == range.start as u64
                    && arena.shadow.granule_shift == COARSEST_SHIFT =>
            {
                let end = used.saturating_sub(range.start).div_ceil(4);
                for cell in &mut arena.cells()[..end] {
                    cell.flags = OUTSIDE;
                }
            }
            arena => {
                let mut new = Box::new(ShadowMemory::new(range.start, range.len())?);
                for cell in new.cells() {
                    cell.flags = OUTSIDE;
                }
                *arena = Some(new);
            }
        }
        Ok(())
    }

    fn set_up_regions(
        &mut self,
        launch: &Launch,
        checks: &Checks,
        arena: Range<usize>,
        library: Range<usize>,
        own: &[Range<usize>],
    ) -> std::io::Result<()> {
        self.regions.clear();
        self.targets.clear();
        for binding in &checks.bindings {
            let (mut shadow, mut written, mut memory_start) = (ptr::null(), ptr::null_mut(), binding.start);
            if let Some(memory) = &binding.memory {
                if binding.contended {
                    shadow = memory.shadow()?;
                }
                written = memory.written_bits();
                memory_start = memory.start();
            }
            self.regions.push(Region {
                start: binding.start as u64,
                length: binding.length as u64,
                shadow,
                written,
                memory_start: memory_start as u64,
                kind: RegionKind::Device,
                number: 0,
            });
            self.targets.push(Target::Binding(binding.clone()));
        }
        let shadow = self.arena.as_ref().map_or(ptr::null(), |arena| &raw const arena.shadow);
        self.add_region(arena, RegionKind::Threadgroup, Target::Arena);
        if let Some(region) = self.regions.last_mut() {
            region.shadow = shadow;
        }
        let constants = launch.constants.as_ptr_range();
        let defined = launch.constants_defined.as_ptr_range();
        let buffers = launch.buffers.as_ptr_range();
        let more = [
            library,
            constants.start as usize..constants.end as usize,
            defined.start as usize..defined.end as usize,
            buffers.start as usize..buffers.end as usize,
        ];
        for range in own.iter().cloned().chain(more) {
            self.add_region(range, RegionKind::Ignored, Target::Ignored);
        }
        for (number, region) in self.regions.iter_mut().enumerate() {
            region.number = number as u32;
        }
        self.state.regions = self.regions.as_ptr();
        self.state.region_of_place = [0; HINTS];
        Ok(())
    }

    fn add_region(&mut self, range: Range<usize>, kind: RegionKind, target: Target) {
        self.regions.push(Region {
            start: range.start as u64,
            length: range.len() as u64,
            shadow: ptr::null(),
            written: ptr::null_mut(),
            memory_start: range.start as u64,
            kind,
            number: 0,
        });
        self.targets.push(target);
    }

    /// The threadgroup that comes at the given place of the order.
    pub fn threadgroup_at(&self, index: u64) -> u64 {
        self.current.order.at(index)
    }

    /// Starts a threadgroup.
    pub fn begin_threadgroup(&mut self, index: u64, position: Uint3) {
        self.index = index;
        self.position = position;
        self.first_run = self.next_run;
        self.state.unordered_from[1] = u64::from(self.first_run) << 32;
        self.state.steps = i64::try_from(self.steps).unwrap_or(i64::MAX);
        self.begin_run();
        self.fences.begin_threadgroup();
    }

    fn begin_run(&mut self) {
        self.epochs.begin(self.next_run);
        self.next_run += 1;
    }

    /// The counters of barriers are full: they begin again in a new run of the same threadgroup.
    fn continue_run(&mut self) {
        self.pieces.push_back(Piece {
            dispatch: Arc::clone(&self.current),
            first_run: self.next_run,
            first_index: self.index,
            continues: Some(self.first_run),
        });
        self.begin_run();
    }

    /// The stamps of a SIMD-group's first lane.
    pub fn stamps(&self, group: usize) -> [u64; 2] {
        self.epochs.stamps(group)
    }

    /// All threads have passed a barrier.
    pub fn pass_barrier(&mut self, flags: u32) {
        if !self.epochs.pass(orders(flags)) {
            self.continue_run();
        }
    }

    /// A SIMD-group has passed a barrier.
    pub fn pass_simdgroup_barrier(&mut self, group: usize, flags: u32) {
        if !self.epochs.pass_group(group, orders(flags)) {
            self.continue_run();
        }
    }

    /// A random number.
    pub fn random(&mut self) -> u64 {
        self.random.next()
    }

    /// A stretch of threadgroup memory has got its place.
    pub fn add_variable(&mut self, start: usize, length: usize, slot: Option<usize>) {
        self.variables.push(Variable { start: start as u64, length: length as u64, slot });
        if let Some(arena) = &mut self.arena {
            let (first, end) =
                (arena.index(start as u64), arena.index((start + length) as u64 + arena.granule() - 1));
            for cell in &mut arena.cells()[first..end] {
                cell.flags &= !OUTSIDE;
            }
        }
    }

    /// Ends the dispatch: everything found, in words.
    pub fn finish(&mut self) -> Vec<Report> {
        self.registry = None;
        self.state.regions = ptr::null();
        let mut findings = std::mem::take(&mut self.findings);
        // What one thread reads too early another one writes too late: the race tells more.
        let raced: HashSet<u64> = findings
            .iter()
            .filter(|finding| finding.kind == Kind::Race)
            .flat_map(|finding| [Some(finding.side.place), finding.other.as_ref().map(|other| other.place)])
            .flatten()
            .collect();
        findings.retain(|finding| {
            finding.kind != Kind::UninitializedRead || !raced.contains(&finding.side.place)
        });
        // Unrolled loops have many instructions for one place.
        let mut places = HashSet::new();
        let reports = findings.into_iter().map(|finding| self.report(finding));
        reports
            .filter(|report| {
                let other = report.other.as_ref().and_then(|other| other.place.clone());
                let mut pair = [report.party.place.clone(), other];
                pair.sort();
                places.insert((report.kind, pair))
            })
            .collect()
    }

    fn report(&self, finding: Finding) -> Report {
        let party = |side: Side| Party {
            action: side.action,
            // The call of a hook returns behind it.
            place: (side.place > 0).then(|| place_of_instruction(side.place as usize - 1)).flatten(),
            kernel: Some(side.dispatch.kernel.clone()),
            thread: side.thread,
            threadgroup: Some([side.position.x, side.position.y, side.position.z]),
        };
        Report {
            kind: finding.kind,
            kernel: finding.side.dispatch.kernel.clone(),
            dispatch: finding.side.dispatch.label.clone(),
            party: party(finding.side),
            other: finding.other.map(party),
            memory: finding.memory,
            size: finding.size,
            message: finding.message,
            seed: self.seed,
        }
    }

    // ---- findings --------------------------------------------------------------------------------------

    /// A side that runs now.
    pub(super) fn here(&self, action: Action, place: u64, thread: Option<u32>) -> Side {
        Side { action, place, thread, position: self.position, dispatch: Arc::clone(&self.current) }
    }

    /// Whether the fault at these places is to be reported: only once.
    fn is_new(&mut self, kind: Kind, place: u64, other: u64) -> bool {
        self.findings.len() < FINDING_LIMIT && self.seen.insert((kind, place, other))
    }

    fn find_fault(
        &mut self,
        kind: Kind,
        side: Side,
        other: Option<Side>,
        memory: Option<Memory>,
        size: u64,
        message: String,
    ) {
        if self.is_new(kind, side.place, other.as_ref().map_or(0, |other| other.place)) {
            self.findings.push(Finding { kind, message, side, other, memory, size });
        }
    }

    /// Something that the sanitizer did not find has stopped the kernel at an instruction.
    pub(crate) fn add_stop(&mut self, cause: Cause, instruction: usize, reason: &str) {
        let kind = match cause {
            Cause::Endless => Kind::InfiniteLoop,
            Cause::Fault => Kind::Fault,
        };
        // Not the address behind a call, but the instruction itself.
        let side = self.here(Action::Run, instruction as u64 + 1, None);
        self.find_fault(kind, side, None, None, 0, reason.to_owned());
    }

    /// Not all threads wait at the same barrier.
    pub fn add_divergence(
        &mut self,
        what: &str,
        waits: (u64, u32),
        other: (Action, u64, u32),
        message: &str,
    ) {
        let side = self.here(Action::Wait, waits.0, Some(waits.1));
        let other = self.here(other.0, other.1, Some(other.2));
        self.find_fault(Kind::DivergentBarrier, side, Some(other), None, 0, format!("{what}: {message}"));
    }

    pub(super) fn out_of_steps(&mut self, place: u64, thread: u32) -> String {
        let message = format!("the threads of a threadgroup took more than {} steps", self.steps);
        let side = self.here(Action::Run, place, Some(thread));
        self.find_fault(Kind::InfiniteLoop, side, None, None, 0, message.clone());
        message
    }

    pub(super) fn misaligned(&mut self, access: Access, type_name: &str, alignment: u64) -> String {
        let message = format!(
            "{type_name} at an address that is {} past a multiple of {alignment}",
            access.address % alignment
        );
        let memory = self.memory_at(access.address);
        let side = self.here(access.action, access.place, Some(access.thread));
        self.find_fault(Kind::Misaligned, side, None, Some(memory), 0, message.clone());
        message
    }

    pub(super) fn bad_index(&mut self, type_name: &str, index: i64, place: u64, thread: u32) -> String {
        let message = format!("index {index} of an array of type {type_name}");
        let side = self.here(Action::Run, place, Some(thread));
        self.find_fault(Kind::OutOfBounds, side, None, None, 0, message.clone());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Random};

    #[test]
    fn every_order_holds_every_threadgroup_once() {
        for total in [1, 2, 6, 30, 64, 97] {
            for seed in 0..20 {
                let order = Order::new(&mut Random(seed), total);
                let mut all: Vec<u64> = (0..total).map(|index| order.at(index)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..total).collect::<Vec<_>>(), "{total} {seed}");
            }
        }
    }
}
