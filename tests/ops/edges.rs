//! Shapes at the edges of the Metal kernels' tiles, blocks and windows, one step inside and one past them; few of each, so that
//! they run with the sanitizer in seconds.

use crate::attention::{Scene, attention};
use crate::harness::*;
use graph::ops::{
    Activation, FusedFfn, FusedQkv, GetRows, KvStore, MatMul, RmsNorm, Rope, RopeStyle, Softmax,
};
use graph::{Backend, DType, GroupId, InputKind, Op, Shape, StatePart};
use metal::Switches;
use quant::Format;

fn is_float(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

/// Multiplies random weights; as in `matmul.rs`, tiles round decoded weights to half precision.
fn product(backend: &mut dyn Backend, format: Format, rows: usize, cols: usize, tokens: usize) {
    let mut random = Random::new((rows + cols * 7 + tokens * 31) as u64);
    let bytes = random_weights(format, rows, cols, &mut random);
    let x = random.floats(tokens * cols);
    let weights = wide(&decoded(format, &bytes, rows * cols));
    let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum::<f64>();
    let expected: Vec<f64> =
        x.chunks(cols).flat_map(|x| weights.chunks(cols).map(move |w| dot(x, w))).collect();
    let mut case = Case::new(backend, &params(1));
    let input = case.floats(Shape::new(tokens, cols), &x);
    let weight = case.weight("w", format, rows, cols, bytes);
    let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input]);
    // Of a few products the rounding may happen to be large.
    let few = if rows * tokens < 64 { 4.0 } else { 1.0 };
    let bound = if tokens > 8 && !is_float(format) { 1e-7 * few } else { 1e-11 };
    check(&format!("{format} {rows} x {cols}, {tokens} tokens"), &found, &expected, bound);
}

#[test]
fn products_of_every_small_batch_and_around_tiles() {
    let mut backend = metal_on_any(Switches::default());
    let mut formats = Format::ALL.into_iter().cycle();
    for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 31, 32, 33, 63, 64, 65] {
        // Rows around what a SIMD-group, a threadgroup and a tile take.
        for rows in [1, 3, 7, 61, 64, 67] {
            let format = formats.next().unwrap_or(Format::F32);
            let cols = match format.block_len() {
                1 => [1, 15, 17, 31, 97][(rows + tokens) % 5],
                32 => [32, 96, 160][(rows + tokens) % 3],
                _ => 256,
            };
            product(backend.as_mut(), format, rows, cols, tokens);
        }
    }
}

#[test]
fn products_with_a_gate_around_what_a_simd_group_takes() {
    let mut backend = metal_on_any(Switches::default());
    for (rows, tokens) in [(1, 1), (3, 1), (7, 2), (61, 5), (5, 9)] {
        let mut random = Random::new((rows * 16 + tokens) as u64);
        let (cols, x) = (32, random.floats(tokens * 32));
        let weights = [0, 1].map(|_| random_weights(Format::Q8_0, rows, cols, &mut random));
        let [gate, up] = weights.each_ref().map(|bytes| wide(&decoded(Format::Q8_0, bytes, rows * cols)));
        let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum::<f64>();
        let mut expected = Vec::new();
        for x in x.chunks(cols) {
            for (gate, up) in gate.chunks(cols).zip(up.chunks(cols)) {
                let g = dot(x, gate);
                expected.push(g / (1.0 + (-g).exp()) * dot(x, up));
            }
        }
        let mut case = Case::new(backend.as_mut(), &params(1));
        let input = case.floats(Shape::new(tokens, cols), &x);
        let [gate, up] = weights;
        let weights = [("gate", gate), ("up", up)]
            .map(|(name, bytes)| case.weight(name, Format::Q8_0, rows, cols, bytes));
        let found = case.run(Op::FusedFfn(FusedFfn { weights, activation: Activation::Silu }), &[input]);
        check(
            &format!("{rows} rows, {tokens} tokens"),
            &found,
            &expected,
            if tokens > 8 { 1e-6 } else { 1e-11 },
        );
    }
}

