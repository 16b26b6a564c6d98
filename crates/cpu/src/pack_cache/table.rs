//! Header and table of a file of packed weights: written by [`header`], believed after [`validate`].

use super::Held;
use super::checksum::{PIECE, checksum, checksum_of_sums};
use super::error::PackCacheError;
use crate::buffers::ALIGN;
use crate::pack::{Layout, ROWS};
use quant::Format;
use std::collections::HashMap;

pub(super) const MAGIC: [u8; 8] = *b"SMELTPK\x1a";

/// Of the file and of the order that [`crate::pack`] defines: to be raised with every change of either. Scales are in
/// the processor's byte order, which is part of it.
pub(super) const VERSION: u32 = if cfg!(target_endian = "big") { 1 << 31 | 2 } else { 2 };

pub(super) const HEADER: usize = 64;

/// A weight in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) format: Format,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) checksum: u64,
}

/// Header, table and their checksum.
pub(super) fn header(identity: [u8; 32], held: &[Held]) -> Vec<u8> {
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
pub(super) fn validate(bytes: &[u8], identity: [u8; 32]) -> Result<HashMap<String, Entry>, PackCacheError> {
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
