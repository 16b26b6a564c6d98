//! Shadow memory: what is known about each granule of some memory.

use std::io;
use std::ptr;

use super::layout::{Shadow, ShadowCell};

/// The granule that shadow memory starts with: a float. Narrower accesses make it finer.
pub(super) const COARSEST_SHIFT: u32 = 2;
/// Flag of a cell: the granule lies between threadgroup variables.
pub(super) const OUTSIDE: u32 = 1;
/// Flag of a cell: the granule was accessed by atomics.
pub(super) const ATOMIC: u32 = 2;

/// Cells for a range of memory. Pages are committed when they are first written to.
pub(super) struct ShadowMemory {
    pub shadow: Shadow,
    length: usize,
}

// SAFETY: the cells belong to this object alone, and whoever uses them holds the checker's lock.
unsafe impl Send for ShadowMemory {}

impl ShadowMemory {
    /// Cells for `length` bytes from the address `start` on, which is a multiple of 4.
    pub fn new(start: usize, length: usize) -> io::Result<Self> {
        let cells = map(cell_count(length, COARSEST_SHIFT))?;
        Ok(Self { shadow: Shadow { cells, start: start as u64, granule_shift: COARSEST_SHIFT }, length })
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> u64 {
        1 << self.shadow.granule_shift
    }

    /// The index of the cell of an address.
    pub fn index(&self, address: u64) -> usize {
        ((address - self.shadow.start) >> self.shadow.granule_shift) as usize
    }

    /// All cells.
    pub fn cells(&mut self) -> &mut [ShadowCell] {
        // SAFETY: the mapping has that many cells, and any bytes are a cell.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.shadow.cells,
                cell_count(self.length, self.shadow.granule_shift),
            )
        }
    }

    /// Makes granules of `1 << shift` bytes, each of which knows what the one before knew that held it.
    pub fn refine(&mut self, shift: u32) -> io::Result<()> {
        let old_shift = self.shadow.granule_shift;
        if shift >= old_shift {
            return Ok(());
        }
        let pieces = 1usize << (old_shift - shift);
        let old = self.shadow.cells;
        let old_count = cell_count(self.length, old_shift);
        let new = map(cell_count(self.length, shift))?;
        for index in touched(old, old_count) {
            // SAFETY: the index is below the count of the old mapping, and the new one has room for the pieces
            // of every cell.
            unsafe {
                let cell = *old.add(index);
                for piece in 0..pieces {
                    *new.add(index * pieces + piece) = cell;
                }
            }
        }
        unmap(old, old_count);
        self.shadow.cells = new;
        self.shadow.granule_shift = shift;
        Ok(())
    }
}

impl Drop for ShadowMemory {
    fn drop(&mut self) {
        unmap(self.shadow.cells, cell_count(self.length, self.shadow.granule_shift));
    }
}

/// Granules, with some to spare so that no rounding leads past the end.
fn cell_count(length: usize, shift: u32) -> usize {
    // A multiple of four, so that the count of finer granules is a multiple of it.
    ((length >> COARSEST_SHIFT) + 5) << (COARSEST_SHIFT - shift)
}

fn map(count: usize) -> io::Result<*mut ShadowCell> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let length = count * size_of::<ShadowCell>();
    // SAFETY: an anonymous private mapping at an address of the kernel's choice.
    let mapping =
        unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(mapping.cast())
}

fn unmap(cells: *mut ShadowCell, count: usize) {
    // SAFETY: the range was mapped by `map` with the same count, and nothing refers to it any more.
    unsafe { libc::munmap(cells.cast(), count * size_of::<ShadowCell>()) };
}

/// Indices of the cells that lie in pages which were ever written to.
fn touched(cells: *mut ShadowCell, count: usize) -> impl Iterator<Item = usize> {
    const PAGES: usize = 1024;
    // SAFETY: has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(64);
    let length = count * size_of::<ShadowCell>();
    let mut resident = vec![1u8; length.div_ceil(page)];
    for (chunk, states) in resident.chunks_mut(PAGES).enumerate() {
        let offset = chunk * PAGES * page;
        let chunk_length = (states.len() * page).min(length - offset);
        // SAFETY: the range lies inside the mapping, which starts at a page, and there is a byte for each page.
        // Where the call fails all pages count as resident.
        unsafe {
            libc::mincore(cells.cast::<u8>().add(offset).cast(), chunk_length, states.as_mut_ptr().cast())
        };
    }
    let cell = size_of::<ShadowCell>();
    let mut next = 0;
    resident.into_iter().enumerate().filter(|(_, state)| state & 1 != 0).flat_map(move |(index, _)| {
        let first = next.max(index * page / cell);
        next = ((index + 1) * page).div_ceil(cell).min(count);
        first..next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finer_granules_know_what_coarse_ones_knew() {
        let mut memory = ShadowMemory::new(0x1000, 1 << 20).unwrap();
        for (address, write) in [(0x1000, 7), (0x1ffc, 8), (0x1000 + (1 << 20) - 4, 9)] {
            let index = memory.index(address);
            memory.cells()[index].write = write;
        }
        memory.refine(1).unwrap();
        memory.refine(0).unwrap();
        memory.refine(2).unwrap();
        assert_eq!(memory.granule(), 1);
        for (address, write) in [(0x1000, 7), (0x1003, 7), (0x1004, 0), (0x1ffd, 8), (0x100000, 0)] {
            let index = memory.index(address);
            assert_eq!(memory.cells()[index].write, write, "{address:#x}");
        }
        assert_eq!(memory.cells().iter().filter(|cell| cell.write != 0).count(), 12);
    }
}
