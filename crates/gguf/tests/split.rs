//! Models in several files.

use gguf::{Error, File, Value, Writer};
use quant::Format;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// A model of five tensors; tensor `t<i>` is one block of F32 numbers `i`.
fn model() -> Writer {
    let mut writer = Writer::new();
    writer.metadata("general.architecture", "llama").metadata("general.alignment", 64u32);
    for i in 0..5u8 {
        let data = [f32::from(i); 3].iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor(&format!("t{i}"), &[3], Format::F32, data);
    }
    writer
}

/// Its three shards in a directory.
fn shards(dir: &Path) -> Vec<PathBuf> {
    model().write_split(dir.join("m.gguf"), NonZeroUsize::new(2).unwrap()).unwrap()
}

/// A shard of these split keys, named as the second of three, beside the shards of [`model`].
fn replace_second(dir: &Path, keys: &[(&str, u16)], tensor: &str) -> Error {
    let paths = shards(dir);
    let mut writer = Writer::new();
    for &(key, value) in keys {
        writer.metadata(key, value);
    }
    writer.tensor(tensor, &[1], Format::F32, vec![0; 4]);
    writer.write_file(&paths[1]).unwrap();
    let error = File::open(&paths[0]).unwrap_err();
    assert_eq!(error.path(), Some(paths[1].as_path()), "{error}");
    error
}

#[test]
fn every_shard_opens_the_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    let paths = shards(dir.path());
    let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    for path in &paths {
        let file = File::open(path).unwrap();
        assert_eq!(file.path(), paths[0]);
        assert_eq!(file.parts().len(), 3);
        assert_eq!(file.metadata().require_str("general.architecture").unwrap(), "llama");
        assert_eq!(file.tensors().len(), 5);
        for i in 0..5u8 {
            let tensor = file.tensor(&format!("t{i}")).unwrap();
            assert_eq!(tensor.part, usize::from(i) / 2);
            assert_eq!(file.parts()[tensor.part].path(), paths[tensor.part]);
            assert_eq!(file.data(tensor)[..4], f32::from(i).to_le_bytes());
            assert_eq!(tensor.offset % 64, 0);
        }
    }
}

#[test]
fn a_model_without_tensors_is_one_shard() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Writer::new().write_split(dir.path().join("v.gguf"), NonZeroUsize::MIN).unwrap();
    assert_eq!(paths, [dir.path().join("v-00001-of-00001.gguf")]);
    assert_eq!(File::open(&paths[0]).unwrap().metadata().get("split.count"), Some(&Value::U16(1)));
}

#[test]
fn a_whole_file_may_be_named_like_a_shard() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    model().write_file(&path).unwrap();
    assert_eq!(File::open(&path).unwrap().tensors().len(), 5);
}

#[test]
fn shard_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "renamed.gguf",
        "m-1-of-3.gguf",
        "m-00004-of-00003.gguf",
        "m-00000-of-00003.gguf",
        "m-00001-of-00003",
    ] {
        let path = dir.path().join(name);
        std::fs::rename(&shards(dir.path())[0], &path).unwrap();
        let error = File::open(&path).unwrap_err();
        assert!(matches!(error.kind(), Error::ShardName { count: 3, .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!(
                "{}: one of 3 shards ('split.count'): expected a name like NAME-00001-of-00003.gguf, found '{name}'",
                path.display()
            )
        );
    }
}

#[test]
fn missing_shard() {
    let dir = tempfile::tempdir().unwrap();
    let paths = shards(dir.path());
    std::fs::remove_file(&paths[1]).unwrap();
    let error = File::open(&paths[2]).unwrap_err();
    assert!(matches!(error.kind(), Error::MissingShard { count: 3, .. }), "{error}");
    let (opened, missing) = (paths[2].display(), paths[1].display());
    assert_eq!(
        error.to_string(),
        format!("{opened}: one of 3 shards: expected {missing} too, but not found")
    );
}

#[test]
fn shard_number() {
    let dir = tempfile::tempdir().unwrap();
    for (keys, message) in [
        (
            &[("split.count", 3), ("split.no", 2)][..],
            "key 'split.no': expected 1, as the file's name says, found 2",
        ),
        (
            &[("split.count", 2), ("split.no", 1)],
            "key 'split.count': expected 3, as the file's name says, found 2",
        ),
        (&[("split.count", 3)], "key 'split.no': expected 1, as the file's name says, but not found"),
    ] {
        let error = replace_second(dir.path(), keys, "t9");
        assert!(matches!(error.kind(), Error::ShardNumber { .. }), "{error}");
        assert!(error.to_string().ends_with(message), "{error}");
    }
}

#[test]
fn shard_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let paths = shards(dir.path());
    let mut writer = Writer::new();
    writer.metadata("split.no", 2u16).metadata("split.count", 3u16);
    writer.write_file(&paths[2]).unwrap();
    let error = File::open(&paths[0]).unwrap_err();
    assert!(matches!(error.kind(), Error::ShardTensors { found: 4, expected: 5 }), "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "{}: key 'split.tensors.count': expected 5 tensors in all shards, found 4",
            paths[0].display()
        )
    );
}

#[test]
fn the_same_tensor_in_two_shards() {
    let dir = tempfile::tempdir().unwrap();
    let error = replace_second(dir.path(), &[("split.count", 3), ("split.no", 1)], "t0");
    assert!(matches!(error.kind(), Error::DuplicateTensor(name) if name == "t0"), "{error}");
}

#[test]
fn a_shard_cut_short_is_the_one_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let paths = shards(dir.path());
    let bytes = std::fs::read(&paths[2]).unwrap();
    std::fs::write(&paths[2], &bytes[..bytes.len() - 64]).unwrap();
    let error = File::open(&paths[0]).unwrap_err();
    assert_eq!(error.path(), Some(paths[2].as_path()), "{error}");
    assert!(matches!(error.kind(), Error::Incomplete { .. }), "{error}");
}

#[test]
fn a_claim_of_many_shards_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-65535.gguf");
    let mut writer = Writer::new();
    writer.metadata("split.no", 0u16).metadata("split.count", u16::MAX);
    writer.write_file(&path).unwrap();
    let error = File::open(&path).unwrap_err();
    assert!(error.to_string().contains("m-00002-of-65535.gguf"), "{error}");
}
