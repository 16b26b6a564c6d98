//! Kernels and bindings that are wrong: an error that names the place, and the process lives on.

mod common;

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use common::{Lab, read};
use metal::device::*;
use metal_sim::device::SimDevice;

const SOURCE: &str = include_str!("msl/faults.metal");

fn lab() -> Lab {
    Lab::new("faults.metal", SOURCE)
}

/// Runs a kernel that must fail, then one that must not, on the same queue.
fn failure(kernel: &str, input: &[i32]) -> String {
    let lab = lab();
    let (buffer, out) = (lab.buffer(input), lab.buffer(&[0i32; 64]));
    let error = lab
        .launch(kernel)
        .buffer(0, &buffer)
        .buffer(3, &out)
        .threads(Size::width(64), Size::width(64))
        .unwrap_err();
    let Error::Execution { kernel: found, reason, last_dispatches, label } = &error else {
        panic!("{error}")
    };
    assert_eq!(found, kernel);
    assert_eq!(label, "test buffer");
    assert_eq!(last_dispatches, &[format!("test ({kernel})")]);
    let input: Vec<i32> = (0..64).collect();
    lab.launch("good")
        .buffer(0, &lab.buffer(&input))
        .buffer(3, &out)
        .threads(Size::width(64), Size::width(64))
        .unwrap();
    assert!(read::<i32>(&out).iter().enumerate().all(|(i, &x)| x == i as i32 + 1));
    reason.clone()
}

#[test]
fn a_bad_address_is_told_as_slot_and_offset() {
    let reason = failure("past_the_end", &[1; 64]);
    assert!(reason.contains("offset 16404 of buffer(0), which has 256 bytes"), "{reason}");
    assert!(reason.contains("threadgroup (0, 0, 0)"), "{reason}");
    assert!(reason.starts_with("faults.metal:8: "), "{reason}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_vector_that_is_not_aligned_is_no_null_pointer() {
    let reason = failure("unaligned", &[1; 64]);
    assert!(reason.starts_with("faults.metal:11: invalid memory access: a vector that is not"), "{reason}");
}

#[test]
fn division_by_zero_is_an_error() {
    let reason = failure("divide", &[0; 64]);
    assert!(reason.starts_with("faults.metal:14: integer division by zero"), "{reason}");
}

#[test]
fn endless_kernels_end() {
    for kernel in ["endless", "endless_and_empty", "endless_with_barriers"] {
        let started = Instant::now();
        let reason = failure(kernel, &[0; 64]);
        assert!(reason.contains("does not end"), "{reason}");
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn a_stack_that_overflows_is_an_error() {
    let reason = failure("deep", &[0; 64]);
    assert!(reason.contains("stack overflow") || reason.contains("invalid memory access"), "{reason}");
}

#[test]
fn a_wait_has_a_deadline() {
    let lab = lab();
    let pipeline = lab.device.new_pipeline(&lab.library, "endless", &FunctionConstants::new()).unwrap();
    let (input, out) = (lab.buffer(&[0i32; 64]), lab.buffer(&[0i32; 64]));
    let mut command_buffer = lab.queue.new_command_buffer("slow").unwrap();
    {
        let mut encoder = command_buffer.compute_encoder("spin", DispatchMode::Serial);
        encoder.set_pipeline(&pipeline);
        encoder.set_buffer(0, &input, 0).unwrap();
        encoder.set_buffer(3, &out, 0).unwrap();
        encoder.dispatch_threads(Size::width(1), Size::width(1)).unwrap();
    }
    let submission = command_buffer.commit().unwrap();
    let error = submission.wait(Duration::from_millis(200)).unwrap_err();
    assert!(
        matches!(&error, Error::Timeout { label, last_dispatches, .. } if label == "slow" && last_dispatches == &["spin (endless)"]),
        "{error}"
    );
    assert_eq!(submission.status(), Status::Running);
    assert!(matches!(submission.wait(Duration::from_secs(60)), Err(Error::Execution { .. })));
    assert_eq!(submission.status(), Status::Failed);
}

#[test]
fn two_queues_on_two_threads_do_not_disturb_each_other() {
    let lab = lab();
    std::thread::scope(|scope| {
        for kernel in ["good", "divide", "good", "past_the_end", "deep"] {
            let lab = &lab;
            scope.spawn(move || {
                let queue = lab.device.new_queue(kernel).unwrap();
                let other = Lab::of(lab.device.clone(), lab.library.clone(), queue);
                for _ in 0..20 {
                    let (input, out) = (other.buffer(&[0i32; 64]), other.buffer(&[0i32; 64]));
                    let result = other
                        .launch(kernel)
                        .buffer(0, &input)
                        .buffer(3, &out)
                        .threads(Size::width(64), Size::width(32));
                    assert_eq!(result.is_ok(), kernel == "good", "{kernel}");
                }
            });
        }
    });
}

#[test]
fn bindings_are_checked_by_kernel_and_slot() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 16]);
    let complete = || lab.launch("arguments").bytes(1, &[1u32; 8]).buffer(2, &out).threadgroup(1, 64);
    let run = |launch: common::Launch<'_>| launch.threads(Size::width(16), Size::width(16));
    run(complete()).unwrap();

    let error = run(lab.launch("arguments").bytes(1, &[1u32; 8]).threadgroup(1, 64)).unwrap_err();
    assert_eq!(error.to_string(), "kernel 'arguments': nothing is bound to buffer(2) ('out')");
    let error = run(lab.launch("arguments").bytes(1, &[1u32; 8]).buffer(2, &out)).unwrap_err();
    assert_eq!(error.to_string(), "kernel 'arguments': nothing is bound to threadgroup(1) ('scratch')");
    let error = run(complete().bytes(1, &[1u32; 4])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel 'arguments': buffer(1) ('arguments'): 16 bytes bound, the kernel reads an object of 32"
    );
    let error = run(complete().buffer_at(2, &out, 2)).unwrap_err();
    assert!(matches!(error, Error::BindingTooSmall { slot: 2, .. }), "{error}");
    let error = run(complete().buffer_at(2, &out, 64)).unwrap_err();
    assert!(matches!(error, Error::BufferRange { offset: 64, .. }), "{error}");
    assert!(matches!(run(complete().buffer(31, &out)), Err(Error::Slot { slot: 31, limit: 31 })));
    assert!(matches!(
        run(complete().bytes(1, &[0u8; 4097])),
        Err(Error::InlineBytes { length: 4097, limit: 4096, .. })
    ));
    assert!(matches!(run(complete().bytes(1, &[] as &[u8])), Err(Error::InlineBytes { length: 0, .. })));
    run(complete().bytes(1, &[0u8; 4096])).unwrap();
    for length in [8, 32784, 33000] {
        assert!(
            matches!(run(complete().threadgroup(1, length)), Err(Error::ThreadgroupMemory { .. })),
            "{length}"
        );
    }
    assert!(matches!(
        run(complete().threadgroup(0, 32768)),
        Err(Error::ThreadgroupMemory { length: 32832, .. })
    ));
}

