//! What one OS thread needs to run threadgroups.

use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fault::Fault;
use super::fiber::{self, Stacks};
use super::launch::{Failure, Launch};
use super::layout::{ExchangeHalf, Lane, ResultSlot, SimdGroup, Threadgroup, Uint3};
use super::scheduler;
use super::{MAX_THREADS, SIMD_WIDTH, SLOTS, place};
use crate::sanitize::{Cause, Checker};

thread_local! {
    /// The worker of this OS thread, for the first steps on a new stack and for signal handlers.
    pub(super) static CURRENT: Cell<*mut Worker> = const { Cell::new(ptr::null_mut()) };
}

/// Everything that one OS thread needs to run threadgroups. Kernels hold raw pointers into it while they run.
pub(super) struct Worker {
    pub threadgroup: Threadgroup,
    pub simdgroups: Vec<SimdGroup>,
    pub memory: ThreadgroupMemory,
    lanes: Vec<Lane>,
    stacks: Stacks,
    free_stacks: Vec<u32>,
    /// Where `run_threadgroup` waits while fibers run.
    pub main_stack_pointer: *mut c_void,
    run: unsafe extern "C" fn(*mut Lane),
    queues: Vec<u128>,
    queue_words: usize,
    dynamic: [*mut c_void; SLOTS],
    /// True from the switch to the first fiber to the end of the last: a signal may abandon the fibers.
    pub in_kernel: AtomicBool,
    pub fault: Option<Fault>,
    failure: Option<String>,
}

unsafe extern "C" fn nothing(_: *mut Lane) {}

impl Worker {
    /// Allocates stacks and state for threadgroups of the largest size.
    pub fn new() -> io::Result<Box<Self>> {
        let lane = || Lane {
            threadgroup: ptr::null_mut(),
            simdgroup: ptr::null_mut(),
            lane: 0,
            thread: 0,
            position: Uint3::default(),
            site: 0,
            barrier_flags: 0,
            matrix_operations: 0,
            matrix_tiles: 0,
            stack: 0,
            stack_pointer: ptr::null_mut(),
            place: 0,
            silent_barriers: 0,
            silent_place: 0,
        };
        let group = || SimdGroup {
            members: 0,
            finished: 0,
            runnable: 0,
            waiting_simd: 0,
            waiting_barrier: 0,
            generation: 0,
            active: 0,
            site: 0,
            sites_differ: 0,
            combine_pending: 0,
            index: 0,
            lanes: ptr::null_mut(),
            matrix_queue: ptr::null_mut(),
            matrix_flush: None,
            stamps: [0; 2],
            exchange: [const { ExchangeHalf([[0; 32]; SIMD_WIDTH]) }; 2],
            result: [const { ResultSlot([0; 64]) }; 2],
        };
        Ok(Box::new(Self {
            threadgroup: Threadgroup {
                position: Uint3::default(),
                size: Uint3::default(),
                dispatch_size: Uint3::default(),
                threadgroups: Uint3::default(),
                grid: Uint3::default(),
                thread_count: 0,
                simdgroup_count: 0,
                buffers: ptr::null(),
                dynamic_memory: ptr::null(),
                constants: ptr::null(),
                constants_defined: ptr::null(),
                worker: ptr::null_mut(),
                sanitizer: ptr::null_mut(),
            },
            simdgroups: (0..MAX_THREADS / SIMD_WIDTH).map(|_| group()).collect(),
            memory: ThreadgroupMemory::new(),
            lanes: (0..MAX_THREADS).map(|_| lane()).collect(),
            stacks: Stacks::new()?,
            free_stacks: Vec::with_capacity(MAX_THREADS),
            main_stack_pointer: ptr::null_mut(),
            run: nothing,
            queues: Vec::new(),
            queue_words: 0,
            dynamic: [ptr::null_mut(); SLOTS],
            in_kernel: AtomicBool::new(false),
            fault: None,
            failure: None,
        }))
    }

