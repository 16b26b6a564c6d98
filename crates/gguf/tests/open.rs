//! Opening files on disk: layout, speed, and what else there may be in a good file.

mod support;

use gguf::{File, Header, ValueType};
use quant::Format;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};
use support::*;

#[test]
fn versions_2_and_3() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for version in [2, 3] {
        std::fs::write(&path, Crafted { version, ..Crafted::one_tensor() }.bytes()).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!((file.version(), file.path(), file.parts().len()), (version, path.as_path(), 1));
        let tensor = file.tensor("token_embd.weight").unwrap();
        assert_eq!((tensor.shape.as_slice(), tensor.format, tensor.len), (&[4, 4][..], Format::F32, 64));
        assert_eq!(file.data(tensor), [0; 64]);
        assert_eq!(file.tensor("output.weight"), None);
    }
}

#[test]
fn data_is_where_the_table_says() {
    // Gaps and any order are allowed.
    let tensors = vec![tensor("b", &[8], 0, 96), tensor("a", &[8], 0, 32)];
    let mut file = Crafted::of_tensors(tensors, 128);
    file.data[96..].fill(2);
    file.data[32..64].fill(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.data(file.tensor("a").unwrap()), [1; 32]);
    assert_eq!(file.data(file.tensor("b").unwrap()), [2; 32]);
    assert_eq!(file.parts()[0].bytes().as_ptr() as usize % 4096, 0);
}

#[test]
fn r05_a_good_file_with_trailing_bytes_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tail.gguf");
    let mut bytes = Crafted::one_tensor().bytes();
    bytes.extend([0; 4096]);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(File::open(&path).unwrap().tensors().len(), 1);
}

#[test]
fn a_gigabyte_opens_in_milliseconds() {
    const TENSORS: u64 = 300;
    const EACH: u64 = 4 << 20;
    let tensors = (0..TENSORS).map(|i| tensor(format!("blk.{i}.ffn_up.weight"), &[1024, 1024], 0, i * EACH));
    let header = Crafted { tensors: tensors.collect(), ..Crafted::default() }.bytes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big.gguf");
    let mut sparse = std::fs::File::create(&path).unwrap();
    sparse.write_all(&header).unwrap();
    sparse.seek(SeekFrom::Start(header.len() as u64 + TENSORS * EACH - 1)).unwrap();
    sparse.write_all(&[7]).unwrap();

    let fastest = (0..5).map(|_| {
        let start = Instant::now();
        let file = File::open(&path).unwrap();
        assert_eq!(file.data(file.tensors().last().unwrap()).last(), Some(&7));
        start.elapsed()
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_millis(20), "{fastest:?}");
}

#[test]
fn r03_large_vocabularies_stay_fast() {
    const TOKENS: u64 = 256 << 10;
    let texts: Vec<u8> = (0..TOKENS).flat_map(|i| string(format!("token{i}"))).collect();
    let scores = vec![0; TOKENS as usize * 4];
    let bytes = Crafted::of_entries(vec![
        array_entry("tokenizer.ggml.tokens", ValueType::String.id(), TOKENS, &texts),
        array_entry("tokenizer.ggml.scores", ValueType::F32.id(), TOKENS, &scores),
    ])
    .bytes();
    let fastest = (0..5).map(|_| {
        let start = Instant::now();
        let header = Header::parse(&bytes).unwrap();
        let elapsed = start.elapsed();
        assert_eq!(header.metadata().require_strings("tokenizer.ggml.tokens").unwrap()[9], "token9");
        elapsed
    });
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
}

#[test]
fn a_prefix_with_the_whole_header_is_enough() {
    let bytes = Crafted::one_tensor().bytes();
    let header = Header::parse_prefix(&bytes[..128], bytes.len() as u64).unwrap();
    assert_eq!(header.tensors(), Header::parse(&bytes).unwrap().tensors());
    assert_eq!(header.data_start(), 128);
    Header::parse_prefix(&bytes[..80], bytes.len() as u64).unwrap_err();
}
