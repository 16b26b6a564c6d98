//! The contract of the device trait, the same for every device.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::time::Duration;

use metal::device::*;

pub const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
constant bool SUBTRACT [[function_constant(0)]];

// values[i] plus or minus step
kernel void advance(device float* values [[buffer(0)]], constant float& step [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    values[i] = SUBTRACT ? values[i] - step : values[i] + step;
}

// The sum of a threadgroup's values, in its first one.
kernel void sums(device float* values [[buffer(0)]], threadgroup float* parts [[threadgroup(0)]],
                 uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                 uint group [[simdgroup_index_in_threadgroup]], uint thread_index [[thread_index_in_threadgroup]]) {
    float sum = simd_sum(values[i]);
    if (lane == 0) parts[group] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) values[i] = parts[0] + parts[1];
}
";
const DEADLINE: Duration = Duration::from_secs(60);

struct Bench<D: Device> {
    device: D,
    library: D::Library,
    queue: D::Queue,
}

type CommandBufferOf<D> = <<D as Device>::Queue as Queue>::CommandBuffer;

impl<D: Device> Bench<D> {
    fn new(device: D) -> Self {
        let library = device.new_library("device.metal", SOURCE, &CompileOptions::default()).unwrap();
        let queue = device.new_queue("contract").unwrap();
        Self { device, library, queue }
    }

    fn pipeline(&self, name: &str, subtract: bool) -> D::Pipeline {
        let constants = FunctionConstants::new().set(0, ConstantValue::Bool(subtract));
        self.device.new_pipeline(&self.library, name, &constants).unwrap()
    }

    fn buffer(&self, values: &[f32]) -> D::Buffer {
        let buffer = self.device.new_buffer("values", size_of_val(values)).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        buffer.write(0, &bytes).unwrap();
        buffer
    }

    /// Records, commits and waits.
    fn run(&self, record: impl FnOnce(&mut CommandBufferOf<D>) -> Result<()>) -> Result<GpuInterval> {
        let mut command_buffer = self.queue.new_command_buffer("contract")?;
        record(&mut command_buffer)?;
        let submission = command_buffer.commit()?;
        assert_eq!(submission.label(), "contract");
        let interval = submission.wait(DEADLINE)?;
        assert_eq!(submission.status(), Status::Completed);
        assert!(interval.end >= interval.start);
        Ok(interval)
    }
}

fn read(buffer: &impl Buffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.length()];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|chunk| f32::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

pub fn runs_dispatches_in_order<D: Device>(device: D) {
    let bench = Bench::new(device);
    let (add, subtract) = (bench.pipeline("advance", false), bench.pipeline("advance", true));
    let values = bench.buffer(&[1.0; 100]);
    let copy = bench.buffer(&[0.0; 100]);
    let mut resident = bench.device.new_residency_set(&bench.queue).unwrap();
    if let Some(resident) = &mut resident {
        resident.change(&[values.clone(), copy.clone()], &[]);
        resident.request();
        resident.change(&[], std::slice::from_ref(&copy));
    }
    for mode in [DispatchMode::Serial, DispatchMode::Concurrent] {
        bench
            .run(|command_buffer| {
                let mut encoder = command_buffer.compute_encoder("steps", mode);
                encoder.set_pipeline(&add);
                encoder.set_buffer(0, &values, 0)?;
                encoder.set_bytes(1, &10f32.to_ne_bytes())?;
                // A partial threadgroup: 100 threads in groups of 32.
                encoder.dispatch_threads(Size::width(100), Size::width(32))?;
                encoder.barrier();
                encoder.set_label("back");
                encoder.set_pipeline(&subtract);
                encoder.set_bytes(1, &3f32.to_ne_bytes())?;
                encoder.dispatch_threads(Size::width(50), Size::width(50))?;
                drop(encoder);
                command_buffer.copy(&values, 4, &copy, 0, 392)
            })
            .unwrap();
        // What is no longer resident can be used all the same.
        drop(resident.take());
    }
    let values = read(&values);
    assert_eq!(values[..50], [15.0; 50]);
    assert_eq!(values[50..], [21.0; 50]);
    let copy = read(&copy);
    assert_eq!((copy[48], copy[49], copy[97], copy[98]), (15.0, 21.0, 21.0, 0.0));
}

pub fn shares_threadgroup_memory<D: Device>(device: D) {
    let bench = Bench::new(device);
    let sums = bench.pipeline("sums", false);
    assert_eq!((sums.name(), sums.simd_width()), ("sums", 32));
    assert!(sums.max_threads_per_threadgroup() >= 64);
    let values = bench.buffer(&(0..128).map(|i| i as f32).collect::<Vec<_>>());
    bench
        .run(|command_buffer| {
            let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
            encoder.set_pipeline(&sums);
            encoder.set_buffer(0, &values, 0)?;
            encoder.set_threadgroup_memory(0, 16)?;
            encoder.dispatch_threadgroups(Size::width(2), Size::width(64))
        })
        .unwrap();
    let values = read(&values);
    assert_eq!((values[0], values[1], values[64]), (2016.0, 1.0, 6112.0));
}

