//! The largest elements of rows, where a backend finds them without a copy of all to the host.

use crate::harness::*;
use graph::{Backend, Largest};

/// The numbers and values of the `count` largest elements of each row.
fn largest(
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
fn expected(rows: usize, x: &[f32], count: usize) -> Vec<Vec<(usize, f32)>> {
    let of_row = |row: &[f32]| {
        let mut all: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all.truncate(count);
        all
    };
    x.chunks(x.len() / rows).map(of_row).collect()
}

#[test]
fn first_of_the_largest() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let mut random = Random::new(4);
        let mut any = false;
        for (rows, cols) in [(1, 1), (1, 151_936), (3, 1000), (5, 33), (40, 4000)] {
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
        assert_eq!(any, tested.name == "cuda", "{}", tested.name);
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
                let told = tested.name == "cuda" && count <= most;
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
