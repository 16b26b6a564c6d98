//! simdgroup_matrix against products in float64.

mod common;

use common::{Lab, Plain, nmse, noise, read};
use half::{bf16, f16};
use metal::device::{Error, Size};

const SOURCE: &str = include_str!("msl/matrix.metal");

type Matrix = [f64; 64];

fn matrix(values: &[f32]) -> Matrix {
    std::array::from_fn(|index| f64::from(values[index]))
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    std::array::from_fn(|index| (0..8).map(|k| a[index & !7 | k] * b[k * 8 + index % 8]).sum())
}

fn sum(parts: &[Matrix]) -> Matrix {
    std::array::from_fn(|index| parts.iter().map(|part| part[index]).sum())
}

fn one_simdgroup() -> (Size, Size) {
    (Size::width(1), Size::width(32))
}

fn multiply<A: Plain, D: Plain>(
    kernel: &str,
    narrow: impl Fn(f32) -> A,
    wide: impl Fn(f32) -> D,
    out: impl Fn(D) -> f32,
    to: impl Fn(A) -> f32,
    tolerance: f64,
) {
    let lab = Lab::new("matrix.metal", SOURCE);
    let [a, b]: [Vec<A>; 2] = [1, 2].map(|seed| noise(seed, 64).into_iter().map(&narrow).collect());
    let c: Vec<D> = noise(3, 64).into_iter().map(&wide).collect();
    let d = lab.buffer(&[D::default(); 64]);
    let (groups, threads) = one_simdgroup();
    lab.launch(kernel)
        .buffer(0, &lab.buffer(&a))
        .buffer(1, &lab.buffer(&b))
        .buffer(2, &lab.buffer(&c))
        .buffer(3, &d)
        .threadgroups(groups, threads)
        .unwrap();
    let narrow_back = |values: &[A]| matrix(&values.iter().map(|&x| to(x)).collect::<Vec<_>>());
    let c = matrix(&c.into_iter().map(&out).collect::<Vec<_>>());
    let expected = sum(&[product(&narrow_back(&a), &narrow_back(&b)), c]);
    let found: Vec<f32> = read::<D>(&d).into_iter().map(&out).collect();
    let error = nmse(&found, &expected);
    assert!(error < tolerance, "{kernel}: {error:e}");
}

#[test]
fn products_of_every_element_type() {
    let same = |x: f32| x;
    multiply("multiply_float", same, same, same, same, 1e-12);
    multiply("multiply_half", f16::from_f32, f16::from_f32, f16::to_f32, f16::to_f32, 1e-6);
    multiply("multiply_mixed", f16::from_f32, same, same, f16::to_f32, 1e-12);
    multiply("multiply_bfloat", bf16::from_f32, same, same, bf16::to_f32, 1e-12);
}

#[test]
fn origin_row_length_and_transposition() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let input: Vec<f32> = (0..400).map(|i| i as f32).collect();
    let out = lab.buffer(&vec![-1f32; 400]);
    let (groups, threads) = one_simdgroup();
    lab.launch("layout")
        .buffer(0, &lab.buffer(&input))
        .buffer(1, &out)
        .threadgroups(groups, threads)
        .unwrap();
    let found = read::<f32>(&out);
    for row in 0..8 {
        for column in 0..8 {
            // Element (row, column) of the matrix is (column, row) in memory.
            let value = ((column + 2) * 20 + row + 3) as f32;
            assert_eq!(found[(row + 1) * 12 + column + 1], value);
            assert_eq!(found[200 + (column + 1) * 12 + row + 1], value);
        }
    }
    let written = found.iter().filter(|&&x| x != -1.0).count();
    assert_eq!(written, 128);
}

