//! A kernel that needs many registers takes fewer threads than the device has room for: threadgroups become smaller, and results stay
//! what they are.

use crate::attention::{Scene, attention};
use crate::experts;
use crate::harness::*;
use crate::largest::{expected, largest};
use crate::norm::rms_norm;
use crate::{rope, topk};
use graph::ops::{GetRows, RmsNorm, Rope, RopeStyle};
use graph::{DType, InputKind, Op, Shape};
use metal::device::Capabilities;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::{Settings, SimDevice};
use metal_sim::profile::Profile;
use quant::Format;
use std::time::Duration;

/// A device whose kernels have at most so many threads.
fn device(kernel_threads: usize) -> SimDevice {
    SimDevice::new(Profile { kernel_threads, ..Profile::default() }, Settings::default())
        .unwrap_or_else(|error| panic!("these tests need clang: {error}"))
}

#[test]
fn kernels_of_few_threads_give_the_same() {
    // As few as fixed geometries need; some that are no whole SIMD-groups; what a kernel of an M1 with the most registers takes.
    for most in [128, 200, 384] {
        let backend = Box::new(metal_on(device(most), METAL, Switches::default()));
        let mut tested = Tested { name: METAL.into(), quantised: false, half: false, backend };
        let mut random = Random::new(most as u64);
        let what = format!("{most} threads");

        let (rows, cols) = (3, 1500);
        let (x, weight) = (random.floats(rows * cols), random.floats(cols));
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let input = case.floats(Shape::new(rows, cols), &x);
        let id = Some(case.vector("norm", &weight));
        let found = case.run(Op::RmsNorm(RmsNorm { weight: id, epsilon: 1e-5 }), &[input]);
        check(&what, &found, &rms_norm(&x, Some(&weight), cols, 1e-5), 1e-12);

        let x = random.floats(2 * 9000);
        assert_eq!(topk::found(&mut tested, &x, 9000, 9), topk::reference(&x, 9000, 9), "{what}");
        assert_eq!(largest(tested.backend.as_mut(), 2, &x, 9), Some(expected(2, &x, 9)), "{what}");

        // Grouped by their experts, over more experts than SIMD-groups.
        let scene = experts::Scene::new(Format::F32, [20, 4, 30], [12, 33]);
        check(&what, &scene.run(&mut tested).unwrap(), &scene.reference(), 1e-11);

        let (tokens, heads, head_dim) = (3, 9, 80);
        let x = random.floats(tokens * heads * head_dim);
        let op = Rope { head_dim, style: RopeStyle::SplitHalf, table: rope::table(head_dim, 1e4, 1.0) };
        let expected = rope::reference(&x, heads, &op, &[5, 0, 70_000]);
        let mut case = Case::new(tested.backend.as_mut(), &params(tokens));
        let inputs = [
            case.floats(Shape::new(tokens, heads * head_dim), &x),
            case.ints(InputKind::Positions, &[5, 0, 70_000]),
        ];
        check(&what, &case.run(Op::Rope(op), &inputs), &expected, 1e-13);

        let table = random.floats(3 * 4000);
        let mut case = Case::new(tested.backend.as_mut(), &params(2));
        let tokens = case.ints(InputKind::Tokens, &[2, 0]);
        let bytes = bytemuck::cast_slice(&table).to_vec();
        let weight = case.weight("table", Format::F32, 3, 4000, bytes);
        let found = case.run(Op::GetRows(GetRows { table: Some(weight) }), &[tokens]);
        assert!(found == [&table[8000..], &table[..4000]].concat(), "{what}");

        for (dtype, sequences) in [(DType::Packed(Format::Q8_0), [(300, 1)]), (DType::F16, [(60, 20)])] {
            let scene = Scene::new(attention(2, 1, 256, None), dtype, 16, &sequences, 1);
            check(&what, &scene.run(tested.backend.as_mut()).unwrap(), &scene.reference(), 2e-7);
        }
    }
}

/// A GPU beside the processor, with memory of its own.
#[test]
fn a_device_without_what_all_kernels_need_stops_the_start() {
    let profile = Profile::default();
    let start = |change: fn(&mut Capabilities)| {
        let mut profile = profile.clone();
        change(&mut profile.capabilities);
        let device = SimDevice::new(profile, Settings::default()).unwrap();
        let options = MetalOptions { name: METAL, timeout: Duration::ZERO, switches: Switches::default() };
        MetalBackend::new(device, options).err().unwrap().to_string()
    };
    let error = start(|capabilities| capabilities.gpu_family = 6);
    let expected = "has no features of Metal's family Apple 7 or a later one, as Apple's have since the M1";
    assert!(error.contains(expected), "{error}");
    let error = start(|capabilities| capabilities.unified_memory = false);
    assert!(error.contains("memory in common with the host"), "{error}");
    let error = start(|capabilities| capabilities.simd_reductions = false);
    assert!(error.contains("reductions over SIMD-groups"), "{error}");
}

#[test]
fn a_kernel_that_takes_too_few_threads_stops_the_start() {
    let options = MetalOptions { name: METAL, timeout: Duration::ZERO, switches: Switches::default() };
    let error = MetalBackend::new(device(96), options).err().unwrap().to_string();
    for part in ["attention_classic_f32", "128x1x1", "96"] {
        assert!(error.contains(part), "{part} in: {error}");
    }
}
