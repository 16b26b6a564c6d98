//! The errors of starting the backend.

use crate::pool::PoolError;
use crate::simd::SimdLevel;
use std::fmt;

/// Why the backend could not start. What goes wrong later is a [`graph::BackendError`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuError {
    /// An environment variable has a value that means nothing.
    Environment {
        /// Its name.
        variable: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// This processor lacks the instructions that were asked for.
    Unavailable {
        /// The level.
        level: SimdLevel,
        /// The best level that there is.
        best: SimdLevel,
    },
    /// The thread pool did not start.
    Pool(PoolError),
    /// There is no memory for a measurement.
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
    },
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuError::Environment { variable, expected, found } => {
                write!(f, "{variable}: expected {expected}, found '{found}'")
            }
            CpuError::Unavailable { level, best } => {
                write!(f, "this processor has no {level} instructions; the best level is {best}")
            }
            CpuError::Pool(error) => write!(f, "thread pool: {error}"),
            CpuError::Memory { bytes } => write!(f, "no memory for a buffer of {bytes} bytes"),
        }
    }
}

impl std::error::Error for CpuError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CpuError::Pool(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PoolError> for CpuError {
    fn from(error: PoolError) -> CpuError {
        CpuError::Pool(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn errors_say_what_was_found_and_expected() {
        let environment =
            CpuError::Environment { variable: "SMELT_CPU", expected: "scalar or avx2", found: "mmx".into() };
        assert_eq!(environment.to_string(), "SMELT_CPU: expected scalar or avx2, found 'mmx'");
        let unavailable = CpuError::Unavailable { level: SimdLevel::Avx2, best: SimdLevel::Scalar };
        assert_eq!(
            unavailable.to_string(),
            "this processor has no avx2 instructions; the best level is scalar"
        );
        let pool = CpuError::from(PoolError::ThreadCount { found: 0 });
        assert_eq!(pool.to_string(), "thread pool: threads: expected 1 to 1024, found 0");
        assert!(pool.source().is_some());
        assert_eq!(CpuError::Memory { bytes: 5 }.to_string(), "no memory for a buffer of 5 bytes");
    }
}
