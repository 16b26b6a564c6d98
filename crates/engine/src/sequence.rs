//! One conversation: its tokens and the KV pages that hold them.

use crate::Error;
use crate::pages::PagePool;
use graph::CacheGroup;

/// No physical page.
pub(crate) const NO_PAGE: i32 = -1;

/// Rows of a shared page that a sequence needs in a page of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    pub group: usize,
    pub from: i32,
    pub to: i32,
    pub rows: usize,
}

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

    /// Another sequence of the first `len` tokens, which holds the same pages; `None` if a window's pages, which the
    /// query after them would see, are gone.
    pub(crate) fn fork(
        &self,
        len: usize,
        groups: &[CacheGroup],
        pools: &mut [PagePool],
        page_len: usize,
    ) -> Option<Sequence> {
        let len = len.min(self.tokens.len());
        if !self.keeps(len, groups, page_len) {
            return None;
        }
        let tables = self.tables.iter().zip(groups).zip(pools).map(|((table, group), pool)| {
            let first = group.first_seen(len) / page_len;
            let seen = table[..len.div_ceil(page_len)].iter().enumerate();
            seen.map(|(index, &page)| if index < first { NO_PAGE } else { page })
                .inspect(|&page| {
                    if page != NO_PAGE {
                        pool.hold(page);
                    }
                })
                .collect()
        });
        Some(Sequence { tokens: self.tokens[..len].to_vec(), tables: tables.collect() })
    }

    /// Takes the pages for `added` more tokens. In groups with a window, pages that no query to come can see are given
    /// up once the sequence has its share of pages.
    ///
    /// A page that is half full and shared is replaced by one of the sequence's own: `copies` gets what must be copied
    /// before anything is written, after an error too.
    pub(crate) fn reserve(
        &mut self,
        added: usize,
        groups: &[CacheGroup],
        pools: &mut [PagePool],
        page_len: usize,
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), Error> {
        let len = self.tokens.len();
        let pages = (len + added).div_ceil(page_len);
        for (index, ((table, pool), group)) in self.tables.iter_mut().zip(pools).zip(groups).enumerate() {
            let mut held = table.iter().filter(|&&page| page != NO_PAGE).count();
            let first_seen = (group.first_seen(len) / page_len).min(table.len());
            let mut old = 0;
            let mut take = |table: &mut Vec<i32>, held: &mut usize, pool: &mut PagePool| {
                // Past its share, or where nothing is free, a sequence first gives up what it no longer sees: the rest is
                // for others.
                while (*held >= pool.share() || pool.free() == 0) && old < first_seen {
                    let page = std::mem::replace(&mut table[old], NO_PAGE);
                    old += 1;
                    if page != NO_PAGE {
                        pool.give(page);
                        *held -= 1;
                    }
                }
                let page = pool.take()?;
                *held += 1;
                Some(page)
            };
            let missing = |table: &[i32], pool: &PagePool| Error::OutOfPages {
                needed: (pages - table.len()).max(1),
                free: pool.free(),
            };
            let half_full = if len.is_multiple_of(page_len) { None } else { Some(len / page_len) };
            if let Some(at) = half_full
                && added > 0
                && pool.is_shared(table[at])
            {
                let Some(page) = take(table, &mut held, pool) else { return Err(missing(table, pool)) };
                let from = std::mem::replace(&mut table[at], page);
                pool.give(from);
                held -= 1;
                copies.push(PageCopy { group: index, from, to: page, rows: len % page_len });
            }
            while table.len() < pages {
                let Some(page) = take(table, &mut held, pool) else { return Err(missing(table, pool)) };
                table.push(page);
            }
        }
        Ok(())
    }

    /// Whether all pages are there that a query after the first `len` tokens sees.
    fn keeps(&self, len: usize, groups: &[CacheGroup], page_len: usize) -> bool {
        self.tables.iter().zip(groups).all(|(table, group)| {
            let first = group.first_seen(len) / page_len;
            table[first..len.div_ceil(page_len)].iter().all(|&page| page != NO_PAGE)
        })
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
        let len = if self.keeps(len, groups, page_len) { len } else { 0 };
        for (table, pool) in self.tables.iter_mut().zip(pools) {
            for page in table.drain(len.div_ceil(page_len)..).filter(|&page| page != NO_PAGE) {
                pool.give(page);
            }
        }
        self.tokens.truncate(len);
        len
    }
}

