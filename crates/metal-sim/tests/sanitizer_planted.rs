//! Faults as they come in real kernels, and their twins, in which nothing may be found.

mod common;

use std::time::Duration;

use common::Lab;
use common::sanitizer::{SEEDS, clean, finds, lab};
use metal::device::*;
use metal_sim::sanitize::Kind;

const SOURCE: (&str, &str) = ("planted.metal", include_str!("msl/planted.metal"));

/// Threadgroups of so many threads over 128 numbers.
fn run(kernel: &str, groups: usize, threads: usize, mended: bool) -> impl Fn(&Lab) -> Result<GpuInterval> {
    move |lab| {
        let (input, out) = (lab.buffer(&[1f32; 128]), lab.buffer(&[0f32; 128]));
        let ticket = lab.buffer(&[0u32; 4]);
        let launch = lab.launch(kernel).buffer(0, &input).buffer(1, &out).buffer(2, &ticket);
        let launch = launch.threadgroup(0, 256).constant(0, ConstantValue::Bool(mended));
        launch.threadgroups(Size::width(groups), Size::width(threads))
    }
}

#[test]
fn planted_faults_are_found_and_their_twins_are_clean() {
    for (kernel, kind, groups, threads) in [
        ("normalised_rows", Kind::Race, 1, 128),
        ("tiles_in_turn", Kind::Race, 1, 128),
        ("memory_of_two_types", Kind::Race, 1, 128),
        ("stored_matrix", Kind::Race, 1, 128),
        ("value_behind_a_flag", Kind::Race, 1, 64),
        ("last_adds_up", Kind::ThreadgroupRace, 6, 32),
        ("tile_moved_back", Kind::ThreadgroupRace, 4, 32),
        ("rows_in_turn", Kind::DivergentBarrier, 1, 128),
        ("tail_of_a_tile", Kind::UninitializedRead, 1, 128),
        ("matrix_too_low", Kind::OutOfBounds, 1, 32),
    ] {
        let has_two_places = SOURCE.1.contains(&format!("// @{kernel} read"));
        let (first, second) = (format!("{kernel} read"), format!("{kernel} write"));
        let (mark, other) = if has_two_places { (&*first, Some(&*second)) } else { (kernel, None) };
        let reports = finds(SOURCE, run(kernel, groups, threads, false), kind, mark, other);
        assert_eq!(reports[0].kernel, kernel);
        clean(SOURCE, run(kernel, groups, threads, true));
    }
}

/// Two dispatches that write 25 numbers each, the second so many bytes behind the first.
fn beside_each_other(lab: &Lab, distance: usize) -> Result<GpuInterval> {
    let (input, out) = (lab.buffer(&[1f32; 128]), lab.buffer(&[0f32; 256]));
    let constants = FunctionConstants::new().set(0, ConstantValue::Bool(true));
    let pipeline = lab.device.new_pipeline(&lab.library, "tile_moved_back", &constants)?;
    let mut command_buffer = lab.queue.new_command_buffer("pair")?;
    let mut encoder = command_buffer.compute_encoder("pair", DispatchMode::Concurrent);
    encoder.set_pipeline(&pipeline);
    encoder.set_buffer(0, &input, 0)?;
    for offset in [0, distance] {
        encoder.set_buffer(1, &out, offset)?;
        encoder.dispatch_threads(Size::width(25), Size::width(32))?;
    }
    drop(encoder);
    command_buffer.commit()?.wait(Duration::from_secs(30))
}

#[test]
fn ranges_that_overlap_by_one_number_are_a_hazard() {
    for seed in SEEDS {
        let lab = lab(SOURCE.0, SOURCE.1, seed);
        assert!(beside_each_other(&lab, 96).is_err());
        let reports = lab.device.sanitizer().unwrap().take_reports();
        assert!(reports.iter().all(|report| report.kind == Kind::DispatchHazard), "{reports:?}");
        assert_eq!(reports.len(), 1);
        beside_each_other(&lab, 100).unwrap();
        assert_eq!(lab.device.sanitizer().unwrap().reports(), []);
    }
}