    /// Makes ready for threadgroups of one dispatch.
    pub fn prepare(&mut self, launch: &Launch) -> Result<(), Failure> {
        let fail = |reason: String| Failure { kernel: launch.kernel.clone(), reason };
        self.run = launch.run;
        let queue_words = launch.queue_size.div_ceil(64) * 4;
        let needed = queue_words * self.simdgroups.len() + 4;
        if self.queue_words != queue_words || self.queues.len() < needed {
            self.queues = vec![0; needed];
            self.queue_words = queue_words;
        }
        self.threadgroup.sanitizer = launch.checker;
        if let Some(checks) = launch.checks.as_ref().filter(|_| !launch.checker.is_null()) {
            let own = self.own_memory();
            let arena = self.memory.range();
            // SAFETY: whoever made the launch holds the lock around the checker until the dispatch ends.
            unsafe { (*launch.checker).begin_dispatch(launch, checks, arena, &own) }
                .map_err(|error| fail(format!("no memory for the sanitizer: {error}")))?;
        }
        let limit = launch.memory_limit;
        self.memory
            .begin(limit, &launch.dynamic_memory, &mut self.dynamic, launch.checker)
            .map_err(|needed| fail(format!("{needed} bytes of threadgroup memory, the limit is {limit}")))?;
        self.threadgroup.dispatch_size = launch.threads;
        self.threadgroup.threadgroups = launch.threadgroups;
        self.threadgroup.grid = launch.grid;
        self.threadgroup.constants = launch.constants.as_ptr();
        self.threadgroup.constants_defined = launch.constants_defined.as_ptr();
        self.threadgroup.buffers = launch.buffers.as_ptr();
        self.threadgroup.dynamic_memory = self.dynamic.as_ptr();
        self.threadgroup.worker = ptr::from_mut(self).cast();
        Ok(())
    }

    /// Runs one threadgroup to its end.
    ///
    /// `index` counts the threadgroups of the grid, in an order of the sanitizer's if there is one.
    pub fn run_threadgroup(&mut self, launch: &Launch, index: u64) -> Result<(), Failure> {
        let mut position = launch.threadgroups.position(index);
        if !launch.checker.is_null() {
            // SAFETY: as in `prepare`.
            unsafe {
                position = launch.threadgroups.position((*launch.checker).threadgroup_at(index));
                (*launch.checker).begin_threadgroup(index, position);
            }
        }
        self.set_up(launch, position);
        let worker = ptr::from_mut(self);
        // SAFETY: `prepare` has made the first lane ready; fibers reach the worker only through raw pointers
        // derived from this one, and this function does not touch `self` until they are done.
        unsafe {
            let first = if launch.checker.is_null() {
                (*(*worker).simdgroups.as_ptr()).members.ilog2() as usize
            } else {
                ((*launch.checker).random() % u64::from((*worker).threadgroup.thread_count)) as usize
            };
            let first = (*worker).lanes.as_mut_ptr().add(first);
            (*worker).start_lane(first);
            CURRENT.set(worker);
            (*worker).in_kernel.store(true, Ordering::SeqCst);
            fiber::switch(&raw mut (*worker).main_stack_pointer, (*first).stack_pointer);
            (*worker).in_kernel.store(false, Ordering::SeqCst);
            // The thread may outlive the worker, and a signal handler looks here at any time.
            CURRENT.set(ptr::null_mut());
        }
        if self.fault.is_none() && self.failure.is_none() {
            return Ok(());
        }
        // Abandoned fibers leave half-done operations behind.
        self.queues.fill(0);
        for group in &mut self.simdgroups {
            group.matrix_flush = None;
        }
        let place = format!("in threadgroup ({}, {}, {})", position.x, position.y, position.z);
        let reason = match (self.failure.take(), self.fault.take()) {
            (Some(failure), _) => failure,
            (None, Some(fault)) => {
                let reason = fault.describe(launch, |address| self.stacks.is_guard(address));
                if !launch.checker.is_null() {
                    let cause = if fault.is_timeout() { Cause::Endless } else { Cause::Fault };
                    // SAFETY: as in `prepare`.
                    unsafe { (*launch.checker).add_stop(cause, fault.instruction(), &reason) };
                }
                match place::of_instruction(fault.instruction()) {
                    Some(place) => format!("{place}: {reason}"),
                    None => reason,
                }
            }
            (None, None) => String::new(),
        };
        Err(Failure { kernel: launch.kernel.clone(), reason: format!("{reason}, {place}") })
    }

