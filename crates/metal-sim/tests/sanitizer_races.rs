//! Races: what is found, and what must not be.

mod common;

use common::Lab;
use common::sanitizer::{clean, finds};
use metal::device::*;
use metal_sim::sanitize::{Kind, Memory};

const SOURCE: (&str, &str) = ("races.metal", include_str!("msl/races.metal"));

/// One threadgroup of 64 threads over buffers of 64 numbers and 128 numbers of threadgroup memory.
fn one_threadgroup(kernel: &str) -> impl Fn(&Lab) -> Result<GpuInterval> {
    move |lab| {
        let (input, out) = (lab.buffer(&[1i32; 64]), lab.buffer(&[0i32; 128]));
        let launch = lab.launch(kernel).buffer(0, &input).buffer(1, &out).threadgroup(0, 1024);
        launch.threads(Size::width(64), Size::width(64))
    }
}

#[test]
fn races_in_threadgroup_memory() {
    for (kernel, mark, other) in [
        ("missing_barrier", "missing_barrier read", "missing_barrier write"),
        ("lockstep", "lockstep read", "lockstep write"),
        ("warp_reduction", "warp_reduction", "warp_reduction"),
        ("wrong_flags", "wrong_flags read", "wrong_flags write"),
        ("write_after_read", "write_after_read write", "write_after_read read"),
    ] {
        let reports = finds(SOURCE, one_threadgroup(kernel), Kind::Race, mark, Some(other));
        let report = &reports[0];
        assert_eq!(report.kernel, kernel);
        assert!(matches!(report.memory, Some(Memory::Threadgroup { slot: 0, length: 1024, .. })), "{report}");
        let (thread, other) = (report.party.thread, report.other.as_ref().and_then(|other| other.thread));
        assert!(thread.is_some() && other.is_some() && thread != other, "{report}");
    }
}

#[test]
fn races_in_device_memory() {
    let run = |kernel, mark, other| finds(SOURCE, one_threadgroup(kernel), Kind::Race, mark, Some(other));
    let reports = run("device_memory", "device_memory read", "device_memory write");
    assert!(matches!(&reports[0].memory, Some(Memory::Buffer { slot: 0, label, .. }) if label == "data"));
    run("all_write", "all_write", "all_write");
    run("plain_and_atomic", "plain_and_atomic plain", "plain_and_atomic atomic");
}

#[test]
fn ordered_accesses_are_no_races() {
    for kernel in [
        "reduction_tree",
        "simdgroup_ordered",
        "double_buffered",
        "neighbours",
        "halves_of_a_vector",
        "atomics_only",
        "matrices",
        "many_barriers",
    ] {
        clean(SOURCE, one_threadgroup(kernel));
    }
}