#[test]
fn grids_are_checked() {
    let lab = lab();
    let out = lab.buffer(&[0i32; 4096]);
    let launch = |grid: Size, threads: Size| lab.launch("small").buffer(0, &out).threads(grid, threads);
    assert!(matches!(
        launch(Size::width(64), Size::width(65)),
        Err(Error::ThreadgroupSize { limit: 64, .. })
    ));
    assert!(matches!(launch(Size::width(64), Size::new(8, 8, 2)), Err(Error::ThreadgroupSize { .. })));
    assert!(matches!(launch(Size::width(64), Size::width(0)), Err(Error::ThreadgroupSize { .. })));
    assert!(matches!(launch(Size::width(0), Size::width(32)), Err(Error::EmptyGrid { .. })));
    assert!(matches!(launch(Size::new(1, 0, 1), Size::width(32)), Err(Error::EmptyGrid { .. })));
    launch(Size::width(4096), Size::width(64)).unwrap();
    let error = lab
        .launch("good")
        .buffer(0, &out)
        .buffer(3, &out)
        .threads(Size::width(64), Size::new(32, 32, 2))
        .unwrap_err();
    assert!(matches!(error, Error::ThreadgroupSize { limit: 1024, .. }), "{error}");
}

#[test]
fn declared_threadgroup_memory_counts() {
    let lab = lab();
    let out = lab.buffer(&[0i32; 64]);
    let run = |length| {
        lab.launch("greedy").buffer(0, &out).threadgroup(0, length).threads(Size::width(64), Size::width(64))
    };
    run(256).unwrap();
    let error = run(1024).unwrap_err();
    assert!(error.to_string().contains("33024 bytes of threadgroup memory, the limit is 32768"), "{error}");
}

#[test]
fn a_dispatch_needs_a_pipeline() {
    let lab = lab();
    let mut command_buffer = lab.queue.new_command_buffer("empty").unwrap();
    let result = command_buffer
        .compute_encoder("", DispatchMode::Serial)
        .dispatch_threads(Size::width(1), Size::width(1));
    assert_eq!(result, Err(Error::NoPipeline));
    assert!(command_buffer.commit().unwrap().wait(Duration::from_secs(10)).is_ok());
}

