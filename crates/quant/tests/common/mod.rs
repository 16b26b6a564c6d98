//! Reads the fixtures that `tests/data/make_fixtures.py` writes.

use quant::Format;

/// One record: encoded blocks and floats of one format.
pub struct Record {
    pub format: Format,
    pub data: Vec<u8>,
    pub floats: Vec<f32>,
}

/// The records of a fixture file.
pub fn records(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let [id, blocks, data_len, floats_len] = std::array::from_fn(|_| take_u32(&mut bytes));
        let format = Format::from_id(id).expect("a known format");
        let data = take(&mut bytes, data_len as usize).to_vec();
        let floats = take(&mut bytes, floats_len as usize * 4);
        let floats: Vec<f32> = floats.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(data.len(), blocks as usize * format.block_bytes());
        assert_eq!(floats.len(), blocks as usize * format.block_len());
        records.push(Record { format, data, floats });
    }
    records
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    bytes.split_off(..len).expect("a complete record")
}

fn take_u32(bytes: &mut &[u8]) -> u32 {
    u32::from_le_bytes(take(bytes, 4).try_into().expect("four bytes"))
}
