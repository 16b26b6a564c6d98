//! SIMD-group and quad-group functions against the definitions in the Metal Shading Language specification.

mod common;

use common::{Lab, noise, read};
use metal::device::Size;

const SOURCE: &str = include_str!("msl/simd.metal");

/// Runs a kernel on 80 threads: two whole SIMD-groups and one of 16 threads.
fn run(lab: &Lab, kernel: &str, input: &[i32]) -> Vec<i32> {
    let (input, output) = (lab.buffer(input), lab.buffer(&vec![-1i32; input.len()]));
    lab.launch(kernel)
        .buffer(0, &input)
        .buffer(1, &output)
        .threads(Size::width(80), Size::width(80))
        .unwrap();
    read(&output)
}

#[test]
fn integer_operations_have_their_specified_values() {
    let lab = Lab::new("simd.metal", SOURCE);
    let input: Vec<i32> = (0..80).map(|i| (i * 37 + 11) % 23 - 7).collect();
    // What each kernel must give for a lane of a SIMD-group with the given values.
    type Expected = fn(&[i32], usize) -> i32;
    fn pick(group: &[i32], lane: usize, from: i64) -> i32 {
        usize::try_from(from).ok().and_then(|from| group.get(from)).copied().unwrap_or(group[lane])
    }
    fn quad(group: &[i32], lane: usize) -> &[i32] {
        &group[lane & !3..(lane & !3) + 4]
    }
    let cases: &[(&str, Expected)] = &[
        ("sum_int", |g, _| g.iter().sum()),
        ("product_int", |g, _| g.iter().fold(1, |a, &b| a.wrapping_mul(b))),
        ("min_int", |g, _| g.iter().copied().min().unwrap()),
        ("max_int", |g, _| g.iter().copied().max().unwrap()),
        ("and_int", |g, _| g.iter().fold(-1, |a, b| a & b)),
        ("or_int", |g, _| g.iter().fold(0, |a, b| a | b)),
        ("xor_int", |g, _| g.iter().fold(0, |a, b| a ^ b)),
        ("prefix_inclusive_int", |g, l| g[..=l].iter().sum()),
        ("prefix_exclusive_int", |g, l| g[..l].iter().sum()),
        ("prefix_inclusive_product_int", |g, l| g[..=l].iter().fold(1, |a, &b| a.wrapping_mul(b))),
        ("prefix_exclusive_product_int", |g, l| g[..l].iter().fold(1, |a, &b| a.wrapping_mul(b))),
        ("broadcast_int", |g, _| g[9]),
        ("broadcast_first_int", |g, _| g[0]),
        ("shuffle_up_int", |g, l| pick(g, l, l as i64 - 3)),
        ("any_int", |g, _| i32::from(g.contains(&5))),
        ("all_int", |g, _| i32::from(g.iter().all(|&x| x < 1000))),
        ("ballot_int", |g, _| g.iter().enumerate().fold(0, |m, (i, x)| m | ((x & 1) << i))),
        ("active_int", |g, _| if g.len() == 32 { -1 } else { (1 << g.len()) - 1 }),
        ("first_int", |_, l| i32::from(l == 0)),
        ("quad_sum_int", |g, l| quad(g, l).iter().sum()),
        ("quad_max_int", |g, l| quad(g, l).iter().copied().max().unwrap()),
        ("quad_broadcast_int", |g, l| quad(g, l)[2]),
        ("quad_xor_int", |g, l| quad(g, l)[l & 3 ^ 1]),
        ("quad_up_int", |g, l| quad(g, l)[(l & 3).saturating_sub(1)]),
        ("quad_down_int", |g, l| quad(g, l)[(l & 3) + usize::from(l & 3 < 3)]),
        ("quad_rotate_down_int", |g, l| quad(g, l)[(l + 1) & 3]),
        ("quad_prefix_int", |g, l| quad(g, l)[..=l & 3].iter().sum()),
        ("quad_all_int", |g, l| i32::from(quad(g, l).iter().all(|&x| x >= 4))),
        ("quad_ballot_int", |g, l| quad(g, l).iter().enumerate().fold(0, |m, (i, x)| m | ((x & 1) << i))),
    ];
    for (kernel, expected) in cases {
        let found = run(&lab, kernel, &input);
        for (number, group) in input.chunks(32).enumerate() {
            for lane in 0..group.len() {
                assert_eq!(
                    found[number * 32 + lane],
                    expected(group, lane),
                    "{kernel}, SIMD-group {number}, lane {lane}"
                );
            }
        }
    }
    // These read lanes that a partial SIMD-group does not have, so only whole groups count.
    let whole: &[(&str, Expected)] = &[
        ("shuffle_int", |g, l| g[l * 7 % 32]),
        ("shuffle_xor_int", |g, l| g[l ^ 5]),
        ("shuffle_down_int", |g, l| pick(g, l, l as i64 + 3)),
        ("rotate_up_int", |g, l| g[(l + 29) % 32]),
        ("rotate_down_int", |g, l| g[(l + 3) % 32]),
        ("fill_up_int", |g, l| if l < 3 { 1000 + g[l + 29] } else { g[l - 3] }),
        ("fill_down_int", |g, l| if l > 28 { 1000 + g[l - 29] } else { g[l + 3] }),
        ("fill_up_8_int", |g, l| if l % 8 < 3 { 1000 + g[l + 5] } else { g[l - 3] }),
        ("fill_down_8_int", |g, l| if l % 8 > 4 { 1000 + g[l - 5] } else { g[l + 3] }),
    ];
    for (kernel, expected) in whole {
        let found = run(&lab, kernel, &input);
        for (number, group) in input.chunks_exact(32).enumerate() {
            for lane in 0..32 {
                assert_eq!(
                    found[number * 32 + lane],
                    expected(group, lane),
                    "{kernel}, SIMD-group {number}, lane {lane}"
                );
            }
        }
    }
}

