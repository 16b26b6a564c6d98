//! A model on disk: one file or several shards, mapped into memory.

use crate::{Error, ErrorKind, Header, Metadata, TensorInfo};
use memmap2::Mmap;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// An opened model.
///
/// The files are mapped, not read: opening costs the same for a gigabyte as for a megabyte. A file that is cut short
/// or overwritten while it is open makes reads of its data fail with a signal; replace model files by renaming.
#[derive(Debug)]
pub struct File {
    parts: Vec<Part>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

/// One mapped file.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    map: Mmap,
}

impl Part {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of its bytes; the first is at the beginning of a memory page.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn open(path: PathBuf) -> Result<Part, Error> {
        let io = |error| Error::from(ErrorKind::Io(error)).at(&path);
        let file = std::fs::File::open(&path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        // SAFETY: the map is read-only and private to this process. If another process shortens the file, touching
        // the lost pages raises SIGBUS, which ends the process but breaks no memory; if it overwrites the file, bytes
        // change under us, which no reader of plain numbers minds. Every range was checked against the length at
        // opening. The type's documentation tells users to replace files by renaming.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Part { path, map })
    }
}

impl File {
    /// Opens a model from its file, or from any of its shards (`NAME-00001-of-00003.gguf`).
    pub fn open(path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let shards = shards(path);
        let mut file = File {
            parts: Vec::with_capacity(shards.len()),
            version: 0,
            metadata: Metadata::default(),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        let count = shards.len();
        for (index, shard) in shards.into_iter().enumerate() {
            file.add(shard, index, count)?;
        }
        if let Some(expected) = file.metadata.u64("split.tensors.count").map_err(|e| e.at(path))?
            && count > 1
            && expected != file.tensors.len() as u64
        {
            let message = format!("expected {expected} tensors in all shards, found {}", file.tensors.len());
            return Err(Error::from(ErrorKind::Split(message)).at(path));
        }
        Ok(file)
    }

    /// The metadata, of the first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of all shards, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// A tensor's bytes.
    ///
    /// # Panics
    /// If the tensor is of another file.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.parts[tensor.part].map[tensor.offset as usize..(tensor.offset + tensor.len) as usize]
    }

    /// The mapped files.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The (first) file.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    fn add(&mut self, path: PathBuf, index: usize, count: usize) -> Result<(), Error> {
        let part = Part::open(path)?;
        let add = |file: &mut File| -> Result<(), Error> {
            let (version, metadata, tensors) = Header::parse(&part.map)?.into_parts();
            check_split(&metadata, index, count)?;
            for mut tensor in tensors {
                tensor.part = index;
                if file.index.insert(tensor.name.clone(), file.tensors.len()).is_some() {
                    return Err(ErrorKind::DuplicateTensor(tensor.name).into());
                }
                file.tensors.push(tensor);
            }
            if index == 0 {
                file.version = version;
                file.metadata = metadata;
            }
            Ok(())
        };
        add(self).map_err(|error| error.at(&part.path))?;
        self.parts.push(part);
        Ok(())
    }
}

/// The paths of all shards, in order; the path alone if its name is not that of a shard.
fn shards(path: &Path) -> Vec<PathBuf> {
    let parse = || -> Option<(String, usize)> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (name, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let count = digits(count).then(|| count.parse().ok())??;
        let number: usize = digits(number).then(|| number.parse().ok())??;
        (1..=count).contains(&number).then(|| (name.to_string(), count))
    };
    match parse() {
        Some((name, count)) => {
            (1..=count).map(|n| path.with_file_name(format!("{name}-{n:05}-of-{count:05}.gguf"))).collect()
        }
        None => vec![path.to_path_buf()],
    }
}

fn check_split(metadata: &Metadata, index: usize, count: usize) -> Result<(), Error> {
    let split = |message: String| Error::from(ErrorKind::Split(message));
    match metadata.u64("split.count")? {
        Some(n) if n > 1 && n != count as u64 => Err(split(format!(
            "'split.count' says {n} shards, the file's name says {count}: keep the names NAME-00001-of-00003.gguf"
        ))),
        None | Some(0 | 1) if count > 1 => {
            Err(split(format!("the file's name says {count} shards, but it has no 'split.count'")))
        }
        Some(n) if n > 1 => match metadata.u64("split.no")? {
            Some(no) if no == index as u64 => Ok(()),
            found => Err(split(format!("expected 'split.no' {index}, found {found:?}"))),
        },
        _ => Ok(()),
    }
}