#[test]
fn buffers_are_checked() {
    let lab = lab();
    assert!(matches!(lab.device.new_buffer("none", 0), Err(Error::BufferLength { length: 0, .. })));
    assert!(matches!(lab.device.new_buffer("all", usize::MAX), Err(Error::BufferLength { .. })));
    let buffer = lab.buffer(&[1u8, 2, 3, 4]);
    assert!(matches!(
        buffer.read(2, &mut [0; 3]),
        Err(Error::BufferRange { offset: 2, length: 3, buffer_length: 4, .. })
    ));
    assert!(matches!(buffer.write(usize::MAX, &[0]), Err(Error::BufferRange { .. })));
    assert_eq!(buffer.contents().as_ptr() as usize % (16 << 10), 0);

    let mut memory = vec![0u8; 64 << 10];
    let aligned = memory.as_mut_ptr().align_offset(16 << 10);
    let start = NonNull::new(memory.as_mut_ptr().wrapping_add(aligned)).unwrap();
    let wrap = |pointer: NonNull<u8>, length| {
        // SAFETY: the range lies inside `memory`, which outlives the buffer.
        unsafe { lab.device.new_buffer_no_copy("mapped", pointer, length) }
    };
    let buffer = wrap(start, 16 << 10).unwrap();
    buffer.write(5, &[7]).unwrap();
    assert_eq!(memory[aligned + 5], 7);
    assert!(matches!(wrap(start, 100), Err(Error::NoCopyAlignment { length: 100, alignment: 16384, .. })));
    let shifted = NonNull::new(start.as_ptr().wrapping_add(16)).unwrap();
    assert!(matches!(wrap(shifted, 16 << 10), Err(Error::NoCopyAlignment { .. })));
}

#[test]
fn an_unknown_kernel_is_named() {
    let lab = lab();
    let error = lab.launch("nonesuch").threads(Size::width(1), Size::width(1)).unwrap_err();
    assert_eq!(error.to_string(), "library 'faults.metal' has no kernel 'nonesuch'");
}

#[test]
fn copies_are_ordered_and_checked() {
    let lab = lab();
    let (a, b) = (lab.buffer(&[1u8, 2, 3, 4, 5, 6, 7, 8]), lab.buffer(&[0u8; 8]));
    let mut command_buffer = lab.queue.new_command_buffer("copy").unwrap();
    command_buffer.copy(&a, 2, &b, 0, 4).unwrap();
    command_buffer.copy(&b, 0, &a, 4, 4).unwrap();
    assert!(matches!(command_buffer.copy(&a, 6, &b, 0, 4), Err(Error::BufferRange { offset: 6, .. })));
    assert!(matches!(command_buffer.copy(&a, 0, &b, 6, 4), Err(Error::BufferRange { offset: 6, .. })));
    let interval = command_buffer.commit().unwrap().wait(Duration::from_secs(10)).unwrap();
    assert!(interval.end >= interval.start);
    assert_eq!(read::<u8>(&a), [1, 2, 3, 4, 3, 4, 5, 6]);
}

#[test]
fn habits_of_lockstep_work_without_the_sanitizer() {
    let lab = lab();
    let input: Vec<i32> = (0..64).map(|i| i * i % 17).collect();
    let (given, out) = (lab.buffer(&input), lab.buffer(&[0i32; 64]));
    let launch = lab.launch("lockstep").buffer(0, &given).buffer(1, &out);
    launch.threads(Size::width(64), Size::width(32)).unwrap();
    let expected = input.chunks(32).flat_map(|group| [10 * group.iter().sum::<i32>() + 5; 32]);
    assert_eq!(read::<i32>(&out), expected.collect::<Vec<_>>());
}

#[test]
fn an_assertion_that_does_not_hold_is_an_error() {
    let line = SOURCE.lines().position(|line| line.contains("assert(in[i]")).unwrap() + 1;
    let reason = failure("asserts", &[0; 64]);
    assert!(reason.starts_with(&format!("faults.metal:{line}: an assertion that does not hold")), "{reason}");
    let lab = lab();
    let (given, out) = (lab.buffer(&[1i32; 64]), lab.buffer(&[0i32; 64]));
    let launch = lab.launch("asserts").buffer(0, &given).buffer(3, &out);
    launch.threads(Size::width(64), Size::width(64)).unwrap();
    assert_eq!(read::<i32>(&out), [2; 64]);
}

#[test]
fn a_function_without_a_body_is_told_before_it_is_called() {
    let source = "#include <metal_stdlib>\nfloat later(float x);\nkernel void k(device float* x) {\n  x[0] = later(x[0]);\n}\n";
    let device = SimDevice::from_environment().unwrap();
    let error =
        device.new_library("later.metal", source, &CompileOptions::default()).err().unwrap().to_string();
    assert!(error.contains("later.metal:4: error: 'later(float)' is called and has no body"), "{error}");
}
