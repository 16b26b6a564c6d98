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

/// What runs a node.
type Run<'a> = &'a mut dyn FnMut(&mut Tested) -> Vec<f32>;

/// Runs a node where a command buffer may take so long: what it gives, its dispatches and its command buffers.
fn within(cut: Option<Duration>, switches: &Switches, run: Run<'_>) -> (Vec<f32>, [u64; 2]) {
    let backend = Box::new(metal(Switches { cut, ..switches.clone() }));
    let mut tested = Tested { name: METAL.into(), quantised: false, half: false, backend };
    let found = run(&mut tested);
    (found, counts(tested.backend.as_ref()))
}

/// Runs a node with its dispatches as they are, and as short as they can be: `dispatches` of them then. What is between, where the
/// last is the shortest, gives the same bits, too.
#[track_caller]
fn judge(what: &str, switches: Switches, dispatches: u64, mut run: impl FnMut(&mut Tested) -> Vec<f32>) {
    let mut with = |cut| within(cut, &switches, &mut run);
    let (whole, whole_counts) = with(None);
    let (cut, cut_counts) = with(Some(Duration::from_nanos(1)));
    assert_eq!(cut_counts, [dispatches, dispatches], "{what}");
    assert!(whole_counts[0] < dispatches && whole_counts[1] == 1, "{what}: {whole_counts:?}");
    assert!(whole == cut, "{what}: other bits");
    assert!(whole.iter().all(|x| x.is_finite()), "{what}: no numbers");
    for nanoseconds in [150, 450, 1200] {
        let (found, _) = with(Some(Duration::from_nanos(nanoseconds)));
        assert!(whole == found, "{what}: other bits where {nanoseconds} ns are one dispatch");
    }
}

fn product(tested: &mut Tested, format: Format, [tokens, rows, cols]: [usize; 3]) -> Vec<f32> {
    let mut random = Random::new(7);
    let mut case = Case::new(tested.backend.as_mut(), &params(1));
    let x = case.floats(Shape::new(tokens, cols), &random.floats(tokens * cols));
    let weight = case.weight("w", format, rows, cols, random_weights(format, rows, cols, &mut random));
    let bias = Some(case.vector("b", &random.floats(rows)));
    case.run(Op::MatMul(MatMul { weight, bias, logits: false }), &[x])
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
            product(tested, format, [tokens, rows, cols])
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

/// Of many tokens the operations take the time, several times that of the bytes, so that each dispatch is a command buffer: the
/// first takes the grouping in, which is nothing. Of one token it is the bytes, so that its join is in its command buffer.
#[test]
fn operations_of_many_tokens_and_bytes_of_one_take_time() {
    let attention = |sequence, heads| {
        let scene = attention::Scene::new(attention(heads, 1, 64, None), DType::F16, 16, &[sequence], 5);
        move |tested: &mut Tested| scene.run(tested.backend.as_mut()).unwrap()
    };
    let products = |tested: &mut Tested| product(tested, Format::Q4_0, [64, 256, 256]);
    let experts =
        |tested: &mut Tested| experts::Scene::new(Format::Q4_0, [3, 2, 40], [256, 256]).run(tested).unwrap();
    let cases: [(_, _, _, Run<'_>, _); 5] = [
        ("tiles", true, 5000, &mut { products }, [2, 2]),
        ("no tiles", false, 5000, &mut { products }, [2, 2]),
        ("experts", true, 5000, &mut { experts }, [7, 6]),
        ("queries", true, 10_000, &mut attention((160, 160), 8), [6, 6]),
        ("a query", true, 3500, &mut attention((512, 1), 16), [2, 1]),
    ];
    for (what, gemm, nanoseconds, run, expected) in cases {
        let switches = Switches { gemm, ..Switches::default() };
        let (_, found) = within(Some(Duration::from_nanos(nanoseconds)), &switches, run);
        assert_eq!(found, expected, "dispatches and command buffers of {what}");
    }
}
