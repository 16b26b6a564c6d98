//! The physical pages of one cache group, and who holds them.

/// A free list of physical pages, and how many sequences hold each of the others: sequences with the same beginning
/// share its pages.
#[derive(Debug)]
pub(crate) struct PagePool {
    free: Vec<i32>,
    /// Sequences that hold each page.
    holders: Vec<u32>,
    share: usize,
}

impl PagePool {
    /// A pool of `total` pages of which each sequence can count on `share`, handed out from 0 up, so that memory is
    /// touched only as it is needed.
    pub fn new(share: usize, total: usize) -> PagePool {
        PagePool { free: (0..total as i32).rev().collect(), holders: vec![0; total], share }
    }

    /// Pages that each sequence can count on.
    pub fn share(&self) -> usize {
        self.share
    }

    pub fn total(&self) -> usize {
        self.holders.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn take(&mut self) -> Option<i32> {
        let page = self.free.pop()?;
        self.holders[page as usize] = 1;
        Some(page)
    }

    /// Makes one more sequence hold a page.
    pub fn hold(&mut self, page: i32) {
        debug_assert!(self.holders[page as usize] > 0, "page {page} is free and cannot be shared");
        self.holders[page as usize] += 1;
    }

    /// Whether more than one sequence holds a page, so that none may write to it.
    pub fn is_shared(&self, page: i32) -> bool {
        self.holders[page as usize] > 1
    }

    /// Takes note that a sequence no longer holds a page.
    pub fn give(&mut self, page: i32) {
        let holders = &mut self.holders[page as usize];
        debug_assert!(*holders > 0, "page {page} was given back twice");
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }
}
