//! Files made to break a reader: see `attacks.md` for the ideas and the verdicts.
//!
//! Each is opened from disk, as a user would. The rule: an error of one line that names the file and what in it is
//! wrong; no panic, little memory, little time, and the same words in debug and release builds (which is why whole
//! messages are compared).

mod support;

use gguf::{File, Header, ValueType};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};
use support::*;

/// Counts the bytes that each thread holds, and the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are thread-local cells of plain numbers,
// which need no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get() + layout.size();
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the pointer came from `alloc` above, which took it from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `f`; returns its result and the most bytes that this thread held in addition meanwhile.
fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = f();
    (result, PEAK.get().saturating_sub(before))
}

/// Opens a file of these bytes and checks that it is refused with this message, in little memory and time.
fn check(name: &str, bytes: &[u8], message: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{name}.gguf"));
    std::fs::write(&path, bytes).unwrap();

    let start = Instant::now();
    let (result, peak) = peak_of(|| File::open(&path));
    let error = result.expect_err("the file should be refused");
    assert!(start.elapsed() < Duration::from_secs(1), "{name}: {:?}", start.elapsed());
    assert!(peak < 64 << 10, "{name}: {peak} bytes for a file of {}", bytes.len());
    assert_eq!(error.path(), Some(path.as_path()));
    assert_eq!(error.to_string(), format!("{}: {message}", path.display()));

    // Bytes in memory meet the same verdict.
    assert_eq!(refused(bytes).to_string(), message);
}

fn tensor_w(shape: &[u64], offset: u64) -> Vec<u8> {
    tensor("w", shape, 0, offset)
}

#[test]
fn r01a_padded_size_does_not_wrap_to_zero() {
    let mut file = Crafted::one_tensor();
    file.tensors.push(tensor_w(&[4, (1 << 30) - 1, (1 << 30) + 1, 1], 64));
    // 4 x (2^60 - 1) elements of 4 bytes are 2^64 - 16, which still fits, but not behind an offset.
    check(
        "r01a",
        &file.bytes(),
        "tensor 'w': expected sizes that fit in 64 bits, found 18446744073709551600 bytes at the data offset \
         64",
    );
}

#[test]
fn r01b_elements_do_not_wrap_to_zero() {
    let file = Crafted::of_tensors(vec![tensor_w(&[1 << 62, 4], 0)], 64);
    check(
        "r01b",
        &file.bytes(),
        "tensor 'w': expected sizes that fit in 64 bits, found dimensions [4611686018427387904, 4] of F32",
    );
}

#[test]
fn r01c_dimension_that_is_negative_as_i64_is_refused() {
    let file = Crafted::of_tensors(vec![tensor_w(&[1 << 63, 1], 0)], 64);
    check(
        "r01c",
        &file.bytes(),
        "tensor 'w': expected sizes that fit in 64 bits, found dimensions [9223372036854775808, 1] of F32",
    );
}

#[test]
fn r01d_offset_plus_size_does_not_wrap() {
    let file = Crafted::of_tensors(vec![tensor_w(&[4, 4], 0u64.wrapping_sub(32))], 64);
    check(
        "r01d",
        &file.bytes(),
        "tensor 'w': expected sizes that fit in 64 bits, found 64 bytes at the data offset \
         18446744073709551584",
    );
}

#[test]
fn r01_running_totals_are_not_kept() {
    // Two tensors that each fit in 64 bits but whose sum does not: each is compared with the file, not with a total.
    let half = 1 << 61;
    let file = Crafted::of_tensors(vec![tensor_w(&[half - 8], 0), tensor("v", &[half - 8], 0, 1 << 63)], 64);
    check(
        "r01_total",
        &file.bytes(),
        "tensor 'v': expected sizes that fit in 64 bits, found 9223372036854775776 bytes at the data offset \
         9223372036854775808",
    );
}

