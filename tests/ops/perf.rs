//! Speed of the operations that matter. Nothing is asserted, since a number means something only on a quiet machine, so
//! this runs only when asked for:
//!
//!     cargo test --release -p smelt-tests --test ops perf -- --ignored --nocapture
//!
//! `SMELT_OP_PERF` set to a part of the lines wanted, such as `Q4_K`, leaves out the others.

use crate::attention::{Scene, attention};
use crate::harness::*;
use graph::ops::MatMul;
use graph::{DType, Op, Shape};
use quant::Format;

#[test]
#[ignore = "measures, and asserts nothing: see the top of perf.rs"]
fn speed_of_products_and_attention() {
    let filter = std::env::var("SMELT_OP_PERF").unwrap_or_default();
    let wanted = |line: &str| line.contains(&filter);
    let (rows, cols) = (4864, 1024);
    for mut tested in backends().into_iter().filter(|tested| tested.quantised) {
        for format in Format::ALL.into_iter().filter(|format| *format != Format::Q8_K) {
            let weights =
                std::cell::LazyCell::new(|| random_weights(format, rows, cols, &mut Random::new(1)));
            for tokens in [1, 4, 128] {
                let what = format!("{} {format} {tokens} tokens", tested.name);
                if !wanted(&what) || tested.name.contains("scalar") && tokens > 1 {
                    continue;
                }
                let x = Random::new(2).floats(tokens * cols);
                let mut seconds = f64::MAX;
                // The node alone: making the case costs more than running it.
                for _ in 0..7 {
                    let mut case = Case::new(tested.backend.as_mut(), &params(1));
                    let input = case.floats(Shape::new(tokens, cols), &x);
                    let weight = case.weight("w", format, rows, cols, weights.clone());
                    case.run_in_place(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input])
                        .unwrap();
                    seconds = seconds.min(case.seconds);
                }
                let work = 2.0 * (rows * cols * tokens) as f64 / seconds / 1e9;
                let read = weights.len() as f64 / seconds / 1e9;
                println!("{what}: {work:.1} GFLOP/s, {read:.1} GB/s");
            }
        }
        for (name, heads, kv_heads, dim, sequence) in [
            ("decode at 4096", 14, 2, 64, (4096, 1)),
            ("prefill of 512", 14, 2, 64, (512, 512)),
            ("decode at 4096", 4, 1, 256, (4096, 1)),
        ] {
            let what = format!("{} attention, {name}, {heads} heads of {dim}", tested.name);
            if !wanted(&what) {
                continue;
            }
            let scene = Scene::new(attention(heads, kv_heads, dim, None), DType::F16, 32, &[sequence], 1);
            let runs = (0..7).map(|_| scene.timed(tested.backend.as_mut()).unwrap().1);
            let seconds = runs.fold(f64::MAX, f64::min);
            println!("{what}: {:.0} us", seconds * 1e6);
        }
    }
}
