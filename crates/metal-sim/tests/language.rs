//! The language: types, conversions, constants, templates, threadgroup memory, atomics, barriers.

mod common;

use common::{Lab, read};
use half::{bf16, f16};
use metal::device::{CompileOptions, ConstantValue, Error, MathMode, Size};

const SOURCE: &str = include_str!("msl/language.metal");

fn lab() -> Lab {
    Lab::new("language.metal", SOURCE)
}

fn one() -> Size {
    Size::width(1)
}

#[test]
fn swizzles_read_and_write() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 48]);
    lab.launch("swizzles").buffer(0, &out).threads(one(), one()).unwrap();
    let expected: [[f32; 4]; 12] = [
        [4.0, 3.0, 2.0, 1.0],
        [1.0, 2.0, 3.0, 3.0],
        [3.0, 2.0, 1.0, 4.0],
        [3.0, 20.0, 1.0, 400.0],
        [4.0, 40.0, 4.0, 800.0],
        [3.0, 21.0, 2.0, 26.0],
        [7.0, 7.0, 8.0, 9.0],
        [-3.0, -20.0, -1.0, -400.0],
        [3.0, 20.0, 1.0, 0.0],
        [1.0, 1.0, 20.0, 800.0],
        [42.0, 20.0, 1.0, 400.0],
        [-1.0, 1.0, 2.0, -2.0],
    ];
    for (index, (found, expected)) in read::<f32>(&out).chunks(4).zip(expected).enumerate() {
        assert_eq!(found, expected, "value {index}");
    }
}

#[test]
fn sizes_and_packed_vectors() {
    let lab = lab();
    let (data, sizes) =
        (lab.buffer(&[1f32, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), lab.buffer(&[0u32; 11]));
    lab.launch("packed").buffer(0, &data).buffer(1, &sizes).threads(one(), one()).unwrap();
    assert_eq!(read::<f32>(&data), [1.0, 2.0, 3.0, 3.0, 6.0, 9.0, 1.0, 2.0, 3.0]);
    assert_eq!(read::<u32>(&sizes), [16, 12, 8, 16, 2, 2, 8, 2, 64, 48, 24]);
}

#[test]
fn integers_wrap_and_convert() {
    let lab = lab();
    let out = lab.buffer(&[0i32; 16]);
    lab.launch("integers").buffer(0, &out).threads(one(), one()).unwrap();
    assert_eq!(
        read::<i32>(&out),
        [260, 4, -25536, 15, -3, -1, -3, 8, 8, 0x3f80_0000, 0x3c00, 0x0403_0201, 2, -56, 2, 4]
    );
}

#[test]
fn matrices_are_columns() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 32]);
    lab.launch("matrices").buffer(0, &out).threads(one(), one()).unwrap();
    let expected: [[f32; 4]; 8] = [
        [14.0, 16.0, 18.0, 20.0],
        [5.0, 13.0, 21.0, 29.0],
        [202.0, 228.0, 254.0, 280.0],
        [1.0, 5.0, 9.0, 13.0],
        [0.0, 0.0, 2.0, 0.0],
        [13.0, 14.0, 15.0, 16.0],
        [5.0, 6.0, 100.0, 8.0],
        [41.0, 52.0, 63.0, -2.0],
    ];
    for (index, (found, expected)) in read::<f32>(&out).chunks(4).zip(expected).enumerate() {
        assert_eq!(found, expected, "value {index}");
    }
}

