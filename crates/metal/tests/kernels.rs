//! Kernels launched directly: attention sinks, every variant of the norm, and what kernels do with indices that the host would
//! have refused.

use metal::Switches;
use metal::device::*;
use metal::library::{Library, Sources, compile_options};
use metal_sim::device::SimDevice;
use std::time::Duration;

fn library(name: &str) -> &'static Library {
    metal::ops::LIBRARIES.iter().find(|library| library.name == name).expect("a library of this name")
}

/// Launches one kernel; `buffers` are slots and bytes. Returns the buffers' bytes afterwards.
fn launch(
    library: &Library,
    kernel: &str,
    buffers: &[(usize, Vec<u8>)],
    groups: Size,
    threads: Size,
) -> Vec<Vec<u8>> {
    launch_with(library, kernel, &FunctionConstants::new(), buffers, groups, threads)
}

fn launch_with(
    library: &Library,
    kernel: &str,
    constants: &FunctionConstants,
    buffers: &[(usize, Vec<u8>)],
    groups: Size,
    threads: Size,
) -> Vec<Vec<u8>> {
    let device = SimDevice::from_environment().expect("clang is installed");
    let source =
        library.source(&Sources::new(&Switches::from_environment().unwrap(), metal::ops::LIBRARIES).unwrap());
    let compiled = device.new_library(library.name, &source, &compile_options(MathMode::Fast)).unwrap();
    let pipeline = device.new_pipeline(&compiled, kernel, constants).unwrap();
    let queue = device.new_queue("test").unwrap();
    let mut commands = queue.new_command_buffer("test").unwrap();
    let mut encoder = commands.compute_encoder("test", DispatchMode::Serial);
    encoder.set_pipeline(&pipeline);
    // For those that have heads of eight in it; the others ask for none.
    encoder.set_threadgroup_memory(0, 4 * 8 * size_of::<f32>()).unwrap();
    let mut bound = Vec::new();
    for (slot, bytes) in buffers {
        let buffer = device.new_buffer("data", bytes.len()).unwrap();
        buffer.write(0, bytes).unwrap();
        encoder.set_buffer(*slot, &buffer, 0).unwrap();
        bound.push(buffer);
    }
    encoder.dispatch_threadgroups(groups, threads).unwrap();
    drop(encoder);
    commands.commit().unwrap().wait(Duration::from_secs(120)).unwrap();
    let read = |buffer: &metal_sim::device::SimBuffer| {
        let mut bytes = vec![0; buffer.length()];
        buffer.read(0, &mut bytes).unwrap();
        bytes
    };
    bound.iter().map(read).collect()
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Fails if the normalised mean squared error is above what sums in f32 explain.
#[track_caller]
fn check(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
    let size: f64 = expected.iter().map(|e| e * e).sum();
    assert!(error <= 1e-11 * size, "{what}: normalised mean squared error {:.1e}", error / size);
}

/// Numbers that repeat after 97.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 97) as f32 / 97.0 - 0.5).collect()
}

/// `AttentionArgs` of one sequence with heads of 64 in an f32 cache of pages of 16.
fn attention_args(heads: i32, kv_heads: i32, keys: i32, splits: i32) -> Vec<u8> {
    let row_bytes = kv_heads as u64 * 64 * 4;
    let ints =
        [heads, kv_heads, 64, 64, 1, keys / 16 + 1, 16, 4, keys / 16 * 16 + 16, i32::MAX, splits, 1, 0, 0];
    [bytes(&[row_bytes, row_bytes]), bytes(&ints), bytes(&[0.125f32, 0.0])].concat()
}

