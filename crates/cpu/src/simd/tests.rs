//! Every level gives the bits of the scalar reference.

use super::*;
use crate::pack::{Arena, Layout, Packed};
use crate::pool::Pool;
use crate::simd::attention::Elements;
use half::f16;
use std::hint::black_box;

/// Pseudo-random numbers (Knuth's multiplier), the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// In -1 to 1.
    pub(super) fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Where the half-precision scales of a block are.
fn scale_offsets(format: Format) -> &'static [usize] {
    use Format::*;
    match format {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        Q6_K => &[208],
        F32 | F16 | BF16 | Q8_K | MXFP4 => &[],
    }
}

/// Blocks of random bits with ordinary scales.
pub(crate) fn random_weights(format: Format, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let len = rows * format.row_bytes(cols).unwrap();
    let mut bytes: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &offset in scale_offsets(format) {
            let scale = f16::from_f32(random.float() * 0.02);
            block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if format == Format::MXFP4 {
            block[0] = 118 + block[0] % 8;
        }
    }
    bytes
}

pub(super) fn dot_formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| blocks::is_dot_format(*format))
}

/// The levels other than the reference that this processor has.
pub(crate) fn levels() -> impl Iterator<Item = &'static Kernels> {
    SimdLevel::ALL.into_iter().filter(|level| *level != SimdLevel::Scalar).filter_map(Kernels::of)
}

/// The same, and tables that emulate the dot products of levels that it may lack.
pub(super) fn dot_levels() -> impl Iterator<Item = &'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    let emulated = vnni::emulated::tables();
    #[cfg(not(target_arch = "x86_64"))]
    let emulated = std::iter::empty();
    levels().chain(emulated)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

pub(super) fn quantised(kernels: &Kernels, x: &[f32], cols: usize) -> QuantMatrix {
    let mut matrix = QuantMatrix::default();
    matrix.fill(kernels, &mut Pool::new(Some(1)).unwrap(), x, cols).unwrap();
    matrix
}

pub(super) fn packed(format: Format, weights: &[u8], [rows, cols]: [usize; 2]) -> Packed {
    let mut pool = Pool::new(Some(2)).unwrap();
    Packed::new(
        &scalar::KERNELS,
        &mut pool,
        &mut Arena::default(),
        format,
        Layout::of(format).unwrap(),
        [rows, cols],
        weights,
    )
    .unwrap()
}

fn tile(
    kernels: &Kernels,
    format: Format,
    weights: &[u8],
    cols: usize,
    x: &QuantMatrix,
    rows: usize,
    packed: Option<&Packed>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * x.rows()];
    let to = Out::new(&mut out, x.rows(), rows);
    let packed = packed.map(Packed::view);
    let tile = DotTile { format, weights, packed, cols, activations: x, out: to };
    // SAFETY: all results are inside `out`, and the table is for this processor.
    unsafe { (kernels.dot_tile)(&tile, 0..rows, 0..x.rows(), &mut Panel::default()) };
    out
}

#[test]
fn the_names_of_all_levels_are_listed() {
    let mut listed: Vec<&str> =
        SimdLevel::NAMES.split([',', ' ']).filter(|w| !["", "or"].contains(w)).collect();
    let mut names: Vec<&str> = SimdLevel::ALL.into_iter().map(SimdLevel::name).collect();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names);
}

#[test]
fn every_level_has_its_own_table() {
    for level in SimdLevel::ALL {
        let found = Kernels::of(level).map(|kernels| kernels.level);
        assert_eq!(found, level.is_available().then_some(level), "{level}");
    }
    assert!(SimdLevel::Scalar.is_available() && SimdLevel::detect().is_available());
    let best = SimdLevel::ALL.into_iter().find(|level| level.is_available());
    assert_eq!(Some(SimdLevel::detect()), best);
}

