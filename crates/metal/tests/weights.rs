//! Weights: read where a file is mapped, copied where that is not possible.

mod common;

use bytes::Bytes;
use common::{start, start_on, start_with};
use graph::{Backend, BackendError, WeightData};
use metal::device::Device;
use metal::{MetalBackend, Switches, WeightBytes};
use metal_sim::device::{Resident, Settings, SimDevice};
use metal_sim::profile::Profile;
use metal_sim::sanitize;
use quant::Format;
use std::alloc::Layout;
use std::slice;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

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
    backend.register_part(&part, slice::from_ref(&(32..64))).unwrap();
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
    // Before the first whole page, across its edge, and behind it.
    let weights = [0..32, PAGE - 96..PAGE - 32, PAGE - 64..PAGE];
    backend.register_part(&part, &weights).unwrap();
    for (range, mapped) in weights.into_iter().zip([0, 0, 64]) {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(range.clone()))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{range:?}");
    }
    // Behind the last whole page, and across its end.
    let part = Pages::map(2);
    let weights = [PAGE - 32..PAGE, PAGE - 32..PAGE + 32, PAGE..PAGE + 32];
    backend.register_part(&part.slice(..PAGE), &weights).unwrap();
    for (range, mapped) in weights.into_iter().zip([32, 0, 0]) {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(range.clone()))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{range:?}");
    }
    // Nothing at all.
    backend.register_part(&Bytes::new(), &[]).unwrap();
    backend.synchronize().unwrap();
}

#[test]
fn a_weight_that_lies_at_an_odd_place_is_copied() {
    let mut backend = start();
    let part = Pages::map(1);
    backend.register_part(&part, &[2..34, 31..63, 4..36]).unwrap();
    for (first, mapped) in [(2, 0), (31, 0), (4, 32)] {
        let before = backend.weight_bytes();
        backend.register_weight("w", weight(part.slice(first..first + 32))).unwrap();
        assert_eq!(backend.weight_bytes().mapped - before.mapped, mapped, "{first}");
    }
    // Their pages are mapped, so nothing but the place stands in the way.
    assert_eq!(backend.unmapped_bytes(), 64);
}

/// A GPU whose buffers have three pages at most.
fn with_short_buffers(sanitizes: bool) -> MetalBackend<SimDevice> {
    let mut profile = Profile::default();
    profile.limits.max_buffer_length = 3 * PAGE;
    let settings = Settings::default();
    let device = match sanitizes {
        true => SimDevice::with_sanitizer(profile, settings, sanitize::Settings::default()),
        false => SimDevice::new(profile, settings),
    };
    start_on(device.unwrap(), Switches::default())
}

#[test]
fn a_file_longer_than_any_buffer_is_mapped_in_windows() {
    for sanitizes in [false, true] {
        check_windows(with_short_buffers(sanitizes));
    }
}

fn check_windows(mut backend: MetalBackend<SimDevice>) {
    let part = Pages::map(8);
    let device = backend.device().clone();
    // Nothing of the fifth page. Two windows share the third.
    let weights =
        [0..32, PAGE..2 * PAGE + 32, 2 * PAGE + 32..4 * PAGE, 5 * PAGE..5 * PAGE + 4, 6 * PAGE..8 * PAGE];
    let before = device.allocated_memory();
    backend.register_part(&part, &weights).unwrap();
    assert_eq!(device.resident(), Resident { sets: 1, buffers: 3, ..device.resident() });
    let windows = device.allocated_memory() - before;
    assert_eq!(windows / PAGE, 3 + 2 + 3, "and the word that the first touch is summed in");
    for range in &weights {
        backend.register_weight("w", weight(part.slice(range.clone()))).unwrap();
    }
    let mapped = weights.iter().map(|range| range.len()).sum();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped, copied: 0 });
    assert_eq!(backend.unmapped_bytes(), 0);
    backend.synchronize().unwrap();
    assert!(device.sanitizer().is_none_or(|sanitizer| sanitizer.reports().is_empty()));
}

#[test]
fn a_weight_that_fits_in_no_buffer_is_refused_and_one_whose_pages_do_not_is_copied() {
    let mut backend = with_short_buffers(false);
    let part = Pages::map(8);
    let weights = [0..4 * PAGE, 5 * PAGE - 32..8 * PAGE - 32];
    backend.register_part(&part, &weights).unwrap();
    let refused = backend.register_weight("long", weight(part.slice(weights[0].clone()))).unwrap_err();
    let expected = "no memory for a weight in one buffer, of 49152 bytes at most (65536 bytes)";
    assert_eq!(refused.to_string(), expected);
    backend.register_weight("between", weight(part.slice(weights[1].clone()))).unwrap();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped: 0, copied: 3 * PAGE });
    assert_eq!(backend.unmapped_bytes(), 3 * PAGE);
}

/// Bytes that tell when they are given up.
struct Watched {
    pages: Bytes,
    device: SimDevice,
    given_up: Arc<Mutex<Option<Resident>>>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.pages
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        *self.given_up.lock().unwrap() = Some(self.device.resident());
    }
}

#[test]
fn a_queue_has_one_residency_set_which_goes_before_the_file() {
    let mut backend = start();
    let device = backend.device().clone();
    let given_up = Arc::default();
    // More parts than a queue can have sets.
    for _ in 0..40 {
        let watched =
            Watched { pages: Pages::map(1), device: device.clone(), given_up: Arc::clone(&given_up) };
        backend.register_part(&Bytes::from_owner(watched), slice::from_ref(&(0..32))).unwrap();
    }
    let resident = device.resident();
    assert_eq!((resident.sets, resident.buffers), (1, 40));
    assert!(resident.requests >= 40);
    backend.synchronize().unwrap();
    assert_eq!(device.unscoped(), 0, "of the command buffers that touch the weights");
    // Nothing uses them now, so that they are asked for again.
    let deadline = Instant::now() + Duration::from_secs(60);
    while device.resident().requests == resident.requests {
        assert!(Instant::now() < deadline, "nobody asks");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(*given_up.lock().unwrap(), None);
    drop(backend);
    let resident = given_up.lock().unwrap().expect("the file is given up");
    assert_eq!((resident.sets, resident.buffers), (0, 0));
}

#[test]
fn what_a_model_can_have_is_what_the_gpu_may_use_and_nobody_has_taken() {
    let mut backend = start();
    let reserve = 512 << 20;
    let free = |backend: &MetalBackend<SimDevice>| {
        let device = backend.device();
        device.limits().recommended_working_set - device.allocated_memory() - reserve
    };
    let before = backend.usable_memory().unwrap();
    assert_eq!(before, free(&backend));
    let buffer = backend.alloc_buffer(1 << 20).unwrap();
    assert_eq!(before - backend.usable_memory().unwrap(), 1 << 20);
    backend.free_buffer(buffer);
    assert_eq!(metal::usable_memory(backend.device()), free(&backend));
}

#[test]
fn the_switch_copies_everything() {
    let mut backend = start_with(Switches { weight_copy: true, ..Switches::default() });
    let part = Pages::map(1);
    backend.register_part(&part, slice::from_ref(&(0..32))).unwrap();
    backend.register_weight("w", weight(part.slice(0..32))).unwrap();
    assert_eq!(backend.weight_bytes(), WeightBytes { mapped: 0, copied: 32 });
    assert_eq!(backend.unmapped_bytes(), 0, "as was asked for");
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