#[test]
fn a_sink_takes_its_share_of_the_softmax() {
    let (heads, kv_heads, keys) = (4usize, 2usize, 50usize);
    let cache_rows = keys / 16 * 16 + 16;
    let q = numbers(heads * 64).iter().map(|x| 4.0 * x).collect::<Vec<f32>>();
    let (k, v) = (numbers(cache_rows * kv_heads * 64), numbers(cache_rows * kv_heads * 64 + 5)[5..].to_vec());
    let sinks = [-0.5f32, 3.0, 0.0, 60.0];
    let mut expected = Vec::new();
    for head in 0..heads {
        let kv = head / 2;
        let at = |x: &[f32], key: usize, i: usize| f64::from(x[(key * kv_heads + kv) * 64 + i]);
        let score =
            |key: usize| (0..64).map(|i| f64::from(q[head * 64 + i]) * at(&k, key, i)).sum::<f64>() / 8.0;
        let weights: Vec<f64> = (0..keys).map(|key| score(key).exp()).collect();
        let sum = weights.iter().sum::<f64>() + f64::from(sinks[head]).exp();
        expected
            .extend((0..64).map(|i| (0..keys).map(|key| weights[key] * at(&v, key, i)).sum::<f64>() / sum));
    }
    let pages: Vec<i32> = (0..=keys as i32 / 16).collect();
    let shared = |y: usize, splits: i32| {
        vec![
            (0, bytes(&q)),
            (1, vec![0xff; y * 4]),
            (2, attention_args(heads as i32, kv_heads as i32, keys as i32, splits)),
            (3, bytes(&k)),
            (4, bytes(&v)),
            (5, bytes(&[keys as i32 - 1])),
            (6, bytes(&[0i32, 1])),
            (7, bytes(&pages)),
            (8, bytes(&sinks)),
        ]
    };
    let check = |what: &str, found: &[f32]| check(what, found, &expected);
    let decode = library("attention_decode");
    for (kernel, threads, source) in [
        ("attention_classic_f32", 32, decode),
        ("attention_flash_f32_d64", 128, decode),
        ("attention_prefill_f32_d64", 128, library("attention_prefill")),
    ] {
        let found =
            launch(source, kernel, &shared(heads * 64, 1), Size::new(heads, 1, 1), Size::width(threads));
        check(kernel, &elements(&found[1]));
    }
    // More splits than keys fill: the last ones are empty.
    for splits in [2usize, 16] {
        let buffers = shared(heads * splits * 66, splits as i32);
        let groups = Size::new(heads, 1, splits);
        let partial =
            launch(decode, "attention_flash_f32_d64", &buffers, groups, Size::width(128)).swap_remove(1);
        let buffers = [
            (0, partial),
            (1, vec![0xff; heads * 64 * 4]),
            (2, attention_args(heads as i32, kv_heads as i32, keys as i32, splits as i32)),
            (3, bytes(&sinks)),
        ];
        let found = launch(decode, "attention_combine", &buffers, Size::new(1, heads, 1), Size::width(64));
        check(&format!("{splits} splits"), &elements(&found[1]));
    }
}

/// `x / rms(x) * weight`.
fn normed(x: &[f64], weight: Option<&[f32]>, epsilon: f64) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + epsilon).sqrt();
    x.iter().enumerate().map(|(i, x)| x * scale * weight.map_or(1.0, |weight| f64::from(weight[i]))).collect()
}

#[test]
fn every_variant_of_the_norm_in_every_width() {
    let rows = 3;
    for (cols, kernel, threads) in [
        (1, "rms_norm_1sg", 128),
        (7, "rms_norm_1sg", 64),
        (80, "rms_norm_1sg", 128),
        (576, "rms_norm_1sg", 128),
        (257, "rms_norm_row", 96),
        (1000, "rms_norm_row", 256),
        (6656, "rms_norm_row", 1024),
        (6657, "rms_norm_row", 1024),
    ] {
        let (x, residual) = (numbers(rows * cols), numbers(rows * cols + 31)[31..].to_vec());
        let (weight1, weight2) = (numbers(cols + 5)[5..].to_vec(), numbers(cols + 9)[9..].to_vec());
        for variant in 0..8 {
            let [first, sum] = [[false, false], [false, true], [true, true], [true, true]][variant / 2];
            let [has_weight1, has_weight2] = [variant / 2 == 3, variant % 2 == 1];
            let constants = FunctionConstants::new()
                .set(0, ConstantValue::Bool(first))
                .set(1, ConstantValue::Bool(has_weight1))
                .set(2, ConstantValue::Bool(sum))
                .set(3, ConstantValue::Bool(has_weight2));
            let buffers = [
                (0, bytes(&x)),
                (1, vec![0xff; rows * cols * 4]),
                (2, [bytes(&[rows as i32, cols as i32]), bytes(&[0.5f32, 1e-3])].concat()),
                (3, bytes(&weight2)),
                (4, bytes(&residual)),
                (5, vec![0xff; rows * cols * 4]),
                (6, bytes(&weight1)),
            ];
            let per_group = if kernel == "rms_norm_1sg" { threads / 32 } else { 1 };
            let groups = Size::width(rows.div_ceil(per_group));
            let found =
                launch_with(library("norm"), kernel, &constants, &buffers, groups, Size::width(threads));
            let what = format!("{kernel}, {cols} columns, variant {variant}");
            let (mut totals, mut results) = (Vec::new(), Vec::new());
            for (x, residual) in x.chunks(cols).zip(residual.chunks(cols)) {
                let mut row: Vec<f64> = x.iter().copied().map(f64::from).collect();
                if first {
                    row = normed(&row, has_weight1.then_some(&weight1), 0.5);
                }
                if sum {
                    row.iter_mut().zip(residual).for_each(|(x, r)| *x += f64::from(*r));
                    totals.extend(&row);
                }
                results.extend(normed(&row, has_weight2.then_some(&weight2), 1e-3));
            }
            check(&what, &elements(&found[1]), &results);
            if sum {
                check(&format!("{what}, sum"), &elements(&found[5]), &totals);
            }
        }
    }
}

