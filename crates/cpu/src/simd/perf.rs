//! Speed of the integer dot products of every level that the processor has, side by side, on one thread. Nothing is
//! asserted, since a number means something only on a quiet machine, so this runs only when asked for:
//!
//!     cargo test --release -p smelt-cpu speed_of_dot_tiles -- --ignored --nocapture
//!
//! `SMELT_OP_PERF=Q4_K` before it leaves only that format.

use super::tests::{Random, dot_formats, levels, packed, quantised, random_weights};
use super::*;
use crate::pool::Pool;
use std::time::Instant;

/// A matrix larger than most caches, and one token: bytes of packed weights per second.
const DECODE: (usize, usize, usize) = (32_768, 4096, 1);
/// A slice of a matrix, and a batch of a prompt: multiply-adds per second.
const PREFILL: (usize, usize, usize) = (256, 2048, 512);
/// Weight rows of a call, as in `matmul`.
const ROWS_OF_A_CALL: usize = 16;

/// The least seconds of a few products of a random matrix with random tokens, for each level.
fn seconds(format: Format, (rows, cols, tokens): (usize, usize, usize), runs: usize) -> Vec<f64> {
    let weights = random_weights(format, rows, cols, 1);
    let packed = packed(format, &weights, [rows, cols]);
    let x = quantised(&scalar::KERNELS, &Random(2).floats(tokens * cols), cols);
    let mut out = vec![0.0; rows * tokens];
    let to = Out::new(&mut out, tokens, rows);
    let tile =
        DotTile { format, weights: &weights, packed: Some(packed.view()), cols, activations: &x, out: to };
    let time = |kernels: &Kernels| {
        let mut panel = Panel::default();
        let run = |_| {
            let start = Instant::now();
            for row in (0..rows).step_by(ROWS_OF_A_CALL) {
                // SAFETY: all results are inside `out`, and the table is for this processor.
                unsafe { (kernels.dot_tile)(&tile, row..row + ROWS_OF_A_CALL, 0..tokens, &mut panel) };
            }
            start.elapsed().as_secs_f64()
        };
        (0..runs).map(run).fold(f64::MAX, f64::min)
    };
    levels().map(time).collect()
}

#[test]
#[ignore = "measures, and asserts nothing: see the top of perf.rs"]
fn speed_of_dot_tiles() {
    let filter = std::env::var("SMELT_OP_PERF").unwrap_or_default();
    let names: Vec<&str> = levels().map(|kernels| kernels.level.name()).collect();
    println!("one token in GB/s, then {} tokens in GMAC/s: {}", PREFILL.2, names.join(", "));
    for format in dot_formats().filter(|format| format.to_string().contains(&filter)) {
        let (rows, cols, _) = DECODE;
        let bytes =
            crate::pack::Layout::of(format).unwrap().group_bytes(cols / 32) * rows / crate::pack::ROWS;
        print!("{:8}", format.to_string());
        for seconds in seconds(format, DECODE, 5) {
            print!(" {:7.2}", bytes as f64 / seconds / 1e9);
        }
        print!("  |");
        let (rows, cols, tokens) = PREFILL;
        for seconds in seconds(format, PREFILL, 5) {
            print!(" {:7.1}", (rows * cols * tokens) as f64 / seconds / 1e9);
        }
        println!();
    }
}

/// Rows of tokens and columns: a step of decoding, and prompts for the widths of three models.
const NORMS: [(usize, usize); 5] = [(1, 576), (1, 896), (512, 576), (512, 896), (512, 4096)];

/// Elements that are normed and then quantised at once: as many as a job of norms hands out, which a first-level cache
/// holds.
const TOGETHER: usize = 8192;

/// What quantising rows right after their norm would save, where now a pass over all rows follows another one:
///
///     cargo test --release -p smelt-cpu speed_of_norm_and_quantise -- --ignored --nocapture
#[test]
#[ignore = "measures, and asserts nothing: see the top of perf.rs"]
fn speed_of_norm_and_quantise() {
    let kernels = Kernels::of(SimdLevel::detect()).unwrap();
    let mut pool = Pool::new(Some(1)).unwrap();
    for (rows, cols) in NORMS {
        let (x, weight) = (Random(1).floats(rows * cols), Random(2).floats(cols));
        let mut normed = vec![0.0; rows * cols];
        let mut time = |elements: usize, quantises: bool| {
            let mut quantised: Vec<QuantMatrix> =
                x.chunks(elements).map(|_| QuantMatrix::default()).collect();
            let mut run = || {
                let start = Instant::now();
                let chunks = x.chunks(elements).zip(normed.chunks_mut(elements)).zip(&mut quantised);
                for ((x, normed), quantised) in chunks {
                    for (x, y) in x.chunks(cols).zip(normed.chunks_mut(cols)) {
                        // SAFETY: rows as wide as the weight; the table is for this processor.
                        unsafe {
                            (kernels.rms_norm)(y.as_mut_ptr(), x.as_ptr(), weight.as_ptr(), cols, 1e-6)
                        };
                    }
                    if quantises {
                        quantised.fill(kernels, &mut pool, normed, cols).unwrap();
                    }
                }
                start.elapsed().as_secs_f64() * 1e6
            };
            (0..300).map(|_| run()).fold(f64::MAX, f64::min)
        };
        let (norm, apart) = (time(rows * cols, false), time(rows * cols, true));
        let together = time((TOGETHER / cols).max(1) * cols, true);
        println!(
            "{rows:4} x {cols:4}: norm {norm:.2} us, with a quantising pass {apart:.2}, together {together:.2}"
        );
    }
}
