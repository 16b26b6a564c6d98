//! Recordings that are cut into several command buffers: the deadline of each, what is handed over when, and what is left of
//! them when one goes wrong. Most run on a device with a clock of its own, so that nothing here depends on how busy the machine is.

mod common;

use bytes::Bytes;
use common::{NAME, Node};
use graph::{Backend, BackendError, BufferId};
use metal::device::*;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::{SimCommandBuffer, SimDevice, SimQueue, SimSubmission};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the tests let the device do, and what it has done.
#[derive(Default)]
struct Clock {
    now: Duration,
    /// When the device will have done all that it was given.
    free: Duration,
    /// How long a command buffer takes.
    each: Duration,
    /// The one that never ends, counted from 1; those behind it do not either.
    hangs: Option<u32>,
    /// The one that the queue does not open.
    refuses: Option<u32>,
    /// Whether there is no memory left.
    full: bool,
    opened: u32,
    handed: u32,
    /// Ends of those on their way.
    pending: Vec<Duration>,
    most_pending: usize,
}

/// The simulated GPU, whose command buffers take as long as the clock says.
#[derive(Clone)]
struct Slow {
    inner: SimDevice,
    clock: Arc<Mutex<Clock>>,
}

struct SlowQueue(SimQueue, Arc<Mutex<Clock>>);
struct SlowCommandBuffer(SimCommandBuffer, Arc<Mutex<Clock>>);
struct SlowSubmission {
    inner: SimSubmission,
    clock: Arc<Mutex<Clock>>,
    end: Duration,
}

/// Of what never ends.
const NEVER: Duration = Duration::MAX;

impl Device for Slow {
    type Buffer = <SimDevice as Device>::Buffer;
    type Library = <SimDevice as Device>::Library;
    type Pipeline = <SimDevice as Device>::Pipeline;
    type Queue = SlowQueue;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn new_buffer(&self, label: &str, length: usize) -> Result<Self::Buffer> {
        if self.clock.lock().unwrap().full {
            return Err(Error::Device(format!("buffer '{label}': no memory")));
        }
        self.inner.new_buffer(label, length)
    }

    unsafe fn new_buffer_no_copy(
        &self,
        label: &str,
        memory: NonNull<u8>,
        length: usize,
    ) -> Result<Self::Buffer> {
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { self.inner.new_buffer_no_copy(label, memory, length) }
    }

    fn new_library(&self, label: &str, source: &str, options: &CompileOptions) -> Result<Self::Library> {
        self.inner.new_library(label, source, options)
    }

    fn new_library_with_data(&self, label: &str, data: &[u8]) -> Result<Self::Library> {
        self.inner.new_library_with_data(label, data)
    }

    fn new_pipeline(
        &self,
        library: &Self::Library,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<Self::Pipeline> {
        self.inner.new_pipeline(library, name, constants)
    }

    fn new_queue(&self, label: &str) -> Result<SlowQueue> {
        Ok(SlowQueue(self.inner.new_queue(label)?, Arc::clone(&self.clock)))
    }
}

impl Queue for SlowQueue {
    type Buffer = <SimDevice as Device>::Buffer;
    type Pipeline = <SimDevice as Device>::Pipeline;
    type CommandBuffer = SlowCommandBuffer;

    fn new_command_buffer(&self, label: &str) -> Result<SlowCommandBuffer> {
        let mut clock = self.1.lock().unwrap();
        clock.opened += 1;
        if clock.refuses == Some(clock.opened) {
            return Err(Error::Device(format!("command buffer '{label}': the queue gives none")));
        }
        Ok(SlowCommandBuffer(self.0.new_command_buffer(label)?, Arc::clone(&self.1)))
    }
}

impl CommandBuffer for SlowCommandBuffer {
    type Buffer = <SimDevice as Device>::Buffer;
    type Pipeline = <SimDevice as Device>::Pipeline;
    type Encoder<'a> = <SimCommandBuffer as CommandBuffer>::Encoder<'a>;
    type Submission = SlowSubmission;

    fn compute_encoder(&mut self, label: &str, mode: DispatchMode) -> Self::Encoder<'_> {
        self.0.compute_encoder(label, mode)
    }

    fn copy(
        &mut self,
        source: &Self::Buffer,
        source_offset: usize,
        destination: &Self::Buffer,
        destination_offset: usize,
        length: usize,
    ) -> Result<()> {
        self.0.copy(source, source_offset, destination, destination_offset, length)
    }

    fn commit(self) -> Result<SlowSubmission> {
        let inner = self.0.commit()?;
        let mut clock = self.1.lock().unwrap();
        clock.handed += 1;
        let hangs = clock.hangs.is_some_and(|first| first <= clock.handed);
        let end = if hangs { NEVER } else { clock.free.max(clock.now) + clock.each };
        clock.free = end;
        let now = clock.now;
        clock.pending.retain(|end| *end > now);
        clock.pending.push(end);
        clock.most_pending = clock.most_pending.max(clock.pending.len());
        drop(clock);
        Ok(SlowSubmission { inner, clock: self.1, end })
    }
}

