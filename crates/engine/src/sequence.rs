//! One conversation: its tokens and the KV pages that hold them.

use crate::Error;
use crate::pages::PagePool;
use graph::CacheGroup;

/// No physical page.
pub(crate) const NO_PAGE: i32 = -1;

/// The tokens that are in the KV cache for one conversation. Made by [`Engine::sequence`](crate::Engine::sequence);
/// give it back with [`Engine::release`](crate::Engine::release), or its pages stay taken.
#[derive(Debug, Default)]
pub struct Sequence {
    tokens: Vec<u32>,
    /// For each group, the physical page of each logical page.
    tables: Vec<Vec<i32>>,
}

impl Sequence {
    pub(crate) fn new(groups: usize) -> Sequence {
        Sequence { tokens: Vec::new(), tables: vec![Vec::new(); groups] }
    }

    /// The tokens whose keys and values are cached.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens are cached.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The cache row of a position in a group.
    pub(crate) fn row(&self, group: usize, position: usize, page_len: usize) -> i32 {
        self.tables[group][position / page_len] * page_len as i32 + (position % page_len) as i32
    }

    pub(crate) fn table(&self, group: usize) -> &[i32] {
        &self.tables[group]
    }

    pub(crate) fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Takes the pages for `added` more tokens. In groups with a window, pages that no query to come can see are
    /// given to new positions once the sequence has its share of pages.
    pub(crate) fn reserve(
        &mut self,
        added: usize,
        groups: &[CacheGroup],
        pools: &mut [PagePool],
        page_len: usize,
    ) -> Result<(), Error> {
        let pages = (self.tokens.len() + added).div_ceil(page_len);
        for ((table, pool), group) in self.tables.iter_mut().zip(pools).zip(groups) {
            let mut next_old = 0;
            let mut held = table.iter().filter(|&&page| page != NO_PAGE).count();
            while table.len() < pages {
                // Past its share, a sequence first gives up what it no longer sees: the rest is for others.
                let own = (held >= pool.share())
                    .then(|| oldest_unseen(table, &mut next_old, group, self.tokens.len(), page_len))
                    .flatten();
                let page = match own {
                    Some(page) => page,
                    None => {
                        let Some(page) = pool.take() else {
                            return Err(Error::OutOfPages { needed: pages - table.len(), free: pool.free() });
                        };
                        held += 1;
                        page
                    }
                };
                table.push(page);
            }
        }
        Ok(())
    }

    /// Forgets what lies after the first `len` tokens and tells how many are left: fewer than `len`, namely none, if
    /// a window's pages below are gone already.
    pub(crate) fn truncate(
        &mut self,
        len: usize,
        groups: &[CacheGroup],
        pools: &mut [PagePool],
        page_len: usize,
    ) -> usize {
        let len = len.min(self.tokens.len());
        let kept = self.tables.iter().zip(groups).all(|(table, group)| {
            let first = group.window.map_or(0, |window| (len + 1).saturating_sub(window));
            table[first / page_len..len.div_ceil(page_len)].iter().all(|&page| page != NO_PAGE)
        });
        let len = if kept { len } else { 0 };
        for (table, pool) in self.tables.iter_mut().zip(pools) {
            for page in table.drain(len.div_ceil(page_len)..).filter(|&page| page != NO_PAGE) {
                pool.give(page);
            }
        }
        self.tokens.truncate(len);
        len
    }
}

/// Takes the oldest page of a group that the query at position `len`, and so every later one, cannot see.
fn oldest_unseen(
    table: &mut [i32],
    next: &mut usize,
    group: &CacheGroup,
    len: usize,
    page_len: usize,
) -> Option<i32> {
    let first_seen = (len + 1).saturating_sub(group.window?) / page_len;
    while *next < first_seen.min(table.len()) {
        let page = std::mem::replace(&mut table[*next], NO_PAGE);
        *next += 1;
        if page != NO_PAGE {
            return Some(page);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: CacheGroup = CacheGroup { window: None };
    const LOCAL: CacheGroup = CacheGroup { window: Some(5) };

    fn sequence_of(len: usize, groups: &[CacheGroup], pools: &mut [PagePool]) -> Sequence {
        let mut sequence = Sequence::new(groups.len());
        for token in 0..len {
            sequence.reserve(1, groups, pools, 4).unwrap();
            sequence.push(&[token as u32]);
        }
        sequence
    }

    #[test]
    fn pages_are_taken_as_tokens_come_and_given_back() {
        let mut pools = [PagePool::new(3, 1)];
        let mut sequence = sequence_of(9, &[FULL], &mut pools);
        assert_eq!(sequence.table(0), [0, 1, 2]);
        assert_eq!(sequence.row(0, 6, 4), 6);
        assert!(matches!(
            sequence.reserve(4, &[FULL], &mut pools, 4),
            Err(Error::OutOfPages { needed: 1, free: 0 })
        ));
        assert_eq!(sequence.truncate(4, &[FULL], &mut pools, 4), 4);
        assert_eq!((sequence.len(), pools[0].free()), (4, 2));
        assert_eq!(sequence.truncate(0, &[FULL], &mut pools, 4), 0);
        assert_eq!(pools[0].free(), 3);
    }

    #[test]
    fn a_window_reuses_the_pages_that_it_left_behind() {
        let mut pools = [PagePool::new(3, 1)];
        let mut sequence = sequence_of(16, &[LOCAL], &mut pools);
        assert_eq!(sequence.table(0), [NO_PAGE, 1, 2, 0]);
        // The query at 15 sees 11..=15; the one at 11 would see 7..=11, and row 7 is still there.
        assert_eq!(sequence.truncate(11, &[LOCAL], &mut pools, 4), 11);
        // The one at 7 would see 3..=7: gone, so everything is forgotten, and every page is free again.
        assert_eq!(sequence.truncate(7, &[LOCAL], &mut pools, 4), 0);
        assert_eq!(pools[0].free(), 3);
    }

    #[test]
    fn a_long_windowed_sequence_leaves_the_others_their_share() {
        let mut pools = [PagePool::new(3, 2)];
        let first = sequence_of(100, &[LOCAL], &mut pools);
        let second = sequence_of(12, &[LOCAL], &mut pools);
        assert_eq!((first.len(), second.len(), pools[0].free()), (100, 12, 0));
    }
}