    /// What kernels touch besides what is bound to them: what the runtime keeps for them, and their stacks.
    fn own_memory(&self) -> [Range<usize>; 5] {
        fn of<T>(slice: &[T]) -> Range<usize> {
            let range = slice.as_ptr_range();
            range.start as usize..range.end as usize
        }
        [
            of(std::slice::from_ref(self)),
            of(&self.simdgroups),
            of(&self.lanes),
            of(&self.queues),
            self.stacks.range(),
        ]
    }

    fn set_up(&mut self, launch: &Launch, position: Uint3) {
        let cut =
            |index: u32, size: u32, grid: u32| size.min(grid.saturating_sub(index.saturating_mul(size)));
        let size = Uint3::new(
            cut(position.x, launch.threads.x, launch.grid.x),
            cut(position.y, launch.threads.y, launch.grid.y),
            cut(position.z, launch.threads.z, launch.grid.z),
        );
        let count = size.x * size.y * size.z;
        let threadgroup = ptr::from_mut(&mut self.threadgroup);
        self.threadgroup.position = position;
        self.threadgroup.size = size;
        self.threadgroup.thread_count = count;
        self.threadgroup.simdgroup_count = count.div_ceil(SIMD_WIDTH as u32);
        self.free_stacks.clear();
        self.free_stacks.extend((0..count).rev());
        let lanes = self.lanes.as_mut_ptr();
        let queues = self.queues.as_mut_ptr();
        // The allocation is aligned to 16 bytes; queues hold values aligned to 64.
        let queue_start = queues.align_offset(64).min(3);
        for index in 0..self.threadgroup.simdgroup_count as usize {
            let group = &mut self.simdgroups[index];
            let live = count as usize - index * SIMD_WIDTH;
            group.members = if live >= SIMD_WIDTH { u32::MAX } else { (1 << live) - 1 };
            group.runnable = group.members;
            group.finished = 0;
            group.waiting_simd = 0;
            group.waiting_barrier = 0;
            group.sites_differ = 0;
            group.combine_pending = 0;
            group.index = index as u32;
            if !launch.checker.is_null() {
                // SAFETY: as in `prepare`.
                group.stamps = unsafe { (*launch.checker).stamps(index) };
            }
            // SAFETY: there are as many lanes and queues as the largest threadgroup has groups.
            unsafe {
                group.lanes = lanes.add(index * SIMD_WIDTH);
                group.matrix_queue = queues.add(queue_start + index * self.queue_words).cast();
            }
        }
        let mut at = Uint3::default();
        for index in 0..count as usize {
            let group = ptr::from_mut(&mut self.simdgroups[index / SIMD_WIDTH]);
            let lane = &mut self.lanes[index];
            lane.threadgroup = threadgroup;
            lane.simdgroup = group;
            lane.lane = (index % SIMD_WIDTH) as u32;
            lane.thread = index as u32;
            lane.position = at;
            lane.matrix_operations = 0;
            lane.matrix_tiles = 0;
            lane.barrier_flags = 0;
            lane.silent_barriers = 0;
            lane.silent_place = 0;
            lane.stack_pointer = ptr::null_mut();
            at.x += 1;
            if at.x == size.x {
                at.x = 0;
                at.y += 1;
                if at.y == size.y {
                    at.y = 0;
                    at.z += 1;
                }
            }
        }
    }