impl Submission for SlowSubmission {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn status(&self) -> Status {
        if self.end <= self.clock.lock().unwrap().now { self.inner.status() } else { Status::Running }
    }

    fn wait(&self, timeout: Duration) -> Result<GpuInterval> {
        let mut clock = self.clock.lock().unwrap();
        if self.end > clock.now + timeout {
            clock.now += timeout;
            let label = self.label().to_owned();
            return Err(Error::Timeout { label, waited: timeout, last_dispatches: vec!["scaled".into()] });
        }
        clock.now = clock.now.max(self.end);
        self.inner.wait(Duration::from_secs(100))
    }
}

/// Everything is cut that can be.
fn cut() -> Switches {
    Switches { cut: Some(Duration::from_nanos(1)), ..Switches::default() }
}

const TIMEOUT: Duration = Duration::from_secs(10);
/// What a command buffer takes: five of them take longer than the deadline of one, and two do.
const EACH: Duration = Duration::from_secs(8);

struct Slowed {
    backend: MetalBackend<Slow>,
    clock: Arc<Mutex<Clock>>,
    node: Node,
    buffers: [BufferId; 2],
}

impl Slowed {
    fn start(clock: Clock, switches: Switches) -> Slowed {
        let clock = Arc::new(Mutex::new(clock));
        let inner = SimDevice::from_environment().expect("clang is installed");
        let device = Slow { inner, clock: Arc::clone(&clock) };
        let options = MetalOptions { name: NAME, timeout: TIMEOUT, switches };
        let mut backend = MetalBackend::new(device, options).expect("the kernels compile");
        let node = Node::new(64);
        let buffers = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
        node.fill(&mut backend, buffers[0]);
        Slowed { backend, clock, node, buffers }
    }

    /// Records nodes, each of which reads what the one before it wrote.
    fn record(&mut self, count: usize) {
        record(&mut self.backend, &self.node, self.buffers, count);
    }

    fn clock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().unwrap()
    }
}

fn record(backend: &mut dyn Backend, node: &Node, [mut from, mut to]: [BufferId; 2], count: usize) {
    for _ in 0..count {
        node.execute(backend, from, to).unwrap();
        (from, to) = (to, from);
    }
}

#[test]
fn a_slow_device_is_waited_for_as_long_as_it_goes_on() {
    for profiled in [false, true] {
        let switches = Switches { phase_profile: profiled, ..cut() };
        let mut slowed = Slowed::start(Clock { each: EACH, ..Clock::default() }, switches);
        slowed.record(6);
        slowed.backend.synchronize().unwrap();
        assert_eq!(slowed.backend.counts().submissions, 6);
        assert_eq!(slowed.clock().now, 6 * EACH);
        // One that runs and one behind it; for the profile each by itself.
        assert_eq!(slowed.clock().most_pending, if profiled { 1 } else { 2 });
        let found = slowed.node.floats(&mut slowed.backend, slowed.buffers[0]);
        assert_eq!(found, [3f32.powi(6); 64]);
    }
}

#[test]
fn a_device_that_hangs_is_told_by_the_part_that_it_hangs_in() {
    let mut slowed = Slowed::start(Clock { each: EACH, hangs: Some(3), ..Clock::default() }, cut());
    slowed.record(6);
    let Err(BackendError::Device(first)) = slowed.backend.synchronize() else { panic!("no deadline") };
    let expected = "command buffer 'metal-sim 3/6': not done after 10s; last dispatches: scaled";
    assert_eq!(first, expected);
    // The one behind it is on its way, too; it is not waited for, and no more are handed over.
    assert_eq!(slowed.clock().handed, 4);
    assert_eq!(slowed.clock().now, 2 * EACH + TIMEOUT);
    let Err(BackendError::Device(later)) = slowed.backend.synchronize() else { panic!("healthy") };
    assert_eq!(later, format!("'{NAME}' takes no more work since it failed: {first}"));
}

#[test]
fn a_deadline_that_was_asked_for_holds_for_each_part() {
    for (asked, ends) in [(8, true), (7, false)] {
        let switches = Switches { timeout: Some(Duration::from_secs(asked)), ..cut() };
        let mut slowed = Slowed::start(Clock { each: EACH, ..Clock::default() }, switches);
        slowed.record(3);
        assert_eq!(slowed.backend.synchronize().is_ok(), ends, "{asked} s");
    }
}