/// Page-aligned memory that someone else owns.
struct Pages {
    memory: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(length: usize, page: usize) -> Self {
        let layout = Layout::from_size_align(length, page).unwrap();
        // SAFETY: the length is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Self { memory, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

pub fn wraps_foreign_memory<D: Device>(device: D) {
    let page = device.limits().no_copy_alignment;
    let pages = Pages::new(2 * page, page);
    let bench = Bench::new(device);
    // SAFETY: `pages` outlives the buffer and its submission, which `run` waits for.
    let buffer = unsafe { bench.device.new_buffer_no_copy("pages", pages.memory, 2 * page) }.unwrap();
    assert_eq!((buffer.contents(), buffer.length(), buffer.label()), (pages.memory, 2 * page, "pages"));
    let add = bench.pipeline("advance", false);
    bench
        .run(|command_buffer| {
            let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
            encoder.set_pipeline(&add);
            encoder.set_buffer(0, &buffer, page)?;
            encoder.set_bytes(1, &2f32.to_ne_bytes())?;
            encoder.dispatch_threads(Size::width(8), Size::width(32))
        })
        .unwrap();
    let values = read(&buffer);
    assert_eq!(values[page / 4..page / 4 + 9], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0]);
    drop(buffer);
    // SAFETY: refused, so that nothing is wrapped.
    let refused = unsafe { bench.device.new_buffer_no_copy("pages", pages.memory, page / 2) };
    assert!(matches!(refused, Err(Error::NoCopyAlignment { .. })));
}

pub fn tells_where_a_source_is_wrong<D: Device>(device: D) {
    let source = "kernel void f() { nonsense }";
    let Err(Error::Compile { label, diagnostics }) =
        device.new_library("w.metal", source, &CompileOptions::default())
    else {
        panic!("a source with an error compiles")
    };
    assert_eq!(label, "w.metal");
    assert!(diagnostics.contains("nonsense"), "{diagnostics}");
}

pub fn refuses_what_metal_leaves_undefined<D: Device>(device: D) {
    let bench = Bench::new(device);
    let device = &bench.device;
    assert!(matches!(device.new_library_with_data("w", b"no library"), Err(Error::Compile { .. })));
    let none = device.new_pipeline(&bench.library, "none", &FunctionConstants::new());
    assert!(matches!(none, Err(Error::KernelNotFound { .. })));
    let wrong = FunctionConstants::new().set(0, ConstantValue::F32(1.0));
    let wrong = device.new_pipeline(&bench.library, "advance", &wrong);
    assert!(matches!(wrong, Err(Error::FunctionConstant { .. })));
    let missing = device.new_pipeline(&bench.library, "advance", &FunctionConstants::new());
    assert!(matches!(missing, Err(Error::FunctionConstant { .. })));
    assert!(matches!(device.new_buffer("empty", 0), Err(Error::BufferLength { .. })));
    let values = bench.buffer(&[0.0; 4]);
    assert!(matches!(values.read(13, &mut [0; 4]), Err(Error::BufferRange { .. })));
    assert!(matches!(values.write(usize::MAX, &[0; 4]), Err(Error::BufferRange { .. })));

    let (add, sums) = (bench.pipeline("advance", false), bench.pipeline("sums", false));
    let mut command_buffer = bench.queue.new_command_buffer("refusals").unwrap();
    assert!(matches!(command_buffer.copy(&values, 8, &values, 0, 12), Err(Error::BufferRange { .. })));
    let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
    let (one, wide) = (Size::width(1), Size::width(4096));
    assert_eq!(encoder.dispatch_threads(one, one), Err(Error::NoPipeline));
    assert!(matches!(encoder.set_buffer(31, &values, 0), Err(Error::Slot { .. })));
    assert!(matches!(encoder.set_buffer(0, &values, 16), Err(Error::BufferRange { .. })));
    assert!(matches!(encoder.set_bytes(0, &[0; 4097]), Err(Error::InlineBytes { .. })));
    assert!(matches!(encoder.set_threadgroup_memory(0, 12), Err(Error::ThreadgroupMemory { .. })));
    encoder.set_pipeline(&add);
    assert!(matches!(encoder.dispatch_threads(one, wide), Err(Error::ThreadgroupSize { .. })));
    assert!(matches!(encoder.dispatch_threads(Size::width(0), one), Err(Error::EmptyGrid { .. })));
    let unbound = |result| {
        let Err(Error::Unbound { slot, .. }) = result else { panic!("{result:?}") };
        slot
    };
    encoder.set_buffer(0, &values, 0).unwrap();
    assert_eq!(unbound(encoder.dispatch_threads(one, one)), "buffer(1)");
    encoder.set_bytes(1, &[0; 2]).unwrap();
    let small = encoder.dispatch_threads(one, one);
    assert!(matches!(small, Err(Error::BindingTooSmall { slot: 1, .. })), "{small:?}");
    encoder.set_pipeline(&sums);
    assert_eq!(unbound(encoder.dispatch_threads(one, one)), "threadgroup(0)");
}

/// The tests of the contract for one device, with what else is to be said of each.
#[macro_export]
macro_rules! contract {
    ($device:ident, $new:expr $(, #[$attribute:meta])*) => {
        $crate::contract!(@ $device, $new, [$(#[$attribute])*], runs_dispatches_in_order, shares_threadgroup_memory,
            wraps_foreign_memory, tells_where_a_source_is_wrong, refuses_what_metal_leaves_undefined);
    };
    (@ $device:ident, $new:expr, $attributes:tt, $($test:ident),*) => {
        mod $device {
            $($crate::contract!(@test $new, $attributes, $test);)*
        }
    };
    (@test $new:expr, [$(#[$attribute:meta])*], $test:ident) => {
        #[test]
        $(#[$attribute])*
        fn $test() {
            $crate::contract::$test($new);
        }
    };
}
