//! Libraries that were compiled elsewhere: a machine with a GPU needs no clang then.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use metal::device::{CompileOptions, Error, Result};
use metal_sim::compile::{Clang, Source};

/// Names the folder that [`Device::new_library`](metal::device::Device::new_library) looks into before it asks for clang.
pub const VARIABLE: &str = "SIM_PTX_LIBRARIES";

/// The file of a source in a folder of compiled libraries. Both machines must run the same build of this program.
pub fn path(directory: &Path, source: Source<'_>, options: &CompileOptions) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (source.text, format!("{options:?}")).hash(&mut hasher);
    directory.join(format!("{:016x}.simptx", hasher.finish()))
}

/// Compiles a source into a folder, if it is not there yet; returns the file.
///
/// # Errors
/// [`Error::Compile`], and [`Error::Device`] if the file cannot be written.
pub fn add(directory: &Path, clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<PathBuf> {
    let path = path(directory, source, options);
    if !path.is_file() {
        let data = crate::build(clang, source, options)?;
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, data))
            .map_err(|error| Error::Device(format!("writing {}: {error}", path.display())))?;
    }
    Ok(path)
}

/// The library of a source in the folder of [`VARIABLE`], if it is there.
pub(crate) fn find(source: Source<'_>, options: &CompileOptions) -> Option<Vec<u8>> {
    let directory = std::env::var_os(VARIABLE).filter(|value| !value.is_empty())?;
    find_in(Path::new(&directory), source, options)
}

/// The library of a source in a folder, if it is there.
pub fn find_in(directory: &Path, source: Source<'_>, options: &CompileOptions) -> Option<Vec<u8>> {
    fs::read(path(directory, source, options)).ok()
}