    /// Gives a lane a stack of its own.
    ///
    /// # Safety
    /// The lane must be one of this worker's that has not started.
    pub unsafe fn start_lane(&mut self, lane: *mut Lane) {
        // There are as many stacks as lanes, so that one is free.
        let stack = self.free_stacks.pop().unwrap_or(0);
        // SAFETY: the stack was free, and the lane is alive as the caller says.
        unsafe {
            (*lane).stack = stack;
            (*lane).stack_pointer = self.stacks.prepare(stack, lane, fiber_main);
        }
    }

    /// Gives up the threadgroup: notes the reason and returns to `run_threadgroup`.
    ///
    /// # Safety
    /// Only from the stack of one of this worker's fibers.
    pub unsafe fn fail(&mut self, lane: *mut Lane, reason: &str) -> ! {
        // From here on nothing may abandon the fiber: it allocates.
        self.in_kernel.store(false, Ordering::SeqCst);
        // SAFETY: the caller passes the lane that runs.
        let thread = unsafe { (*lane).thread };
        self.failure = Some(format!("{reason} (thread {thread} of its threadgroup)"));
        // SAFETY: `main_stack_pointer` was saved by the switch in `run_threadgroup`.
        unsafe { fiber::leave(self.main_stack_pointer) }
    }
}

/// Runs something on behalf of a kernel that must not be abandoned half-way: it allocates or locks.
///
/// # Safety
/// Only on the stack of one of a worker's fibers, with its lane.
pub(crate) unsafe fn outside_kernel<T>(lane: *mut Lane, run: impl FnOnce() -> T) -> T {
    // SAFETY: the lane runs, as the caller says, so that its worker is alive.
    unsafe {
        let worker: *mut Worker = (*(*lane).threadgroup).worker.cast();
        (*worker).in_kernel.store(false, Ordering::SeqCst);
        let result = run();
        (*worker).in_kernel.store(true, Ordering::SeqCst);
        result
    }
}

/// Gives up the threadgroup of a lane.
///
/// # Safety
/// As for [`outside_kernel`]; nothing on the stack is dropped.
pub(crate) unsafe fn abandon_kernel(lane: *mut Lane, reason: &str) -> ! {
    // SAFETY: as above.
    unsafe { (*(*(*lane).threadgroup).worker.cast::<Worker>()).fail(lane, reason) }
}

/// The bottom of every fiber: runs lanes until none is left that has not started.
extern "C" fn fiber_main() -> ! {
    let worker = CURRENT.get();
    // SAFETY: fibers run between the two switches of `run_threadgroup`, while the worker is alive; the lane at
    // the top of this stack was put there by `prepare` or below.
    unsafe {
        let mut lane = current_lane();
        loop {
            ((*worker).run)(lane);
            let group = (*lane).simdgroup;
            let bit = 1u32 << (*lane).lane;
            (*group).runnable &= !bit;
            (*group).finished |= bit;
            let next = scheduler::next_lane(worker, lane);
            if next.is_null() {
                fiber::leave((*worker).main_stack_pointer);
            }
            let stack = (*lane).stack;
            if !(*next).stack_pointer.is_null() {
                (*worker).free_stacks.push(stack);
                fiber::leave((*next).stack_pointer);
            }
            // The next lane starts on this stack: no switch at all.
            (*next).stack = stack;
            (*next).stack_pointer = STARTED;
            (*worker).stacks.set_owner(stack, next);
            lane = next;
        }
    }
}

/// Marks a lane as started before it has ever been switched out.
const STARTED: *mut c_void = ptr::without_provenance_mut(1);

/// The lane whose stack this is.
#[inline(never)]
fn current_lane() -> *mut Lane {
    let marker = 0u8;
    let top = (ptr::from_ref(&marker) as usize | (fiber::STACK_SIZE - 1)) + 1;
    // SAFETY: on a fiber's stack the last word holds its lane.
    unsafe { *((top - size_of::<*mut Lane>()) as *const *mut Lane) }
}