#[test]
fn indices_outside_a_table_or_cache_touch_nothing() {
    // Rows of a table of four, of 20 floats.
    let table = numbers(80);
    let indices = [2i32, -1, 4, i32::MAX, i32::MIN, 0];
    let buffers = [
        (0, bytes(&table)),
        (1, bytes(&indices)),
        (2, vec![0xff; 6 * 80]),
        (3, [bytes(&[80u64]), bytes(&[20i32, 4])].concat()),
    ];
    let found = launch(library("rows"), "get_rows_F32", &buffers, Size::new(2, 6, 1), Size::width(1));
    let found: Vec<f32> = elements(&found[2]);
    for (row, index) in found.chunks(20).zip(indices) {
        let expected = match usize::try_from(index) {
            Ok(index) if index < 4 => &table[index * 20..][..20],
            _ => &[0.0; 20],
        };
        assert_eq!(row, expected, "row {index}");
    }

    // A cache of three rows of 8 floats.
    let x = numbers(32);
    let rows = [1i32, 3, -1, i32::MIN];
    let buffers = [
        (0, bytes(&x)),
        (1, bytes(&x)),
        (2, vec![0; 96]),
        (3, vec![0; 96]),
        (4, bytes(&rows)),
        (5, [bytes(&[32u64, 32]), bytes(&[8i32, 8, 3, 0])].concat()),
    ];
    let found = launch(library("cache"), "kv_store_f32", &buffers, Size::new(1, 4, 2), Size::width(8));
    let expected = [[0.0; 8].as_slice(), &x[..8], &[0.0; 8]].concat();
    assert_eq!(elements::<f32>(&found[2]), expected);
    assert_eq!(elements::<f32>(&found[3]), expected);

    // The same after a product: a head each of query, key and value, neither normalised nor turned.
    let qkv = numbers(4 * 24);
    let ints = [1i32, 1, 8, 8, 3, 8, 0, 0];
    let args = [bytes(&[32u64, 32]), bytes(&ints), bytes(&[1.0f32, 0.0]), bytes(&[0i32, 0])].concat();
    let unused = (7..13).map(|slot| (slot, bytes(&[0f32; 2])));
    let mut buffers = vec![
        (0, bytes(&qkv)),
        (1, vec![0xff; 4 * 32]),
        (2, vec![0; 96]),
        (3, vec![0; 96]),
        (4, bytes(&rows)),
        (5, bytes(&[0i32; 4])),
        (6, args),
    ];
    buffers.extend(unused);
    let found = launch(library("cache"), "qkv_finish_f32", &buffers, Size::new(1, 4, 1), Size::width(128));
    let part = |token: usize, first: usize| &qkv[token * 24 + first..][..8];
    let queries: Vec<f32> = (0..4).flat_map(|token| part(token, 0)).copied().collect();
    assert_eq!(elements::<f32>(&found[1]), queries);
    for (cache, first) in [(2, 8), (3, 16)] {
        let expected = [[0.0; 8].as_slice(), part(0, first), &[0.0; 8]].concat();
        assert_eq!(elements::<f32>(&found[cache]), expected);
    }
}

/// The tiers of attention: library, kernel and threads.
const TIERS: [(&str, &str, usize); 3] = [
    ("attention_decode", "attention_classic_f32", 32),
    ("attention_decode", "attention_flash_f32_d64", 128),
    ("attention_prefill", "attention_prefill_f32_d64", 128),
];

/// `AttentionArgs` without sinks.
fn without_sinks(mut args: Vec<u8>) -> Vec<u8> {
    let at = args.len() - 20;
    args[at..at + 4].copy_from_slice(&0i32.to_le_bytes());
    args
}

#[test]
fn keys_without_a_page_are_not_seen() {
    let keys = 40usize;
    let (q, k) = (numbers(64), numbers(48 * 64));
    let mut v = numbers(48 * 64 + 5)[5..].to_vec();
    // Logical pages 0 and 2 are missing in different ways; what is left is page 1, in the first rows of the cache.
    for pages in [[-1, 0, 3], [7, 0, -9], [i32::MAX, 0, i32::MIN]] {
        let score =
            |key: usize| (0..64).map(|i| f64::from(q[i]) * f64::from(k[key * 64 + i])).sum::<f64>() / 8.0;
        let weights: Vec<f64> = (0..16).map(|key| score(key).exp()).collect();
        let sum: f64 = weights.iter().sum();
        // Rows that no key leads to hold no numbers.
        v[16 * 64..].fill(f32::NAN);
        let expected: Vec<f64> = (0..64)
            .map(|i| (0..16).map(|key| weights[key] * f64::from(v[key * 64 + i])).sum::<f64>() / sum)
            .collect();
        for (name, kernel, threads) in TIERS {
            let args = without_sinks(attention_args(1, 1, 32, 1));
            let buffers = [
                (0, bytes(&q)),
                (1, vec![0xff; 256]),
                (2, args),
                (3, bytes(&k)),
                (4, bytes(&v)),
                (5, bytes(&[keys as i32 - 1])),
                (6, bytes(&[0i32, 1])),
                (7, bytes(&pages)),
                (8, bytes(&[0f32])),
            ];
            let found = launch(library(name), kernel, &buffers, Size::width(1), Size::width(threads));
            check(&format!("{kernel} {pages:?}"), &elements(&found[1]), &expected);
        }
    }
}

