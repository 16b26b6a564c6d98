//! Packed weights in a file, to be mapped at the next start.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 8 | [`VERSION`], u32 |
//! | 12 | number of weights, u32 |
//! | 16 | length of the file, u64 |
//! | 24 | length of the table, u64 |
//! | 32 | identity of the model, 32 bytes that the caller chooses |
//! | 64 | the table: for each weight the length of its name (u32), the name, number of the format (u32), rows, columns, first byte, bytes and checksum (u64 each) |
//! | | checksum of all before it, u64 |
//! | | the packed weights, each at a multiple of 64 |
//!
//! All numbers are little-endian. A file is only ever written under another name and then renamed, so what is mapped
//! does not change. Nothing of a file is believed before it was checked: the table by [`validate`], a weight's bytes by
//! their checksum when it is asked for, which reads them all, at the speed of memory.

use crate::buffers::ALIGN;
use crate::pack::{Layout, Packed, ROWS};
use crate::pool::Pool;
use bytes::Bytes;
use memmap2::Mmap;
use quant::Format;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, process};

const MAGIC: [u8; 8] = *b"SMELTPK\x1a";

/// Of the file and of the order that [`crate::pack`] defines: to be raised with every change of either. Scales are in
/// the processor's byte order, which is part of it.
const VERSION: u32 = if cfg!(target_endian = "big") { 1 << 31 | 2 } else { 2 };

const HEADER: usize = 64;

/// Bytes whose checksum is taken together: pieces of a weight are summed in parallel.
const PIECE: usize = 1 << 20;

/// Why a file of packed weights is not used, or was not written.
#[derive(Debug)]
pub enum PackCacheError {
    /// The file could not be read or written.
    Io(io::Error),
    /// The file ends too early, or goes on too long.
    Length {
        /// Bytes that it should have, or at least.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The file is something else.
    Magic,
    /// Another version of this program made it.
    Version {
        /// Ours.
        expected: u32,
        /// The file's.
        found: u32,
    },
    /// It was made from another model, or another state of it.
    Identity,
    /// Header or table do not have their checksum.
    Checksum,
    /// An entry of the table means nothing.
    Entry {
        /// Its number.
        index: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A weight does not have its checksum.
    Damaged {
        /// The weight's name.
        weight: String,
    },
}

impl fmt::Display for PackCacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackCacheError::Io(error) => error.fmt(f),
            PackCacheError::Length { expected, found } => {
                write!(f, "expected {expected} bytes, found {found}")
            }
            PackCacheError::Magic => f.write_str("no file of packed weights"),
            PackCacheError::Version { expected, found } => {
                write!(f, "expected version {expected}, found {found}")
            }
            PackCacheError::Identity => f.write_str("made from another model, or before the model changed"),
            PackCacheError::Checksum => f.write_str("the table does not have its checksum"),
            PackCacheError::Entry { index, what } => write!(f, "entry {index} of the table: {what}"),
            PackCacheError::Damaged { weight } => write!(f, "weight '{weight}' does not have its checksum"),
        }
    }
}

impl std::error::Error for PackCacheError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PackCacheError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for PackCacheError {
    fn from(error: io::Error) -> PackCacheError {
        PackCacheError::Io(error)
    }
}

/// A weight in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    format: Format,
    rows: usize,
    cols: usize,
    offset: usize,
    len: usize,
    checksum: u64,
}

/// A weight that was packed now, or found.
struct Held {
    name: String,
    format: Format,
    rows: usize,
    cols: usize,
    packed: Arc<Packed>,
}

/// Packed weights that a file has, and those that are to be written. The backend takes and adds; the owner opens and
/// saves.
pub struct PackCache {
    identity: [u8; 32],
    file: Option<(Bytes, HashMap<String, Entry>)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Vec<Held>,
    /// Weights that the file lacks.
    fresh: usize,
    damage: Option<PackCacheError>,
}

impl PackCache {
    /// Without a file.
    pub fn empty(identity: [u8; 32]) -> PackCache {
        PackCache { identity, file: None, state: Mutex::default() }
    }

