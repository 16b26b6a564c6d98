//! Nodes of the Metal backend that would take longer than a command buffer may: several dispatches, each in a command buffer of its
//! own, which give the bits of one.

use crate::attention::{self, attention};
use crate::experts;
use crate::harness::*;
use graph::ops::{Activation, FusedFfn, MatMul};
use graph::{Backend, DType, Op, Shape};
use metal::Switches;
use quant::Format;
use std::time::Duration;

/// Dispatches and command buffers since the start.
fn counts(backend: &dyn Backend) -> [u64; 2] {
    ["dispatches", "submissions"].map(|wanted| {
        let counters = backend.counters();
        counters.iter().find(|(name, _)| *name == wanted).unwrap_or_else(|| panic!("no {wanted}")).1
    })
}

/// Runs a node with all of its dispatches as they come, and as short as they can be: `dispatches` of them then.
#[track_caller]
fn judge(what: &str, switches: Switches, dispatches: u64, mut run: impl FnMut(&mut Tested) -> Vec<f32>) {
    let mut with = |cut| {
        let backend = Box::new(metal(Switches { cut, ..switches.clone() }));
        let mut tested = Tested { name: METAL.into(), quantised: false, half: false, backend };
        let found = run(&mut tested);
        (found, counts(tested.backend.as_ref()))
    };
    let (whole, whole_counts) = with(None);
    let (cut, cut_counts) = with(Some(Duration::from_nanos(1)));
    assert_eq!(cut_counts, [dispatches, dispatches], "{what}");
    assert!(whole_counts[0] < dispatches && whole_counts[1] == 1, "{what}: {whole_counts:?}");
    assert!(whole == cut, "{what}: other bits");
    assert!(whole.iter().all(|x| x.is_finite()), "{what}: no numbers");
}

/// By tokens, whole tiles of them; the last few take the kernel of the others.
#[test]
fn products_of_many_tokens() {
    let (rows, cols) = (70, 96);
    for (format, gemm, tokens, dispatches) in
        [(Format::Q4_0, true, 97, 4), (Format::F32, true, 64, 2), (Format::Q8_0, false, 70, 3)]
    {
        let what = format!("{format}, {tokens} tokens, tiles: {gemm}");
        judge(&what, Switches { gemm, ..Switches::default() }, dispatches, |tested| {
            let mut random = Random::new(7);
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let x = case.floats(Shape::new(tokens, cols), &random.floats(tokens * cols));
            let weight =
                case.weight("w", format, rows, cols, random_weights(format, rows, cols, &mut random));
            let bias = Some(case.vector("b", &random.floats(rows)));
            case.run(Op::MatMul(MatMul { weight, bias, logits: false }), &[x])
        });
    }
}

#[test]
fn gates_of_many_tokens() {
    let (rows, cols, tokens) = (40, 64, 70);
    // Three of each matrix and the activation; without tiles it is in them.
    for (gemm, dispatches) in [(true, 7), (false, 3)] {
        let what = format!("tiles: {gemm}");
        judge(&what, Switches { gemm, ..Switches::default() }, dispatches, |tested| {
            let mut random = Random::new(8);
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let x = case.floats(Shape::new(tokens, cols), &random.floats(tokens * cols));
            let weights = ["gate", "up"].map(|name| {
                let bytes = random_weights(Format::Q4_0, rows, cols, &mut random);
                case.weight(name, Format::Q4_0, rows, cols, bytes)
            });
            case.run(Op::FusedFfn(FusedFfn { weights, activation: Activation::Silu }), &[x])
        });
    }
}

/// The grouping, and then a tile after the other, those included that no choice is in.
#[test]
fn tiles_of_experts() {
    judge("experts", Switches::default(), 1 + 6, |tested| {
        let mut scene = experts::Scene::new(Format::Q4_0, [3, 2, 40], [70, 64]);
        scene.biased = true;
        scene.run(tested).unwrap()
    });
}

/// By tiles of several sequences, and by tokens.
#[test]
fn attention_of_many_queries() {
    let prompts = &[(70, 70), (40, 33), (9, 9)][..];
    let few = &[(30, 1), (50, 3), (9, 2)][..];
    for (head_dim, window, dtype, sequences, dispatches) in [
        (64, None, DType::F32, prompts, 10),
        (192, Some(20), DType::F16, prompts, 17),
        (64, None, DType::F16, few, 6),
        (40, Some(7), DType::F32, few, 6),
    ] {
        let op = attention(4, 2, head_dim, window);
        let scene = attention::Scene::new(op, dtype, 16, sequences, 5);
        let what = format!("{head_dim} columns, {} sequences", sequences.len());
        judge(&what, Switches::default(), dispatches, |tested| scene.run(tested.backend.as_mut()).unwrap());
    }
}