#[test]
fn results_are_operands_accumulators_and_copies() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let input = noise(9, 128);
    let out = lab.buffer(&vec![-1f32; 192]);
    let (groups, threads) = one_simdgroup();
    lab.launch("chain").buffer(0, &lab.buffer(&input)).buffer(1, &out).threadgroups(groups, threads).unwrap();
    let (a, b) = (matrix(&input), matrix(&input[64..]));
    let ab = product(&a, &b);
    let total = sum(&[[1.0; 64], product(&ab, &b), product(&a, &a), product(&b, &b)]);
    let found = read::<f32>(&out);
    assert!(nmse(&found[..64], &total.map(|x| 2.0 * x)) < 1e-12);
    assert!(nmse(&found[64..128], &sum(&[product(&ab, &ab), ab])) < 1e-12);
    assert_eq!(found[128..], [0.0; 64]);
}

#[test]
fn thread_elements_see_and_change_the_value() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let input = noise(5, 128);
    let out = lab.buffer(&vec![-1f32; 96]);
    let (groups, threads) = one_simdgroup();
    lab.launch("elements")
        .buffer(0, &lab.buffer(&input))
        .buffer(1, &out)
        .threadgroups(groups, threads)
        .unwrap();
    let (a, b) = (matrix(&input), matrix(&input[64..]));
    let plus = |amount: f64| a.map(|x| x + amount);
    let expected = sum(&[0.0, 1.0, 2.0].map(|amount| product(&plus(amount), &b)));
    // The second element of each lane was doubled: the odd columns.
    let doubled: Matrix = std::array::from_fn(|i| expected[i] * if i % 2 == 1 { 2.0 } else { 1.0 });
    let found = read::<f32>(&out);
    assert!(nmse(&found[..64], &doubled) < 1e-12);
    // Every first element is the value of some even column.
    let mut firsts: Vec<f32> = found[64..].to_vec();
    let mut even: Vec<f32> = (0..64).filter(|i| i % 2 == 0).map(|i| found[i]).collect();
    firsts.sort_by(f32::total_cmp);
    even.sort_by(f32::total_cmp);
    assert_eq!(firsts, even);
}

#[test]
fn any_number_of_products_between_synchronisations() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let input = noise(6, 80);
    for count in [1u32, 40, 300] {
        let out = lab.buffer(&vec![-1f32; 256]);
        let (groups, threads) = one_simdgroup();
        lab.launch("many")
            .buffer(0, &lab.buffer(&input))
            .buffer(1, &out)
            .bytes(2, &[count])
            .threadgroups(groups, threads)
            .unwrap();
        let steps: Vec<Matrix> = (0..count as usize)
            .map(|step| product(&matrix(&input[step % 5..]), &matrix(&input[step % 7..])))
            .collect();
        let expected = sum(&steps);
        for found in read::<f32>(&out).chunks(64) {
            let error = nmse(found, &expected);
            assert!(error < 1e-11, "{count} products: {error:e}");
        }
    }
}

#[test]
fn threadgroup_barriers_stage_operands() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let input = noise(7, 256);
    let out = lab.buffer(&vec![-1f32; 256]);
    lab.launch("staged")
        .buffer(0, &lab.buffer(&input))
        .buffer(1, &out)
        .threadgroup(0, 256)
        .threadgroups(Size::width(1), Size::width(128))
        .unwrap();
    let total = sum(&[0, 64, 128, 192].map(|start| matrix(&input[start..])));
    for (group, found) in read::<f32>(&out).chunks(64).enumerate() {
        assert!(nmse(found, &total.map(|x| x * (group + 1) as f64)) < 1e-12);
    }
}

#[test]
fn a_product_that_not_all_threads_execute_is_an_error() {
    let lab = Lab::new("matrix.metal", SOURCE);
    let (groups, threads) = one_simdgroup();
    let out = lab.buffer(&vec![0f32; 64]);
    let error = lab.launch("divergent").buffer(0, &out).threadgroups(groups, threads).unwrap_err();
    assert!(
        matches!(&error, Error::Execution { kernel, reason, .. } if kernel == "divergent" && reason.contains("not executed by all threads")),
        "{error}"
    );
}
