//! Packed weights in a file, to be mapped at the next start.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | [`MAGIC`](table::MAGIC) |
//! | 8 | [`VERSION`](table::VERSION), u32 |
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

mod checksum;
mod error;
mod table;
mod temporary;
#[cfg(test)]
mod tests;

pub use checksum::checksum;
pub use error::PackCacheError;

use crate::buffers::ALIGN;
use crate::pack::{Layout, Packed};
use crate::pool::Pool;
use bytes::Bytes;
use checksum::weight_checksum;
use memmap2::Mmap;
use quant::Format;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::{Entry, HEADER, header, validate};
use temporary::Temporary;

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