#[test]
fn r03a_key_count_is_checked_before_allocation() {
    let file = Crafted { entry_count: Some(1 << 63), ..Crafted::default() };
    check(
        "r03a",
        &file.bytes(),
        "metadata keys: found a count of 9223372036854775808, of at least 13 bytes each, but only 72 bytes \
         at byte 24: at least 119903836479112085432 bytes are missing (damaged, or download incomplete?)",
    );
}

#[test]
fn r03b_tensor_count_is_checked_before_allocation() {
    let file = Crafted { tensor_count: Some(1 << 60), ..Crafted::default() };
    check(
        "r03b",
        &file.bytes(),
        "tensors: found a count of 1152921504606846976, of at least 32 bytes each, but only 72 bytes at byte \
         24: at least 36893488147419103160 bytes are missing (damaged, or download incomplete?)",
    );
}

#[test]
fn r03c_key_length_is_checked_before_allocation() {
    let key = [&string_claiming(1 << 40, "x")[..], &4u32.to_le_bytes(), &1u32.to_le_bytes()].concat();
    check(
        "r03c",
        &Crafted::of_entries(vec![key]).bytes(),
        "key 0: expected 1099511627776 bytes at byte 32, found 32: at least 1099511627744 bytes are missing \
         (download incomplete?)",
    );
}

#[test]
fn r03d_array_count_is_checked_before_allocation() {
    let file = Crafted::of_entries(vec![array_entry("a", ValueType::U8.id(), 1 << 60, &[])]);
    check(
        "r03d",
        &file.bytes(),
        "key 'a': array of u8: found a count of 1152921504606846976, of at least 1 bytes each, but only 15 \
         bytes at byte 49: at least 1152921504606846961 bytes are missing (damaged, or download incomplete?)",
    );
}

#[test]
fn r03e_string_array_count_is_checked_before_allocation() {
    let file = Crafted::of_entries(vec![array_entry("a", ValueType::String.id(), 1 << 60, &string("x"))]);
    check(
        "r03e",
        &file.bytes(),
        "key 'a': array of string: found a count of 1152921504606846976, of at least 8 bytes each, but only \
         15 bytes at byte 49: at least 9223372036854775793 bytes are missing (damaged, or download \
         incomplete?)",
    );
}

#[test]
fn r03f_nesting_is_bounded() {
    let level = array(ValueType::Array.id(), 1, &[]);
    let file = Crafted::of_entries(vec![entry("a", ValueType::Array.id(), &level.repeat(200_000))]);
    check(
        "r03f",
        &file.bytes(),
        "key 'a': expected arrays nested at most 4 deep, found a deeper one at byte 85",
    );
}

#[test]
fn r03_counts_that_overflow_when_multiplied_are_refused() {
    // 2^61 elements of 8 bytes are 2^64, which wraps to 0.
    let file = Crafted::of_entries(vec![array_entry("a", ValueType::U64.id(), 1 << 61, &[])]);
    check(
        "r03_product",
        &file.bytes(),
        "key 'a': array of u64: found a count of 2305843009213693952, of at least 8 bytes each, but only 15 \
         bytes at byte 49: at least 18446744073709551601 bytes are missing (damaged, or download \
         incomplete?)",
    );
}

#[test]
fn r03_memory_grows_with_the_bytes_of_the_file_alone() {
    // The densest claims that pass the count check: empty strings, and empty nested arrays.
    let strings = array_entry("s", ValueType::String.id(), 100_000, &[0; 800_000]);
    let empty = array(ValueType::U8.id(), 0, &[]);
    let nested = array_entry("n", ValueType::Array.id(), 100_000, &empty.repeat(100_000));
    let bytes = Crafted::of_entries(vec![strings, nested]).bytes();
    let (header, peak) = peak_of(|| Header::parse(&bytes).unwrap());
    assert_eq!(header.metadata().len(), 2);
    assert!(peak < 6 * bytes.len(), "{peak} bytes for a file of {}", bytes.len());
}

#[test]
fn r05a_empty() {
    check(
        "r05a",
        b"",
        "not a GGUF file: expected 'GGUF' at byte 0, but the file is empty (download incomplete?)",
    );
}

