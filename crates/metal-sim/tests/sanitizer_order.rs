//! Threadgroups, dispatches, barriers, the host and loops.

mod common;

use std::time::Duration;

use common::Lab;
use common::sanitizer::{self, clean, finds, place};
use metal::device::*;
use metal_sim::device::SimBuffer;
use metal_sim::sanitize::{Action, Kind, Memory, Settings};

const SOURCE: (&str, &str) = ("order.metal", include_str!("msl/order.metal"));

fn run(kernel: &str, groups: usize) -> impl Fn(&Lab) -> Result<GpuInterval> {
    move |lab| {
        let (input, out) = (lab.buffer(&[1i32; 512]), lab.buffer(&[0i32; 512]));
        let (counter, partial) = (lab.buffer(&[0u32; 4]), lab.device.new_buffer("partial", 64 * 4 * groups)?);
        let launch = lab.launch(kernel).buffer(0, &input).buffer(1, &out).threadgroup(0, 1024);
        let launch = launch.buffer(2, &counter).buffer(3, &partial);
        launch.threadgroups(Size::width(groups), Size::width(64))
    }
}

#[test]
fn threadgroups_that_share_memory() {
    for (kernel, first, second) in [
        ("same_element", "same_element", "same_element"),
        ("neighbour_group", "neighbour_group read", "neighbour_group write"),
        ("in_place", "in_place", "in_place"),
        ("split_without_fence", "split_without_fence read", "split_without_fence write"),
        ("split_without_barrier", "split_without_barrier read", "split_without_barrier write"),
        ("narrow_fence", "narrow_fence read", "narrow_fence write"),
    ] {
        let reports = finds(SOURCE, run(kernel, 6), Kind::ThreadgroupRace, first, Some(second));
        let report = &reports[0];
        let other = report.other.as_ref().unwrap();
        assert!(
            report.party.threadgroup.is_some() && report.party.threadgroup != other.threadgroup,
            "{report}"
        );
    }
}

#[test]
fn threadgroups_that_share_nothing_or_are_ordered() {
    for (kernel, groups) in [
        ("split_with_fence", 7),
        ("disjoint_rows", 3),
        ("histogram", 8),
        ("early_exit", 4),
        ("split_with_fence", 1),
    ] {
        clean(SOURCE, run(kernel, groups));
    }
}

/// Two dispatches in one encoder.
fn two_dispatches(
    lab: &Lab,
    mode: DispatchMode,
    has_barrier: bool,
    first: (&str, &[(usize, &SimBuffer)]),
    second: (&str, &[(usize, &SimBuffer)]),
) -> Result<GpuInterval> {
    let mut command_buffer = lab.queue.new_command_buffer("two")?;
    let mut encoder = command_buffer.compute_encoder("pair", mode);
    for (index, (kernel, buffers)) in [first, second].into_iter().enumerate() {
        if index == 1 && has_barrier {
            encoder.barrier();
        }
        let pipeline = lab.device.new_pipeline(&lab.library, kernel, &FunctionConstants::new())?;
        encoder.set_pipeline(&pipeline);
        for (slot, buffer) in buffers {
            encoder.set_buffer(*slot, buffer, 0)?;
        }
        encoder.dispatch_threads(Size::width(64), Size::width(32))?;
    }
    drop(encoder);
    command_buffer.commit()?.wait(Duration::from_secs(30))
}

#[test]
fn dispatches_without_a_barrier_between() {
    let read_after_write = |lab: &Lab| {
        let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
        let (first, second) = (("produce", &[(0, &data)][..]), ("consume", &[(0, &data), (1, &out)][..]));
        two_dispatches(lab, DispatchMode::Concurrent, false, first, second)
    };
    let reports = finds(SOURCE, read_after_write, Kind::DispatchHazard, "consume", Some("produce"));
    let report = &reports[0];
    assert_eq!((report.kernel.as_str(), report.dispatch.as_str()), ("consume", "pair"));
    assert_eq!(report.other.as_ref().unwrap().kernel.as_deref(), Some("produce"));
    assert!(matches!(report.memory, Some(Memory::Buffer { slot: 0, .. })));
    let write_after_read = |lab: &Lab| {
        let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
        let (first, second) = (("consume", &[(0, &data), (1, &out)][..]), ("produce", &[(0, &data)][..]));
        two_dispatches(lab, DispatchMode::Concurrent, false, first, second)
    };
    finds(SOURCE, write_after_read, Kind::DispatchHazard, "produce", Some("consume"));
    let write_after_write = |lab: &Lab| {
        let data = lab.buffer(&[0i32; 64]);
        let (first, second) = (("produce", &[(0, &data)][..]), ("produce", &[(0, &data)][..]));
        two_dispatches(lab, DispatchMode::Concurrent, false, first, second)
    };
    finds(SOURCE, write_after_write, Kind::DispatchHazard, "produce", Some("produce"));
}

