//! How long the simulator takes, printed and bounded. Only when asked for:
//! `cargo test --release -p smelt-metal-sim --test speed -- --ignored --nocapture`.

mod common;

use std::fmt::Write;
use std::mem::MaybeUninit;
use std::time::Instant;

use common::{Lab, device, noise};
use half::f16;
use metal::device::{CompileOptions, Device, FunctionConstants, Size};

const SOURCE: &str = include_str!("msl/transformer.metal");

/// Processor time of the process in seconds: what a busy machine does not distort.
fn processor_time() -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the pointer is valid, and a zeroed time is a time.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The least processor time of some runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let started = processor_time();
        run();
        processor_time() - started
    };
    (0..5).map(once).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of processor time per multiply-accumulate of a product with simdgroup matrices.
fn gemm(lab: &Lab) -> f64 {
    let (m, n, k) = (512, 256, 576);
    let a: Vec<f16> = noise(1, m * k).into_iter().map(f16::from_f32).collect();
    let (a, b, c) = (lab.buffer(&a), lab.buffer(&noise(2, n * k)), lab.buffer(&vec![0f32; m * n]));
    let best = fastest(|| {
        lab.launch("gemm")
            .buffer(0, &a)
            .buffer(1, &b)
            .buffer(2, &c)
            .bytes(3, &[m as i32, n as i32, k as i32])
            .threadgroup(0, 64 * 32 * 4)
            .threadgroups(Size::new(n.div_ceil(32), m.div_ceil(64), 1), Size::width(128))
            .unwrap();
    });
    best * 1e9 / (m * n * k) as f64
}

/// Seconds of processor time of all matrix-vector products of a token.
fn four_bit_products(lab: &Lab) -> f64 {
    // Rows, columns and how often, of SmolLM2-135M: 30 layers and the output matrix.
    let shapes = [(576, 576, 60), (192, 576, 60), (1536, 576, 60), (576, 1536, 30), (49152, 576, 1)];
    let mut total = 0.0;
    for (rows, columns, times) in shapes {
        let weights = lab.buffer(&vec![0x35u8; rows * columns / 32 * 18]);
        let (x, y) = (lab.buffer(&noise(1, columns)), lab.buffer(&vec![0f32; rows]));
        let best = fastest(|| {
            lab.launch("matvec_4bit")
                .buffer(0, &weights)
                .buffer(1, &x)
                .buffer(2, &y)
                .bytes(3, &[columns as i32, rows as i32])
                .threadgroups(Size::width(rows.div_ceil(8)), Size::width(64))
                .unwrap();
        });
        total += best * f64::from(times);
    }
    total
}

// The device has two threads, which share the work on idle cores.

#[test]
#[ignore = "a measurement"]
fn gemm_per_multiply_accumulate() {
    let per_mac = gemm(&Lab::new("transformer.metal", SOURCE)) / 2.0;
    println!("simdgroup GEMM: {per_mac:.3} ns per multiply-accumulate");
    assert!(per_mac < 0.8);
}

#[test]
#[ignore = "a measurement"]
fn four_bit_products_of_one_token_of_a_135m_model() {
    let total = four_bit_products(&Lab::new("transformer.metal", SOURCE)) / 2.0;
    println!("4-bit matrix-vector products of one token: {total:.3} s");
    assert!(total < 0.3);
}

#[test]
#[ignore = "a measurement"]
fn the_sanitizer_takes_at_most_five_times_as_long() {
    let plain = Lab::new("transformer.metal", SOURCE);
    let checked = common::sanitizer::lab_for_speed("transformer.metal", SOURCE);
    for (name, plain, checked) in [
        ("simdgroup GEMM", gemm(&plain), gemm(&checked)),
        ("4-bit products", four_bit_products(&plain), four_bit_products(&checked)),
    ] {
        println!("{name}: {plain:.3}, with the sanitizer {checked:.3}: {:.2} times", checked / plain);
        assert!(checked < 5.0 * plain);
    }
}

#[test]
#[ignore = "a measurement"]
fn a_library_of_200_kernels_starts_from_the_cache() {
    let mut source = "#include <metal_stdlib>\nusing namespace metal;\n".to_owned();
    for index in 0..200 {
        writeln!(
            source,
            "kernel void k{index}(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{ x[i] = simd_sum(x[i]) + {index}; }}"
        )
        .unwrap();
    }
    let start = || {
        let started = Instant::now();
        let device = device();
        let library = device.new_library("many.metal", &source, &CompileOptions::default()).unwrap();
        device.new_pipeline(&library, "k199", &FunctionConstants::new()).unwrap();
        started.elapsed()
    };
    let first = start();
    let best = (0..5).map(|_| start()).min().unwrap();
    println!("200 kernels: {first:?} at first, {best:?} from the cache");
    assert!(best.as_millis() < 50);
}