#[test]
fn dot_tiles_have_the_bits_of_the_reference() {
    for kernels in dot_levels() {
        for format in dot_formats() {
            let widths: &[usize] = if format.block_len() == 256 { &[256, 768] } else { &[32, 96, 256, 896] };
            for &cols in widths {
                let few = (1..=9).map(|tokens| (8 * tokens - 5, tokens));
                for (rows, tokens) in few.chain([(1, 1), (8, 4), (16, 1), (9, 33), (35, 8), (33, 33)]) {
                    let weights = random_weights(format, rows, cols, (rows * tokens + cols) as u64);
                    let x = Random(3).floats(tokens * cols);
                    let x = quantised(&scalar::KERNELS, &x, cols);
                    let expected = tile(&scalar::KERNELS, format, &weights, cols, &x, rows, None);
                    let packed = packed(format, &weights, [rows, cols]);
                    let what = format!("{} {format} {rows} x {cols}, {tokens} tokens", kernels.level);
                    assert!(expected.iter().all(|y| y.is_finite()), "{what}");
                    for packed in [None, Some(&packed)] {
                        let found = tile(kernels, format, &weights, cols, &x, rows, packed);
                        assert_eq!(bits(&found), bits(&expected), "{what}, packed: {}", packed.is_some());
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_blocks_do_not_overflow() {
    // The largest quants, scales and activations of every sign.
    for kernels in dot_levels() {
        for format in dot_formats() {
            let cols = 256;
            for fill in [0x00, 0x7f, 0x80, 0xff, 0x88, 0x77] {
                let mut weights = vec![fill; 8 * format.row_bytes(cols).unwrap()];
                for block in weights.chunks_exact_mut(format.block_bytes()) {
                    for &offset in scale_offsets(format) {
                        block[offset..offset + 2].copy_from_slice(&f16::ONE.to_le_bytes());
                    }
                }
                for (sign, tokens) in [(1.0, 4), (-1.0, 4), (1.0, 15), (-1.0, 15)] {
                    let x = quantised(&scalar::KERNELS, &vec![sign; tokens * cols], cols);
                    let expected = tile(&scalar::KERNELS, format, &weights, cols, &x, 8, None);
                    let found = tile(kernels, format, &weights, cols, &x, 8, None);
                    assert_eq!(bits(&found), bits(&expected), "{} {format} {fill:#x}", kernels.level);
                }
            }
        }
    }
}

#[test]
fn quantised_activations_have_the_bits_of_the_reference() {
    let mut x = Random(5).floats(4096);
    x[40] = 1e-35;
    x[64..96].fill(0.0);
    x[96..128].fill(1e-38);
    x[130] = f32::NAN;
    x[170] = f32::INFINITY;
    x[200] = -1e30;
    let reference = quantised(&scalar::KERNELS, &x, 2048);
    for kernels in levels() {
        let found = quantised(kernels, &x, 2048);
        for row in 0..2 {
            let (a, b) = (found.row(row), reference.row(row));
            assert_eq!((a.q, bits(a.d), bits(a.s)), (b.q, bits(b.d), bits(b.s)));
            assert_eq!((a.sums, a.half_sums), (b.sums, b.half_sums));
        }
    }
    let row = reference.row(0);
    assert_eq!((row.d[2], row.d[3]), (0.0, 0.0));
    assert!(row.d[4].is_nan() && row.d[5].is_nan());
    for (b, block) in x[..2048].chunks(32).enumerate().filter(|(b, _)| !(2..6).contains(b)) {
        for (i, &v) in block.iter().enumerate() {
            let back = f32::from(row.q[32 * b + i]) * row.d[b];
            assert!((back - v).abs() <= row.d[b] * 0.5001, "{b} {i}");
        }
        let sum = |from: std::ops::Range<usize>, two: usize| -> i16 {
            from.filter(|i| i % 4 / 2 == two).map(|i| -i16::from(row.q[32 * b + i])).sum()
        };
        assert_eq!(row.sums[2 * b..][..2], [sum(0..32, 0), sum(0..32, 1)]);
        let halves = [sum(0..16, 0), sum(0..16, 1), sum(16..32, 0), sum(16..32, 1)];
        assert_eq!(row.half_sums[4 * b..][..4], halves);
        assert_eq!(row.s[b], -row.d[b] * f32::from(halves.iter().sum::<i16>()));
    }
}

/// Runs `kernel` with each level's table and compares the bits of the results.
fn compare(what: &str, kernel: impl Fn(&Kernels) -> Vec<f32>) {
    let expected = kernel(&scalar::KERNELS);
    for kernels in levels() {
        assert_eq!(bits(&kernel(kernels)), bits(&expected), "{what} {}", kernels.level);
    }
}

#[test]
fn float_kernels_have_the_bits_of_the_reference() {
    for n in [1, 7, 8, 31, 64, 80, 576, 1000] {
        let (a, b) = (Random(n as u64).floats(n), Random(n as u64 + 1).floats(n));
        let (a, b): (Vec<f32>, Vec<f32>) = (a.iter().map(|v| v * 20.0).collect(), b);
        let unary = |what: &str, f: &dyn Fn(&Kernels, *mut f32)| {
            compare(&format!("{what} {n}"), |kernels| {
                let mut out = vec![0.0; n];
                f(kernels, out.as_mut_ptr());
                out
            });
        };
        let (a, b) = (a.as_ptr(), b.as_ptr());
        // SAFETY: all pointers are valid for n floats.
        unsafe {
            unary("add", &|k, y| (k.add)(y, a, b, n));
            unary("mul", &|k, y| (k.mul)(y, a, b, n));
            unary("scale", &|k, y| (k.scale)(y, a, 0.3, n));
            unary("soft cap", &|k, y| (k.soft_cap)(y, a, 5.0, n));
            for kind in [Activation::Silu, Activation::Gelu, Activation::Sigmoid] {
                unary("activation", &|k, y| (k.activation)(y, a, kind, n));
                unary("gated", &|k, y| (k.gated)(y, a, b, kind, n));
            }
            let op = ClampedSwiGlu { alpha: 1.702, limit: 7.0 };
            unary("clamped SwiGLU", &|k, y| (k.clamped_swiglu)(y, a, b, n, op));
            unary("rms norm", &|k, y| (k.rms_norm)(y, a, b, n, 1e-6));
            unary("rms norm without weight", &|k, y| (k.rms_norm)(y, a, std::ptr::null(), n, 1e-6));
            unary("softmax", &|k, y| (k.softmax)(y, a, 0.7, n));
            if n % 2 == 0 {
                unary("rope", &|k, y| (k.rope_split)(y, a, b, b.add(n / 2), n / 2));
                unary("rope", &|k, y| (k.rope_interleaved)(y, a, b, b.add(n / 2), n / 2));
            }
            unary("dot1", &|k, y| *y = (k.dot1)(a, [b], n)[0]);
            if n >= 4 {
                unary("dot4", &|k, y| {
                    y.cast::<[f32; 4]>().write_unaligned((k.dot4)(a, [a, b, b, a], n));
                });
            }
        }
    }
}

/// Random rows of a cache.
fn cached(elements: Elements, len: usize, dim: usize, distance: usize) -> Vec<u8> {
    let format = match elements {
        Elements::F32 => Format::F32,
        Elements::F16 => Format::F16,
        Elements::BF16 => Format::BF16,
        Elements::Q8_0 => Format::Q8_0,
    };
    let mut bytes = vec![0; (len * distance).saturating_sub(distance - elements.bytes(dim))];
    for row in 0..len {
        let to = &mut bytes[row * distance..][..elements.bytes(dim)];
        quant::encode(format, &Random(row as u64).floats(dim), to).unwrap();
    }
    bytes
}

#[test]
fn attention_kernels_have_the_bits_of_the_reference() {
    for elements in [Elements::F32, Elements::F16, Elements::BF16, Elements::Q8_0] {
        for (len, dim) in [(1, 64), (2, 32), (3, 64), (8, 64), (13, 128), (70, 96), (5, 256), (0, 64)] {
            // Rows with something between them, and the last without.
            let distance = elements.bytes(dim) + 6;
            let data = cached(elements, len, dim, distance);
            let rows = KvRows::new(&data, distance, len, dim, elements);
            for heads in 1..10 {
                let queries = Random(1).floats(heads * dim);
                let what = format!("{elements:?} {len} {dim} {heads}");
                compare(&format!("scores {what}"), |kernels| {
                    let mut scores = vec![9.0; heads * 80];
                    // SAFETY: the table is for this processor.
                    unsafe { (kernels.scores)(Rows { data: &mut scores, stride: 80 }, &queries, &rows) };
                    scores
                });
                let weights = Random(3).floats(heads * 75);
                compare(&format!("weighted sum {what}"), |kernels| {
                    let mut sums = Random(5).floats(heads * (dim + 3));
                    let to = Rows { data: &mut sums, stride: dim + 3 };
                    // SAFETY: the table is for this processor.
                    unsafe { (kernels.weighted_sum)(to, heads, &weights, 75, &rows) };
                    sums
                });
            }
        }
    }
    for dim in [8, 40, 72] {
        let data = cached(Elements::F16, 9, dim, 2 * dim);
        let rows = KvRows::new(&data, 2 * dim, 9, dim, Elements::F16);
        compare("widths that are not a multiple of the blocks", |kernels| {
            let mut sums = vec![0.0; 4 * dim];
            // SAFETY: the table is for this processor.
            unsafe {
                let to = Rows { data: &mut sums, stride: dim };
                (kernels.weighted_sum)(to, 4, &Random(3).floats(36), 9, &rows);
                (kernels.scores)(Rows { data: &mut sums[3..], stride: 9 }, &Random(4).floats(dim), &rows);
            }
            sums
        });
    }
    for n in [1, 2, 7, 8, 9, 250, 256] {
        compare("exp scores", |kernels| {
            let mut scores: Vec<f32> = Random(6).floats(n).into_iter().map(|v| v * 60.0).collect();
            scores[0] = f32::NEG_INFINITY;
            // SAFETY: the table is for this processor.
            let (top, sum) = unsafe { (kernels.exp_scores)(&mut scores) };
            scores.extend([top, sum]);
            scores
        });
        compare("axpby", |kernels| {
            let mut out = Random(7).floats(n);
            // SAFETY: the table is for this processor.
            unsafe { (kernels.axpby)(&mut out, 0.25, &Random(8).floats(n), 0.7) };
            out
        });
    }
}

#[test]
fn nothing_but_minus_infinity_has_no_weight() {
    let mut scores = [f32::NEG_INFINITY; 5];
    assert_eq!(float::exp_scores(&mut scores), (f32::NEG_INFINITY, 0.0));
    assert_eq!(scores, [0.0; 5]);
    assert!(float::exp_scores(&mut [1.0, f32::NAN]).1.is_nan());
    for kernels in levels() {
        for special in [f32::NEG_INFINITY, f32::NAN, f32::INFINITY] {
            for n in [5, 16] {
                let mut scores = vec![f32::NEG_INFINITY; n];
                scores[3] = special;
                let mut expected = scores.clone();
                // SAFETY: the table is for this processor.
                let found = unsafe { (kernels.exp_scores)(&mut scores) };
                let (top, sum) = float::exp_scores(&mut expected);
                assert_eq!(format!("{found:?} {scores:?}"), format!("{:?} {expected:?}", (top, sum)));
            }
        }
    }
}

#[test]
fn conversions_have_the_bits_of_the_reference() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    compare("from f16", |kernels| {
        let mut out = vec![0.0; 65536];
        // SAFETY: the table is for this processor.
        unsafe { (kernels.f16_to_f32)(&mut out, &all) };
        // The payload of a signalling NaN may be kept or not.
        out.into_iter().map(|v| if v.is_nan() { f32::NAN } else { v }).collect()
    });
    compare("from bf16", |kernels| {
        let mut out = vec![0.0; 65536];
        // SAFETY: the table is for this processor.
        unsafe { (kernels.bf16_to_f32)(&mut out, &all) };
        out
    });
    let mut random = Random(9);
    let x: Vec<f32> = (0..10_003).map(|_| f32::from_bits(random.bits())).filter(|x| !x.is_nan()).collect();
    for to in [|k: &Kernels| k.f32_to_f16, |k: &Kernels| k.f32_to_bf16] {
        let encode = |kernels: &Kernels| {
            let mut out = vec![0; 2 * x.len()];
            // SAFETY: the table is for this processor.
            unsafe { to(kernels)(&mut out, &x) };
            out
        };
        let expected = encode(&scalar::KERNELS);
        for kernels in levels() {
            assert_eq!(black_box(encode(kernels)), expected);
        }
    }
}
