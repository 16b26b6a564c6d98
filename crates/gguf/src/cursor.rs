//! A little-endian reader over bytes that never reads past their end.

/// More bytes were asked for than are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short {
    /// Where the read began, from the start of the file.
    pub offset: u64,
    /// Bytes that it takes.
    pub needed: u64,
    /// Bytes that there are.
    pub left: u64,
}

/// Reads forward through a part of a file and knows where in the file it is.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    /// What has not been read yet.
    rest: &'a [u8],
    /// Offset in the file of the first byte of `rest`.
    offset: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning of `bytes`, which lie at `offset` in their file.
    pub fn new(bytes: &'a [u8], offset: u64) -> Cursor<'a> {
        Cursor { rest: bytes, offset }
    }

    /// Where in the file the next byte is.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes not read yet.
    pub fn left(&self) -> u64 {
        self.rest.len() as u64
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], Short> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = split else {
            return Err(Short { offset: self.offset, needed: len, left: self.left() });
        };
        self.rest = rest;
        self.offset += len;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let Some((&taken, rest)) = self.rest.split_first_chunk() else {
            return Err(Short { offset: self.offset, needed: N as u64, left: self.left() });
        };
        self.rest = rest;
        self.offset += N as u64;
        Ok(taken)
    }

    /// A `u32`.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    /// A `u64`.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length as a `u64`, then so many bytes of any content.
    pub fn string(&mut self) -> Result<&'a [u8], Short> {
        let len = self.u64()?;
        self.take(len)
    }
}