#[test]
fn halves_round_after_every_operation() {
    // Fast math may rearrange sums.
    let options = CompileOptions { math: MathMode::Safe, ..CompileOptions::default() };
    let lab = Lab::with_options("language.metal", SOURCE, &options);
    let (a, b, c) = (f16::from_f32(1.0029297), f16::from_f32(1.0029297), f16::from_f32(-1.0));
    let (out, brain) = (lab.buffer(&[f16::ZERO; 6]), lab.buffer(&[bf16::ZERO; 3]));
    lab.launch("narrow")
        .buffer(0, &lab.buffer(&[a, b, c]))
        .buffer(1, &out)
        .buffer(2, &brain)
        .threads(one(), one())
        .unwrap();
    let out = read::<f16>(&out);
    let product = f16::from_f32(a.to_f32() * b.to_f32());
    assert_eq!(out[0], f16::from_f32(a.to_f32() + b.to_f32()));
    assert_eq!(out[1], f16::from_f32(product.to_f32() - 1.0));
    assert_eq!(out[2], f16::from_f32(a.to_f32() * b.to_f32() - 1.0));
    assert_ne!(out[1], out[2], "the two must differ for the test to tell");
    assert_eq!(out[3].to_f32(), 2048.0, "2048 + 1 rounds to 2048");
    assert!(out[4].is_infinite());
    assert_eq!(out[5], f16::from_f32(a.to_f32() / 3.0));
    let brain = read::<bf16>(&brain);
    assert_eq!(brain[0].to_bits(), bf16::from_f32(1.003_906_3).to_bits(), "a tie goes to even");
    assert_eq!(brain[1], bf16::from_f32(brain[0].to_f32() * 3.0));
    assert_eq!(brain[2], bf16::from_f32(3.0 / 7.0));
}

#[test]
fn function_constants() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 5]);
    let bias = lab.buffer(&[9f32]);
    let launch = || lab.launch("constants").buffer(0, &out).constant(3, ConstantValue::I32(21));
    launch().constant(7, ConstantValue::Bool(false)).threads(one(), one()).unwrap();
    assert_eq!(read::<f32>(&out), [21.0, 42.0, 0.5, -1.0, 1.0]);
    launch()
        .constant(7, ConstantValue::Bool(true))
        .constant(1, ConstantValue::F32(0.25))
        .buffer(1, &bias)
        .threads(one(), one())
        .unwrap();
    assert_eq!(read::<f32>(&out), [21.0, 42.0, 0.25, 9.0, 1.0]);
    let error = launch().constant(7, ConstantValue::I32(1)).threads(one(), one()).unwrap_err();
    assert!(
        matches!(&error, Error::FunctionConstant { kernel, reason } if kernel == "constants" && reason.contains("'has_bias'")),
        "{error}"
    );
}

#[test]
fn a_reference_that_does_not_exist_is_not_read() {
    let lab = lab();
    let out = lab.buffer(&[0i32; 1]);
    let launch = |has| lab.launch("optional_reference").buffer(0, &out).constant(7, ConstantValue::Bool(has));
    launch(false).threads(one(), one()).unwrap();
    assert_eq!(read::<i32>(&out), [7]);
    launch(true).bytes(1, &[10i32]).threads(one(), one()).unwrap();
    assert_eq!(read::<i32>(&out), [61]);
}

#[test]
fn instantiations_have_their_host_names() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 2]);
    lab.launch("repeat_float_2")
        .buffer(0, &out)
        .bytes(1, &[1.5f32])
        .threads(Size::width(32), Size::width(32))
        .unwrap();
    assert_eq!(read::<f32>(&out), [1.5, 1.5]);
    let out = lab.buffer(&[0i32; 3]);
    lab.launch("repeat_int_3_negated")
        .buffer(0, &out)
        .bytes(1, &[4i32])
        .threads(Size::width(3), Size::width(3))
        .unwrap();
    assert_eq!(read::<i32>(&out), [-4, -4, -4]);
    lab.launch("renamed").buffer(0, &out).threads(one(), one()).unwrap();
    assert_eq!(read::<i32>(&out)[0], 77);
    lab.launch("in_namespace").buffer(0, &out).threads(one(), one()).unwrap();
    assert_eq!(read::<i32>(&out)[0], 78);
    let wide = lab.buffer(&[0i64]);
    lab.launch("by_parameters_long").buffer(0, &wide).threads(one(), one()).unwrap();
    assert_eq!(read::<i64>(&wide), [8]);
    for missing in ["repeat", "original"] {
        assert!(
            matches!(lab.launch(missing).threads(one(), one()), Err(Error::KernelNotFound { .. })),
            "{missing}"
        );
    }
}

