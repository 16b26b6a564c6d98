//! What a device can hold and launch.

use super::Size;

/// Numeric limits. The defaults are those that every Apple-silicon Mac shares (Metal feature set tables).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest buffer in bytes.
    pub max_buffer_length: usize,
    /// Largest size that [`set_bytes`](super::ComputeEncoder::set_bytes) takes.
    pub max_inline_bytes: usize,
    /// Number of `[[buffer(n)]]` slots.
    pub buffer_slots: usize,
    /// Number of `[[threadgroup(n)]]` slots.
    pub threadgroup_slots: usize,
    /// Bytes of threadgroup memory, dynamic and declared in the kernel together.
    pub max_threadgroup_memory: usize,
    /// Granularity of dynamic threadgroup memory.
    pub threadgroup_memory_alignment: usize,
    /// Threads in one threadgroup.
    pub max_threads_per_threadgroup: usize,
    /// Threads in one threadgroup along each axis.
    pub max_threadgroup_size: Size,
    /// Alignment of pointer and length of a no-copy buffer: the page size.
    pub no_copy_alignment: usize,
    /// Threads in one SIMD-group.
    pub simd_width: usize,
    /// Memory that the GPU may use without evicting, in bytes.
    pub recommended_working_set: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_buffer_length: 8 << 30,
            max_inline_bytes: 4096,
            buffer_slots: 31,
            threadgroup_slots: 31,
            max_threadgroup_memory: 32 << 10,
            threadgroup_memory_alignment: 16,
            max_threads_per_threadgroup: 1024,
            max_threadgroup_size: Size::new(1024, 1024, 1024),
            no_copy_alignment: 16 << 10,
            simd_width: 32,
            recommended_working_set: 10 << 30,
        }
    }
}

/// Language and hardware features that not every device has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Apple GPU family number (7 for M1, 8 for M2, 9 for M3 and M4).
    pub gpu_family: u32,
    /// `simdgroup_matrix` types.
    pub simdgroup_matrix: bool,
    /// `bfloat` types (Metal 3.1 and later).
    pub bfloat: bool,
    /// Shuffles, votes and reductions over a SIMD-group.
    pub simd_reductions: bool,
    /// Memory in common with the host.
    pub unified_memory: bool,
    /// Number of GPU cores, where known.
    pub gpu_cores: Option<u32>,
}

impl Capabilities {
    /// Those of a family of Apple's GPUs, 0 for any other GPU (Metal feature set tables). `language_has_bfloat` tells
    /// whether the system's compiler is one of Metal 3.1 or later.
    pub const fn of_family(gpu_family: u32, language_has_bfloat: bool) -> Self {
        let is_apple_silicon = gpu_family >= 7;
        Self {
            gpu_family,
            simdgroup_matrix: is_apple_silicon,
            bfloat: is_apple_silicon && language_has_bfloat,
            simd_reductions: is_apple_silicon,
            unified_memory: is_apple_silicon,
            gpu_cores: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_come_with_the_family_and_the_language() {
        assert!(Capabilities::of_family(7, true).bfloat && !Capabilities::of_family(7, false).bfloat);
        assert!(Capabilities::of_family(9, false).simdgroup_matrix);
        assert!(!Capabilities::of_family(0, true).simd_reductions);
    }
}
