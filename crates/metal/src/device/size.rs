//! Three-dimensional counts of threads and threadgroups.

use std::fmt;

/// A count of threads or threadgroups along each axis of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Count along x, the fastest axis.
    pub width: usize,
    /// Count along y.
    pub height: usize,
    /// Count along z.
    pub depth: usize,
}

impl Size {
    /// A count along all three axes.
    pub const fn new(width: usize, height: usize, depth: usize) -> Self {
        Self { width, height, depth }
    }

    /// A one-dimensional count.
    pub const fn width(width: usize) -> Self {
        Self::new(width, 1, 1)
    }

    /// The product of the three counts, or `None` past the range of `usize`.
    pub const fn volume(self) -> Option<usize> {
        match self.width.checked_mul(self.height) {
            Some(plane) => plane.checked_mul(self.depth),
            None => None,
        }
    }

    /// How many blocks of `block` cover this size, axis by axis; an axis of `block` must not be 0.
    pub const fn div_ceil(self, block: Self) -> Self {
        Self::new(
            self.width.div_ceil(block.width),
            self.height.div_ceil(block.height),
            self.depth.div_ceil(block.depth),
        )
    }

    /// The threads of this many threadgroups of `block` threads; counts past the range of `usize` are the largest.
    pub const fn times(self, block: Self) -> Self {
        Self::new(
            self.width.saturating_mul(block.width),
            self.height.saturating_mul(block.height),
            self.depth.saturating_mul(block.depth),
        )
    }

    /// The three counts, x first.
    pub const fn to_array(self) -> [usize; 3] {
        [self.width, self.height, self.depth]
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.width, self.height, self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn volume_refuses_to_wrap() {
        assert_eq!(Size::new(2, 3, 4).volume(), Some(24));
        assert_eq!(Size::new(usize::MAX, 2, 1).volume(), None);
        assert_eq!(Size::new(1 << 40, 1 << 20, 1 << 10).volume(), None);
    }

    #[test]
    fn blocks_cover_and_multiply() {
        let (grid, block) = (Size::new(100, 4, 1), Size::new(32, 2, 1));
        assert_eq!(grid.div_ceil(block), Size::new(4, 2, 1));
        assert_eq!(grid.div_ceil(block).times(block), Size::new(128, 4, 1));
        assert_eq!(Size::width(usize::MAX).times(block).width, usize::MAX);
    }

    #[test]
    fn display_is_the_usual_notation() {
        assert_eq!(Size::new(8, 2, 1).to_string(), "8x2x1");
    }
}
