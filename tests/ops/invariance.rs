//! On the CPU the result for a token has the same bits in every batch and with every number of threads.

use crate::harness::*;
use cpu::{Activations, SimdLevel};
use graph::ops::MatMul;
use graph::{Backend, Op, Shape};
use proptest::prelude::*;
use quant::Format;

fn product(
    backend: &mut dyn Backend,
    (format, rows, cols): (Format, usize, usize),
    logits: bool,
    weights: &[u8],
    x: &[f32],
) -> Vec<f32> {
    let mut case = Case::new(backend, &params(1));
    let input = case.floats(Shape::new(x.len() / cols, cols), x);
    let weight = case.weight("w", format, rows, cols, weights.to_vec());
    case.run(Op::MatMul(MatMul { weight, bias: None, logits }), &[input])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn products_do_not_depend_on_batch_or_threads(
        format in proptest::sample::select(
            Format::ALL.into_iter().filter(|f| *f != Format::Q8_K).collect::<Vec<_>>(),
        ),
        rows in 1usize..70,
        blocks in 1usize..12,
        tokens in 1usize..40,
        chunk in 1usize..9,
        threads in 1usize..4,
        quantised in any::<bool>(),
        logits in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let cols = if format.block_len() == 256 { 256 * (1 + blocks % 3) } else { 32 * blocks };
        let mut random = Random::new(seed);
        let weights = random_weights(format, rows, cols, &mut random);
        let x = random.floats(tokens * cols);
        let activations = if quantised { Activations::Quantized } else { Activations::F32 };
        let level = SimdLevel::detect();
        let shape = (format, rows, cols);
        let expected = product(&mut cpu(level, activations, 1), shape, logits, &weights, &x);
        let mut backend = cpu(level, activations, threads);
        prop_assert!(product(&mut backend, shape, logits, &weights, &x) == expected, "{threads} threads");
        let mut found = Vec::new();
        for x in x.chunks(chunk * cols) {
            found.extend(product(&mut backend, shape, logits, &weights, x));
        }
        prop_assert!(found == expected, "chunks of {chunk}");
    }

    #[test]
    fn levels_agree(
        format in proptest::sample::select(
            Format::ALL.into_iter().filter(|f| *f != Format::Q8_K).collect::<Vec<_>>(),
        ),
        rows in 1usize..20,
        tokens in 1usize..9,
        seed in any::<u64>(),
    ) {
        let (cols, mut random) = (512, Random::new(seed));
        let weights = random_weights(format, rows, cols, &mut random);
        let x = random.floats(tokens * cols);
        let run = |level| {
            product(&mut cpu(level, Activations::Quantized, 1), (format, rows, cols), rows % 2 == 0, &weights, &x)
        };
        prop_assert!(run(SimdLevel::detect()) == run(SimdLevel::Scalar));
    }
}

#[test]
fn attention_does_not_depend_on_threads() {
    use crate::attention::{Scene, attention};
    for (sequences, heads, window) in [
        (vec![(2000, 1)], (4, 1), None),
        (vec![(700, 40), (900, 1)], (4, 1), Some(300)),
        (vec![(3300, 1)], (6, 3), None),
        (vec![(300, 1), (20, 7), (1200, 1)], (6, 3), Some(700)),
    ] {
        let scene = Scene::new(attention(heads.0, heads.1, 64, window), graph::DType::F16, 32, &sequences, 3);
        let expected = scene.run(&mut cpu(SimdLevel::detect(), Activations::Quantized, 1)).unwrap();
        for threads in 2..5 {
            let found = scene.run(&mut cpu(SimdLevel::detect(), Activations::Quantized, threads)).unwrap();
            assert!(found == expected, "{threads} threads, {sequences:?}");
        }
        let scalar = scene.run(&mut cpu(SimdLevel::Scalar, Activations::Quantized, 1)).unwrap();
        assert!(scalar == expected, "scalar, {sequences:?}");
    }
}