    /// Maps a file and checks all of it but the weights themselves.
    ///
    /// # Errors
    /// Any of [`PackCacheError`] but [`Damaged`](PackCacheError::Damaged), for which see
    /// [`damage`](PackCache::damage).
    pub fn open(path: &Path, identity: [u8; 32]) -> Result<PackCache, PackCacheError> {
        // Opening a pipe would wait for its writer, so this is asked first.
        if !std::fs::metadata(path)?.is_file() {
            return Err(PackCacheError::Magic);
        }
        let file = File::open(path)?;
        if file.metadata()?.len() < HEADER as u64 {
            return Err(PackCacheError::Length { expected: HEADER as u64, found: file.metadata()?.len() });
        }
        // SAFETY: a private read-only map that lives as long as every slice of it. This program never changes such a
        // file in place: a new one is renamed over it. Should another program cut it short, reading ends the process
        // with SIGBUS, as with a model's file; should it overwrite it, numbers change, for which all bits are valid.
        let bytes = Bytes::from_owner(unsafe { Mmap::map(&file)? });
        let entries = validate(&bytes, identity)?;
        Ok(PackCache { file: Some((bytes, entries)), ..PackCache::empty(identity) })
    }

    /// The packed form of a weight, if the file has it, undamaged.
    pub(crate) fn take(
        &self,
        pool: &mut Pool,
        name: &str,
        format: Format,
        [rows, cols]: [usize; 2],
    ) -> Option<Arc<Packed>> {
        let (bytes, entries) = self.file.as_ref()?;
        let entry = entries.get(name)?;
        if (entry.format, entry.rows, entry.cols) != (format, rows, cols) {
            return None;
        }
        let bytes = bytes.slice(entry.offset..entry.offset + entry.len);
        if weight_checksum(pool, &bytes) != Some(entry.checksum) {
            self.lock().damage.get_or_insert(PackCacheError::Damaged { weight: name.into() });
            return None;
        }
        let packed = Arc::new(Packed::mapped(Layout::of(format)?, [rows, cols], bytes)?);
        self.hold(Held { name: name.into(), format, rows, cols, packed: Arc::clone(&packed) }, false);
        Some(packed)
    }

    /// Takes note of a weight that was packed.
    pub(crate) fn add(&self, name: &str, format: Format, [rows, cols]: [usize; 2], packed: &Arc<Packed>) {
        self.hold(Held { name: name.into(), format, rows, cols, packed: Arc::clone(packed) }, true);
    }

    fn hold(&self, held: Held, fresh: bool) {
        let mut state = self.lock();
        state.held.push(held);
        state.fresh += usize::from(fresh);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one statement: a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether weights were packed that the file lacks.
    pub fn is_stale(&self) -> bool {
        self.lock().fresh > 0
    }

    /// The first weight of the file that was found damaged; it was packed anew.
    pub fn damage(&self) -> Option<PackCacheError> {
        self.lock().damage.take()
    }

    /// Writes all weights that were taken or added to a file: beside it first, then renamed over what there is.
    ///
    /// # Errors
    /// [`PackCacheError::Io`]; then the file is as it was.
    pub fn save(&self, path: &Path) -> Result<(), PackCacheError> {
        let mut state = self.lock();
        let header = header(self.identity, &state.held);
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        let name = Temporary::of(name);
        name.remove_abandoned(path);
        let (temporary, mut file) = name.create(path)?;
        let written = write(&mut file, &header, &state.held).and_then(|()| std::fs::rename(&temporary, path));
        if written.is_err() {
            // What failed has been told; a rest that cannot be removed either is no news.
            let _ = std::fs::remove_file(&temporary);
        }
        written?;
        *state = State::default();
        Ok(())
    }
}

/// Names of files that are being written: that of the file, between these two.
struct Temporary {
    start: OsString,
}

impl Temporary {
    const END: &str = ".tmp";

    /// Its writer holds a lock on a temporary file. One that is younger than this may be waiting for it still.
    const ABANDONED: Duration = Duration::from_secs(60);

