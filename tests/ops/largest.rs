//! The largest elements of rows, where a backend finds them without a copy of all to the host.

use crate::harness::*;
use graph::ops::{GetRows, MatMul};
use graph::{
    Backend, Batch, GraphBuilder, InputKind, Largest, Op, Participation, Scheduler, WeightData, WeightInfo,
};
use quant::Format;

/// The numbers and values of the `count` largest elements of each row.
pub fn largest(
    backend: &mut dyn Backend,
    rows: usize,
    x: &[f32],
    count: usize,
) -> Option<Vec<Vec<(usize, f32)>>> {
    let bytes: &[u8] = bytemuck::cast_slice(x);
    let cols = x.len() / rows;
    let buffer = backend.alloc_buffer(bytes.len() + 64).unwrap();
    backend.write_host(buffer, 64, bytes).unwrap();
    let found = backend.largest(buffer, 64, [rows, cols], count).unwrap();
    // The same again: what an earlier call left behind does not matter. Bits, since there may be what is no number.
    let again = backend.largest(buffer, 64, [rows, cols], count).unwrap();
    let bits = |found: &Option<Vec<Largest>>| {
        found.as_ref().map(|found| found.iter().map(|l| (l.index, l.value.to_bits())).collect::<Vec<_>>())
    };
    assert_eq!(bits(&found), bits(&again));
    backend.free_buffer(buffer);
    let each = count.min(cols);
    found.map(|found| {
        assert_eq!(found.len(), rows * each);
        found.chunks(each).map(|row| row.iter().map(|l| (l.index, l.value)).collect()).collect()
    })
}

/// The same on the host.
pub fn expected(rows: usize, x: &[f32], count: usize) -> Vec<Vec<(usize, f32)>> {
    let of_row = |row: &[f32]| {
        let mut all: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(count);
        all
    };
    x.chunks(x.len() / rows).map(of_row).collect()
}

/// Whether a backend has a kernel for it.
fn has_it(name: &str) -> bool {
    name == "cuda" || name.starts_with("metal")
}

#[test]
fn first_of_the_largest() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let mut random = Random::new(4);
        let mut any = false;
        for (rows, cols) in [(1, 1), (2, 31), (5, 33), (3, 1000), (1, 1025), (40, 4000), (1, 151_936)] {
            let mut x: Vec<f32> = random.floats(rows * cols);
            for row in x.chunks_mut(cols) {
                // The same twice, and zeros of both signs.
                let (a, b) = (random.below(cols), random.below(cols));
                (row[a], row[b]) = (9.0, 9.0);
                let (a, b) = (random.below(cols), random.below(cols));
                (row[a], row[b]) = (0.0, -0.0);
            }
            for count in [1, 2, 40, 64, 200, 256] {
                if let Some(found) = largest(backend, rows, &x, count) {
                    let expected = expected(rows, &x, count);
                    assert!(found == expected, "{} {rows} {cols} {count}", tested.name);
                    any = true;
                }
            }
        }
        assert_eq!(any, has_it(&tested.name), "{}", tested.name);
    }
}

/// Where the largest elements come to the same threads or are equal, more are sorted than are wanted; where they are too
/// many, all go to the host.
#[test]
fn largest_that_are_not_scattered() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let cols = 60_000;
        let of = |value: fn(usize) -> f32| -> Vec<f32> { (0..cols).map(value).collect() };
        let rising = of(|i| i as f32);
        let falling = of(|i| -(i as f32));
        let few_values = of(|i| (i % 50) as f32);
        let together =
            of(|i| if i % 4096 == 7 { 100.0 - (i / 4096) as f32 } else { (i % 977) as f32 * 0.01 });
        for (what, x, most) in [
            ("rising", rising, 256),
            ("falling", falling, 256),
            ("few values", few_values, 0),
            ("together", together, 64),
        ] {
            for count in [64, 256] {
                let found = largest(backend, 1, &x, count);
                if let Some(found) = &found {
                    assert!(*found == expected(1, &x, count), "{} {what} {count}", tested.name);
                }
                // Of many that are alike there may be too many for a list, but where none is made of them.
                let told = tested.name.starts_with("metal") || (tested.name == "cuda" && count <= most);
                assert!(found.is_some() || !told, "{} {what} {count}", tested.name);
            }
        }
    }
}

