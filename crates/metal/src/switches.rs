//! The switches of the environment. Each choice that was made by a measurement keeps the switch that made it, so that
//! it can be measured again. `docs/metal.md` has the table.

use crate::Error;
use std::path::PathBuf;
use std::time::Duration;

/// What the environment asks for. The defaults are what an empty environment means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// One-pass attention for single queries; `SMELT_NO_FLASH=1` turns it off.
    pub flash: bool,
    /// One-pass attention for several queries; `SMELT_NO_PREFILL_FLASH=1` turns it off.
    pub prefill_flash: bool,
    /// Keys of a single query spread over threadgroups; `SMELT_NO_SPLIT_ATTN=1` turns it off.
    pub split_attention: bool,
    /// Number of the parts that keys are spread over; `SMELT_ATTN_CHUNKS`.
    pub attention_chunks: Option<usize>,
    /// Norms with 256 threads a row and more; `SMELT_NO_RMS_256=1` leaves one SIMD-group.
    pub wide_norm: bool,
    /// Tiled products for many rows; `SMELT_GEMM=0` leaves the matrix-vector kernels.
    pub gemm: bool,
    /// A barrier before every dispatch; `SMELT_METAL_SERIAL=1`.
    pub serial: bool,
    /// Strict floating-point arithmetic in all kernels; `SMELT_METAL_STRICT=1`.
    pub strict: bool,
    /// Weights copied instead of mapped; `SMELT_WEIGHT_COPY=1`.
    pub weight_copy: bool,
    /// A table of encoding time by operation, and a line per submission; `SMELT_OP_PROFILE=1`.
    pub op_profile: bool,
    /// A command buffer per dispatch, and the device's time by kernel; `SMELT_METAL_PHASE_PROFILE=1`.
    pub phase_profile: bool,
    /// Where the values of all nodes are written; `SMELT_TRACE=DIR`.
    pub trace: Option<PathBuf>,
    /// Where a recording of everything that the device executes goes, for Xcode; `SMELT_METAL_CAPTURE=FILE.gputrace`.
    pub capture: Option<PathBuf>,
    /// A compiled library with all kernels, in place of the sources; `SMELT_METALLIB_FILE`.
    pub library: Option<PathBuf>,
    /// A folder whose files take the place of the kernel files of the same names; `SMELT_METAL_SOURCES`.
    pub sources: Option<PathBuf>,
    /// How long the backend waits for a command buffer, whatever its work is; `SMELT_METAL_TIMEOUT_MS`.
    pub timeout: Option<Duration>,
    /// The longest command buffer, by estimate on the slowest GPU; `SMELT_METAL_CUT_MS`.
    pub cut: Option<Duration>,
}

impl Default for Switches {
    fn default() -> Switches {
        Switches {
            flash: true,
            prefill_flash: true,
            split_attention: true,
            attention_chunks: None,
            wide_norm: true,
            gemm: true,
            serial: false,
            strict: false,
            weight_copy: false,
            op_profile: false,
            phase_profile: false,
            trace: None,
            capture: None,
            library: None,
            sources: None,
            timeout: None,
            cut: None,
        }
    }
}