/// Queries, keys and values of so many tokens that each is a product in tiles.
#[test]
fn projections_in_tiles() {
    let mut backend = metal_on_any(Switches::default());
    let (tokens, cols, rows) = (9, 64, [24, 8, 8]);
    let mut random = Random::new(77);
    let x = random.floats(tokens * cols);
    let weights = rows.map(|rows| random.floats(rows * cols));
    let mut case = Case::with_state(backend.as_mut(), &params(tokens), kv_state(tokens, 8, 8, DType::F32));
    let places: Vec<i32> = (0..tokens as i32).collect();
    let inputs = [
        case.floats(Shape::new(tokens, cols), &x),
        case.ints(InputKind::Positions, &places),
        case.ints(InputKind::CacheRows(GroupId(0)), &places),
    ];
    let ids = [0, 1, 2].map(|i| {
        let bytes = bytemuck::cast_slice(&weights[i]).to_vec();
        case.weight(&format!("w{i}"), Format::F32, rows[i], cols, bytes)
    });
    let store = KvStore { layer: 0, group: GroupId(0) };
    let op = FusedQkv { weights: ids, biases: None, norms: None, rope: None, store };
    let queries = case.run_in_place(Op::FusedQkv(op), &inputs).unwrap();
    let [keys, values] = [StatePart::Key, StatePart::Value]
        .map(|part| crate::attention::decode(DType::F32, &case.state_bytes(part), tokens * 8));
    for (found, w) in [queries, keys, values].iter().zip(&weights) {
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        let expected: Vec<f64> =
            x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| dot(x, w))).collect();
        check("projection", found, &expected, 1e-11);
    }
}

/// The last element of a head of five has no partner.
#[test]
fn heads_of_an_odd_width_are_turned_in_part() {
    let mut backend = metal_on_any(Switches::default());
    let x = Random::new(3).floats(2 * 15);
    let table = crate::rope::table(4, 1e4, 1.0);
    for style in [RopeStyle::SplitHalf, RopeStyle::Interleaved] {
        let mut case = Case::new(backend.as_mut(), &params(2));
        let inputs = [case.floats(Shape::new(2, 15), &x), case.ints(InputKind::Positions, &[0, 7])];
        let rope = Rope { head_dim: 5, style, table: table.clone() };
        let found = case.run(Op::Rope(rope), &inputs);
        for (found, x) in found.chunks(5).zip(x.chunks(5)) {
            assert_eq!(found[4], x[4]);
        }
        assert_eq!(found[..15], x[..15], "position 0");
        assert_ne!(found[15..19], x[15..19], "position 7");
    }
}

#[test]
fn products_of_the_longest_rows() {
    let mut backend = metal_on_any(Switches::default());
    for (format, cols) in [
        (Format::Q4_K, 18944),
        (Format::Q6_K, 28672),
        (Format::Q8_0, 18944),
        (Format::IQ4_NL, 11008 + 32),
        (Format::F16, 18943),
        (Format::F32, 28673),
    ] {
        for tokens in [1, 3, 9] {
            product(backend.as_mut(), format, 5, cols, tokens);
        }
    }
}

#[test]
fn norms_and_softmaxes_of_the_longest_rows() {
    let mut backend = metal_on_any(Switches::default());
    for (rows, cols) in
        [(1, 2), (5, 3), (4, 5), (9, 127), (1, 255), (5, 257), (2, 1023), (3, 4093), (1, 18947), (1, 151_936)]
    {
        let mut random = Random::new(cols as u64);
        let x = random.floats(rows * cols);
        let mut norms = Vec::new();
        let mut softmaxes = Vec::new();
        for row in x.chunks(cols) {
            let row = wide(row);
            let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / cols as f64 + 1e-6).sqrt();
            norms.extend(row.iter().map(|x| x * scale));
            let weights: Vec<f64> = row.iter().map(|x| (0.7f32 as f64 * x).exp()).collect();
            let sum: f64 = weights.iter().sum();
            softmaxes.extend(weights.iter().map(|w| w / sum));
        }
        for (op, expected) in [
            (Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-6 }), norms),
            (Op::Softmax(Softmax { scale: 0.7 }), softmaxes),
        ] {
            let mut case = Case::new(backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(rows, cols), &x);
            let what = format!("{} {rows} x {cols}", op.name());
            check(&what, &case.run(op, &[input]), &expected, 1e-11);
        }
    }
}

