//! A grid of Metal as launches of CUDA: blocks of a launch all have one size, threadgroups at the far edges of a grid may
//! be smaller.

use metal::device::Size;

/// The most blocks of one launch along each axis.
const MOST_BLOCKS: [usize; 3] = [(1 << 31) - 1, 65_535, 65_535];

/// A box of threadgroups of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first threadgroup.
    pub offset: [usize; 3],
    /// How many there are.
    pub count: [usize; 3],
    /// Threads of each.
    pub threads: [usize; 3],
}

/// The parts of a grid of `grid` threads in threadgroups of `threads`.
pub(crate) fn parts(grid: Size, threads: Size) -> Vec<Part> {
    let (grid, threads) = (grid.to_array(), threads.to_array());
    // Offset, count and threads of each stretch of an axis.
    let axis = |axis: usize| {
        let (whole, rest) = (grid[axis] / threads[axis], grid[axis] % threads[axis]);
        let mut stretches = Vec::new();
        let mut at = 0;
        while at < whole {
            let count = (whole - at).min(MOST_BLOCKS[axis]);
            stretches.push((at, count, threads[axis]));
            at += count;
        }
        if rest > 0 {
            stretches.push((whole, 1, rest));
        }
        stretches
    };
    let (x, y, z) = (axis(0), axis(1), axis(2));
    let mut parts = Vec::with_capacity(x.len() * y.len() * z.len());
    for z in &z {
        for y in &y {
            for x in &x {
                parts.push(Part {
                    offset: [x.0, y.0, z.0],
                    count: [x.1, y.1, z.1],
                    threads: [x.2, y.2, z.2],
                });
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_threadgroups_are_one_launch() {
        let all = parts(Size::new(64, 4, 1), Size::new(32, 2, 1));
        assert_eq!(all, [Part { offset: [0; 3], count: [2, 2, 1], threads: [32, 2, 1] }]);
    }

    #[test]
    fn edges_are_launches_of_their_own() {
        let all = parts(Size::new(100, 3, 1), Size::new(32, 2, 1));
        let sizes: Vec<_> = all.iter().map(|part| (part.offset, part.count, part.threads)).collect();
        assert_eq!(
            sizes,
            [
                ([0, 0, 0], [3, 1, 1], [32, 2, 1]),
                ([3, 0, 0], [1, 1, 1], [4, 2, 1]),
                ([0, 1, 0], [3, 1, 1], [32, 1, 1]),
                ([3, 1, 0], [1, 1, 1], [4, 1, 1]),
            ]
        );
        let threads: usize = all
            .iter()
            .map(|part| part.count.iter().product::<usize>() * part.threads.iter().product::<usize>())
            .sum();
        assert_eq!(threads, 300);
    }

    #[test]
    fn a_long_axis_is_cut() {
        let all = parts(Size::new(1, 70_000, 1), Size::new(1, 1, 1));
        assert_eq!((all.len(), all[1].offset, all[1].count), (2, [0, 65_535, 0], [1, 4_465, 1]));
    }
}
