//! A model on disk: one file or several shards, mapped into memory.

use crate::split::{self, ShardName};
use crate::{Error, Header, Metadata, TensorInfo};
use memmap2::Mmap;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Granularity of what is given back. Where pages are larger, the system rounds to them.
const PAGE: usize = 4096;

/// An opened model.
///
/// The files are mapped, not read: opening takes as long as reading the header, whatever the size of the data.
///
/// Every range was compared with the length that the file had when it was opened. A file that is **cut short later**,
/// while it is open, loses pages that a tensor's slice still covers; the operating system then ends the process with
/// SIGBUS when they are read. A file that is overwritten in place changes under its readers. So replace a model by
/// writing a new file and renaming it over the old one: open maps keep the old one alive.
#[derive(Debug)]
pub struct File {
    parts: Vec<Part>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`.
    index: HashMap<String, usize>,
}

/// One mapped file of a model.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    file: std::fs::File,
    map: Mmap,
}

impl Part {
    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All the file's bytes. They begin at the beginning of a memory page, so that a device can use them in place.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// What the system knows of the file that is mapped, now: its length and times. That is not the file at
    /// [`path`](Part::path) if another was moved there since.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn stat(&self) -> std::io::Result<std::fs::Metadata> {
        self.file.metadata()
    }

    /// Lets the system take back the memory of whole pages in a range of the file. They can still be read: the system
    /// fetches them again. For tensors of which a copy was made. A hint; what there is not, or a system that knows no
    /// such hint, is passed over.
    pub fn release(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(self.map.len()) / PAGE * PAGE;
        #[cfg(unix)]
        if start < end {
            // SAFETY: the map is private, read-only and of a file: nobody has written to its pages, so that what the
            // system reads again is what slices of them show now. The hint's failure changes nothing.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }

    fn open(path: &Path) -> Result<Part, Error> {
        // Asked before opening, since opening a pipe waits for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(Error::NotAFile);
        }
        let file = std::fs::File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Err(Error::Empty);
        }
        // SAFETY: the map is private and read-only, and it lives as long as every slice that borrows from this part.
        // What remains are other processes that write to the file:
        // - If one shortens it, reading the lost pages raises SIGBUS, which ends the process but breaks no memory.
        // - If one overwrites it, bytes change under us. No bit pattern is invalid in what is read from tensors
        //   (integers and floats), no range is read from the file a second time after it was checked, and string
        //   values are checked on copies. Names are borrowed as `str` while the header is read, and only then: a
        //   file must not be rewritten in the milliseconds of `File::open`.
        // The documentation of `File` tells users to replace files by renaming, which does neither.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Part { path: path.into(), file, map })
    }
}

impl File {
    /// Opens a model from its file, or from any one of its shards (`NAME-00001-of-00003.gguf`).
    ///
    /// # Errors
    /// Any of [`Error`], inside an [`Error::InFile`] with the path of the file that is to blame.
    pub fn open(path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref();
        let open = || -> Result<_, Error> {
            let part = Part::open(path)?;
            let header = Header::parse(part.bytes())?;
            let shards = split::shards(path, &header)?;
            Ok((part, header, shards))
        };
        let (part, header, shards) = open().map_err(|error| error.in_file(path))?;
        if shards.is_empty() { File::whole(part, header) } else { File::split(&shards) }
            .map_err(|error| error.in_file(path))
    }

    /// The metadata: that of the first shard, if there are several.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of all shards, in the order of the files.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&position| &self.tensors[position])
    }

    /// The data of one of this file's tensors: exactly [`len`](TensorInfo::len) bytes.
    ///
    /// # Panics
    /// If the tensor is not one of this file's, and its range is not one either.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        // Ranges lie inside the map, so that they fit in a `usize`: see `validate`.
        let (start, len) = (tensor.offset as usize, tensor.len as usize);
        &self.parts[tensor.part].map[start..start + len]
    }

    /// Lets the system take back the memory of a tensor's data, which can still be read: see [`Part::release`].
    pub fn release(&self, tensor: &TensorInfo) {
        if let (Some(part), Ok(start)) = (self.parts.get(tensor.part), usize::try_from(tensor.offset)) {
            part.release(start..start.saturating_add(tensor.len as usize));
        }
    }

    /// The mapped files, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The file's path: that of the first shard, if there are several.
    pub fn path(&self) -> &Path {
        // There is always a part.
        &self.parts[0].path
    }

    fn whole(part: Part, header: Header) -> Result<File, Error> {
        let mut file = File {
            parts: Vec::new(),
            version: header.version(),
            metadata: Metadata::default(),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        file.metadata = file.add(part, header)?;
        Ok(file)
    }

    fn split(shards: &[PathBuf]) -> Result<File, Error> {
        let mut file: Option<File> = None;
        for path in shards {
            let mut add = || -> Result<(), Error> {
                let part = Part::open(path)?;
                let header = Header::parse(part.bytes())?;
                if let Some(name) = ShardName::parse(path) {
                    split::check_number(&header, &name)?;
                }
                match &mut file {
                    None => file = Some(File::whole(part, header)?),
                    Some(file) => drop(file.add(part, header)?),
                }
                Ok(())
            };
            add().map_err(|error| error.in_file(path))?;
        }
        let file = file.ok_or(Error::Empty)?;
        let found = file.tensors.len() as u64;
        match file.metadata.u64(split::TENSORS_KEY)? {
            Some(expected) if expected != found => {
                Err(Error::ShardTensors { found, expected }.in_file(file.path()))
            }
            _ => Ok(file),
        }
    }

    /// Takes in a part with its tensors; returns the part's metadata.
    fn add(&mut self, part: Part, header: Header) -> Result<Metadata, Error> {
        let (metadata, tensors) = header.into_parts();
        for mut tensor in tensors {
            tensor.part = self.parts.len();
            if self.index.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                return Err(Error::DuplicateTensor(tensor.name));
            }
            self.tensors.push(tensor);
        }
        self.parts.push(part);
        Ok(metadata)
    }
}
