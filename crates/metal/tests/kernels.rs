//! Kernels that no operation of the graph asks for yet, launched directly: the largest elements of rows, and attention
//! sinks.

use metal::device::*;
use metal::library::Library;
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
    let device = SimDevice::from_environment().expect("clang is installed");
    let compiled = device.new_library(library.name, &library.source(), &CompileOptions::default()).unwrap();
    let pipeline = device.new_pipeline(&compiled, kernel, &FunctionConstants::new()).unwrap();
    let queue = device.new_queue("test").unwrap();
    let mut commands = queue.new_command_buffer("test").unwrap();
    let mut encoder = commands.compute_encoder("test", DispatchMode::Serial);
    encoder.set_pipeline(&pipeline);
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

/// Numbers that repeat after 97.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 97) as f32 / 97.0 - 0.5).collect()
}

#[test]
fn the_largest_elements_come_in_order_and_of_equals_the_first() {
    for (cols, threads) in [(1, 32), (31, 32), (1000, 256), (4099, 1024)] {
        let k = 7;
        let mut x = numbers(2 * cols);
        x[cols / 2] = f32::NAN;
        if cols > 40 {
            x[cols + 3] = f32::NEG_INFINITY;
        }
        let buffers = [
            (0, bytes(&x)),
            (1, bytes(&[0i32; 14])),
            (2, bytes(&[0f32; 14])),
            (3, bytes(&[cols as i32, k, 0])),
        ];
        let found = launch(library("softmax"), "top_k", &buffers, Size::width(2), Size::width(threads));
        let indices: Vec<i32> = elements(&found[1]);
        let values: Vec<f32> = elements(&found[2]);
        for (row, x) in x.chunks(cols).enumerate() {
            let mut order: Vec<usize> = (0..cols).filter(|&i| !x[i].is_nan()).collect();
            order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
            for i in 0..7 {
                let expected = order.get(i).map_or((-1, f32::NEG_INFINITY), |&at| (at as i32, x[at]));
                assert_eq!(
                    (indices[row * 7 + i], values[row * 7 + i]),
                    expected,
                    "{cols} columns, row {row}, {i}"
                );
            }
        }
    }
}

/// `AttentionArgs` of one sequence with heads of 64 in an f32 cache of pages of 16.
fn attention_args(heads: i32, kv_heads: i32, keys: i32, splits: i32) -> Vec<u8> {
    let row_bytes = kv_heads as u64 * 64 * 4;
    let ints = [heads, kv_heads, 64, 64, 1, keys / 16 + 1, 16, 4, keys / 16 * 16 + 16, i32::MAX, splits, 1];
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
    let check = |what: &str, found: &[f32]| {
        let error: f64 = found.iter().zip(&expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum();
        let size: f64 = expected.iter().map(|e| e * e).sum();
        assert!(error <= 1e-11 * size, "{what}: normalised mean squared error {:.1e}", error / size);
    };
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
