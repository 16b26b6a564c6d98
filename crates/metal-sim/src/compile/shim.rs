//! The C++ side of the simulator, written to the cache for clang to include.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Error, cache};

/// Our headers.
const HEADERS: [(&str, &str); 18] = [
    ("types.h", include_str!("../../shim/types.h")),
    ("runtime.h", include_str!("../../shim/runtime.h")),
    ("sanitizer.h", include_str!("../../shim/sanitizer.h")),
    ("type_traits.h", include_str!("../../shim/type_traits.h")),
    ("vector.h", include_str!("../../shim/vector.h")),
    ("math.h", include_str!("../../shim/math.h")),
    ("packing.h", include_str!("../../shim/packing.h")),
    ("constants.h", include_str!("../../shim/constants.h")),
    ("atomic.h", include_str!("../../shim/atomic.h")),
    ("simdgroup.h", include_str!("../../shim/simdgroup.h")),
    ("simdgroup_matrix.h", include_str!("../../shim/simdgroup_matrix.h")),
    ("simdgroup_functions.h", include_str!("../../shim/simdgroup_functions.h")),
    ("matrix_layout.h", include_str!("../../shim/matrix_layout.h")),
    ("matrix_functions.h", include_str!("../../shim/matrix_functions.h")),
    ("context.h", include_str!("../../shim/context.h")),
    ("builtins.h", include_str!("../../shim/builtins.h")),
    ("kernel.h", include_str!("../../shim/kernel.h")),
    ("lint.h", include_str!("../../shim/lint.h")),
];

/// Metal's headers, blank: everything is there from the start.
const BLANK: [&str; 22] = [
    "metal_stdlib",
    "metal_array",
    "metal_assert",
    "metal_atomic",
    "metal_common",
    "metal_compute",
    "metal_config",
    "metal_geometric",
    "metal_graphics",
    "metal_integer",
    "metal_limits",
    "metal_math",
    "metal_matrix",
    "metal_pack",
    "metal_quadgroup",
    "metal_relational",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_texture",
    "metal_type_traits",
    "metal_utility",
    "simd/simd.h",
];

/// Changes when any header changes.
pub(super) fn fingerprint() -> &'static str {
    static FINGERPRINT: OnceLock<String> = OnceLock::new();
    FINGERPRINT.get_or_init(|| cache::key(&HEADERS.map(|(_, text)| text)))
}

/// Writes the headers below the cache directory, unless they are there; returns their directory.
pub(super) fn install(cache: &Path) -> Result<PathBuf, Error> {
    install_for(cache, &[])
}

/// The same with some headers replaced.
pub(super) fn install_for(cache: &Path, replaced: &[(&str, &str)]) -> Result<PathBuf, Error> {
    let mut identity = fingerprint().to_owned();
    if !replaced.is_empty() {
        let parts: Vec<&str> = replaced.iter().flat_map(|&(name, text)| [name, text]).collect();
        identity = cache::key(&[&identity, &cache::key(&parts)]);
    }
    let directory = cache.join(format!("shim-{}", &identity[..16]));
    let complete = directory.join("complete");
    if complete.is_file() {
        return Ok(directory);
    }
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        let part = cache::temporary(&path);
        let result = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&part, text))
            .and_then(|()| fs::rename(&part, &path));
        result.map_err(|source| Error::Io { action: format!("writing {}", path.display()), source })
    };
    for (name, text) in HEADERS.iter().chain(replaced) {
        write(name, text)?;
    }
    for name in BLANK {
        write(&format!("blank/{name}"), "")?;
    }
    write("complete", "")?;
    Ok(directory)
}
