//! Typed access to metadata.

mod support;

use gguf::{Array, Error, Header, Metadata, Value, Writer};
use support::*;

fn metadata(entries: Vec<(&str, Value)>) -> Metadata {
    let mut writer = Writer::new();
    for (key, value) in entries {
        writer.metadata(key, value);
    }
    Header::parse(&writer.to_bytes().unwrap()).unwrap().metadata().clone()
}

#[test]
fn keys_keep_the_order_of_the_file() {
    let metadata = metadata(vec![("z", 1u32.into()), ("a", 2u32.into()), ("m", 3u32.into())]);
    assert_eq!(metadata.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["z", "a", "m"]);
    assert_eq!((metadata.len(), metadata.is_empty()), (3, false));
    assert_eq!(metadata.get("m"), Some(&Value::U32(3)));
    assert_eq!(metadata.get("b"), None);
}

#[test]
fn absent_keys_are_none_or_missing() {
    let metadata = metadata(vec![]);
    assert!(metadata.str("k").unwrap().is_none() && metadata.strings("k").unwrap().is_none());
    assert!(metadata.u32("k").unwrap().is_none() && metadata.i32s("k").unwrap().is_none());
    assert!(matches!(metadata.require_f32("k"), Err(Error::MissingKey(key)) if key == "k"));
}

#[test]
fn integers_of_any_type_that_fits() {
    let values: [Value; 8] = [
        7u8.into(),
        7i8.into(),
        7u16.into(),
        7i16.into(),
        7u32.into(),
        7i32.into(),
        7u64.into(),
        7i64.into(),
    ];
    for value in values {
        let metadata = metadata(vec![("k", value)]);
        assert_eq!(metadata.require_u32("k").unwrap(), 7);
        assert_eq!(metadata.require_u64("k").unwrap(), 7);
        assert_eq!(metadata.require_i32("k").unwrap(), 7);
        assert_eq!(metadata.require_i64("k").unwrap(), 7);
    }
    let metadata = metadata(vec![("big", u64::MAX.into()), ("small", (-1i8).into()), ("float", 7f32.into())]);
    assert_eq!(metadata.require_u64("big").unwrap(), u64::MAX);
    assert!(matches!(metadata.u32("big"), Err(Error::OutOfRange { .. })));
    assert!(matches!(metadata.i64("big"), Err(Error::OutOfRange { .. })));
    assert!(matches!(metadata.u64("small"), Err(Error::OutOfRange { found: -1, .. })));
    assert_eq!(metadata.require_i32("small").unwrap(), -1);
    assert!(matches!(metadata.u32("float"), Err(Error::WrongType { .. })));
}

#[test]
fn floats_of_either_width() {
    let metadata = metadata(vec![("a", 0.1f32.into()), ("b", 0.1f64.into()), ("c", 1u32.into())]);
    assert_eq!(metadata.require_f32("a").unwrap(), 0.1);
    assert_eq!(metadata.require_f32("b").unwrap(), 0.1);
    let error = metadata.f32("c").unwrap_err();
    assert_eq!(error.to_string(), "key 'c': expected a float, found u32");
}

#[test]
fn arrays() {
    let metadata = metadata(vec![
        ("texts", vec!["a", "b"].into()),
        ("floats", vec![0.5f32].into()),
        ("flags", vec![true, false].into()),
        ("bytes", vec![1u8, 2].into()),
        ("longs", vec![-1i64].into()),
        ("huge", vec![1u64 << 40].into()),
    ]);
    assert_eq!(metadata.require_strings("texts").unwrap(), ["a", "b"]);
    assert_eq!(metadata.require_f32s("floats").unwrap(), [0.5]);
    assert_eq!(metadata.require_bools("flags").unwrap(), [true, false]);
    assert_eq!(metadata.require_u32s("bytes").unwrap(), [1, 2]);
    assert_eq!(metadata.require_i32s("longs").unwrap(), [-1]);
    assert!(matches!(metadata.u32s("longs"), Err(Error::OutOfRange { found: -1, .. })));
    assert!(matches!(metadata.i32s("huge"), Err(Error::OutOfRange { .. })));
    let error = metadata.strings("floats").unwrap_err();
    assert_eq!(error.to_string(), "key 'floats': expected an array of strings, found array of 1 f32");
    assert!(
        metadata.str("texts").is_err() && metadata.i32s("floats").is_err() && metadata.bool("flags").is_err()
    );
}

#[test]
fn strings_that_are_not_utf8_keep_their_exact_bytes() {
    let texts = [string("a"), string(b"\xe4\xb8"), string("c")].concat();
    let file = Crafted::of_entries(vec![
        entry("text", 8, &string(b"x\xff")),
        array_entry("texts", 8, 3, &texts),
        array_entry("plain", 8, 1, &string("é")),
        array_entry("nested", 9, 1, &array(8, 1, &string(b"\xff"))),
    ]);
    let header = Header::parse(&file.bytes()).unwrap();
    let metadata = header.metadata();
    assert_eq!(metadata.require_str("text").unwrap(), "x\u{fffd}");
    assert_eq!(metadata.require_byte_strings("text").unwrap(), [b"x\xff"]);
    assert_eq!(metadata.require_strings("texts").unwrap(), ["a", "\u{fffd}", "c"]);
    assert_eq!(metadata.require_byte_strings("texts").unwrap(), [&b"a"[..], b"\xe4\xb8", b"c"]);
    assert_eq!(metadata.require_byte_strings("plain").unwrap(), ["é".as_bytes()]);
    let nested = vec![Array::String(vec!["\u{fffd}".into()])];
    assert_eq!(metadata.get("nested"), Some(&Value::Array(Array::Array(nested))));
}
