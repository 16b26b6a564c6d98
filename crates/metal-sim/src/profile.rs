//! The Apple GPU that is simulated: its limits and features.
//!
//! The numbers are those of Apple's Metal feature set tables and of the machines' specifications. What no table
//! gives, such as how many threads a kernel's registers leave room for, is not simulated, but can be set.

use metal::device::{Capabilities, Limits};

/// A simulated GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name as Metal shows it.
    pub name: &'static str,
    /// Numeric limits.
    pub limits: Limits,
    /// Features.
    pub capabilities: Capabilities,
    /// Most threads of a threadgroup of any kernel, as if its registers left room for no more.
    pub kernel_threads: usize,
}

/// Name, family, cores and memory in GiB of each machine.
const MACHINES: [(&str, u32, u32, usize); 12] = [
    ("Apple M1", 7, 8, 16),
    ("Apple M1 Pro", 7, 16, 32),
    ("Apple M1 Max", 7, 32, 64),
    ("Apple M2", 8, 10, 24),
    ("Apple M2 Pro", 8, 19, 32),
    ("Apple M2 Max", 8, 38, 96),
    ("Apple M3", 9, 10, 24),
    ("Apple M3 Pro", 9, 18, 36),
    ("Apple M3 Max", 9, 40, 128),
    ("Apple M4", 9, 10, 32),
    ("Apple M4 Pro", 9, 20, 64),
    ("Apple M4 Max", 9, 40, 128),
];

impl Profile {
    /// The profile of that name: `M1`, `M2 Pro`, `m4-max`, ... in any case and with any separator.
    pub fn named(name: &str) -> Option<Self> {
        let normal = |text: &str| {
            text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
        };
        let wanted = normal(name);
        let found = MACHINES
            .iter()
            .find(|(full, ..)| normal(full) == wanted || normal(full).strip_prefix("apple") == Some(&wanted));
        found.map(|&(name, gpu_family, cores, memory)| Self {
            name,
            limits: Limits {
                // Apple lets the GPU have up to about three quarters of the memory, and one buffer up to half.
                max_buffer_length: (memory << 30) / 2,
                recommended_working_set: (memory << 30) / 4 * 3,
                ..Limits::default()
            },
            capabilities: Capabilities {
                gpu_cores: Some(cores),
                ..Capabilities::of_family(gpu_family, true)
            },
            kernel_threads: Limits::default().max_threads_per_threadgroup,
        })
    }

    /// The names that [`Profile::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MACHINES.iter().map(|(name, ..)| *name)
    }
}

impl Default for Profile {
    fn default() -> Self {
        // The smallest machine: what runs there runs everywhere.
        Self::named("M1").unwrap_or(Self {
            name: "Apple",
            limits: Limits::default(),
            capabilities: Capabilities::of_family(7, true),
            kernel_threads: Limits::default().max_threads_per_threadgroup,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Profile;

    #[test]
    fn names_are_forgiving() {
        for name in ["M4 Max", "m4-max", "Apple M4 Max", "m4max"] {
            assert_eq!(Profile::named(name).map(|profile| profile.name), Some("Apple M4 Max"), "{name}");
        }
        assert_eq!(Profile::named("M9"), None);
    }

    #[test]
    fn every_listed_name_is_found() {
        assert_eq!(Profile::names().filter(|name| Profile::named(name).is_some()).count(), 12);
        assert_eq!(Profile::default().name, "Apple M1");
    }
}