/// What is on its way uses memory that is free after the error.
#[test]
fn what_is_on_its_way_ends_before_a_refusal_is_told() {
    let clock = Clock { each: EACH, refuses: Some(3), ..Clock::default() };
    let mut slowed = Slowed::start(clock, cut());
    slowed.record(4);
    let refused = slowed.backend.synchronize();
    let message = "command buffer 'metal-sim 3/4': the queue gives none".to_owned();
    assert_eq!(refused, Err(BackendError::Device(message)));
    assert_eq!(slowed.clock().now, 2 * EACH);
    // It harmed this forward alone.
    slowed.node.fill(&mut slowed.backend, slowed.buffers[0]);
    slowed.record(2);
    slowed.backend.synchronize().unwrap();
    assert_eq!(slowed.node.floats(&mut slowed.backend, slowed.buffers[0]), [9.0; 64]);
}

/// Half a kilobyte each, which a GPU of 50 GB a second has in ten nanoseconds.
#[test]
fn what_reads_and_writes_is_as_long_as_its_bytes() {
    let switches = Switches { cut: Some(Duration::from_nanos(35)), ..Switches::default() };
    let mut slowed = Slowed::start(Clock::default(), switches);
    slowed.record(6);
    slowed.backend.synchronize().unwrap();
    assert_eq!(slowed.clock().handed, 2);
}

/// The forward behind it is never handed over.
#[test]
fn a_first_touch_of_weights_that_never_ends_is_told() {
    let clock = Clock { each: EACH, hangs: Some(1), ..Clock::default() };
    let mut slowed = Slowed::start(clock, Switches::default());
    // Whole pages are somewhere in it, and a weight in their middle.
    let weight = 1 << 15..(1 << 15) + 64;
    slowed.backend.register_part(&Bytes::from(vec![0; 1 << 16]), &[weight]).unwrap();
    slowed.record(1);
    let Err(BackendError::Device(message)) = slowed.backend.synchronize() else { panic!("no deadline") };
    assert_eq!(message, "command buffer 'warm-up': not done after 300s; last dispatches: scaled");
    assert_eq!(slowed.clock().handed, 1);
}

#[test]
fn a_search_without_memory_is_refused_and_harms_nothing_else() {
    let mut slowed = Slowed::start(Clock::default(), Switches::default());
    let [buffer, _] = slowed.buffers;
    slowed.clock().full = true;
    let found = slowed.backend.largest(buffer, 0, [1, 64], 1);
    assert_eq!(found.unwrap_err(), BackendError::Device("buffer 'largest': no memory".into()));
    assert_eq!(slowed.clock().opened, 0);
    slowed.clock().full = false;
    let found = slowed.backend.largest(buffer, 0, [1, 64], 1).unwrap().expect("there are rows");
    assert_eq!((found[0].index, found[0].value), (0, 1.0));
}

/// Copies for a trace are between the dispatches, in command buffers of their own here.
#[test]
fn traces_and_profiles_see_every_part() {
    let folder = tempfile::tempdir().unwrap();
    let switches = Switches { trace: Some(folder.path().into()), op_profile: true, ..cut() };
    let mut slowed = Slowed::start(Clock { each: EACH, ..Clock::default() }, switches);
    slowed.record(3);
    slowed.backend.synchronize().unwrap();
    assert_eq!(slowed.clock().handed, 6);
    assert!(slowed.backend.profile().contains("for 6 submissions"), "{}", slowed.backend.profile());
    // One node of one forward three times: what it gave last.
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert!(std::fs::read(file).unwrap().ends_with(&27f32.to_le_bytes().repeat(64)));
}

/// The part that fails, the node and the kernel, whatever runs behind it.
#[test]
fn a_kernel_that_never_ends_is_told_with_its_part() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../kernels/elementwise.metal");
    let place = "const ulong i = ulong(at) * 4;";
    // Three to the third is what the fourth node reads.
    let endless = format!("{place} while (x[0] == 27.0f) y[i] += 1.0f;");
    let text = text.replacen(place, &endless, 1);
    assert!(text.contains(&endless));
    let write = |path: &Path| std::fs::write(path, &text).unwrap();
    write(&folder.path().join("elementwise.metal"));
    let budget = Duration::from_millis(200);
    let settings = metal_sim::device::Settings { budget, ..Default::default() };
    let device =
        SimDevice::new(metal_sim::profile::Profile::default(), settings).expect("clang is installed");
    let switches = Switches { sources: Some(folder.path().into()), ..cut() };
    let options = MetalOptions { name: NAME, timeout: Duration::from_secs(100), switches };
    let mut backend = MetalBackend::new(device, options).expect("the kernels compile");
    let node = Node::new(4);
    let buffers = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, buffers[0]);
    record(&mut backend, &node, buffers, 6);
    let Err(BackendError::Device(message)) = backend.synchronize() else { panic!("it ended") };
    for part in ["command buffer 'metal-sim 4/6'", "kernel 'unary'", "last dispatches: scaled (unary)"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert!(backend.synchronize().is_err());
}
