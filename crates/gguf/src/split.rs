//! Split files: the naming of shards and the metadata keys that tie them together.
//!
//! The keys decide: a file with a `split.count` above 1 is a shard, whatever its name; its name then has to say where
//! the others are. A file without is whole.

use crate::{Error, Header, Value};
use std::path::{Path, PathBuf};

/// The shard's index, from 0.
pub(crate) const NUMBER_KEY: &str = "split.no";
/// How many shards there are.
pub(crate) const COUNT_KEY: &str = "split.count";
/// How many tensors all shards have.
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// A shard's place in its name, `NAME-00001-of-00003.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardName {
    /// `NAME`.
    stem: String,
    /// From 0.
    pub index: u64,
    pub count: u64,
}

impl ShardName {
    /// The place of the shard at this path, if it is named like one.
    pub fn parse(path: &Path) -> Option<ShardName> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let parse = |digits: &str| -> Option<u64> {
            let all_digits = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            if all_digits { digits.parse().ok() } else { None }
        };
        let (number, count) = (parse(number)?, parse(count)?);
        (1..=count).contains(&number).then(|| ShardName { stem: stem.into(), index: number - 1, count })
    }

    /// The path of one of the `count` shards of the model `stem`, beside `sibling`.
    pub fn path(sibling: &Path, stem: &str, index: u64, count: u64) -> PathBuf {
        sibling.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", index + 1))
    }
}

/// The paths of all shards of the model of which the file at `path` is one, in order, or nothing if the file is whole.
pub(crate) fn shards(path: &Path, header: &Header) -> Result<Vec<PathBuf>, Error> {
    let count = header.metadata().u64(COUNT_KEY)?.unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    let Some(name) = ShardName::parse(path) else {
        let found = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(Error::ShardName { count, found });
    };
    check_number(header, &name)?;
    (0..count)
        .map(|index| {
            let shard = ShardName::path(path, &name.stem, index, count);
            // Looked for before any is mapped, and one by one: `count` is only a claim.
            if shard.exists() { Ok(shard) } else { Err(Error::MissingShard { path: shard, count }) }
        })
        .collect()
}

/// Compares a shard's metadata with its name.
pub(crate) fn check_number(header: &Header, name: &ShardName) -> Result<(), Error> {
    for (key, expected) in [(COUNT_KEY, name.count), (NUMBER_KEY, name.index)] {
        let found = header.metadata().u64(key)?;
        if found != Some(expected) {
            return Err(Error::ShardNumber { key, found, expected });
        }
    }
    Ok(())
}

/// The metadata that makes a file a shard, in the integer types that other tools use.
pub(crate) fn metadata(index: u16, count: u16, tensors: i32) -> [(String, Value); 3] {
    [
        (NUMBER_KEY.into(), Value::U16(index)),
        (COUNT_KEY.into(), Value::U16(count)),
        (TENSORS_KEY.into(), Value::I32(tensors)),
    ]
}