#[test]
fn overloads_on_an_address_space() {
    let lab = lab();
    let out = lab.buffer(&[0i32; 2]);
    lab.launch("overloads").buffer(0, &out).bytes(1, &[10i32]).threads(one(), one()).unwrap();
    assert_eq!(read::<i32>(&out), [26, 31]);
}

#[test]
fn records_with_unions_of_vectors_are_copied() {
    let lab = lab();
    let data = lab.buffer(&[1u16, 2, 0x403, 0x605, 0, 0, 0, 0]);
    lab.launch("copy_block").buffer(0, &data).threads(one(), one()).unwrap();
    assert_eq!(read::<u16>(&data), [2, 1, 0x403, 0x605, 1, 2, 0x403, 0x605]);
}

#[test]
fn threadgroup_variables_belong_to_the_threadgroup() {
    let lab = lab();
    let data: Vec<i32> = (0..200).collect();
    let buffer = lab.buffer(&data);
    lab.launch("reverse").buffer(0, &buffer).threads(Size::width(200), Size::width(200)).unwrap();
    let expected: Vec<i32> = data.iter().rev().map(|x| 3 * x + 30 + 2 + 4).collect();
    assert_eq!(read::<i32>(&buffer), expected);
}

#[test]
fn dynamic_threadgroup_memory() {
    let lab = lab();
    let data: Vec<i32> = (0..64).collect();
    let buffer = lab.buffer(&data);
    lab.launch("dynamic_memory")
        .buffer(0, &buffer)
        .threadgroup(0, 256)
        .threadgroup(2, 1024)
        .threads(Size::width(64), Size::width(64))
        .unwrap();
    let expected: Vec<i32> = (0..64).map(|i| (i ^ 1) + 10 * (i ^ 2)).collect();
    assert_eq!(read::<i32>(&buffer), expected);
}

#[test]
fn atomics_across_threadgroups() {
    let lab = lab();
    let (counters, extremes, sum) = (lab.buffer(&[0u32; 5]), lab.buffer(&[0i32; 3]), lab.buffer(&[0f32; 1]));
    let threads = 5000usize;
    lab.launch("atomics")
        .buffer(0, &counters)
        .buffer(1, &extremes)
        .buffer(2, &sum)
        .threads(Size::width(threads), Size::width(96))
        .unwrap();
    let counters = read::<u32>(&counters);
    assert_eq!(counters[0], 5000);
    assert_eq!(counters[1], (0..5000).fold(0, |a, b| a ^ b));
    assert_eq!(counters[2], u32::MAX);
    assert!((1..=5000).contains(&counters[3]));
    assert_eq!(counters[4], 1, "one exchange may win");
    assert_eq!(read::<i32>(&extremes), [4999, -4999, -10000]);
    assert_eq!(read::<f32>(&sum), [2500.0]);
}

#[test]
fn barriers_order_threadgroup_memory() {
    let lab = lab();
    for threads in [1, 33, 256, 1000] {
        let buffer = lab.buffer(&vec![1i32; threads]);
        lab.launch("ladder").buffer(0, &buffer).threads(Size::width(threads), Size::width(threads)).unwrap();
        let expected: Vec<i32> = (1..=threads as i32).collect();
        assert_eq!(read::<i32>(&buffer), expected);
    }
    let buffer = lab.buffer(&(0..64).collect::<Vec<i32>>());
    lab.launch("within_simdgroup").buffer(0, &buffer).threads(Size::width(64), Size::width(64)).unwrap();
    assert_eq!(read::<i32>(&buffer), (0..64).map(|i| i ^ 31).collect::<Vec<i32>>());
}
