//! Every level gives the bits of the scalar reference for any shape, and for any numbers: infinities, values that are no
//! numbers, denormal ones. (Of a NaN only that it is one: which payload an operation keeps is the processor's choice.)

use super::tests::{Random, dot_formats, dot_levels, levels, packed, quantised, random_weights};
use super::*;
use crate::simd::attention::Elements;
use proptest::prelude::*;

/// What results are before they are written.
const UNTOUCHED: f32 = 12345.678;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// Floats between -1 and 1, of any bits, or (most often) some of both.
fn floats(random: &mut Random, n: usize, wild: u32) -> Vec<f32> {
    (0..n)
        .map(|_| if random.bits() % 16 < wild { f32::from_bits(random.bits()) } else { random.float() })
        .collect()
}

/// Compares the results of a kernel, which `kernel` writes over as many values.
fn compare(what: &str, n: usize, kernel: impl Fn(&Kernels, &mut [f32])) -> Result<(), TestCaseError> {
    let run = |kernels: &Kernels| {
        let mut out = vec![UNTOUCHED; n];
        kernel(kernels, &mut out);
        bits(&out)
    };
    let expected = run(&scalar::KERNELS);
    for kernels in levels() {
        prop_assert_eq!(run(kernels), expected.clone(), "{} {}", kernels.level, what);
    }
    Ok(())
}

