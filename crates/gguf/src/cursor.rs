//! Reading little-endian values from bytes, every length checked against what is left.

use crate::{Error, ErrorKind};

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! number {
    ($name:ident, $type:ty) => {
        pub fn $name(&mut self, what: &str) -> Result<$type, Error> {
            let bytes = self.take(size_of::<$type>() as u64, what)?;
            // `take` gave exactly this many bytes.
            Ok(<$type>::from_le_bytes(bytes.try_into().unwrap_or_default()))
        }
    };
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes left.
    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// Checks that `count` items of at least `least` bytes each can follow.
    pub fn expect(&self, count: u64, least: u64, what: &str) -> Result<(), Error> {
        let needed = count.saturating_mul(least);
        if needed <= self.left() {
            return Ok(());
        }
        let kind =
            ErrorKind::Truncated { what: what.into(), offset: self.offset(), needed, left: self.left() };
        Err(kind.into())
    }

    pub fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], Error> {
        self.expect(len, 1, what)?;
        // `len` is at most what is left, so it fits.
        let end = self.at + len as usize;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    number!(u32, u32);
    number!(u64, u64);

    /// A length and as many bytes.
    pub fn string(&mut self, what: &str) -> Result<&'a [u8], Error> {
        let len = self.u64(what)?;
        self.take(len, what)
    }
}