    fn of(name: &OsStr) -> Temporary {
        let mut start = OsString::from(".");
        start.push(name);
        start.push(".");
        Temporary { start }
    }

    /// A new file beside `path`, locked for as long as it is open. No other process, thread or container has it, and
    /// it is no link to elsewhere.
    fn create(&self, path: &Path) -> io::Result<(PathBuf, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let mut name = self.start.clone();
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            name.push(format!("{}-{number}{}", process::id(), Temporary::END));
            let temporary = path.with_file_name(name);
            match File::options().write(true).create_new(true).open(&temporary) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let file = file?;
                    // Where files cannot be locked, none is ever found abandoned.
                    let _ = file.try_lock();
                    return Ok((temporary, file));
                }
            }
        }
    }

    /// Removes what writers left that were ended before they were done. A hint: what cannot be removed stays.
    fn remove_abandoned(&self, path: &Path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            let ours = name.starts_with(self.start.as_encoded_bytes())
                && name.ends_with(Temporary::END.as_bytes())
                && entry.file_type().is_ok_and(|kind| kind.is_file());
            if ours && is_abandoned(&entry.path()).unwrap_or(false) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn is_abandoned(temporary: &Path) -> io::Result<bool> {
    let file = File::open(temporary)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    Ok(age > Temporary::ABANDONED && file.try_lock().is_ok())
}

fn write(file: &mut File, header: &[u8], held: &[Held]) -> io::Result<()> {
    file.write_all(header)?;
    let mut written = header.len();
    for held in held {
        file.write_all(&[0; ALIGN][..written.next_multiple_of(ALIGN) - written])?;
        let bytes = held.packed.all();
        file.write_all(bytes)?;
        written = written.next_multiple_of(ALIGN) + bytes.len();
    }
    // Not forced to disk: what a power failure leaves does not have its checksum.
    Ok(())
}

/// Header, table and their checksum.
fn header(identity: [u8; 32], held: &[Held]) -> Vec<u8> {
    let entry_bytes = |held: &Held| 4 + held.name.len() + 4 + 5 * 8;
    let table: usize = held.iter().map(entry_bytes).sum();
    let mut bytes = Vec::with_capacity(HEADER + table + 8);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((held.len() as u32).to_le_bytes());
    let mut end = HEADER + table + 8;
    let offsets: Vec<usize> = held
        .iter()
        .map(|held| {
            let offset = end.next_multiple_of(ALIGN);
            end = offset + held.packed.bytes();
            offset
        })
        .collect();
    bytes.extend((end as u64).to_le_bytes());
    bytes.extend((table as u64).to_le_bytes());
    bytes.extend(identity);
    for (held, offset) in held.iter().zip(offsets) {
        bytes.extend((held.name.len() as u32).to_le_bytes());
        bytes.extend(held.name.as_bytes());
        bytes.extend(held.format.id().to_le_bytes());
        let all = held.packed.all();
        let sums = all.chunks(PIECE).map(checksum);
        for number in [held.rows, held.cols, offset, all.len()] {
            bytes.extend((number as u64).to_le_bytes());
        }
        bytes.extend(checksum_of_sums(sums).to_le_bytes());
    }
    bytes.extend(checksum(&bytes).to_le_bytes());
    bytes
}

/// Checks a file and returns its table: every entry names a format that can be packed, and a range of the file that
/// is as long as that format, its rows and its columns say.
fn validate(bytes: &[u8], identity: [u8; 32]) -> Result<HashMap<String, Entry>, PackCacheError> {
    let found = bytes.len() as u64;
    let mut header = Reader(bytes);
    let short = PackCacheError::Length { expected: HEADER as u64, found };
    let (Some(magic), Some(version), Some(count), Some(len), Some(table), Some(made_from)) =
        (header.take(8), header.u32(), header.u32(), header.u64(), header.u64(), header.take(32))
    else {
        return Err(short);
    };
    if magic != MAGIC {
        return Err(PackCacheError::Magic);
    }
    if version != VERSION {
        return Err(PackCacheError::Version { expected: VERSION, found: version });
    }
    if made_from != identity {
        return Err(PackCacheError::Identity);
    }
    if len != found {
        return Err(PackCacheError::Length { expected: len, found });
    }
    let data = (HEADER as u64 + 8).checked_add(table).filter(|&data| data <= found);
    let Some(data) = data else {
        return Err(PackCacheError::Length { expected: table.saturating_add(HEADER as u64 + 8), found });
    };
    // No more than the file's length, which is a `usize`.
    let (data, table) = (data as usize, table as usize);
    let sum = checksum(&bytes[..HEADER + table]);
    if bytes[HEADER + table..data] != sum.to_le_bytes() {
        return Err(PackCacheError::Checksum);
    }
    let mut table = Reader(&bytes[HEADER..HEADER + table]);
    let mut entries = HashMap::new();
    for index in 0..count as usize {
        let wrong = |what| PackCacheError::Entry { index, what };
        let (name, entry) = read_entry(&mut table, data, bytes.len()).map_err(wrong)?;
        if entries.insert(name, entry).is_some() {
            return Err(wrong("a second weight of this name"));
        }
    }
    if !table.0.is_empty() {
        return Err(PackCacheError::Entry { index: count as usize, what: "more bytes than entries" });
    }
    Ok(entries)
}

/// The next entry of a table; data lies between `data` and `end`.
fn read_entry(table: &mut Reader<'_>, data: usize, end: usize) -> Result<(String, Entry), &'static str> {
    const CUT: &str = "the table ends in it";
    let name_len = table.u32().ok_or(CUT)?;
    let name = table.take(name_len as usize).ok_or(CUT)?;
    let name = str::from_utf8(name).map_err(|_| "a name that is no UTF-8")?;
    let format = table.u32().ok_or(CUT)?;
    let mut number = || table.u64();
    let (Some(rows), Some(cols), Some(offset), Some(len), Some(checksum)) =
        (number(), number(), number(), number(), number())
    else {
        return Err(CUT);
    };
    let format = Format::from_id(format).ok_or("a format that is not known")?;
    let layout = Layout::of(format).ok_or("a format that is not packed")?;
    let size = |number: u64| usize::try_from(number).map_err(|_| "a number that is too large");
    let (rows, cols, offset, len) = (size(rows)?, size(cols)?, size(offset)?, size(len)?);
    if offset < data || offset.checked_add(len).is_none_or(|last| last > end) {
        return Err("a range outside the file");
    }
    if !offset.is_multiple_of(ALIGN) {
        return Err("a range that is not aligned");
    }
    // A group has eight rows of `bits` bits for each column and more, so that what follows cannot overflow.
    if format.row_bytes(cols).is_none() || cols.checked_mul(layout.bits).is_none_or(|bytes| bytes > len) {
        return Err("columns that do not fit in the range");
    }
    if rows.div_ceil(ROWS).checked_mul(layout.group_bytes(cols / 32)) != Some(len) {
        return Err("a range that is not as long as rows and columns say");
    }
    Ok((name.into(), Entry { format, rows, cols, offset, len, checksum }))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// A checksum that is as fast as memory. For a fixed length, a change within any one 8-byte word always changes it:
/// each step is a bijection of the lane for a given word, and of the word for a given lane. No protection from malice.
pub fn checksum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1u64, 2, 3, 4, 5, 6, 7, 8];
    let mut add = |chunk: &[u8; 64]| {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    };
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().for_each(&mut add);
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    lanes.into_iter().fold(bytes.len() as u64, step)
}

/// The checksum of the pieces' checksums.
fn checksum_of_sums(sums: impl Iterator<Item = u64>) -> u64 {
    checksum(&sums.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// The checksum of a weight, by all threads; `None` if one of them failed.
fn weight_checksum(pool: &mut Pool, bytes: &[u8]) -> Option<u64> {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
    let sums: Vec<AtomicU64> = pieces.iter().map(|_| AtomicU64::new(0)).collect();
    pool.run(pieces.len(), 1, &|_, range| {
        for piece in range {
            sums[piece].store(checksum(pieces[piece]), Ordering::Relaxed);
        }
    })
    .ok()?;
    Some(checksum_of_sums(sums.into_iter().map(AtomicU64::into_inner)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Arena;
    use crate::simd::tests::random_weights;
    use proptest::prelude::*;

    const IDENTITY: [u8; 32] = [7; 32];
    const SHAPE: [usize; 2] = [11, 256];
    const NAMES: [(&str, Format); 3] = [("a", Format::Q4_0), ("b", Format::Q6_K), ("c", Format::Q8_0)];

    fn pool() -> Pool {
        Pool::new(Some(1)).unwrap()
    }

    fn pack(format: Format) -> Arc<Packed> {
        let rows = random_weights(format, SHAPE[0], SHAPE[1], 3);
        Arc::new(
            Packed::new(
                &crate::simd::scalar::KERNELS,
                &mut pool(),
                &mut Arena::default(),
                format,
                Layout::of(format).unwrap(),
                SHAPE,
                &rows,
            )
            .unwrap(),
        )
    }

    fn saved(folder: &Path) -> std::path::PathBuf {
        let cache = PackCache::empty(IDENTITY);
        for (name, format) in NAMES {
            cache.add(name, format, SHAPE, &pack(format));
        }
        assert!(cache.is_stale());
        let path = folder.join("model.smelt-packed");
        cache.save(&path).unwrap();
        assert!(!cache.is_stale());
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "no temporary file is left");
        path
    }

    /// Bytes of a file, in memory that begins where a map could.
    fn aligned(bytes: &[u8]) -> Bytes {
        let mut copy = vec![0; bytes.len() + ALIGN];
        let start = copy.as_ptr().addr().next_multiple_of(ALIGN) - copy.as_ptr().addr();
        copy[start..start + bytes.len()].copy_from_slice(bytes);
        Bytes::from(copy).slice(start..start + bytes.len())
    }

    /// What a file gives for each weight: exactly what was packed, or nothing.
    fn taken(bytes: Bytes) -> Result<(usize, Option<PackCacheError>), PackCacheError> {
        let entries = validate(&bytes, IDENTITY)?;
        let cache = PackCache { file: Some((bytes, entries)), ..PackCache::empty(IDENTITY) };
        let mut found = 0;
        for (name, format) in NAMES {
            if let Some(packed) = cache.take(&mut pool(), name, format, SHAPE) {
                assert_eq!(packed.all(), pack(format).all(), "{name}");
                found += 1;
            }
        }
        Ok((found, cache.damage()))
    }

    #[test]
    fn what_was_saved_is_found_again_for_the_same_shape_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        let cache = PackCache::open(&path, IDENTITY).unwrap();
        for (name, format) in NAMES {
            let packed = cache.take(&mut pool(), name, format, SHAPE).unwrap();
            assert_eq!(packed.all(), pack(format).all(), "{name}");
            assert_eq!(packed.view().group(1), pack(format).view().group(1), "{name}");
            assert!(cache.take(&mut pool(), name, format, [SHAPE[0] + 1, SHAPE[1]]).is_none());
        }
        assert!(cache.take(&mut pool(), "d", Format::Q4_0, SHAPE).is_none());
        assert!(!cache.is_stale() && cache.damage().is_none());
        // What is in use is written anew with what was missing.
        cache.add("d", Format::Q4_1, SHAPE, &pack(Format::Q4_1));
        assert!(cache.is_stale());
        cache.save(&path).unwrap();
        let cache = PackCache::open(&path, IDENTITY).unwrap();
        assert!(cache.take(&mut pool(), "d", Format::Q4_1, SHAPE).is_some());
    }

    #[test]
    fn what_an_ended_writer_left_is_removed_and_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, old: bool| {
            let file = File::create(folder.path().join(name)).unwrap();
            if old {
                file.set_modified(std::time::SystemTime::now() - 2 * Temporary::ABANDONED).unwrap();
            }
            file
        };
        drop(file(".model.smelt-packed.1-0.tmp", true));
        let writing = file(".model.smelt-packed.2-0.tmp", true);
        writing.try_lock().unwrap();
        for (name, old) in
            [(".model.smelt-packed.3-0.tmp", false), (".other.smelt-packed.1-0.tmp", true), ("model", true)]
        {
            drop(file(name, old));
        }
        let path = folder.path().join("model.smelt-packed");
        PackCache::empty(IDENTITY).save(&path).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let expected = [
            ".model.smelt-packed.2-0.tmp",
            ".model.smelt-packed.3-0.tmp",
            ".other.smelt-packed.1-0.tmp",
            "model",
            "model.smelt-packed",
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn what_could_not_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        // A folder in the file's place: everything is written, and then cannot be renamed.
        let path = folder.path().join("model.smelt-packed");
        std::fs::create_dir(&path).unwrap();
        let cache = PackCache::empty(IDENTITY);
        cache.add("a", Format::Q4_0, SHAPE, &pack(Format::Q4_0));
        assert!(matches!(cache.save(&path), Err(PackCacheError::Io(_))));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        // Nothing was forgotten: once there is room, the same is written.
        assert!(cache.is_stale());
        std::fs::remove_dir(&path).unwrap();
        cache.save(&path).unwrap();
        let found = PackCache::open(&path, IDENTITY).unwrap();
        assert!(found.take(&mut pool(), "a", Format::Q4_0, SHAPE).is_some());
    }

    #[test]
    fn of_many_writers_at_once_one_wins_and_readers_see_whole_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = &saved(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..15 {
                        let cache = PackCache::empty(IDENTITY);
                        for (name, format) in NAMES {
                            cache.add(name, format, SHAPE, &pack(format));
                        }
                        cache.save(path).unwrap();
                    }
                });
            }
            for _ in 0..40 {
                let cache = PackCache::open(path, IDENTITY).unwrap();
                for (name, format) in NAMES {
                    let packed = cache.take(&mut pool(), name, format, SHAPE).unwrap();
                    assert_eq!(packed.all(), pack(format).all(), "{name}");
                }
                assert!(cache.damage().is_none());
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[cfg(any(target_os = "linux", target_os = "macos"))]
    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.smelt-packed");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(matches!(PackCache::open(&path, IDENTITY), Err(PackCacheError::Magic)));
    }

    /// A table with one entry of these numbers, its checksum right.
    fn table(name: &[u8], format: u32, numbers: [u64; 5]) -> Vec<u8> {
        let mut bytes = header(IDENTITY, &[]);
        bytes.truncate(HEADER);
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(format.to_le_bytes());
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let table = (bytes.len() - HEADER) as u64;
        bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
        bytes[16..24].copy_from_slice(&4096u64.to_le_bytes());
        bytes[24..32].copy_from_slice(&table.to_le_bytes());
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes.resize(4096, 0);
        bytes
    }

    #[test]
    fn every_error_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            taken(aligned(&bytes)).unwrap_err().to_string()
        };
        assert_eq!(error(&|b| b.truncate(63)), "expected 64 bytes, found 63");
        let len = bytes.len();
        assert_eq!(error(&|b| b.truncate(len - 1)), format!("expected {len} bytes, found {}", len - 1));
        assert_eq!(error(&|b| b[0] ^= 1), "no file of packed weights");
        assert_eq!(error(&|b| b[8] ^= 2), format!("expected version {VERSION}, found {}", VERSION ^ 2));
        assert_eq!(error(&|b| b[32] ^= 1), "made from another model, or before the model changed");
        assert!(error(&|b| b[31] = 0xff).starts_with("expected "));
        assert_eq!(error(&|b| b[70] ^= 1), "the table does not have its checksum");
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let (found, damage) = taken(aligned(&damaged)).unwrap();
        assert_eq!(found, 2);
        let damage = damage.unwrap();
        assert_eq!(damage.to_string(), "weight 'c' does not have its checksum");
        let missing = PackCache::open(&folder.path().join("none"), IDENTITY).err().unwrap();
        assert!(matches!(&missing, PackCacheError::Io(e) if e.kind() == io::ErrorKind::NotFound));
        assert!(std::error::Error::source(&missing).is_some());
        let unwritable = PackCache::empty(IDENTITY).save(&path.join("below-a-file")).unwrap_err();
        assert!(matches!(unwritable, PackCacheError::Io(_)));
    }

    #[test]
    fn every_entry_is_checked() {
        let id = Format::Q8_0.id();
        // 8 rows of 32 columns: 256 bytes of quants and 16 of scales, in whole cache lines.
        let good = [8, 32, 256, 320, 0];
        assert_eq!(validate(&table(b"w", id, good), IDENTITY).unwrap().len(), 1);
        let with = |index: usize, number: u64| {
            let mut numbers = good;
            numbers[index] = number;
            numbers
        };
        for (name, format, numbers, expected) in [
            (&b"\xff"[..], id, good, "a name that is no UTF-8"),
            (b"w", 999, good, "a format that is not known"),
            (b"w", Format::F32.id(), good, "a format that is not packed"),
            (b"w", id, with(2, 64), "a range outside the file"),
            (b"w", id, with(2, u64::MAX - 63), "a range outside the file"),
            (b"w", id, with(3, 4096), "a range outside the file"),
            (b"w", id, with(2, 257), "a range that is not aligned"),
            (b"w", id, with(1, 33), "columns that do not fit in the range"),
            (b"w", id, with(1, 1 << 62), "columns that do not fit in the range"),
            (b"w", id, with(0, 9), "a range that is not as long as rows and columns say"),
            (b"w", id, with(0, u64::MAX), "a range that is not as long as rows and columns say"),
        ] {
            let error = validate(&table(name, format, numbers), IDENTITY).unwrap_err();
            assert!(matches!(error, PackCacheError::Entry { index: 0, what } if what == expected), "{error}");
        }
        let mut two = table(b"w", id, good);
        two[12..16].copy_from_slice(&2u32.to_le_bytes());
        let end = two.len().min(HEADER + 49);
        let sum = checksum(&two[..end]);
        two[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        let error = validate(&two, IDENTITY).unwrap_err();
        assert_eq!(error.to_string(), "entry 1 of the table: the table ends in it");
        let mut none = table(b"w", id, good);
        none[12..16].copy_from_slice(&0u32.to_le_bytes());
        let sum = checksum(&none[..end]);
        none[end..end + 8].copy_from_slice(&sum.to_le_bytes());
        let error = validate(&none, IDENTITY).unwrap_err();
        assert_eq!(error.to_string(), "entry 0 of the table: more bytes than entries");
    }

    #[test]
    fn a_checksum_sees_every_bit_and_the_length() {
        let bytes: Vec<u8> = (0..200u8).collect();
        let sum = checksum(&bytes);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&changed), sum, "bit {bit}");
        }
        assert_ne!(checksum(&[0; 10]), checksum(&[0; 11]));
    }

    /// The order of packed weights is part of the file's version: whoever changes the order meets this test, and
    /// raises [`VERSION`] with it.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_order_of_this_version_is_fixed() {
        let sums = Format::ALL.into_iter().filter(|f| Layout::of(*f).is_some());
        let sum = checksum_of_sums(sums.map(|format| checksum(pack(format).all())));
        assert_eq!((VERSION, sum), (2, ORDER));
    }
    const ORDER: u64 = 5_565_547_607_656_649_798;

    proptest! {
        #[test]
        fn a_changed_file_never_gives_other_weights(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            near_the_start in any::<bool>(),
            cut in prop::option::of(any::<prop::sample::Index>()),
            right_sum in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut bytes = std::fs::read(saved(folder.path())).unwrap();
            let table = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
            let range = if near_the_start { HEADER + table } else { bytes.len() };
            for (index, value) in changes {
                bytes[index.index(range)] = value;
            }
            if right_sum {
                // So that what comes after the checksum is reached, too.
                let sum = checksum(&bytes[..HEADER + table]);
                bytes[HEADER + table..][..8].copy_from_slice(&sum.to_le_bytes());
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            // `taken` compares every weight that it gets.
            let _ = taken(aligned(&bytes));
        }
    }
}