/// A part of `0..n`.
fn part(random: &mut Random, n: usize) -> Range<usize> {
    let (a, b) = (random.bits() as usize % (n + 1), random.bits() as usize % (n + 1));
    a.min(b)..a.max(b)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn parts_of_products(
        format in proptest::sample::select(dot_formats().collect::<Vec<_>>()),
        rows in 1usize..45,
        units in 1usize..7,
        tokens in 0usize..24,
        any_bits in any::<bool>(),
        wild in prop::sample::select(vec![0, 0, 1]),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let cols = format.block_len() * if format.block_len() == 256 { units.div_ceil(3) } else { units };
        let mut weights = random_weights(format, rows, cols, seed);
        if any_bits {
            weights.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        }
        let x = quantised(&scalar::KERNELS, &floats(&mut random, tokens * cols, wild), cols);
        let packed = packed(format, &weights, [rows, cols]);
        // Whole groups, the last of which may be cut short, and any tokens.
        let groups = part(&mut random, rows.div_ceil(8) - 1);
        let some_rows = 8 * groups.start..(8 * groups.end + 8).min(rows);
        let some_tokens = part(&mut random, tokens);
        let run = |kernels: &Kernels, packed| {
            let mut out = vec![UNTOUCHED; rows * tokens];
            let to = Out::new(&mut out, tokens, rows);
            let tile = DotTile { format, weights: &weights, packed, cols, activations: &x, out: to };
            let mut panel = Panel::default();
            // SAFETY: all results are inside `out`, and the table is for this processor.
            unsafe { (kernels.dot_tile)(&tile, some_rows.clone(), some_tokens.clone(), &mut panel) };
            bits(&out)
        };
        let expected = run(&scalar::KERNELS, None);
        for kernels in dot_levels() {
            for packed in [None, Some(packed.view())] {
                let found = run(kernels, packed);
                prop_assert_eq!(found, expected.clone(), "{} packed: {}", kernels.level, packed.is_some());
            }
        }
    }

    #[test]
    fn float_kernels(n in 0usize..300, wild in 0u32..5, factor in any::<f32>(), seed in any::<u64>()) {
        let mut random = Random(seed);
        let size = [1.0, 30.0, 1e18, 3e38][random.bits() as usize % 4];
        let a: Vec<f32> = floats(&mut random, n, wild).iter().map(|v| v * size).collect();
        let b = floats(&mut random, n, wild);
        let (x, w) = (a.as_ptr(), b.as_ptr());
        // SAFETY: the pointers are valid for n floats, and the tables are for this processor.
        unsafe {
            compare("add", n, |k, y| (k.add)(y.as_mut_ptr(), x, w, n))?;
            compare("mul", n, |k, y| (k.mul)(y.as_mut_ptr(), x, w, n))?;
            compare("scale", n, |k, y| (k.scale)(y.as_mut_ptr(), x, factor, n))?;
            compare("soft cap", n, |k, y| (k.soft_cap)(y.as_mut_ptr(), x, factor.abs(), n))?;
            compare("softmax", n, |k, y| (k.softmax)(y.as_mut_ptr(), x, 0.7, n))?;
            compare("rms norm", n, |k, y| (k.rms_norm)(y.as_mut_ptr(), x, w, n, 1e-6))?;
            let none = std::ptr::null();
            compare("rms norm without weight", n, |k, y| (k.rms_norm)(y.as_mut_ptr(), x, none, n, 0.0))?;
            for kind in [Activation::Silu, Activation::Gelu, Activation::Sigmoid] {
                compare("activation", n, |k, y| (k.activation)(y.as_mut_ptr(), x, kind, n))?;
                compare("gated", n, |k, y| (k.gated)(y.as_mut_ptr(), x, w, kind, n))?;
            }
            let op = ClampedSwiGlu { alpha: factor, limit: 7.0 };
            compare("clamped SwiGLU", n, |k, y| (k.clamped_swiglu)(y.as_mut_ptr(), x, w, n, op))?;
            let pairs = n / 2;
            let (cos, sin) = (w, w.wrapping_add(pairs));
            compare("rope", n, |k, y| (k.rope_split)(y.as_mut_ptr(), x, cos, sin, pairs))?;
            compare("rope", n, |k, y| (k.rope_interleaved)(y.as_mut_ptr(), x, cos, sin, pairs))?;
            compare("dot1", 1, |k, y| y.copy_from_slice(&(k.dot1)(x, [w], n)))?;
            compare("dot4", 4, |k, y| y.copy_from_slice(&(k.dot4)(x, [w, x, w, w], n)))?;
            compare("axpby", n, |k, y| (k.axpby)(y, factor, &a, 0.3))?;
        }
        compare("exp scores", n + 2, |k, y| {
            y[..n].copy_from_slice(&a);
            // SAFETY: the table is for this processor.
            let (top, sum) = unsafe { (k.exp_scores)(&mut y[..n]) };
            // Which zero is the largest is left open: both have the same exponential.
            y[n..].copy_from_slice(&[top + 0.0, sum]);
        })?;
    }

    #[test]
    fn quantised_activations(blocks in 0usize..9, rows in 1usize..4, wild in 0u32..4, seed in any::<u64>()) {
        let mut random = Random(seed);
        let size = [1.0, 1e-37, 3e38][random.bits() as usize % 3];
        let x: Vec<f32> = floats(&mut random, rows * 32 * blocks, wild).iter().map(|v| v * size).collect();
        let expected = quantised(&scalar::KERNELS, &x, 32 * blocks);
        for kernels in levels() {
            let found = quantised(kernels, &x, 32 * blocks);
            prop_assert_eq!(found.rows(), expected.rows());
            for row in 0..found.rows() {
                let (a, b) = (found.row(row), expected.row(row));
                prop_assert_eq!((a.q, bits(a.d), bits(a.s)), (b.q, bits(b.d), bits(b.s)), "{}", kernels.level);
                prop_assert_eq!((a.sums, a.half_sums), (b.sums, b.half_sums), "{}", kernels.level);
            }
        }
    }

    #[test]
    fn attention(
        elements in prop::sample::select(vec![Elements::F32, Elements::F16, Elements::BF16, Elements::Q8_0]),
        len in 0usize..80,
        eights in 1usize..20,
        heads in 1usize..12,
        gap in 0usize..9,
        wild in prop::sample::select(vec![0, 0, 1]),
        ahead in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let dim = if elements == Elements::Q8_0 { 32 * eights.div_ceil(4) } else { 8 * eights };
        let distance = elements.bytes(dim) + gap;
        // Not one byte more than the last row has.
        let mut data = vec![0; len.checked_sub(1).map_or(0, |before| before * distance + elements.bytes(dim))];
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = random.bits() as u8;
            // Small exponents, but for a few.
            let top_of_f32 = elements == Elements::F32 && i % distance % 4 == 3;
            if wild == 0 && (elements != Elements::F32 || top_of_f32) {
                *byte &= 0xbf;
            }
        }
        let rows = KvRows::new(&data, distance, len, dim, elements);
        let rows = if ahead { rows.fetching(data.as_ptr().wrapping_add(1 << 20)) } else { rows };
        let queries = floats(&mut random, heads * dim, wild);
        let stride = len + gap;
        compare("scores", heads * stride, |k, y| {
            // SAFETY: the table is for this processor.
            unsafe { (k.scores)(Rows { data: y, stride }, &queries, &rows) };
        })?;
        let weights = floats(&mut random, heads * stride, wild);
        compare("weighted sum", heads * (dim + gap), |k, y| {
            let to = Rows { data: y, stride: dim + gap };
            // SAFETY: the table is for this processor.
            unsafe { (k.weighted_sum)(to, heads, &weights, stride, &rows) };
        })?;
    }
}