#[test]
fn a_barrier_that_is_left_out_is_missed() {
    let run = |barrier| {
        let settings = Settings { without_barrier: barrier, ..Settings::default() };
        let lab = Lab::on(sanitizer::with(settings), SOURCE.0, SOURCE.1, &CompileOptions::default());
        let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
        let (first, second) = (("produce", &[(0, &data)][..]), ("consume", &[(0, &data), (1, &out)][..]));
        two_dispatches(&lab, DispatchMode::Concurrent, true, first, second)
    };
    for (barrier, is_needed) in [(None, false), (Some(0), true), (Some(1), false)] {
        let found = run(barrier).err().map(|error| error.to_string());
        assert_eq!(found.is_some_and(|error| error.contains("dispatch-hazard")), is_needed, "{barrier:?}");
    }
}

#[test]
fn dispatches_that_are_ordered_or_apart() {
    let in_order = |mode, has_barrier| {
        move |lab: &Lab| {
            let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
            let (first, second) = (("produce", &[(0, &data)][..]), ("consume", &[(0, &data), (1, &out)][..]));
            two_dispatches(lab, mode, has_barrier, first, second)
        }
    };
    clean(SOURCE, in_order(DispatchMode::Serial, false));
    clean(SOURCE, in_order(DispatchMode::Concurrent, true));
    clean(SOURCE, |lab| {
        // Both read the same, and write to two halves of one buffer.
        let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 128]));
        let pipeline = lab.device.new_pipeline(&lab.library, "consume", &FunctionConstants::new())?;
        let mut command_buffer = lab.queue.new_command_buffer("two")?;
        let mut encoder = command_buffer.compute_encoder("halves", DispatchMode::Concurrent);
        encoder.set_pipeline(&pipeline);
        encoder.set_buffer(0, &data, 0)?;
        for offset in [0, 256] {
            encoder.set_buffer(1, &out, offset)?;
            encoder.dispatch_threads(Size::width(64), Size::width(32))?;
        }
        drop(encoder);
        command_buffer.commit()?.wait(Duration::from_secs(30))
    });
    clean(SOURCE, |lab| {
        // Two encoders are ordered.
        let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
        let mut command_buffer = lab.queue.new_command_buffer("two")?;
        for kernel in ["produce", "consume"] {
            let pipeline = lab.device.new_pipeline(&lab.library, kernel, &FunctionConstants::new())?;
            let mut encoder = command_buffer.compute_encoder(kernel, DispatchMode::Concurrent);
            encoder.set_pipeline(&pipeline);
            encoder.set_buffer(0, &data, 0)?;
            encoder.set_buffer(1, &out, 0)?;
            encoder.dispatch_threads(Size::width(64), Size::width(32))?;
        }
        command_buffer.commit()?.wait(Duration::from_secs(30))
    });
}

#[test]
fn barriers_that_not_all_threads_reach() {
    let find = |kernel: &str, mark: &str, other: Option<&str>| {
        finds(SOURCE, run(kernel, 1), Kind::DivergentBarrier, mark, other).remove(0)
    };
    let report = find("early_return", "early_return", None);
    assert_eq!(report.other.as_ref().map(|other| other.action), Some(Action::Return), "{report}");
    find("two_barriers", "two_barriers first", Some("two_barriers second"));
    find("barrier_in_a_branch", "barrier_in_a_branch", None);
    find("simdgroup_barrier_in_a_branch", "simdgroup_barrier_in_a_branch", None);
    let report = find("simdgroup_barrier_after_return", "simdgroup_barrier_after_return", None);
    assert_eq!(report.other.as_ref().and_then(|other| other.thread), Some(5), "{report}");
    find("silent_barrier_in_a_branch", "silent_barrier_in_a_branch", None);
    clean(SOURCE, run("silent_barriers", 1));
    clean(SOURCE, run("barriers_in_loops", 1));
    clean(SOURCE, run("early_exit", 2));
}

#[test]
fn loops_without_an_end() {
    let run = |kernel: &'static str| {
        move |lab: &Lab| {
            let (data, out) = (lab.buffer(&[1i32; 64]), lab.buffer(&[0i32; 64]));
            let launch = lab.launch(kernel).buffer(0, &data).buffer(1, &out);
            launch.threads(Size::width(64), Size::width(64))
        }
    };
    let report = finds(SOURCE, run("forever"), Kind::InfiniteLoop, "forever", None).remove(0);
    assert!(report.message.contains("more than 4000000 steps") && report.party.thread.is_some(), "{report}");
    finds(SOURCE, run("forever_with_barriers"), Kind::InfiniteLoop, "forever_with_barriers", None);
    let lab = common::sanitizer::lab(SOURCE.0, SOURCE.1, 1);
    // Nothing but time tells that this one does not end.
    let error = run("forever_in_registers")(&lab).unwrap_err();
    let report = lab.device.sanitizer().unwrap().take_reports().remove(0);
    assert_eq!(report.kind, Kind::InfiniteLoop, "{error}");
    assert_eq!(report.party.place, Some(place(SOURCE, "forever_in_registers")));
    clean(SOURCE, run("long_loop"));
}