#[test]
fn what_is_no_number_comes_first() {
    for mut tested in backends() {
        let mut x = Random::new(5).floats(5000);
        for (at, broken) in [(4321, f32::NAN), (1234, f32::INFINITY), (77, f32::NEG_INFINITY)] {
            x[at] = broken;
            for count in [1, 3] {
                if let Some(found) = largest(tested.backend.as_mut(), 1, &x, count) {
                    assert_eq!(found[0][0].0, at, "{}", tested.name);
                    assert_eq!(found[0][0].1.to_bits(), broken.to_bits(), "{}", tested.name);
                }
            }
        }
    }
}

/// The largest logit of a forward, which its last product may find on the way: of equal ones the first, and what is no number
/// before all. Another number of elements in between makes it a launch of its own again.
#[test]
fn largest_of_what_a_forward_computes() {
    const COLS: usize = 64;
    for rows in [5, 4001] {
        for tested in backends() {
            let mut random = Random::new(6);
            // Token 0 leaves a row of zeros, others what is random.
            let mut table = random.floats(8 * COLS);
            table[..COLS].fill(0.0);
            table[7 * COLS + 3] = f32::NAN;
            let mut weights = random.floats(rows * COLS);
            // Rows that are equal give results that are.
            let (first, last) = weights.split_at_mut((rows - 1) * COLS);
            last.copy_from_slice(&first[COLS..2 * COLS]);
            let floats = |name: &str, rows: usize| WeightInfo {
                name: name.into(),
                format: Format::F32,
                rows,
                cols: COLS,
            };
            let infos = [floats("table", 8), floats("weights", rows)];
            let name = tested.name;
            let participation = Participation {
                accelerators: vec![tested.backend.name().to_owned()],
                ..Participation::cpu_only()
            };
            let params = graph::GraphParams { participation, ..params(1) };
            let mut scheduler = Scheduler::new(vec![tested.backend]);
            for (info, data) in infos.iter().zip([&table, &weights]) {
                let bytes = bytemuck::cast_slice(data).to_vec().into();
                let WeightInfo { format, rows, cols, .. } = *info;
                let data = WeightData { format, rows, cols, bytes, release: None };
                scheduler.register_weight(&info.name, data).unwrap();
            }
            let prepared = scheduler.prepare(&params, |params| {
                let mut builder = GraphBuilder::new(params, Vec::new());
                let [table, weight] = infos.each_ref().map(|info| builder.weight(info));
                let tokens = builder.input(InputKind::Tokens);
                let x = builder.op("x", Op::GetRows(GetRows { table: Some(table) }), &[tokens])?;
                let product = MatMul { weight, bias: None, logits: true };
                let logits = builder.op("logits", Op::MatMul(product), &[x])?;
                Ok(builder.finish(&[logits]))
            });
            prepared.unwrap();
            for (token, count) in
                [(1, 1), (1, 1), (2, 1), (0, 1), (7, 1), (3, 2), (4, 2), (5, 1), (6, 1), (6, 1)]
            {
                let batch = Batch { tokens: vec![token], ..Batch::default() };
                scheduler.run(&batch).unwrap();
                let found = scheduler.largest_of_output(0, 0..1, count).unwrap();
                let mut logits = vec![0.0f32; rows];
                scheduler.read_output(0, 0..1, &mut logits).unwrap();
                assert_eq!(found.is_some(), has_it(&name), "{name}");
                let Some(found) = found else { continue };
                let expected =
                    if token == 7 { vec![(0, logits[0])] } else { expected(1, &logits, count).remove(0) };
                assert_eq!(logits[0].is_nan(), token == 7, "{name}");
                let bits = |(index, value): (usize, f32)| (index, value.to_bits());
                let found: Vec<_> = found.iter().map(|found| bits((found.index, found.value))).collect();
                let expected: Vec<_> = expected.into_iter().map(bits).collect();
                assert_eq!(found, expected, "{name}, {rows} rows, token {token}");
            }
        }
    }
}
