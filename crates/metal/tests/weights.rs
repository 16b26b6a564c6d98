//! Weights: read where a file is mapped, copied where that is not possible.

mod common;

use bytes::Bytes;
use common::{start, start_with};
use graph::{Backend, BackendError, WeightData};
use metal::{Switches, WeightBytes};
use quant::Format;
use std::alloc::Layout;

/// The simulated GPU's page.
const PAGE: usize = 16 << 10;

/// Pages of memory, as a mapped file has them.
struct Pages {
    memory: *mut u8,
    layout: Layout,
}

// SAFETY: plain bytes, written by nobody after their allocation.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(count: usize) -> Bytes {
        let layout = Layout::from_size_align(count * PAGE, PAGE).unwrap();
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!memory.is_null());
        Bytes::from_owner(Pages { memory, layout })
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: allocated in `map` with this size, and initialised.
        unsafe { std::slice::from_raw_parts(self.memory, self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `map` with this layout, freed once.
        unsafe { std::alloc::dealloc(self.memory, self.layout) }
    }
}

fn weight(bytes: Bytes) -> WeightData {
    WeightData { format: Format::F32, rows: 1, cols: bytes.len() / 4, bytes, release: None }
}

#[test]
fn weights_of_a_mapped_part_are_not_copied() {
    let mut backend = start();
    let part = Pages::map(3);
    backend.register_part(&part).unwrap();
    backend.register_weight("inside", weight(part.slice(32..64))).unwrap();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped: 32, copied: 0 });
    backend.register_weight("outside", weight(Bytes::from(vec![0; 8]))).unwrap();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped: 32, copied: 8 });
    assert!(backend.has_weight("inside") && backend.has_weight("outside") && !backend.has_weight("other"));
    assert_eq!(backend.packed_bytes(), 8);
    // The first touch of the mapping is waited for.
    backend.synchronize().unwrap();
}

#[test]
fn only_whole_pages_are_mapped() {
    let mut backend = start();
    let part = Pages::map(3).slice(64..);
    backend.register_part(&part).unwrap();
    // Before the first whole page, across its edge, and behind it.
    for (range, mapped) in [(0..32, 0), (PAGE - 96..PAGE - 32, 0), (PAGE - 64..PAGE, 64)] {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(range.clone()))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{range:?}");
    }
    // Behind the last whole page, and across its end.
    let part = Pages::map(2);
    backend.register_part(&part.slice(..PAGE)).unwrap();
    for (range, mapped) in [(PAGE - 32..PAGE, 32), (PAGE - 32..PAGE + 32, 0), (PAGE..PAGE + 32, 0)] {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(range.clone()))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{range:?}");
    }
    // Nothing at all.
    backend.register_part(&Bytes::new()).unwrap();
    backend.synchronize().unwrap();
}

#[test]
fn a_weight_that_lies_at_an_odd_place_is_copied() {
    let mut backend = start();
    let part = Pages::map(1);
    backend.register_part(&part).unwrap();
    for (first, mapped) in [(2, 0), (31, 0), (4, 32)] {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(first..first + 32))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{first}");
    }
}

#[test]
fn the_switch_copies_everything() {
    let mut backend = start_with(Switches { weight_copy: true, ..Switches::default() });
    let part = Pages::map(1);
    backend.register_part(&part).unwrap();
    backend.register_weight("w", weight(part.slice(0..32))).unwrap();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped: 0, copied: 32 });
}

#[test]
fn a_weight_of_the_wrong_length_is_refused() {
    let mut backend = start();
    let data =
        WeightData { format: Format::Q4_0, rows: 2, cols: 32, bytes: vec![0; 35].into(), release: None };
    let Err(BackendError::Length { what, expected: 36, found: 35 }) = backend.register_weight("w", data)
    else {
        panic!("accepted")
    };
    assert_eq!(what, "weight 'w' of 2 x 32 in Q4_0");
    assert!(!backend.has_weight("w"));
}