#[test]
fn r05b_magic_only() {
    check(
        "r05b",
        b"GGUF",
        "version: expected 4 bytes at byte 4, found 0: at least 4 bytes are missing (download incomplete?)",
    );
}

#[test]
fn r05c_header_half() {
    check(
        "r05c",
        &Crafted::one_tensor().bytes()[..40],
        "tensors: found a count of 1, of at least 32 bytes each, but only 16 bytes at byte 24: at least 16 \
         bytes are missing (damaged, or download incomplete?)",
    );
}

#[test]
fn r05d_data_one_byte_short() {
    let bytes = Crafted::one_tensor().bytes();
    check(
        "r05d",
        &bytes[..bytes.len() - 1],
        "tensor 'token_embd.weight': expected its data to end at byte 192, but the file has 191: 1 byte is \
         missing (download incomplete?)",
    );
}

#[test]
fn r05e_no_data() {
    let file = Crafted { data: Vec::new(), ..Crafted::one_tensor() };
    check(
        "r05e",
        &file.bytes(),
        "tensor 'token_embd.weight': expected its data to end at byte 192, but the file has 128: 64 bytes \
         are missing (download incomplete?)",
    );
}

#[test]
fn r05f_big_endian() {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_be_bytes());
    bytes.extend([0; 16]);
    check(
        "r05f",
        &bytes,
        "a big-endian GGUF file, which is not read: expected a little-endian version at byte 4, found \
         '\\x00\\x00\\x00\\x03'",
    );
}

#[test]
fn r05g_version_1() {
    let file = Crafted { version: 1, ..Crafted::default() };
    check(
        "r05g",
        &file.bytes(),
        "GGUF version 1 at byte 4, which is not read: expected 2 or 3 (convert the model again)",
    );
}

#[test]
fn r05h_magic_reversed() {
    let file = Crafted { magic: *b"FUGG", ..Crafted::default() };
    check(
        "r05h",
        &file.bytes(),
        "not a GGUF file: expected 'GGUF' at byte 0, found 'FUGG' (this looks like a GGUF file with its \
         magic reversed)",
    );
}

#[test]
fn r05_every_cut_of_a_good_file_is_refused() {
    let mut file = Crafted::one_tensor();
    file.entries.push(array_entry(
        "tokens",
        ValueType::String.id(),
        2,
        &[string("a"), string("bc")].concat(),
    ));
    let bytes = file.bytes();
    Header::parse(&bytes).unwrap();
    for len in 0..bytes.len() {
        let message = refused(&bytes[..len]).to_string();
        assert!(message.contains("incomplete"), "{len} bytes: {message}");
    }
}

#[test]
fn r05_missing_bytes_are_those_of_the_whole_file() {
    // The last tensor in the file is not the last in the table.
    let tensors = vec![tensor("late", &[8], 0, 1024), tensor("early", &[8], 0, 0)];
    let file = Crafted::of_tensors(tensors, 100);
    let message = refused(&file.bytes()).to_string();
    assert!(
        message.contains("tensor 'late'")
            && message.contains(&format!("{} bytes are missing", 1024 + 32 - 100)),
        "{message}"
    );
}

#[test]
fn r05_trailing_bytes_are_fine() {
    let mut bytes = Crafted::one_tensor().bytes();
    bytes.extend([0; 4096]);
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(header.tensors()[0].len, 64);
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let name = "\u{1b}[2J\nok".repeat(1000);
    let file = Crafted::of_tensors(vec![tensor(&name, &[4], 99, 0)], 16);
    // `refused` checks that there is no control character.
    let message = refused(&file.bytes()).to_string();
    assert!(message.len() < 1000 && message.contains(r"\u{1b}[2J\nok"), "{message}");
}

#[test]
fn many_equal_offsets_do_not_take_quadratic_time() {
    let tensors: Vec<_> = (0..100_000).map(|i| tensor(format!("t{i}"), &[1], 0, 0)).collect();
    let start = Instant::now();
    let error = refused(&Crafted::of_tensors(tensors, 64).bytes());
    assert!(matches!(error, gguf::Error::Overlap { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