/// The first position that the query at position `len`, and so every later one, can see.
trait FirstSeen {
    fn first_seen(&self, len: usize) -> usize;
}

impl FirstSeen for CacheGroup {
    fn first_seen(&self, len: usize) -> usize {
        self.window.map_or(0, |window| (len + 1).saturating_sub(window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: CacheGroup = CacheGroup { window: None };
    const LOCAL: CacheGroup = CacheGroup { window: Some(5) };

    fn sequence_of(len: usize, groups: &[CacheGroup], pools: &mut [PagePool]) -> Sequence {
        let mut sequence = Sequence::new(groups.len());
        for token in 0..len {
            sequence.reserve(1, groups, pools, 4, &mut Vec::new()).unwrap();
            sequence.push(&[token as u32]);
        }
        sequence
    }

    #[test]
    fn pages_are_taken_as_tokens_come_and_given_back() {
        let mut pools = [PagePool::new(3, 3)];
        let mut sequence = sequence_of(9, &[FULL], &mut pools);
        assert_eq!(sequence.table(0), [0, 1, 2]);
        assert_eq!(sequence.row(0, 6, 4), 6);
        assert!(matches!(
            sequence.reserve(4, &[FULL], &mut pools, 4, &mut Vec::new()),
            Err(Error::OutOfPages { needed: 1, free: 0 })
        ));
        assert_eq!(sequence.truncate(4, &[FULL], &mut pools, 4), 4);
        assert_eq!((sequence.len(), pools[0].free()), (4, 2));
        assert_eq!(sequence.truncate(0, &[FULL], &mut pools, 4), 0);
        assert_eq!(pools[0].free(), 3);
    }

    #[test]
    fn a_window_reuses_the_pages_that_it_left_behind() {
        let mut pools = [PagePool::new(3, 3)];
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
        let mut pools = [PagePool::new(3, 6)];
        let first = sequence_of(100, &[LOCAL], &mut pools);
        let second = sequence_of(12, &[LOCAL], &mut pools);
        assert_eq!((first.len(), second.len(), pools[0].free()), (100, 12, 0));
    }

    #[test]
    fn a_windowed_sequence_gives_up_what_it_no_longer_sees_where_nothing_is_free() {
        let mut pools = [PagePool::new(9, 4)];
        let sequence = sequence_of(40, &[LOCAL], &mut pools);
        assert_eq!((sequence.len(), pools[0].free()), (40, 0));
    }

    #[test]
    fn a_fork_shares_pages_until_it_writes_to_one() {
        let mut pools = [PagePool::new(9, 9)];
        let first = sequence_of(6, &[FULL], &mut pools);
        let mut second = first.fork(6, &[FULL], &mut pools, 4).unwrap();
        assert_eq!((second.table(0), pools[0].free()), (first.table(0), 7));
        let mut copies = Vec::new();
        second.reserve(3, &[FULL], &mut pools, 4, &mut copies).unwrap();
        assert_eq!(copies, [PageCopy { group: 0, from: 1, to: 2, rows: 2 }]);
        assert_eq!((first.table(0), second.table(0)), (&[0, 1][..], &[0, 2, 3][..]));
        // Nobody shares page 1 any more.
        let mut first = first;
        copies.clear();
        first.reserve(1, &[FULL], &mut pools, 4, &mut copies).unwrap();
        assert!(copies.is_empty());
        for sequence in [&mut first, &mut second] {
            sequence.truncate(0, &[FULL], &mut pools, 4);
        }
        assert_eq!(pools[0].free(), 9);
    }

    #[test]
    fn a_fork_of_a_windowed_sequence_holds_what_its_next_query_sees() {
        let mut pools = [PagePool::new(3, 9)];
        let first = sequence_of(16, &[LOCAL], &mut pools);
        assert_eq!(first.fork(16, &[LOCAL], &mut pools, 4).unwrap().table(0), [NO_PAGE, NO_PAGE, NO_PAGE, 0]);
        assert!(first.fork(7, &[LOCAL], &mut pools, 4).is_none());
    }
}
