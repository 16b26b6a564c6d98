//! Accesses of memory that is not there, has no value, is gone or is not aligned.

mod common;

use std::time::Duration;

use common::Lab;
use common::sanitizer::{clean, finds};
use metal::device::*;
use metal_sim::sanitize::{Kind, Memory, Report};

const SOURCE: (&str, &str) = ("memory_faults.metal", include_str!("msl/memory_faults.metal"));

/// 64 threads over 64 numbers, the same in threadgroup memory.
fn run(kernel: &str) -> impl Fn(&Lab) -> Result<GpuInterval> {
    move |lab| {
        let (input, out) = (lab.buffer(&[1i32; 64]), lab.buffer(&[0i32; 64]));
        let launch = lab.launch(kernel).buffer(0, &input).buffer(1, &out).threadgroup(0, 256);
        launch.threads(Size::width(64), Size::width(64))
    }
}

fn offset_and_length(report: &Report) -> (i64, u64) {
    match &report.memory {
        Some(
            Memory::Buffer { offset, length, .. }
            | Memory::Threadgroup { offset, length, .. }
            | Memory::Variable { offset, length }
            | Memory::Unbound { offset, length, .. },
        ) => (*offset, *length),
        other => panic!("{other:?}"),
    }
}

#[test]
fn accesses_outside_of_a_binding() {
    let find = |kernel| finds(SOURCE, run(kernel), Kind::OutOfBounds, kernel, None);
    let report = find("past_the_end").remove(0);
    assert_eq!((offset_and_length(&report), report.size, report.party.thread), ((256, 256), 4, Some(63)));
    assert!(matches!(report.memory, Some(Memory::Buffer { slot: 0, .. })));
    let report = find("before_the_start").remove(0);
    assert_eq!((offset_and_length(&report), report.party.thread), ((-4, 256), Some(0)));
    find("half_of_a_vector");
    find("atomic_outside");
    finds(
        SOURCE,
        |lab| {
            let out = lab.buffer(&[0i32; 64]);
            let launch = lab.launch("inline_bytes").bytes(0, &[1i32; 63]).buffer(1, &out);
            launch.threads(Size::width(64), Size::width(64))
        },
        Kind::OutOfBounds,
        "inline_bytes",
        None,
    );
}

#[test]
fn accesses_outside_of_what_the_kernel_was_promised_to_touch() {
    let run = |promised: Option<usize>| {
        move |lab: &Lab| {
            let (input, out) = (lab.buffer(&[1i32; 128]), lab.buffer(&[0i32; 64]));
            let pipeline =
                lab.device.new_pipeline(&lab.library, "past_the_end", &FunctionConstants::new())?;
            let mut command_buffer = lab.queue.new_command_buffer("promise")?;
            let mut encoder = command_buffer.compute_encoder("promise", DispatchMode::Serial);
            encoder.set_pipeline(&pipeline);
            encoder.set_buffer(0, &input, 0)?;
            if let Some(length) = promised {
                encoder.limit_buffer(0, length);
            }
            encoder.set_buffer(1, &out, 0)?;
            encoder.dispatch_threads(Size::width(64), Size::width(64))?;
            drop(encoder);
            command_buffer.commit()?.wait(Duration::from_secs(30))
        }
    };
    clean(SOURCE, run(None));
    let report = finds(SOURCE, run(Some(256)), Kind::OutOfBounds, "past_the_end", None).remove(0);
    assert_eq!(offset_and_length(&report), (256, 256));
    let report = finds(SOURCE, run(Some(0)), Kind::OutOfBounds, "past_the_end", None).remove(0);
    // Of nothing at all, whichever thread comes first.
    let (offset, length) = offset_and_length(&report);
    assert!((4..=256).contains(&offset) && length == 0, "{offset}, {length}");
}

