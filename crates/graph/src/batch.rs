//! A ragged batch: what the host brings to one forward.

use crate::{GraphParams, InputKind};
use std::fmt;

/// The contents of every input. Rows of one sequence are neighbours, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, one per row.
    pub tokens: Vec<i32>,
    /// Position of each token in its sequence.
    pub positions: Vec<i32>,
    /// For each cache group, the cache row that each token is written to.
    pub cache_rows: Vec<Vec<i32>>,
    /// Where each sequence's rows begin, and the end of the last: one more than there are sequences.
    pub query_ranges: Vec<i32>,
    /// Keys of each sequence once this batch's are stored.
    pub kv_lens: Vec<i32>,
    /// For each cache group, the physical page of each logical page, `max_pages` per sequence, -1 where there is none.
    pub page_tables: Vec<Vec<i32>>,
    /// Rows whose logits are wanted.
    pub out_rows: Vec<i32>,
}

/// A batch does not fit its parameters or breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchError {
    /// A list has the wrong length.
    Length {
        /// Which list.
        what: String,
        /// Its length by the parameters.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// A value is outside its range.
    Range {
        /// Which list.
        what: String,
        /// Index in the list.
        index: usize,
        /// The value.
        found: i64,
        /// The least value: 0, or -1 in page tables.
        least: i64,
        /// The first value that is too large.
        limit: i64,
    },
    /// Query ranges do not rise from 0 to the number of tokens.
    QueryRanges,
    /// The last row of a sequence is not at its last key, or positions do not rise one by one.
    Positions {
        /// The sequence's index in the batch.
        sequence: usize,
    },
    /// A token is to be stored in another cache row than the one where its sequence's page table will look for it.
    CacheRow {
        /// The cache group.
        group: usize,
        /// The token's row in the batch.
        row: usize,
        /// The row by the page table; `None` where the table has no page for the token's position.
        expected: Option<i64>,
        /// The row by the batch.
        found: i32,
    },
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchError::Length { what, expected, found } => {
                write!(f, "batch: {what}: expected {expected} entries, found {found}")
            }
            BatchError::Range { what, index, found, least, limit } => {
                write!(f, "batch: {what}[{index}]: expected {least}..{limit}, found {found}")
            }
            BatchError::QueryRanges => {
                f.write_str("batch: query ranges: expected to rise from 0 to the number of tokens")
            }
            BatchError::Positions { sequence } => write!(
                f,
                "batch: sequence {sequence}: expected positions that rise one by one and end at the last key"
            ),
            BatchError::CacheRow { group, row, expected: Some(expected), found } => {
                write!(f, "batch: cache rows of group {group}[{row}]: expected {expected}, found {found}")
            }
            BatchError::CacheRow { group, row, expected: None, .. } => {
                write!(f, "batch: row {row}: group {group} has no page for its position")
            }
        }
    }
}

impl std::error::Error for BatchError {}

impl Batch {
    /// The contents of an input.
    pub fn input(&self, kind: InputKind) -> Option<&[i32]> {
        match kind {
            InputKind::Tokens => Some(&self.tokens),
            InputKind::Positions => Some(&self.positions),
            InputKind::CacheRows(group) => self.cache_rows.get(usize::from(group.0)).map(Vec::as_slice),
            InputKind::QueryRanges => Some(&self.query_ranges),
            InputKind::KvLens => Some(&self.kv_lens),
            InputKind::PageTable(group) => self.page_tables.get(usize::from(group.0)).map(Vec::as_slice),
            InputKind::OutRows => Some(&self.out_rows),
        }
    }

    /// Checks every length, range and order against the parameters, and that each token is stored where its page
    /// table says. Which earlier pages a query needs depends on its layer's window: backends refuse a missing one.
    pub fn validate(&self, params: &GraphParams, vocabulary: usize) -> Result<(), BatchError> {
        let groups = params.cache.pages.len();
        length("tokens", self.tokens.len(), params.tokens)?;
        length("positions", self.positions.len(), params.tokens)?;
        length("cache rows' groups", self.cache_rows.len(), groups)?;
        length("page tables' groups", self.page_tables.len(), groups)?;
        length("query ranges", self.query_ranges.len(), params.sequences.saturating_add(1))?;
        length("KV lengths", self.kv_lens.len(), params.sequences)?;
        length("output rows", self.out_rows.len(), params.outputs)?;
        range("tokens", &self.tokens, 0, vocabulary)?;
        range("output rows", &self.out_rows, 0, params.tokens)?;
        for (group, &pages) in params.cache.pages.iter().enumerate() {
            length("cache rows", self.cache_rows[group].len(), params.tokens)?;
            range("cache rows", &self.cache_rows[group], 0, pages.saturating_mul(params.cache.page_len))?;
            length(
                "page table",
                self.page_tables[group].len(),
                params.sequences.saturating_mul(params.max_pages),
            )?;
            range("page table", &self.page_tables[group], -1, pages)?;
        }
        let rising = self.query_ranges.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = (self.query_ranges.first(), self.query_ranges.last());
        if !rising || ends != (Some(&0), Some(&(params.tokens as i32))) {
            return Err(BatchError::QueryRanges);
        }
        for (sequence, &kv_len) in self.kv_lens.iter().enumerate() {
            let rows = self.query_ranges[sequence] as usize..self.query_ranges[sequence + 1] as usize;
            let positions = &self.positions[rows];
            let rise = positions.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
            let first_ok = positions.first().is_none_or(|&first| first >= 0);
            let last_ok = match positions.last() {
                Some(&last) => last.checked_add(1) == Some(kv_len),
                None => kv_len >= 0,
            };
            let limit = params.max_pages.saturating_mul(params.cache.page_len) as i64;
            if !rise || !first_ok || !last_ok || i64::from(kv_len) > limit {
                return Err(BatchError::Positions { sequence });
            }
        }
        self.check_cache_rows(params)
    }

    /// `cache_rows[t] == page_table[s][p / page_len] * page_len + p % page_len` for each token `t`, at position `p` of
    /// sequence `s`. The positions are known to be within the page table.
    fn check_cache_rows(&self, params: &GraphParams) -> Result<(), BatchError> {
        let page_len = params.cache.page_len;
        for (group, (rows, table)) in self.cache_rows.iter().zip(&self.page_tables).enumerate() {
            for (sequence, range) in self.query_ranges.windows(2).enumerate() {
                let (start, end) = (range[0] as usize, range[1] as usize);
                for (row, &found) in rows.iter().enumerate().take(end).skip(start) {
                    let position = self.positions[row] as usize;
                    let page = i64::from(table[sequence * params.max_pages + position / page_len]);
                    let expected =
                        (page >= 0).then_some(page * page_len as i64 + (position % page_len) as i64);
                    if expected != Some(i64::from(found)) {
                        return Err(BatchError::CacheRow { group, row, expected, found });
                    }
                }
            }
        }
        Ok(())
    }
}

fn length(what: &str, found: usize, expected: usize) -> Result<(), BatchError> {
    if found == expected { Ok(()) } else { Err(BatchError::Length { what: what.into(), expected, found }) }
}

fn range(what: &str, values: &[i32], least: i64, limit: usize) -> Result<(), BatchError> {
    let limit = limit as i64;
    match values.iter().position(|&v| i64::from(v) < least || i64::from(v) >= limit) {
        None => Ok(()),
        Some(index) => {
            Err(BatchError::Range { what: what.into(), index, found: i64::from(values[index]), least, limit })
        }
    }
}
