//! Choices that were made by measurements and that the environment can undo, to measure them again. They are read once,
//! when a model is loaded, and are part of the graph's identity.

use crate::{DType, Error};
use quant::Format;

/// On a GPU, keys and values are half precision from this many of their columns on, over all layers: below, the cache
/// is too small a part of what a token reads for the conversions to pay.
const HALF_FROM_COLUMNS: usize = 8192;

/// What the environment asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levers {
    /// `SMELT_NO_FUSE_QKV=1`: query, key and value projections as nodes of their own, always.
    pub no_fuse_qkv: bool,
    /// `SMELT_NO_FUSE_FFN=1`: the same for gate and up projections.
    pub no_fuse_ffn: bool,
    /// `SMELT_CACHE_TYPE`: the cache's element type, where the caller gives none.
    pub cache: Option<DType>,
}

impl Levers {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Option`] for a value that means nothing.
    pub fn from_environment() -> Result<Levers, Error> {
        Levers::read(|name| std::env::var(name).ok())
    }

    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Levers, Error> {
        let flag = |name: &'static str| match get(name).as_deref() {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(found) => Err(Error::Option { name, message: format!("expected 0 or 1, found '{found}'") }),
        };
        let name = "SMELT_CACHE_TYPE";
        let cache = match get(name).as_deref() {
            None => None,
            Some("f32") => Some(DType::F32),
            Some("f16") => Some(DType::F16),
            Some("q8_0") => Some(DType::Packed(Format::Q8_0)),
            Some(found) => {
                let message = format!("expected f32, f16 or q8_0, found '{found}'");
                return Err(Error::Option { name, message });
            }
        };
        Ok(Levers { no_fuse_qkv: flag("SMELT_NO_FUSE_QKV")?, no_fuse_ffn: flag("SMELT_NO_FUSE_FFN")?, cache })
    }
}

/// The cache's type on a GPU for a model whose layers have so many columns of keys in all.
pub(crate) fn gpu_cache_type(key_columns: usize) -> DType {
    if key_columns >= HALF_FROM_COLUMNS { DType::F16 } else { DType::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Levers, Error> {
        Levers::read(|variable| (variable == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_variable_sets_its_own_lever() {
        let default = Levers::default();
        assert_eq!(Levers::read(|_| None).unwrap(), default);
        assert_eq!(read("SMELT_NO_FUSE_QKV", "1").unwrap(), Levers { no_fuse_qkv: true, ..default });
        assert_eq!(read("SMELT_NO_FUSE_FFN", "1").unwrap(), Levers { no_fuse_ffn: true, ..default });
        assert_eq!(read("SMELT_NO_FUSE_FFN", "0").unwrap(), default);
        let q8_0 = DType::Packed(Format::Q8_0);
        for (value, cache) in [("f32", DType::F32), ("f16", DType::F16), ("q8_0", q8_0)] {
            assert_eq!(read("SMELT_CACHE_TYPE", value).unwrap(), Levers { cache: Some(cache), ..default });
        }
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        let error = read("SMELT_CACHE_TYPE", "q4_0").unwrap_err().to_string();
        assert!(error.contains("SMELT_CACHE_TYPE") && error.contains("'q4_0'"), "{error}");
        let error = read("SMELT_NO_FUSE_QKV", "yes").unwrap_err().to_string();
        assert!(error.contains("SMELT_NO_FUSE_QKV") && error.contains("'yes'"), "{error}");
    }

    #[test]
    fn small_models_keep_single_precision() {
        // 24 layers of 128 columns, and 28 of 512.
        assert_eq!(gpu_cache_type(24 * 128), DType::F32);
        assert_eq!(gpu_cache_type(28 * 512), DType::F16);
    }
}