#[test]
fn accesses_outside_of_the_bound_range_of_a_larger_buffer() {
    let reports = finds(
        SOURCE,
        |lab| {
            // The buffer goes on before the binding, and behind what a second binding of it begins.
            let (input, out) = (lab.buffer(&[1i32; 256]), lab.buffer(&[0i32; 64]));
            let launch = lab.launch("before_the_start").buffer_at(0, &input, 512).buffer(1, &out);
            launch.threads(Size::width(64), Size::width(64))
        },
        Kind::OutOfBounds,
        "before_the_start",
        None,
    );
    assert_eq!(offset_and_length(&reports[0]), (-4, 512));
    assert!(matches!(reports[0].memory, Some(Memory::Buffer { slot: 0, .. })));
}

#[test]
fn accesses_outside_of_threadgroup_memory_and_arrays() {
    let find = |kernel| finds(SOURCE, run(kernel), Kind::OutOfBounds, kernel, None).remove(0);
    let report = find("threadgroup_slot");
    assert!(
        matches!(report.memory, Some(Memory::Threadgroup { slot: 0, offset: 256, length: 256 })),
        "{report}"
    );
    let report = find("threadgroup_variable");
    assert!(matches!(report.memory, Some(Memory::Variable { length: 128, .. })), "{report}");
    assert!(find("thread_array").message.contains("index 16 of an array"));
    find("member_array");
}

#[test]
fn accesses_inside_of_everything() {
    for kernel in ["guarded", "padded_tail", "whole_arrays", "computed_constants"] {
        clean(SOURCE, run(kernel));
    }
    clean(SOURCE, |lab| {
        // No one wrote the last three numbers, which no result depends on.
        let (input, out) = (lab.device.new_buffer("padded", 256)?, lab.buffer(&[0f32; 64]));
        input.write(0, &[0; 61 * 4])?;
        let launch = lab.launch("padded_tail").buffer(0, &input).buffer(1, &out);
        launch.threads(Size::width(64), Size::width(64))
    });
}

fn copies(lab: &Lab, input: &metal_sim::device::SimBuffer) -> Result<GpuInterval> {
    let out = lab.device.new_buffer("out", 256)?;
    lab.launch("copies").buffer(0, input).buffer(1, &out).threads(Size::width(64), Size::width(64))
}

fn writes(lab: &Lab, kernel: &str) -> Result<metal_sim::device::SimBuffer> {
    let buffer = lab.device.new_buffer("scratch", 256)?;
    lab.launch(kernel).buffer(0, &buffer).threads(Size::width(64), Size::width(64))?;
    Ok(buffer)
}

#[test]
fn reads_of_what_no_one_wrote() {
    let reports = finds(
        SOURCE,
        |lab| copies(lab, &lab.device.new_buffer("fresh", 256)?),
        Kind::UninitializedRead,
        "copies",
        None,
    );
    assert!(matches!(&reports[0].memory, Some(Memory::Buffer { slot: 0, label, .. }) if label == "fresh"));
    // A kernel wrote the first half, the host all but the last number.
    finds(SOURCE, |lab| copies(lab, &writes(lab, "writes_half")?), Kind::UninitializedRead, "copies", None);
    let partly = |lab: &Lab| {
        let buffer = lab.device.new_buffer("partly", 256)?;
        buffer.write(0, &[1; 252])?;
        copies(lab, &buffer)
    };
    let reports = finds(SOURCE, partly, Kind::UninitializedRead, "copies", None);
    assert_eq!((offset_and_length(&reports[0]).0, reports[0].party.thread), (252, Some(63)));
}

#[test]
fn reads_of_threadgroup_memory_that_no_one_wrote() {
    let find = |kernel| finds(SOURCE, run(kernel), Kind::UninitializedRead, kernel, None).remove(0);
    assert_eq!(offset_and_length(&find("threadgroup_without_value")).0, 252);
    find("counter_without_value");
    finds(
        SOURCE,
        |lab| {
            let out = lab.buffer(&[0i32; 128]);
            let launch = lab.launch("left_over").buffer(1, &out).threadgroup(0, 256);
            launch.threadgroups(Size::width(2), Size::width(64))
        },
        Kind::UninitializedRead,
        "left_over",
        None,
    );
}

