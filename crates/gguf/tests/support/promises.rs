//! What a reader promises about any bytes. Shared by the fuzz target and the tests that replay its corpus.

use gguf::{Array, Error, Header, Value, Writer};

/// Reads the bytes as a file and checks every promise about the outcome.
///
/// # Panics
/// If one is broken.
pub fn check(bytes: &[u8]) {
    match Header::parse(bytes) {
        Ok(header) => check_accepted(&header, bytes),
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.chars().any(char::is_control), "{message:?}");
        }
    }
}

fn check_accepted(header: &Header, bytes: &[u8]) {
    assert!(matches!(header.version(), 2 | 3));
    let mut ranges = Vec::new();
    for tensor in header.tensors() {
        let end = tensor.offset.checked_add(tensor.len).unwrap();
        assert!(tensor.offset >= header.data_start() && end <= bytes.len() as u64, "{tensor:?}");
        assert_eq!((tensor.offset - header.data_start()) % header.alignment(), 0, "{tensor:?}");
        assert!((1..=4).contains(&tensor.shape.len()) && !tensor.shape.contains(&0), "{tensor:?}");
        let blocks = tensor.elements() / tensor.format.block_len() as u64;
        assert_eq!(tensor.len, blocks * tensor.format.block_bytes() as u64, "{tensor:?}");
        ranges.push((tensor.offset, end));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap: {ranges:?}");

    let again = rewrite(header, bytes).expect("what was read can be written");
    let reread = Header::parse(&again).unwrap();
    assert_eq!(reread.metadata().len(), header.metadata().len());
    for ((key, value), (other_key, other)) in header.metadata().iter().zip(reread.metadata().iter()) {
        assert!(key == other_key && same(value, other), "key '{key}': {value:?}, then {other:?}");
    }
    assert_eq!(reread.tensors().len(), header.tensors().len());
    for (tensor, other) in header.tensors().iter().zip(reread.tensors()) {
        assert_eq!((&tensor.name, &tensor.shape), (&other.name, &other.shape));
        assert_eq!(data(bytes, tensor), data(&again, other), "{tensor:?}");
    }
    // Writing is a fixed point: the second time nothing changes.
    assert_eq!(rewrite(&reread, &again).unwrap(), again);
}

fn data<'a>(bytes: &'a [u8], tensor: &gguf::TensorInfo) -> &'a [u8] {
    &bytes[tensor.offset as usize..(tensor.offset + tensor.len) as usize]
}

fn rewrite(header: &Header, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut writer = Writer::new();
    for (key, value) in header.metadata().iter() {
        writer.metadata(key, value.clone());
    }
    for tensor in header.tensors() {
        writer.tensor(&tensor.name, &tensor.shape, tensor.format, data(bytes, tensor).to_vec());
    }
    writer.to_bytes()
}

/// Equality that compares floats by their bits, since NaN is not equal to itself.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(a), Value::Array(b)) => same_array(a, b),
        (a, b) => a == b,
    }
}

fn same_array(a: &Array, b: &Array) -> bool {
    match (a, b) {
        (Array::F32(a), Array::F32(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
        (Array::F64(a), Array::F64(b)) => a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits())),
        (Array::Array(a), Array::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_array(a, b))
        }
        (a, b) => a == b,
    }
}