/// A query without any key, because pages are missing or because the table ends: zero, with a sink and without.
#[test]
fn no_keys_give_zero() {
    let (q, cache) = (numbers(64), vec![f32::NAN; 16 * 64]);
    // The cache has one page, and so has the table.
    let with_sink = attention_args(1, 1, 0, 1);
    for (pages, position) in [(-1, 9), (1, 9), (i32::MIN, 0)] {
        // A sink of minus infinity is none.
        for (args, sink) in [
            (with_sink.clone(), 0.5),
            (with_sink.clone(), f32::NEG_INFINITY),
            (without_sinks(with_sink.clone()), 0.5),
        ] {
            for (name, kernel, threads) in TIERS {
                let buffers = [
                    (0, bytes(&q)),
                    (1, vec![0xff; 256]),
                    (2, args.clone()),
                    (3, bytes(&cache)),
                    (4, bytes(&cache)),
                    (5, bytes(&[position])),
                    (6, bytes(&[0i32, 1])),
                    (7, bytes(&[pages])),
                    (8, bytes(&[sink])),
                ];
                let found = launch(library(name), kernel, &buffers, Size::width(1), Size::width(threads));
                assert_eq!(elements::<f32>(&found[1]), [0.0; 64], "{kernel}, page {pages}");
            }
        }
    }
}

/// Positions past the end of the page table see what is in it.
#[test]
fn keys_past_the_page_table_are_not_seen() {
    let (q, k) = (numbers(64), numbers(16 * 64));
    let v = numbers(16 * 64 + 5)[5..].to_vec();
    let score = |key: usize| (0..64).map(|i| f64::from(q[i]) * f64::from(k[key * 64 + i])).sum::<f64>() / 8.0;
    let weights: Vec<f64> = (0..16).map(|key| score(key).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let value = |i: usize| (0..16).map(|key| weights[key] * f64::from(v[key * 64 + i])).sum::<f64>() / sum;
    let expected: Vec<f64> = (0..64).map(value).collect();
    for (name, kernel, threads) in TIERS {
        let buffers = [
            (0, bytes(&q)),
            (1, vec![0xff; 256]),
            (2, without_sinks(attention_args(1, 1, 0, 1))),
            (3, bytes(&k)),
            (4, bytes(&v)),
            (5, bytes(&[40i32])),
            (6, bytes(&[0i32, 1])),
            (7, bytes(&[0i32])),
            (8, bytes(&[0f32])),
        ];
        let found = launch(library(name), kernel, &buffers, Size::width(1), Size::width(threads));
        check(kernel, &elements(&found[1]), &expected);
    }
}

/// Of two neighbours with a window of one key, the first one's page is missing: it has no part of what the second one sees.
#[test]
fn a_query_without_keys_beside_one_with_a_key() {
    let (q, k) = (numbers(2 * 64), numbers(16 * 64));
    let v = numbers(16 * 64 + 5)[5..].to_vec();
    let mut args = without_sinks(attention_args(1, 1, 16, 1));
    // The window, after two widths of rows and nine numbers.
    args[52..56].copy_from_slice(&1i32.to_le_bytes());
    let expected = [&[0.0; 64], &v[..64]].concat();
    for (name, kernel, threads) in TIERS {
        let buffers = [
            (0, bytes(&q)),
            (1, vec![0xff; 512]),
            (2, args.clone()),
            (3, bytes(&k)),
            (4, bytes(&v)),
            (5, bytes(&[15i32, 16])),
            (6, bytes(&[0i32, 2])),
            (7, bytes(&[-1i32, 0])),
            (8, bytes(&[0f32])),
        ];
        let groups = if name == "attention_prefill" { Size::width(1) } else { Size::new(1, 2, 1) };
        let found = launch(library(name), kernel, &buffers, groups, Size::width(threads));
        assert_eq!(elements::<f32>(&found[1]), expected, "{kernel}");
    }
}
