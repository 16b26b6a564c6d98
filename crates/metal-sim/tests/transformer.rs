//! Kernels of a transformer against float64 references.

mod common;

use common::{Lab, nmse, noise, read};
use half::f16;
use metal::device::Size;

const SOURCE: &str = include_str!("msl/transformer.metal");

fn lab() -> Lab {
    Lab::new("transformer.metal", SOURCE)
}

fn halves(seed: u64, count: usize) -> Vec<f16> {
    noise(seed, count).into_iter().map(f16::from_f32).collect()
}

/// Blocks of 32 four-bit weights as bytes, and their values.
pub fn blocks(seed: u64, count: usize) -> (Vec<u8>, Vec<f64>) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for block in noise(seed, count * 17).chunks(17) {
        let scale = f16::from_f32(block[0]);
        bytes.extend(scale.to_ne_bytes());
        let nibbles: Vec<u8> = block[1..].iter().map(|x| ((x + 1.0) * 127.9) as u8).collect();
        bytes.extend(&nibbles);
        let value = |nibble: u8| scale.to_f64() * (f64::from(nibble) - 8.0);
        values.extend(nibbles.iter().map(|byte| value(byte & 15)));
        values.extend(nibbles.iter().map(|byte| value(byte >> 4)));
    }
    (bytes, values)
}

#[test]
fn four_bit_matrix_vector() {
    let lab = lab();
    for (rows, columns) in [(8, 64), (13, 576), (64, 1536)] {
        let (bytes, weights) = blocks(rows as u64, rows * columns / 32);
        let x = noise(5, columns);
        let y = lab.buffer(&vec![0f32; rows]);
        lab.launch("matvec_4bit")
            .buffer(0, &lab.buffer(&bytes))
            .buffer(1, &lab.buffer(&x))
            .buffer(2, &y)
            .bytes(3, &[columns as i32, rows as i32])
            .threadgroups(Size::width(rows.div_ceil(8)), Size::width(64))
            .unwrap();
        let expected: Vec<f64> = weights
            .chunks(columns)
            .map(|row| row.iter().zip(&x).map(|(w, &x)| w * f64::from(x)).sum())
            .collect();
        let error = nmse(&read(&y), &expected);
        assert!(error < 1e-11, "{rows} x {columns}: {error:e}");
    }
}

#[test]
fn rms_norm() {
    let lab = lab();
    let (rows, columns, epsilon) = (3, 576, 1e-5f32);
    let (x, weight) = (noise(1, rows * columns), noise(2, columns));
    for threads in [32, 96, 144, 1024] {
        let y = lab.buffer(&vec![0f32; rows * columns]);
        lab.launch("rms_norm")
            .buffer(0, &lab.buffer(&x))
            .buffer(1, &lab.buffer(&weight))
            .buffer(2, &y)
            .bytes(3, &[columns as u32, epsilon.to_bits()])
            .threadgroup(0, 128)
            .threadgroups(Size::width(rows), Size::width(threads))
            .unwrap();
        let expected: Vec<f64> = x
            .chunks(columns)
            .flat_map(|row| {
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
                let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
                row.iter()
                    .zip(&weight)
                    .map(move |(&x, &w)| f64::from(x) * scale * f64::from(w))
                    .collect::<Vec<_>>()
            })
            .collect();
        let error = nmse(&read(&y), &expected);
        assert!(error < 1e-12, "{threads} threads: {error:e}");
    }
}

#[test]
fn gemm_with_partial_tiles() {
    let lab = lab();
    for (m, n, k) in [(64, 32, 32), (70, 45, 100), (1, 1, 1), (130, 33, 64)] {
        let (a, b) = (halves(1, m * k), noise(2, n * k));
        let c = lab.buffer(&vec![f32::NAN; m * n]);
        lab.launch("gemm")
            .buffer(0, &lab.buffer(&a))
            .buffer(1, &lab.buffer(&b))
            .buffer(2, &c)
            .bytes(3, &[m as i32, n as i32, k as i32])
            .threadgroup(0, 64 * 32 * 4)
            .threadgroups(Size::new(n.div_ceil(32), m.div_ceil(64), 1), Size::width(128))
            .unwrap();
        let mut expected = Vec::new();
        for row in 0..m {
            for column in 0..n {
                // The kernel rounds b to half.
                let sum =
                    (0..k).map(|i| a[row * k + i].to_f64() * f16::from_f32(b[column * k + i]).to_f64()).sum();
                expected.push(sum);
            }
        }
        let error = nmse(&read(&c), &expected);
        assert!(error < 1e-11, "{m} x {n} x {k}: {error:e}");
    }
}

#[test]
fn causal_attention_with_shared_heads() {
    let lab = lab();
    let (queries, keys, heads, kv_heads, dim) = (5usize, 12usize, 6usize, 2usize, 64usize);
    let scale = 0.125f32;
    let (q, k, v) =
        (noise(1, queries * heads * dim), halves(2, keys * kv_heads * dim), halves(3, keys * kv_heads * dim));
    let out = lab.buffer(&vec![0f32; q.len()]);
    lab.launch("attention")
        .buffer(0, &lab.buffer(&q))
        .buffer(1, &lab.buffer(&k))
        .buffer(2, &lab.buffer(&v))
        .buffer(3, &out)
        .bytes(4, &[queries as u32, keys as u32, heads as u32, kv_heads as u32, scale.to_bits()])
        .threadgroups(Size::new(queries, heads, 1), Size::width(32))
        .unwrap();
    let mut expected = Vec::new();
    for query in 0..queries {
        for head in 0..heads {
            let row = |x: &[f16], key: usize, i: usize| x[(key * kv_heads + head / 3) * dim + i].to_f64();
            let visible = keys - queries + query + 1;
            let scores: Vec<f64> = (0..visible)
                .map(|key| {
                    let dot: f64 = (0..dim)
                        .map(|i| f64::from(q[(query * heads + head) * dim + i]) * row(&k, key, i))
                        .sum();
                    (dot * f64::from(scale)).exp()
                })
                .collect();
            let total: f64 = scores.iter().sum();
            expected.extend(
                (0..dim).map(|i| {
                    scores.iter().enumerate().map(|(key, s)| s * row(&v, key, i)).sum::<f64>() / total
                }),
            );
        }
    }
    let error = nmse(&read(&out), &expected);
    assert!(error < 1e-11, "{error:e}");
}