impl Switches {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Environment`] for a value that means nothing.
    pub fn from_environment() -> Result<Switches, Error> {
        Switches::read(|name| std::env::var(name).ok())
    }

    /// The same from any source of values.
    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Switches, Error> {
        let flag = |variable: &'static str, default: bool| match get(variable).as_deref() {
            None => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(found) => Err(Error::Environment { variable, expected: "0 or 1", found: found.into() }),
        };
        let number = |variable: &'static str| match get(variable) {
            None => Ok(None),
            Some(found) => match found.parse::<u32>() {
                Ok(number) if number > 0 => Ok(Some(number)),
                _ => Err(Error::Environment { variable, expected: "a number above 0", found }),
            },
        };
        let path = |name| get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let milliseconds = |name| {
            let found = number(name);
            found.map(|found| found.map(|milliseconds| Duration::from_millis(u64::from(milliseconds))))
        };
        Ok(Switches {
            flash: !flag("SMELT_NO_FLASH", false)?,
            prefill_flash: !flag("SMELT_NO_PREFILL_FLASH", false)?,
            split_attention: !flag("SMELT_NO_SPLIT_ATTN", false)?,
            attention_chunks: number("SMELT_ATTN_CHUNKS")?.map(|chunks| chunks as usize),
            wide_norm: !flag("SMELT_NO_RMS_256", false)?,
            gemm: flag("SMELT_GEMM", true)?,
            serial: flag("SMELT_METAL_SERIAL", false)?,
            strict: flag("SMELT_METAL_STRICT", false)?,
            weight_copy: flag("SMELT_WEIGHT_COPY", false)?,
            op_profile: flag("SMELT_OP_PROFILE", false)?,
            phase_profile: flag("SMELT_METAL_PHASE_PROFILE", false)?,
            trace: path("SMELT_TRACE"),
            capture: path("SMELT_METAL_CAPTURE"),
            library: path("SMELT_METALLIB_FILE"),
            sources: path("SMELT_METAL_SOURCES"),
            timeout: milliseconds("SMELT_METAL_TIMEOUT_MS")?,
            cut: milliseconds("SMELT_METAL_CUT_MS")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Switches, Error> {
        Switches::read(|name| {
            let found = pairs.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_string())
        })
    }

    #[test]
    fn an_empty_environment_is_the_default() {
        assert_eq!(read(&[]), Ok(Switches::default()));
    }

    #[test]
    fn every_switch_turns_its_own_field() {
        let default = Switches::default;
        for (name, value, expected) in [
            ("SMELT_NO_FLASH", "1", Switches { flash: false, ..default() }),
            ("SMELT_NO_PREFILL_FLASH", "1", Switches { prefill_flash: false, ..default() }),
            ("SMELT_NO_SPLIT_ATTN", "1", Switches { split_attention: false, ..default() }),
            ("SMELT_ATTN_CHUNKS", "3", Switches { attention_chunks: Some(3), ..default() }),
            ("SMELT_NO_RMS_256", "1", Switches { wide_norm: false, ..default() }),
            ("SMELT_GEMM", "0", Switches { gemm: false, ..default() }),
            ("SMELT_METAL_SERIAL", "1", Switches { serial: true, ..default() }),
            ("SMELT_METAL_STRICT", "1", Switches { strict: true, ..default() }),
            ("SMELT_WEIGHT_COPY", "1", Switches { weight_copy: true, ..default() }),
            ("SMELT_OP_PROFILE", "1", Switches { op_profile: true, ..default() }),
            ("SMELT_METAL_PHASE_PROFILE", "1", Switches { phase_profile: true, ..default() }),
            ("SMELT_TRACE", "dir", Switches { trace: Some("dir".into()), ..default() }),
            (
                "SMELT_METAL_CAPTURE",
                "a.gputrace",
                Switches { capture: Some("a.gputrace".into()), ..default() },
            ),
            (
                "SMELT_METALLIB_FILE",
                "a.metallib",
                Switches { library: Some("a.metallib".into()), ..default() },
            ),
            ("SMELT_METAL_SOURCES", "dir", Switches { sources: Some("dir".into()), ..default() }),
            (
                "SMELT_METAL_TIMEOUT_MS",
                "20",
                Switches { timeout: Some(Duration::from_millis(20)), ..default() },
            ),
            ("SMELT_METAL_CUT_MS", "50", Switches { cut: Some(Duration::from_millis(50)), ..default() }),
        ] {
            assert_eq!(read(&[(name, value)]), Ok(expected), "{name}={value}");
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        for (name, value, expected) in [
            ("SMELT_GEMM", "off", "SMELT_GEMM: expected 0 or 1, found 'off'"),
            ("SMELT_ATTN_CHUNKS", "0", "SMELT_ATTN_CHUNKS: expected a number above 0, found '0'"),
            ("SMELT_METAL_TIMEOUT_MS", "-1", "SMELT_METAL_TIMEOUT_MS: expected a number above 0, found '-1'"),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err().to_string(), expected);
        }
    }
}
