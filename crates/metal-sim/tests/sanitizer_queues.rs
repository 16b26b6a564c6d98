//! Two queues, and barriers for some buffers alone.

mod common;

use std::time::Duration;

use common::Lab;
use common::sanitizer::{clean, finds};
use metal::device::*;
use metal_sim::device::{SimBuffer, SimQueue, SimSubmission};
use metal_sim::sanitize::{Kind, Memory};

const SOURCE: (&str, &str) = ("order.metal", include_str!("msl/order.metal"));
const DEADLINE: Duration = Duration::from_secs(30);

/// Commits 64 threads of a kernel; each buffer is bound from its offset on.
fn submit(
    lab: &Lab,
    queue: &SimQueue,
    kernel: &str,
    buffers: &[(usize, &SimBuffer, usize)],
) -> Result<SimSubmission> {
    let pipeline = lab.device.new_pipeline(&lab.library, kernel, &FunctionConstants::new())?;
    let mut command_buffer = queue.new_command_buffer(kernel)?;
    let mut encoder = command_buffer.compute_encoder("queues", DispatchMode::Serial);
    encoder.set_pipeline(&pipeline);
    for (slot, buffer, offset) in buffers {
        encoder.set_buffer(*slot, buffer, *offset)?;
    }
    encoder.dispatch_threads(Size::width(64), Size::width(32))?;
    drop(encoder);
    command_buffer.commit()
}

/// Two kernels on two queues; the host waits between if it `waits`.
fn on_two_queues(
    lab: &Lab,
    waits: bool,
    first: (&str, &[(usize, &SimBuffer, usize)]),
    second: (&str, &[(usize, &SimBuffer, usize)]),
) -> Result<GpuInterval> {
    let other = lab.device.new_queue("second")?;
    let earlier = submit(lab, &lab.queue, first.0, first.1)?;
    if waits {
        earlier.wait(DEADLINE)?;
    }
    let later = submit(lab, &other, second.0, second.1)?;
    let results = (earlier.wait(DEADLINE), later.wait(DEADLINE));
    results.0.and(results.1)
}

fn buffers(lab: &Lab) -> (SimBuffer, SimBuffer) {
    (lab.buffer(&[0i32; 128]), lab.buffer(&[0i32; 128]))
}

#[test]
fn queues_that_share_a_buffer() {
    let lab = common::sanitizer::lab(SOURCE.0, SOURCE.1, 1);
    let (data, out) = buffers(&lab);
    let produce: (&str, &[_]) = ("produce", &[(0, &data, 0)]);
    let consume: (&str, &[_]) = ("consume", &[(0, &data, 0), (1, &out, 0)]);
    // The queues have threads of their own, so that either side may come first.
    for (first, second) in [(produce, consume), (consume, produce), (produce, produce)] {
        let error = on_two_queues(&lab, false, first, second).unwrap_err();
        let reports = lab.device.sanitizer().unwrap().take_reports();
        assert!(!reports.is_empty(), "{error}");
        for report in reports {
            assert_eq!(report.kind, Kind::QueueHazard, "{report}");
            let other = report.other.as_ref().and_then(|other| other.kernel.as_deref());
            let mut found = [report.kernel.as_str(), other.unwrap_or_default()];
            let mut expected = [first.0, second.0];
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{report}");
            assert!(matches!(report.memory, Some(Memory::Buffer { slot: 0, .. })), "{report}");
            assert!(report.to_json().contains("\"queue-hazard\""), "{report}");
        }
    }
}

#[test]
fn queues_that_the_host_orders_or_that_share_nothing() {
    clean(SOURCE, |lab| {
        let (data, out) = buffers(lab);
        let consume: (&str, &[_]) = ("consume", &[(0, &data, 0), (1, &out, 0)]);
        on_two_queues(lab, true, ("produce", &[(0, &data, 0)]), consume)
    });
    clean(SOURCE, |lab| {
        // Both read the same, and write to two halves of one buffer.
        let (data, out) = buffers(lab);
        let lower: (&str, &[_]) = ("consume", &[(0, &data, 0), (1, &out, 0)]);
        let upper: (&str, &[_]) = ("consume", &[(0, &data, 0), (1, &out, 256)]);
        on_two_queues(lab, false, lower, upper)
    });
    clean(SOURCE, |lab| {
        // A wait for the later of two command buffers is one for both.
        let (data, out) = buffers(lab);
        submit(lab, &lab.queue, "produce", &[(0, &data, 0)])?;
        let consume: (&str, &[_]) = ("consume", &[(0, &data, 0), (1, &out, 0)]);
        on_two_queues(lab, true, ("produce", &[(0, &data, 0)]), consume)
    });
}

