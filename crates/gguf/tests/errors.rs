//! One test per variant of [`gguf::Error`]: the file that provokes it, and the whole message. (Variants about sizes
//! and counts that overflow are met in `attacks.rs` as well, those about shards in `split.rs`.)

mod support;

use gguf::{Error, File, ValueType, Writer};
use quant::Format;
use support::*;

/// Checks the message of the refusal of these bytes, and returns the error.
#[track_caller]
fn check(bytes: &[u8], message: &str) -> Error {
    let error = refused(bytes);
    assert_eq!(error.to_string(), message);
    error
}

#[test]
fn in_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v9.gguf");
    std::fs::write(&path, Crafted { version: 9, ..Crafted::default() }.bytes()).unwrap();
    let error = File::open(&path).unwrap_err();
    assert!(matches!(error, Error::InFile { .. }) && matches!(error.kind(), Error::Version(9)), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("{}: GGUF version at byte 4: expected 2 or 3, found 9", path.display())
    );
}

#[test]
fn io() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent.gguf");
    let error = File::open(&path).unwrap_err();
    assert!(matches!(error.kind(), Error::Io(io) if io.kind() == std::io::ErrorKind::NotFound), "{error:?}");
    assert!(error.to_string().starts_with(&format!("{}: ", path.display())), "{error}");
}

#[test]
fn not_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = File::open(dir.path()).unwrap_err();
    assert!(matches!(error.kind(), Error::NotAFile), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("{}: not a regular file: expected a GGUF file", dir.path().display())
    );
}

#[test]
fn empty() {
    let error = check(
        b"",
        "not a GGUF file: expected 'GGUF' at byte 0, but the file is empty (download incomplete?)",
    );
    assert!(matches!(error, Error::Empty));
}

#[test]
fn magic() {
    let unknown =
        check(b"MZ\x90\0 and so on", r"not a GGUF file: expected 'GGUF' at byte 0, found 'MZ\x90\x00'");
    assert!(matches!(unknown, Error::Magic { looks_like: None, .. }));
    for (start, looks_like) in [
        (&b"PK\x03\x04 archive/data.pkl"[..], "a zip archive, as PyTorch checkpoints are"),
        (b"\x1f\x8b\x08", "a gzip archive"),
        (b"tjgg\x01\0\0\0", "a GGML model, the format before GGUF"),
        (b"\x40\0\0\0\0\0\0\0{\"w\":{}}", "a safetensors file"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer: fetch the file that it points to",
        ),
        (b"\n<!doctype html>", "a web page: was the download refused?"),
        (b"{\"error\":\"Unauthorized\"}", "a JSON file: was the download refused?"),
        (&[0; 64], "a file that was reserved but never downloaded"),
        (b"FUGG\x03\0\0\0", "a GGUF file with its magic reversed"),
    ] {
        let error = refused(start);
        assert!(error.to_string().ends_with(&format!(" (this looks like {looks_like})")), "{error}");
    }
}

#[test]
fn big_endian() {
    let error = check(
        &[b"GGUF", &3u32.to_be_bytes()[..]].concat(),
        r"a big-endian GGUF file, which is not read: expected a little-endian version at byte 4, found '\x00\x00\x00\x03'",
    );
    assert!(matches!(error, Error::BigEndian { found: [0, 0, 0, 3] }));
}

#[test]
fn version() {
    let file = |version| Crafted { version, ..Crafted::default() }.bytes();
    check(&file(1), "GGUF version 1 at byte 4, which is not read: expected 2 or 3 (convert the model again)");
    let error = check(&file(4), "GGUF version at byte 4: expected 2 or 3, found 4");
    assert!(matches!(error, Error::Version(4)));
    check(&file(0), "GGUF version at byte 4: expected 2 or 3, found 0");
}

#[test]
fn truncated() {
    let file = Crafted { alignment: 1, ..Crafted::of_entries(vec![u32_entry("k", 1)]) };
    let error = check(
        &file.bytes()[..24 + 8 + 1 + 4 + 3],
        "key 'k': expected 4 bytes at byte 37, found 3: at least 1 byte is missing (download incomplete?)",
    );
    assert!(matches!(error, Error::Truncated { offset: 37, needed: 4, left: 3, .. }));
}

#[test]
fn count() {
    let file = Crafted { alignment: 1, ..Crafted::of_entries(vec![array_entry("k", 4, 3, &[0; 8])]) };
    let error = check(
        &file.bytes(),
        "key 'k': array of u32: found a count of 3, of at least 4 bytes each, but only 8 bytes at byte 49: at least \
         4 bytes are missing (damaged, or download incomplete?)",
    );
    assert!(matches!(error, Error::Count { count: 3, least: 4, left: 8, .. }));
}