#[test]
fn faults_are_reports_too() {
    let report = finds(SOURCE, run("divide", 1), Kind::Fault, "divide", None).remove(0);
    assert!(report.message.contains("division by zero"), "{report}");
    clean(SOURCE, run("divide_by_zero_in_floats", 1));
}

#[test]
fn kernels_run_where_they_were_compiled_for() {
    let checked = common::sanitizer::lab(SOURCE.0, SOURCE.1, 1);
    let plain = Lab::new(SOURCE.0, SOURCE.1);
    let run = |library: &Lab, queue: &Lab| {
        let pipeline = library.device.new_pipeline(&library.library, "produce", &FunctionConstants::new())?;
        let mut command_buffer = queue.queue.new_command_buffer("mixed")?;
        let mut encoder = command_buffer.compute_encoder("mixed", DispatchMode::Serial);
        encoder.set_pipeline(&pipeline);
        encoder.set_buffer(0, &queue.buffer(&[0i32; 64]), 0)?;
        encoder.dispatch_threads(Size::width(64), Size::width(32))
    };
    for (library, queue) in [(&checked, &plain), (&plain, &checked)] {
        let error = run(library, queue).unwrap_err().to_string();
        assert!(error.contains("the sanitizer, for a queue"), "{error}");
    }
    run(&plain, &plain).unwrap();
    run(&checked, &checked).unwrap();
}

#[test]
fn host_accesses_while_a_command_buffer_is_in_flight() {
    let submit = |lab: &Lab, data: &SimBuffer, out: &SimBuffer| {
        let pipeline = lab.device.new_pipeline(&lab.library, "consume", &FunctionConstants::new())?;
        let mut command_buffer = lab.queue.new_command_buffer("in flight")?;
        let mut encoder = command_buffer.compute_encoder("read", DispatchMode::Serial);
        encoder.set_pipeline(&pipeline);
        encoder.set_buffer(0, data, 0)?;
        encoder.set_buffer(1, out, 128)?;
        encoder.dispatch_threads(Size::width(32), Size::width(32))?;
        drop(encoder);
        command_buffer.commit()
    };
    let lab = common::sanitizer::lab(SOURCE.0, SOURCE.1, 1);
    let (data, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
    let mut bytes = [0; 4];

    let submission = submit(&lab, &data, &out).unwrap();
    let line = line!() + 1;
    let error = out.read(128, &mut bytes).unwrap_err();
    let Error::Execution { label, kernel, reason, .. } = &error else { panic!("{error}") };
    assert_eq!((label.as_str(), kernel.as_str()), ("in flight", "consume"));
    assert!(reason.contains("host-access"), "{reason}");
    let report = lab.device.sanitizer().unwrap().take_reports().remove(0);
    assert_eq!(report.kind, Kind::HostAccess);
    assert_eq!(report.party.place.as_deref(), Some(&*format!("{}:{line}", file!())));
    assert!(matches!(report.memory, Some(Memory::Buffer { slot: 1, offset: 0, .. })), "{report}");
    assert!(data.write(8, &[1; 4]).is_err(), "what a kernel reads");
    // What the host may do: read what kernels only read, and touch what is not bound.
    data.read(0, &mut bytes).unwrap();
    out.read(124, &mut bytes).unwrap();
    out.write(0, &[1; 128]).unwrap();
    lab.buffer(&[0i32; 64]).write(0, &[1]).unwrap();

    submission.wait(Duration::from_secs(30)).unwrap();
    out.read(128, &mut bytes).unwrap();
    data.write(0, &[1; 4]).unwrap();
    // The end of a later command buffer of the queue is the end of the earlier ones.
    let first = submit(&lab, &data, &out).unwrap();
    let second = submit(&lab, &data, &out).unwrap();
    assert!(data.write(0, &[1; 4]).is_err());
    while !matches!(second.status(), Status::Completed) {
        std::thread::yield_now();
    }
    data.write(0, &[1; 4]).unwrap();
    drop(first);
    assert_eq!(lab.device.sanitizer().unwrap().report_count(), 3);
}

#[test]
fn a_seed_repeats_what_was_found() {
    let reports = |seed| {
        let lab = common::sanitizer::lab(SOURCE.0, SOURCE.1, seed);
        run("in_place", 8)(&lab).unwrap_err();
        lab.device.sanitizer().unwrap().reports()
    };
    assert_eq!(reports(11), reports(11));
    let threads = |seed| reports(seed).iter().map(|report| report.party.thread).collect::<Vec<_>>();
    assert!((12..20).any(|seed| threads(seed) != threads(11)), "seeds make a difference");
    assert!(reports(11)[0].to_json().contains(&format!("\"place\":\"{}\"", place(SOURCE, "in_place"))));
}