#[test]
fn rows_of_one_and_of_many_units() {
    let mut backend = metal_on_any(Switches::default());
    for format in Format::ALL {
        let widths: &[usize] = if format.block_len() == 1 { &[1, 3, 15, 17, 18_947] } else { &[256, 18_944] };
        for &cols in widths {
            let bytes = random_weights(format, 3, cols, &mut Random::new(cols as u64));
            let table = decoded(format, &bytes, 3 * cols);
            let mut case = Case::new(backend.as_mut(), &params(2));
            let tokens = case.ints(InputKind::Tokens, &[2, 0]);
            let weight = case.weight("t", format, 3, cols, bytes);
            let found = case.run(Op::GetRows(GetRows { table: Some(weight) }), &[tokens]);
            let expected = [&table[2 * cols..], &table[..cols]].concat();
            check(&format!("{format} {cols}"), &found, &wide(&expected), 1e-13);
        }
    }
}

#[test]
fn heads_of_every_ratio_and_width() {
    let mut backend = metal_on_any(Switches::default());
    let types = [DType::F32, DType::F16, DType::Packed(Format::Q8_0)];
    let mut i = 0;
    for head_dim in [64, 80, 96, 128, 192, 256] {
        for (heads, kv_heads) in [(2, 2), (7, 1), (8, 1), (14, 1), (16, 1)] {
            let mut dtype = types[i % 3];
            if dtype.row_bytes(head_dim).is_none() {
                dtype = DType::F16;
            }
            // A query alone; a tile and one more; and ends of both, with a sequence that has nothing new.
            let sequences: &[(usize, usize)] =
                [&[(33, 1)][..], &[(17, 17)], &[(9, 2), (5, 0), (40, 31)]][i / 3 % 3];
            let scene =
                Scene::new(attention(heads, kv_heads, head_dim, None), dtype, 16, sequences, i as u64);
            let what = format!("{heads} of {kv_heads}, {head_dim}, {dtype} {sequences:?}");
            let bound = if matches!(dtype, DType::Packed(_)) { 2e-7 } else { 1e-11 };
            check(&what, &scene.run(backend.as_mut()).unwrap(), &scene.reference(), bound);
            i += 1;
        }
    }
}

#[test]
fn windows_that_end_at_pages_tiles_and_sequences() {
    let mut backend = metal_on_any(Switches::default());
    let sequences = [(64, 1), (31, 31), (65, 33), (1, 1)];
    for (i, window) in [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000].into_iter().enumerate() {
        for (part, sequences) in [&sequences[..], &sequences[..1]].into_iter().enumerate() {
            let mut op = attention(2, 1, 64, Some(window));
            op.soft_cap = [None, Some(0.7), Some(50.0)][i % 3];
            let page_len = [16, 1, 32, 5][(i + part) % 4];
            let scene = Scene::new(op, DType::F16, page_len, sequences, window as u64);
            let what = format!("window {window}, pages of {page_len}, {sequences:?}");
            check(&what, &scene.run(backend.as_mut()).unwrap(), &scene.reference(), 1e-11);
        }
    }
}

