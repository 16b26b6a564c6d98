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

    /// A threadgroup of no more than `most` threads in all: fewer rows of threads, and only if that is not enough, shorter ones.
    /// Those are a multiple of 32 long where there is room for 32.
    pub fn at_most(self, most: usize) -> Self {
        let whole = if most < 32 { most } else { most / 32 * 32 };
        let width = if self.width <= most { self.width } else { whole };
        let height = self.height.min(most / width.max(1));
        let depth = self.depth.min(most / (width * height).max(1));
        Self { width, height, depth }
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
    fn a_threadgroup_shrinks_to_what_there_is_room_for() {
        for (size, most, expected) in [
            (Size::new(32, 8, 1), 1024, Size::new(32, 8, 1)),
            (Size::new(32, 8, 1), 256, Size::new(32, 8, 1)),
            (Size::new(32, 8, 1), 250, Size::new(32, 7, 1)),
            (Size::new(20, 8, 4), 500, Size::new(20, 8, 3)),
            (Size::new(20, 8, 4), 160, Size::new(20, 8, 1)),
            (Size::new(104, 1, 1), 104, Size::width(104)),
            (Size::new(104, 2, 1), 100, Size::width(96)),
            (Size::width(256), 20, Size::width(20)),
        ] {
            let found = size.at_most(most);
            assert_eq!(found, expected, "{size} at most {most}");
            assert!(found.volume() <= Some(most));
        }
    }

    #[test]
    fn display_is_the_usual_notation() {
        assert_eq!(Size::new(8, 2, 1).to_string(), "8x2x1");
    }
}
