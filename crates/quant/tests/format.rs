//! Ids, names and sizes of the formats.

use quant::Format;

#[test]
fn ids_name_formats() {
    for format in Format::ALL {
        assert_eq!(Format::from_id(format.id()), Some(format));
        assert_eq!(format.to_string(), format!("{format:?}"));
    }
    // Q8_1 is an id of the GGUF format that no file uses, 4 and 5 were withdrawn.
    for id in [4, 5, 9, 40, u32::MAX] {
        assert_eq!(Format::from_id(id), None, "{id}");
    }
}

#[test]
fn rows_are_whole_blocks() {
    assert_eq!(Format::F32.row_bytes(3), Some(12));
    assert_eq!(Format::Q4_0.row_bytes(64), Some(36));
    assert_eq!(Format::Q6_K.row_bytes(512), Some(420));
    assert_eq!(Format::Q6_K.row_bytes(0), Some(0));
    assert_eq!(Format::Q4_0.row_bytes(33), None);
    assert_eq!(Format::Q6_K.row_bytes(32), None);
}

#[test]
fn row_size_does_not_wrap() {
    assert_eq!(Format::F32.row_bytes(usize::MAX), None);
    assert_eq!(Format::Q8_0.row_bytes(usize::MAX - 31), None);
    assert_eq!(Format::Q4_0.row_bytes(usize::MAX - 31), Some((usize::MAX / 32) * 18));
}
