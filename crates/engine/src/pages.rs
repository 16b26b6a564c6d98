//! The physical pages of one cache group, and who may have them.

/// A free list of physical pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    free: Vec<i32>,
    total: usize,
    share: usize,
}

impl PagePool {
    /// A pool of `share` pages for each of some sequences, handed out from 0 up, so that memory is touched only as it
    /// is needed.
    pub fn new(share: usize, sequences: usize) -> PagePool {
        let total = share * sequences;
        PagePool { free: (0..total as i32).rev().collect(), total, share }
    }

    /// Pages that each sequence can count on.
    pub fn share(&self) -> usize {
        self.share
    }

    pub fn total(&self) -> usize {
        self.total
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn take(&mut self) -> Option<i32> {
        self.free.pop()
    }

    pub fn give(&mut self, page: i32) {
        debug_assert!(!self.free.contains(&page), "page {page} was given back twice");
        self.free.push(page);
    }
}