#[test]
fn name_not_utf8() {
    let error = check(
        &Crafted::of_entries(vec![entry(b"k\xff", 4, &[0; 4])]).bytes(),
        "key 0 at byte 24: expected UTF-8, found 'k\u{fffd}'",
    );
    assert!(matches!(error, Error::NameNotUtf8 { offset: 24, .. }));
    check(
        &Crafted { entries: Vec::new(), ..Crafted::of_tensors(vec![tensor(b"\xc3", &[1], 0, 0)], 4) }.bytes(),
        "name of tensor 0 at byte 24: expected UTF-8, found '\u{fffd}'",
    );
}

#[test]
fn name_too_long() {
    let longest = "k".repeat(65_535);
    gguf::Header::parse(&Crafted::of_entries(vec![u32_entry(&longest, 1)]).bytes()).unwrap();
    let error = check(
        &Crafted::of_entries(vec![u32_entry(&(longest + "k"), 1)]).bytes(),
        "key 0 at byte 24: expected at most 65535 bytes, found 65536",
    );
    assert!(matches!(error, Error::NameTooLong { len: 65_536, limit: 65_535, .. }));
}

#[test]
fn value_type() {
    let error = check(
        &Crafted::of_entries(vec![entry("k", 13, &[0; 8])]).bytes(),
        "key 'k': expected a value type of 0 to 12 at byte 33, found 13",
    );
    assert!(matches!(error, Error::ValueType { id: 13, .. }));
    check(
        &Crafted::of_entries(vec![array_entry("k", 99, 0, &[])]).bytes(),
        "key 'k': expected a value type of 0 to 12 at byte 37, found 99",
    );
}

#[test]
fn bool() {
    let error = check(
        &Crafted::of_entries(vec![array_entry("k", ValueType::Bool.id(), 3, &[0, 1, 2])]).bytes(),
        "key 'k': expected a bool of 0 or 1 at byte 51, found 2",
    );
    assert!(matches!(error, Error::Bool { found: 2, .. }));
}

#[test]
fn nesting() {
    let nested =
        |depth| (1..depth).fold(array(0, 0, &[]), |inner, _| array(ValueType::Array.id(), 1, &inner));
    let file = |depth| Crafted::of_entries(vec![entry("k", ValueType::Array.id(), &nested(depth))]).bytes();
    gguf::Header::parse(&file(4)).unwrap();
    let error =
        check(&file(5), "key 'k': expected arrays nested at most 4 deep, found a deeper one at byte 85");
    assert!(matches!(error, Error::Nesting { limit: 4, .. }));
}

#[test]
fn duplicate_key() {
    let file = Crafted::of_entries(vec![u32_entry("k", 1), u32_entry("j", 1), u32_entry("k", 1)]);
    let error = check(&file.bytes(), "key 'k': expected once, found twice");
    assert!(matches!(error, Error::DuplicateKey(_)));
}

#[test]
fn alignment() {
    for bad in [0, 1, 4, 24, 33, 1 << 21, 1 << 31] {
        let file = Crafted::of_entries(vec![u32_entry("general.alignment", bad)]);
        let error = check(
            &file.bytes(),
            &format!("key 'general.alignment': expected a power of two from 8 to 1048576, found {bad}"),
        );
        assert!(matches!(error, Error::Alignment { .. }));
    }
    let negative = entry("general.alignment", ValueType::I32.id(), &(-32i32).to_le_bytes());
    check(
        &Crafted::of_entries(vec![negative]).bytes(),
        "key 'general.alignment': expected a power of two from 8 to 1048576, found -32",
    );
    for good in [8, 64, 1 << 20] {
        let file = Crafted::of_entries(vec![u32_entry("general.alignment", good)]);
        assert_eq!(gguf::Header::parse(&file.bytes()).unwrap().alignment(), good.into());
    }
}

#[test]
fn missing_key() {
    let header = gguf::Header::parse(&Crafted::default().bytes()).unwrap();
    let error = header.metadata().require_u32("llama.block_count").unwrap_err();
    assert!(matches!(error, Error::MissingKey(_)));
    assert_eq!(error.to_string(), "key 'llama.block_count' is missing");
}

#[test]
fn wrong_type() {
    let error = check(
        &Crafted::of_entries(vec![text_entry("general.alignment", "32")]).bytes(),
        "key 'general.alignment': expected an integer, found string",
    );
    assert!(matches!(error, Error::WrongType { .. }));
}

#[test]
fn out_of_range() {
    let mut writer = Writer::new();
    writer.metadata("k", -1i64);
    let header = gguf::Header::parse(&writer.to_bytes().unwrap()).unwrap();
    let error = header.metadata().u32("k").unwrap_err();
    assert!(matches!(error, Error::OutOfRange { found: -1, .. }));
    assert_eq!(error.to_string(), "key 'k': expected an integer that fits in u32, found -1");
}

