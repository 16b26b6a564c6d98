//! Whatever the writer writes, the reader reads back.

mod support;

use gguf::{Array, File, Header, Value, Writer};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use quant::Format;
use std::num::NonZeroUsize;
use support::promises;

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u32>().prop_map(f32::from_bits), 0..9).prop_map(Array::F32),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<String>(), 0..9).prop_map(Array::String),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<u64>().prop_map(f64::from_bits), 0..9).prop_map(Array::F64),
    ];
    flat.prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
        array().prop_map(Value::Array),
    ]
}

/// A format, a shape of whole blocks, and a seed for the data.
fn tensor() -> impl Strategy<Value = (Format, Vec<u64>, u8)> {
    let stored: Vec<Format> = Format::ALL.into_iter().filter(|&format| format != Format::Q8_K).collect();
    (proptest::sample::select(stored), vec(1u64..4, 1..=4), any::<u8>()).prop_map(
        |(format, mut shape, seed)| {
            shape[0] *= format.block_len() as u64;
            (format, shape, seed)
        },
    )
}

fn bytes_of(format: Format, shape: &[u64], seed: u8) -> Vec<u8> {
    let elements: u64 = shape.iter().product();
    let len = format.row_bytes(elements as usize).unwrap();
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(
        // A prefix keeps them apart from `general.alignment`.
        entries in btree_map(any::<String>().prop_map(|key| format!("k.{key}")), value(), 0..6),
        tensors in btree_map(any::<String>(), tensor(), 0..6),
        alignment in proptest::option::of(3u32..8),
        per_shard in 1usize..4,
    ) {
        let mut writer = Writer::new();
        for (key, value) in &entries {
            writer.metadata(key, value.clone());
        }
        if let Some(log2) = alignment {
            writer.metadata("general.alignment", 1u32 << log2);
        }
        for (name, (format, shape, seed)) in &tensors {
            writer.tensor(name, shape, *format, bytes_of(*format, shape, *seed));
        }

        let bytes = writer.to_bytes().unwrap();
        let header = Header::parse(&bytes).unwrap();
        prop_assert_eq!(header.version(), 3);
        prop_assert_eq!(header.alignment(), alignment.map_or(32, |log2| 1 << log2));
        let read = header.metadata().iter().take(entries.len());
        for ((key, value), (read_key, read_value)) in entries.iter().zip(read) {
            prop_assert!(key == read_key && promises::same(value, read_value));
        }
        prop_assert_eq!(header.tensors().len(), tensors.len());
        for ((name, (format, shape, seed)), info) in tensors.iter().zip(header.tensors()) {
            prop_assert_eq!((name, shape, *format), (&info.name, &info.shape, info.format));
            let range = info.offset as usize..(info.offset + info.len) as usize;
            prop_assert_eq!(&bytes[range], bytes_of(*format, shape, *seed));
        }
        promises::check(&bytes);

        // The same model in shards.
        let dir = tempfile::tempdir().unwrap();
        let paths = writer.write_split(dir.path().join("m.gguf"), NonZeroUsize::new(per_shard).unwrap()).unwrap();
        let file = File::open(paths.last().unwrap()).unwrap();
        prop_assert_eq!(file.parts().len(), tensors.len().div_ceil(per_shard).max(1));
        for (name, (format, shape, seed)) in &tensors {
            prop_assert_eq!(file.data(file.tensor(name).unwrap()), bytes_of(*format, shape, *seed));
        }
    }

    #[test]
    fn a_damaged_file_is_refused_or_keeps_the_promises(
        value in value(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut writer = Writer::new();
        writer.metadata("k", value).tensor("w", &[32, 2], Format::Q4_0, vec![1; 36]);
        let mut bytes = writer.to_bytes().unwrap();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        promises::check(&bytes);
    }
}
