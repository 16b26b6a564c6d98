//! What kernels index with is checked before they run, on the copies of what the host wrote.

use crate::buffers::Buffers;
use graph::{BackendError, Operand};

/// A promise about inputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    /// Every value is at least 0 and below the limit.
    Below { what: &'static str, values: Operand, limit: usize },
    /// Every page that a query sees is there.
    Pages { positions: Operand, ranges: Operand, pages: Operand, page_len: usize, window: usize, rows: usize },
}

/// The integers of an operand, as the host wrote them: the bytes of each.
fn ints<'a>(buffers: &'a Buffers, operand: &Operand) -> Option<&'a [[u8; 4]]> {
    let written = &buffers.get(operand.buffer).ok()?.written;
    let bytes = written.get(operand.offset..operand.offset.checked_add(operand.bytes())?)?;
    Some(bytes.as_chunks().0)
}

fn below(what: &str, row: usize, found: [u8; 4], limit: usize) -> Result<usize, BackendError> {
    let found = i32::from_le_bytes(found);
    usize::try_from(found).ok().filter(|&found| found < limit).ok_or_else(|| BackendError::BadInput {
        what: what.into(),
        row,
        found: i64::from(found),
        limit: limit as i64,
    })
}

impl Check {
    /// Whether the promise is kept.
    pub(crate) fn run(&self, buffers: &Buffers) -> Result<(), BackendError> {
        match self {
            Check::Below { what, values, limit } => {
                let values = ints(buffers, values).unwrap_or_default();
                values
                    .iter()
                    .enumerate()
                    .try_for_each(|(row, &found)| below(what, row, found, *limit).map(|_| ()))
            }
            Check::Pages { positions, ranges, pages, page_len, window, rows } => {
                let all = [positions, ranges, pages].map(|operand| ints(buffers, operand));
                let [Some(positions), Some(ranges), Some(table)] = all else { return Ok(()) };
                let max_pages = pages.shape.cols;
                for (sequence, range) in ranges.windows(2).enumerate() {
                    let start = below("query range", sequence, range[0], positions.len() + 1)?;
                    let end = below("query range", sequence + 1, range[1], positions.len() + 1)?;
                    if start >= end {
                        continue;
                    }
                    let limit = max_pages.saturating_mul(*page_len);
                    let (mut first, mut end_key) = (usize::MAX, 0);
                    for (token, &position) in positions.iter().enumerate().take(end).skip(start) {
                        let last = below("position", token, position, limit)?;
                        let seen = if *window == 0 { 0 } else { (last + 1).saturating_sub(*window) };
                        (first, end_key) = (first.min(seen), end_key.max(last + 1));
                    }
                    for logical in first / page_len..end_key.div_ceil(*page_len) {
                        let entry = sequence * max_pages + logical;
                        below("page table", entry, table[entry], rows / page_len)?;
                    }
                }
                Ok(())
            }
        }
    }
}