#[test]
fn dimensions() {
    for (shape, found) in [(&[][..], 0), (&[1; 5], 5)] {
        let error = check(
            &Crafted::of_tensors(vec![tensor("w", shape, 0, 0)], 64).bytes(),
            &format!("tensor 'w': expected 1 to 4 dimensions, found {found}"),
        );
        assert!(matches!(error, Error::Dimensions { .. }));
    }
}

#[test]
fn zero_dimension() {
    let error = check(
        &Crafted::of_tensors(vec![tensor("w", &[4, 0], 0, 0)], 64).bytes(),
        "tensor 'w': expected dimensions of at least 1, found [4, 0]",
    );
    assert!(matches!(error, Error::ZeroDimension { .. }));
}

#[test]
fn tensor_type() {
    let file = |id| Crafted::of_tensors(vec![tensor("w", &[256], id, 0)], 1024).bytes();
    let error = check(&file(16), "tensor 'w': found type 16, IQ2_XXS, which is not supported");
    assert!(matches!(error, Error::TensorType { id: 16, name: Some("IQ2_XXS"), .. }));
    check(&file(15), "tensor 'w': found type 15, Q8_K, which is not supported");
    check(&file(1000), "tensor 'w': found type 1000, which is unknown");
    // Every id below the format's count is either read or called by its name.
    for id in 0..43 {
        match gguf::Header::parse(&file(id)) {
            Ok(header) => assert_eq!(header.tensors()[0].format.id(), id),
            Err(error) => assert!(matches!(error, Error::TensorType { name: Some(_), .. }), "{id}: {error}"),
        }
    }
}

#[test]
fn partial_block() {
    // 64 elements are two blocks of 32, but rows of 16 are not.
    let error = check(
        &Crafted::of_tensors(vec![tensor("w", &[16, 4], Format::Q8_0.id(), 0)], 1024).bytes(),
        "tensor 'w': expected rows of a multiple of 32 elements for Q8_0, found 16",
    );
    assert!(matches!(error, Error::PartialBlock { row: 16, .. }));
}

#[test]
fn overflow() {
    let error = check(
        &Crafted::of_tensors(vec![tensor("w", &[1 << 32, 1 << 32], Format::F16.id(), 0)], 64).bytes(),
        "tensor 'w': expected sizes that fit in 64 bits, found dimensions [4294967296, 4294967296] of F16",
    );
    assert!(matches!(error, Error::Overflow { .. }));
}

#[test]
fn misaligned() {
    let file = Crafted::of_tensors(vec![tensor("w", &[4], 0, 16)], 64);
    let error = check(&file.bytes(), "tensor 'w': expected a data offset that is a multiple of 32, found 16");
    assert!(matches!(error, Error::Misaligned { offset: 16, alignment: 32, .. }));
    // The same offset is right for a finer alignment.
    let entries = vec![u32_entry("general.alignment", 16)];
    let header = gguf::Header::parse(&Crafted { entries, alignment: 16, ..file }.bytes()).unwrap();
    assert_eq!(header.tensors()[0].offset, header.data_start() + 16);
}

#[test]
fn duplicate_tensor() {
    let file = Crafted::of_tensors(vec![tensor("w", &[4], 0, 0), tensor("w", &[4], 0, 32)], 64);
    let error = check(&file.bytes(), "tensor 'w': expected once, found twice");
    assert!(matches!(error, Error::DuplicateTensor(_)));
}

#[test]
fn overlap() {
    // The long one is last in the table and first in the file, and reaches past its neighbour into the third.
    let tensors = vec![tensor("c", &[4], 0, 64), tensor("b", &[4], 0, 32), tensor("a", &[17], 0, 0)];
    let file = Crafted { entries: Vec::new(), ..Crafted::of_tensors(tensors, 128) };
    let error = check(
        &file.bytes(),
        "tensor 'b': begins at byte 160, but expected after tensor 'a', which ends at byte 196",
    );
    assert!(matches!(error, Error::Overlap { .. }));
}

#[test]
fn incomplete() {
    let mut bytes = Crafted::one_tensor().bytes();
    let len = bytes.len();
    bytes.truncate(len - 10);
    let error = check(
        &bytes,
        "tensor 'token_embd.weight': expected its data to end at byte 192, but the file has 182: 10 bytes are missing \
         (download incomplete?)",
    );
    assert!(matches!(error, Error::Incomplete { end: 192, len: 182, .. }));
}

#[test]
fn data_length() {
    let mut writer = Writer::new();
    writer.tensor("w", &[32, 2], Format::Q4_0, vec![0; 35]);
    let error = writer.to_bytes().unwrap_err();
    assert!(matches!(error, Error::DataLength { found: 35, expected: 36, .. }));
    assert_eq!(error.to_string(), "tensor 'w': expected 36 bytes of data, found 35");
}
