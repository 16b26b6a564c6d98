//! The largest elements of rows, where a backend finds them without a copy of all to the host.

use crate::harness::*;
use graph::Backend;

fn largest(backend: &mut dyn Backend, rows: usize, x: &[f32]) -> Option<Vec<(usize, f32)>> {
    let bytes: &[u8] = bytemuck::cast_slice(x);
    let buffer = backend.alloc_buffer(bytes.len() + 64).unwrap();
    backend.write_host(buffer, 64, bytes).unwrap();
    let found = backend.largest(buffer, 64, rows, x.len() / rows).unwrap();
    backend.free_buffer(buffer);
    found.map(|found| found.iter().map(|largest| (largest.index, largest.value)).collect())
}

#[test]
fn first_of_the_largest() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let mut random = Random::new(4);
        let mut any = false;
        for (rows, cols) in [(1, 1), (1, 151_936), (3, 1000), (5, 33)] {
            let mut x: Vec<f32> = random.floats(rows * cols);
            for row in x.chunks_mut(cols) {
                // The same twice.
                let (a, b) = (random.below(cols), random.below(cols));
                (row[a], row[b]) = (9.0, 9.0);
            }
            let expected: Vec<(usize, f32)> =
                x.chunks(cols).map(|row| (row.iter().position(|&v| v == 9.0).unwrap(), 9.0)).collect();
            if let Some(found) = largest(backend, rows, &x) {
                assert_eq!(found, expected, "{} {rows} {cols}", tested.name);
                any = true;
            }
        }
        assert_eq!(any, tested.name == "cuda", "{}", tested.name);
    }
}

#[test]
fn what_is_no_number_comes_first() {
    for mut tested in backends() {
        let mut x = Random::new(5).floats(5000);
        for (at, broken) in [(4321, f32::NAN), (1234, f32::INFINITY), (77, f32::NEG_INFINITY)] {
            x[at] = broken;
            if let Some(found) = largest(tested.backend.as_mut(), 1, &x) {
                assert_eq!(found[0].0, at, "{}", tested.name);
                assert_eq!(found[0].1.to_bits(), broken.to_bits(), "{}", tested.name);
            }
        }
    }
}