#[test]
fn reads_of_what_someone_wrote() {
    for kernel in ["writes_all", "writes_bytes"] {
        clean(SOURCE, |lab| copies(lab, &writes(lab, kernel)?));
    }
    clean(SOURCE, |lab| {
        // Through a copy, in parts by the host, and through a pointer that the sanitizer cannot follow.
        let (from, to) = (writes(lab, "writes_half")?, lab.device.new_buffer("to", 256)?);
        from.write(128, &[0; 127])?;
        from.write(255, &[0; 1])?;
        let mut command_buffer = lab.queue.new_command_buffer("copy")?;
        command_buffer.copy(&from, 0, &to, 0, 256)?;
        command_buffer.commit()?.wait(std::time::Duration::from_secs(10))?;
        copies(lab, &to)?;
        let other = lab.device.new_buffer("other", 256)?;
        other.contents();
        copies(lab, &other)
    });
}

#[test]
fn misaligned_accesses() {
    let find = |kernel| finds(SOURCE, run(kernel), Kind::Misaligned, kernel, None).remove(0);
    let report = find("misaligned_read");
    assert!(report.message.contains("4 past a multiple of 16"), "{report}");
    assert!(matches!(report.memory, Some(Memory::Buffer { slot: 0, .. })), "{report}");
    find("misaligned_write");
    find("misaligned_threadgroup");
    for kernel in ["aligned", "packed_blocks"] {
        clean(SOURCE, run(kernel));
    }
}

#[test]
fn pointers_to_buffers_that_are_gone() {
    let remember = |lab: &Lab| {
        let pointers = lab.buffer(&[0u64; 8]);
        let data = lab.device.new_buffer("short-lived", 256)?;
        data.write(0, &[0; 256])?;
        let launch = lab.launch("remember").buffer(0, &data).buffer(1, &pointers);
        launch.threads(Size::width(1), Size::width(32))?;
        Ok((pointers, data))
    };
    let threads = (Size::width(64), Size::width(64));
    let read = |lab: &Lab| {
        let (pointers, data) = remember(lab)?;
        drop(data);
        let out = lab.buffer(&[0i32; 64]);
        lab.launch("recall").buffer(0, &pointers).buffer(1, &out).threads(threads.0, threads.1)
    };
    let reports = finds(SOURCE, read, Kind::UseAfterFree, "recall", None);
    assert!(
        matches!(&reports[0].memory, Some(Memory::Unbound { label, length: 256, .. }) if label == "short-lived")
    );
    let write = |lab: &Lab| {
        let (pointers, data) = remember(lab)?;
        drop(data);
        lab.launch("recall_to_write").buffer(0, &pointers).threads(threads.0, threads.1)
    };
    finds(SOURCE, write, Kind::UseAfterFree, "recall_to_write", None);
    // Alive, but not bound: a GPU may not have it mapped.
    let unbound = |lab: &Lab| {
        let (pointers, _data) = remember(lab)?;
        let out = lab.buffer(&[0i32; 64]);
        lab.launch("recall").buffer(0, &pointers).buffer(1, &out).threads(threads.0, threads.1)
    };
    finds(SOURCE, unbound, Kind::OutOfBounds, "recall", None);
    clean(SOURCE, |lab| {
        let (pointers, data) = remember(lab)?;
        let out = lab.buffer(&[0i32; 64]);
        let launch = lab.launch("recall_bound").buffer(0, &pointers).buffer(1, &out).buffer(2, &data);
        launch.threads(threads.0, threads.1)
    });
    clean(SOURCE, |lab| {
        // The buffer's owner may go while the command buffer holds it.
        let data = lab.buffer(&[1i32; 64]);
        let out = lab.buffer(&[0i32; 64]);
        let launch = lab.launch("copies").buffer(0, &data).buffer(1, &out);
        drop(data);
        launch.threads(threads.0, threads.1)
    });
}