#[test]
fn float_sums_are_close_and_the_same_on_all_lanes() {
    let lab = Lab::new("simd.metal", SOURCE);
    let values = noise(3, 64);
    let (input, output) = (lab.buffer(&values), lab.buffer(&[0f32; 64]));
    lab.launch("sum_float")
        .buffer(0, &input)
        .buffer(1, &output)
        .threads(Size::width(64), Size::width(64))
        .unwrap();
    for (group, sums) in values.chunks(32).zip(read::<f32>(&output).chunks(32)) {
        let expected: f64 = group.iter().map(|&x| f64::from(x)).sum();
        assert!((f64::from(sums[0]) - expected).abs() < 1e-5, "{} {expected}", sums[0]);
        assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()));
    }
}

#[test]
fn vectors_are_reduced_and_shuffled_by_component() {
    let lab = Lab::new("simd.metal", SOURCE);
    let values: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let (input, output) = (lab.buffer(&values), lab.buffer(&[0f32; 128]));
    lab.launch("sum_float4")
        .buffer(0, &input)
        .buffer(1, &output)
        .threads(Size::width(32), Size::width(32))
        .unwrap();
    let expected: Vec<f32> = (0..4).map(|c| (0..32).map(|i| values[i * 4 + c]).sum()).collect();
    assert!(read::<f32>(&output).chunks(4).all(|sums| sums == expected));

    let halves: Vec<half::f16> = values.iter().map(|&x| half::f16::from_f32(x)).collect();
    let (input, output) = (lab.buffer(&halves), lab.buffer(&vec![half::f16::ZERO; 128]));
    lab.launch("shuffle_half4")
        .buffer(0, &input)
        .buffer(1, &output)
        .threads(Size::width(32), Size::width(32))
        .unwrap();
    let found = read::<half::f16>(&output);
    assert!((0..128).all(|i| found[i] == halves[i ^ 64]));
}

#[test]
fn diverged_threads_only_meet_their_own_kind() {
    let lab = Lab::new("simd.metal", SOURCE);
    let input: Vec<i32> = (0..80).collect();
    let found = run(&lab, "divergent_sum", &input);
    for (number, group) in input.chunks(32).enumerate() {
        for lane in 0..group.len() {
            let expected: i32 =
                if lane < 10 { group[..10].iter().sum() } else { -group[10..].iter().sum::<i32>() };
            assert_eq!(found[number * 32 + lane], expected);
        }
    }
}

#[test]
fn threads_that_leave_a_loop_meet_again_after_it() {
    let lab = Lab::new("simd.metal", SOURCE);
    let found = run(&lab, "divergent_loop", &[0; 80]);
    for (lane, &value) in found[..32].iter().enumerate() {
        let in_loop: i32 = (0..=lane as i32).map(|step| 32 - step).sum();
        assert_eq!(value, in_loop + 32_000, "lane {lane}");
    }
}

#[test]
fn threads_that_returned_do_not_count() {
    let lab = Lab::new("simd.metal", SOURCE);
    let found = run(&lab, "early_return", &[0; 80]);
    for (lane, &value) in found[..32].iter().enumerate() {
        assert_eq!(value, if lane % 3 == 0 { 0 } else { 21 });
    }
}