/// Bytes between threadgroup variables under the sanitizer, of the first of them and of more.
const WIDE_GAP: usize = 256;
const WIDE_GAPS: usize = 32;
const NARROW_GAP: usize = 48;

/// Threadgroup memory: dynamic slots first, then the variables that kernels declare.
pub(super) struct ThreadgroupMemory {
    arena: *mut u8,
    limit: usize,
    used: usize,
    /// Where the next variable may start: with the sanitizer there are gaps between them.
    next: usize,
    checker: *mut Checker,
    variables: Vec<(*const c_void, *mut c_void)>,
}

impl ThreadgroupMemory {
    const CAPACITY: usize = 64 << 10;
    const LAYOUT: Layout = match Layout::from_size_align(Self::CAPACITY, 4096) {
        Ok(layout) => layout,
        Err(_) => panic!("a constant layout is valid"),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let arena = unsafe { std::alloc::alloc_zeroed(Self::LAYOUT) };
        if arena.is_null() {
            std::alloc::handle_alloc_error(Self::LAYOUT);
        }
        Self {
            arena,
            limit: 0,
            used: 0,
            next: 0,
            checker: ptr::null_mut(),
            variables: Vec::with_capacity(256),
        }
    }

    /// The addresses of threadgroup memory.
    fn range(&self) -> Range<usize> {
        self.arena as usize..self.arena as usize + Self::CAPACITY
    }

    /// Bytes that a threadgroup may use.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lays out the dynamic slots of a dispatch; the error is the number of bytes needed.
    fn begin(
        &mut self,
        limit: usize,
        lengths: &[u32; SLOTS],
        slots: &mut [*mut c_void; SLOTS],
        checker: *mut Checker,
    ) -> Result<(), usize> {
        self.limit = limit.min(Self::CAPACITY / 2);
        self.used = 0;
        self.next = 0;
        self.checker = checker;
        self.variables.clear();
        // What a threadgroup reads before it writes is garbage on a GPU: make it look like garbage.
        // SAFETY: the arena has that many bytes.
        unsafe { ptr::write_bytes(self.arena, 0xff, Self::CAPACITY) };
        for (index, (slot, &length)) in slots.iter_mut().zip(lengths).enumerate() {
            *slot = if length == 0 { ptr::null_mut() } else { self.take(length as usize, 16, Some(index))? };
        }
        Ok(())
    }

    /// The address of a variable, the same for all threads; the error is the number of bytes needed.
    pub fn local(&mut self, key: *const c_void, size: usize, alignment: usize) -> Result<*mut c_void, usize> {
        if let Some(&(_, address)) = self.variables.iter().find(|(known, _)| *known == key) {
            return Ok(address);
        }
        if self.variables.len() == self.variables.capacity() {
            // Growing would allocate, and a fault or timeout may abandon a kernel at any instruction.
            return Err(self.limit + size);
        }
        let address = self.take(size, alignment, None)?;
        self.variables.push((key, address));
        Ok(address)
    }

    fn take(&mut self, size: usize, alignment: usize, slot: Option<usize>) -> Result<*mut c_void, usize> {
        let end = self.used.next_multiple_of(alignment.max(1)).saturating_add(size);
        if end > self.limit {
            return Err(end);
        }
        self.used = end;
        let start = self.next.next_multiple_of(alignment.max(1));
        self.next = start + size;
        // SAFETY: the range lies inside the arena: the limit is half of its size, and the gaps of all variables
        // together are less than the other half.
        let address = unsafe { self.arena.add(start) };
        if !self.checker.is_null() {
            self.next += if self.variables.len() < WIDE_GAPS { WIDE_GAP } else { NARROW_GAP };
            // SAFETY: the checker is locked for the dispatch that this memory is laid out for.
            unsafe { (*self.checker).add_variable(address as usize, size, slot) };
        }
        Ok(address.cast())
    }
}

impl Drop for ThreadgroupMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.arena, Self::LAYOUT) };
    }
}