#[test]
fn heads_that_only_the_classic_kernel_has() {
    let mut backend = metal_on_any(Switches::default());
    for (i, (head_dim, value_dim)) in [(1, 1), (3, 33), (31, 5), (65, 64), (512, 512)].into_iter().enumerate()
    {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let op = attention(3, 1, head_dim, [None, Some(4)][i % 2]);
            let op = graph::ops::Attention { value_dim, ..op };
            let scene = Scene::new(op, dtype, 7, &[(23, 9), (1, 1), (12, 1)], i as u64);
            let what = format!("{head_dim} and {value_dim}, {dtype}");
            check(&what, &scene.run(backend.as_mut()).unwrap(), &scene.reference(), 1e-11);
        }
    }
}

/// Widths that are no multiple of four, a row of zeros, and numbers that only just fit the type or do not.
#[test]
fn values_and_widths_that_caches_round_or_cut() {
    let mut backend = metal_on_any(Switches::default());
    let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 3.4e38, -65519.0];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (key_cols, value_cols) in [(1, 2), (3, 5), (33, 30), (8, 7)] {
            let rows = [6, 1];
            let row = |cols: usize| (0..2 * cols).map(|i| special[(i + cols) % 8]).collect::<Vec<f32>>();
            let (keys, values) = (row(key_cols), row(value_cols));
            let state = kv_state(8, key_cols, value_cols, dtype);
            let mut case = Case::with_state(backend.as_mut(), &params(2), state);
            let inputs = [
                case.floats(Shape::new(2, key_cols), &keys),
                case.floats(Shape::new(2, value_cols), &values),
                case.ints(InputKind::CacheRows(GroupId(0)), &rows),
            ];
            case.run_in_place(Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &inputs).unwrap();
            for (part, x, cols) in
                [(StatePart::Key, &keys, key_cols), (StatePart::Value, &values, value_cols)]
            {
                let stored = crate::attention::decode(dtype, &case.state_bytes(part), 8 * cols);
                let mut expected = vec![0.0; 8 * cols];
                for (row, x) in rows.into_iter().zip(x.chunks(cols)) {
                    let rounded = crate::attention::decode(dtype, &crate::attention::encode(dtype, x), cols);
                    expected[row as usize * cols..][..cols].copy_from_slice(&rounded);
                }
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(stored.iter().zip(&expected).all(same), "{dtype} {cols}: {stored:?}\n{expected:?}");
            }
        }
    }

    // Blocks of zeros beside others, and one whose scale is past a half's range.
    let mut x = vec![0.0; 96];
    x[32..64].copy_from_slice(&Random::new(1).floats(32));
    x[64..].copy_from_slice(&[1e7; 32]);
    let mut case =
        Case::with_state(backend.as_mut(), &params(1), kv_state(2, 96, 96, DType::Packed(Format::Q8_0)));
    let inputs = [
        case.floats(Shape::new(1, 96), &x),
        case.floats(Shape::new(1, 96), &x),
        case.ints(InputKind::CacheRows(GroupId(0)), &[1]),
    ];
    case.run_in_place(Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &inputs).unwrap();
    let stored = decoded(Format::Q8_0, &case.state_bytes(StatePart::Key), 192);
    assert_eq!(stored[..128], [0.0; 128], "the row before, and a block of zeros");
    check("a block beside zeros", &stored[128..160], &wide(&x[32..64]), 2e-4);
    assert_eq!(stored[160..], [65504.0 * 127.0; 32], "saturates");
}

/// Near zero the hyperbolic tangent is its argument, where differences of exponentials would cancel.
#[test]
fn soft_caps_near_zero() {
    let mut backend = metal_on_any(Switches::default());
    let x: Vec<f32> = Random::new(5).floats(37).iter().map(|x| x * 1e-4).collect();
    let expected: Vec<f64> = x.iter().map(|&x| 3.0 * (f64::from(x) / 3.0).tanh()).collect();
    let mut case = Case::new(backend.as_mut(), &params(1));
    let input = case.floats(Shape::new(1, 37), &x);
    check("soft cap", &case.run(Op::SoftCap(3.0), &[input]), &expected, 1e-12);
}
