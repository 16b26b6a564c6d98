//! Positions, sizes and indices, for whole and for partial threadgroups.

mod common;

use common::{Lab, read};
use metal::device::Size;

const SOURCE: &str = include_str!("msl/grid.metal");
const FIELDS: usize = 12;

fn unpack(word: u32) -> [usize; 3] {
    [word & 2047, word >> 11 & 2047, word >> 22].map(|part| part as usize)
}

fn check(grid: [usize; 3], block: [usize; 3], exact: bool) {
    let lab = Lab::new("grid.metal", SOURCE);
    let size = |counts: [usize; 3]| Size::new(counts[0], counts[1], counts[2]);
    let groups = [0, 1, 2].map(|axis| grid[axis].div_ceil(block[axis]));
    let seen = lab.buffer(&vec![0u32; grid.iter().product::<usize>() * FIELDS]);
    let launch = lab.launch("positions").buffer(0, &seen);
    if exact {
        launch.threads(size(grid), size(block)).unwrap();
    } else {
        launch.threadgroups(size(groups), size(block)).unwrap();
    }
    let words = read::<u32>(&seen);
    for (number, fields) in words.chunks(FIELDS).enumerate() {
        let position = [number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]];
        let group = [0, 1, 2].map(|axis| position[axis] / block[axis]);
        let local = [0, 1, 2].map(|axis| position[axis] % block[axis]);
        let cut = [0, 1, 2].map(|axis| block[axis].min(grid[axis] - group[axis] * block[axis]));
        let index = local[0] + cut[0] * (local[1] + cut[1] * local[2]);
        let threads: usize = cut.iter().product();
        assert_eq!(unpack(fields[0]), position);
        assert_eq!(unpack(fields[1]), local);
        assert_eq!(unpack(fields[2]), group);
        assert_eq!(unpack(fields[3]), cut, "threads_per_threadgroup at {position:?}");
        assert_eq!(unpack(fields[4]), block);
        assert_eq!(unpack(fields[5]), groups);
        assert_eq!(unpack(fields[6]), grid);
        assert_eq!(fields[7] as usize, index);
        assert_eq!(fields[8] as usize, index % 32);
        assert_eq!(fields[9] as usize, index / 32);
        assert_eq!(fields[10] as usize, threads.div_ceil(32));
        assert_eq!(fields[11], 32);
    }
}

#[test]
fn whole_threadgroups() {
    check([64, 6, 4], [16, 3, 2], false);
}

#[test]
fn exact_threads_with_partial_threadgroups_on_every_axis() {
    check([37, 7, 5], [16, 3, 2], true);
}

#[test]
fn one_thread() {
    check([1, 1, 1], [1, 1, 1], true);
}

#[test]
fn largest_threadgroup() {
    check([1500, 1, 1], [1024, 1, 1], true);
}

#[test]
fn a_parameter_without_attribute_is_the_first_free_buffer() {
    let lab = Lab::new("grid.metal", SOURCE);
    let out = lab.buffer(&[0u32; 100]);
    lab.launch("scalar_position").buffer(0, &out).threads(Size::width(100), Size::width(32)).unwrap();
    assert!(read::<u32>(&out).iter().enumerate().all(|(index, &value)| value as usize == index * index));
}
