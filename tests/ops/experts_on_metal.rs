//! Products with experts' matrices on the Metal backend: edges of tiles and of groups, and indices that are no expert's in
//! every tier.

use crate::experts::Scene;
use crate::harness::*;
use graph::{Op, Shape};
use metal::Switches;
use quant::Format;

/// Bounds of sums in f32, and of products of weights that are rounded to half precision.
const FLOAT: f64 = 1e-11;
const TILED: f64 = 1e-7;

fn metal_with(switches: Switches) -> Tested {
    Tested { name: METAL.into(), quantised: false, half: false, backend: metal_on_any(switches) }
}

/// Runs the scene. Choices whose index is no expert's have no number in their rows; the others are what they should be.
#[track_caller]
fn judge(tested: &mut Tested, what: &str, scene: &Scene, bound: f64) {
    let found = scene.run(tested).unwrap();
    let valid = |index: i32| (0..scene.experts as i32).contains(&index);
    let indices = scene.indices.iter().map(|&index| if valid(index) { index } else { 0 }).collect();
    let (bytes, bias, x) = (scene.bytes.clone(), scene.bias.clone(), scene.x.clone());
    let expected = Scene { indices, bytes, bias, x, ..*scene }.reference();
    let (mut numbers, mut references) = (Vec::new(), Vec::new());
    for ((&index, found), expected) in
        scene.indices.iter().zip(found.chunks(scene.out)).zip(expected.chunks(scene.out))
    {
        if valid(index) {
            numbers.extend_from_slice(found);
            references.extend_from_slice(expected);
        } else {
            assert!(found.iter().all(|y| y.is_nan()), "{what}: a row of index {index} has numbers");
        }
    }
    check(what, &numbers, &references, bound);
}

#[test]
fn edges_of_tiles_and_of_groups() {
    let mut tested = metal_with(Switches::default());
    for (format, cols, bound) in
        [(Format::F32, 45, FLOAT), (Format::Q4_K, 256, TILED), (Format::MXFP4, 96, FLOAT)]
    {
        for out in [1, 63, 65, 130] {
            for (i, tokens) in [9, 16, 33, 70].into_iter().enumerate() {
                let mut scene = Scene::new(format, [4, 2, tokens], [out, cols]);
                scene.biased = i % 2 == 0;
                // One expert for all, and three for none; the same, as the last one; tiles that are just full, or have one choice;
                // both choices of a token the same.
                match i {
                    0 => scene.indices.fill(2),
                    1 => scene.indices.fill(3),
                    2 => scene
                        .indices
                        .iter_mut()
                        .enumerate()
                        .for_each(|(at, index)| *index = i32::from(at >= 33)),
                    _ => scene.indices.chunks_mut(2).for_each(|pair| pair[1] = pair[0]),
                }
                judge(&mut tested, &format!("{format} {out} x {cols}, {tokens} tokens"), &scene, bound);
            }
        }
    }
}

#[test]
fn indices_that_are_no_experts_in_every_tier() {
    for gemm in [true, false] {
        let mut tested = metal_with(Switches { gemm, ..Switches::default() });
        for tokens in [1, 40] {
            for bad in [vec![0], vec![1, 2, 3, 30, 31, 32, 33, 79], (0..80).collect()] {
                let mut scene = Scene::new(Format::Q4_0, [3, 2, tokens], [70, 64]);
                scene.biased = true;
                for (i, at) in bad.iter().copied().filter(|at| at / 2 < tokens).enumerate() {
                    scene.indices[at] = [-1, 3, i32::MIN, i32::MAX][i % 4];
                }
                judge(&mut tested, &format!("tiles: {gemm}, {tokens} tokens, {bad:?}"), &scene, TILED);
            }
        }
    }
}

/// The most tiles that so many choices can make: of each group the last has one choice, also of what is no expert's.
#[test]
fn as_many_tiles_as_there_can_be() {
    let mut tested = metal_with(Switches::default());
    let mut scene = Scene::new(Format::Q4_0, [3, 1, 36], [5, 32]);
    scene.indices = [vec![0; 33], vec![1, 2, 3]].concat();
    judge(&mut tested, "five tiles", &scene, TILED);
}

/// As many as the kernel that groups them has counters for, and one more.
#[test]
fn hundreds_of_experts() {
    let mut tested = metal_with(Switches::default());
    for experts in [512, 513] {
        let scene = Scene::new(Format::Q4_0, [experts, 115, 9], [3, 32]);
        judge(&mut tested, &format!("{experts} experts"), &scene, TILED);
    }
}

/// Columns that no [`TopK`](graph::ops::TopK) gives: no number there, and nothing is read.
#[test]
fn columns_outside_of_a_row() {
    let mut backend = metal_on_any(Switches::default());
    let x = Random::new(3).floats(3 * 40);
    let columns = [39, 40, -1, 0, i32::MAX, i32::MIN, 5, 1000, 0];
    let mut case = Case::new(backend.as_mut(), &params(1));
    let inputs = [case.floats(Shape::new(3, 40), &x), case.indices(Shape::new(3, 3), &columns)];
    let found = case.run(Op::GatherCols, &inputs);
    for (i, (&column, found)) in columns.iter().zip(found).enumerate() {
        let expected =
            usize::try_from(column).ok().filter(|&column| column < 40).map(|column| x[i / 3 * 40 + column]);
        assert!(
            expected == Some(found) || expected.is_none() && found.is_nan(),
            "{i}: {found}, {expected:?}"
        );
    }
}