/// `produce` on two buffers, a barrier for what `barrier` chooses, then `consume` of the first into a third.
fn with_barrier(
    lab: &Lab,
    barrier: impl FnOnce(&mut dyn FnMut(&[&SimBuffer]), &SimBuffer, &SimBuffer),
) -> Result<GpuInterval> {
    let (data, other) = buffers(lab);
    let out = lab.buffer(&[0i32; 128]);
    let mut command_buffer = lab.queue.new_command_buffer("barriers")?;
    let mut encoder = command_buffer.compute_encoder("list", DispatchMode::Concurrent);
    let pipeline = |kernel| lab.device.new_pipeline(&lab.library, kernel, &FunctionConstants::new());
    encoder.set_pipeline(&pipeline("produce")?);
    for buffer in [&data, &other] {
        encoder.set_buffer(0, buffer, 0)?;
        encoder.dispatch_threads(Size::width(64), Size::width(32))?;
    }
    barrier(&mut |list| encoder.barrier_for(list), &data, &other);
    encoder.set_pipeline(&pipeline("consume")?);
    encoder.set_buffer(0, &data, 0)?;
    encoder.set_buffer(1, &out, 0)?;
    encoder.dispatch_threads(Size::width(64), Size::width(32))?;
    drop(encoder);
    command_buffer.commit()?.wait(DEADLINE)
}

#[test]
fn a_barrier_orders_the_buffers_of_its_list_alone() {
    let of_another = |lab: &Lab| with_barrier(lab, |barrier, _, other| barrier(&[other]));
    finds(SOURCE, of_another, Kind::DispatchHazard, "consume", Some("produce"));
    let of_none = |lab: &Lab| with_barrier(lab, |barrier, _, _| barrier(&[]));
    finds(SOURCE, of_none, Kind::DispatchHazard, "consume", Some("produce"));
    clean(SOURCE, |lab| with_barrier(lab, |barrier, data, _| barrier(&[data])));
    clean(SOURCE, |lab| {
        with_barrier(lab, |barrier, data, other| {
            barrier(&[data]);
            barrier(&[other]);
        })
    });
}

/// Four threadgroups with buffers of their own.
fn run(lab: &Lab, kernel: &str) -> Result<GpuInterval> {
    let (input, out) = (lab.buffer(&[1i32; 512]), lab.buffer(&[0i32; 512]));
    let (counter, partial) = (lab.buffer(&[0u32; 4]), lab.device.new_buffer("partial", 64 * 4 * 4)?);
    let launch = lab.launch(kernel).buffer(0, &input).buffer(1, &out).threadgroup(0, 1024);
    launch.buffer(2, &counter).buffer(3, &partial).threadgroups(Size::width(4), Size::width(64))
}

#[test]
fn two_queues_are_checked_one_after_the_other() {
    let lab = common::sanitizer::lab(SOURCE.0, SOURCE.1, 1);
    std::thread::scope(|scope| {
        for (kernel, is_wrong) in [("in_place", true), ("split_with_fence", false), ("histogram", false)] {
            let lab = &lab;
            scope.spawn(move || {
                let (device, library) = (lab.device.clone(), lab.library.clone());
                let queue = device.new_queue(kernel).unwrap();
                let own = Lab::of(device, library, queue);
                for _ in 0..20 {
                    assert_eq!(run(&own, kernel).is_err(), is_wrong, "{kernel}");
                }
            });
        }
    });
    let reports = lab.device.sanitizer().unwrap().reports();
    assert!(reports.iter().all(|report| report.kernel == "in_place"));
}
