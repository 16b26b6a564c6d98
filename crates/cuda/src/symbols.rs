//! The functions of NVIDIA's libraries that this crate calls. They are looked for before the first call: `cudarc` looks for each when it
//! is first called, and panics where it is missing.

use cudarc::driver::sys as driver;
use cudarc::nvrtc::sys as nvrtc;

/// Those by which a driver tells its version.
const VERSION: [&str; 2] = ["cuDriverGetVersion", "cuGetErrorString"];
/// Those of the driver.
const DRIVER: [&str; 42] = [
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamWaitEvent",
];
/// Those of the compiler.
const COMPILER: [&str; 8] = [
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];

/// The first of the functions by which a driver tells its version that it does not have. The library is there.
pub(crate) fn missing_for_the_version() -> Option<&'static str> {
    missing_of_driver(&VERSION)
}

/// The first of the functions that the driver does not have. The library is there.
pub(crate) fn missing_in_driver() -> Option<&'static str> {
    missing_of_driver(&DRIVER)
}

fn missing_of_driver(names: &[&'static str]) -> Option<&'static str> {
    // SAFETY: loading NVIDIA's library does nothing, and what is found is not called.
    names.iter().copied().find(|name| unsafe { driver::culib().get::<*const ()>(name.as_bytes()) }.is_err())
}

/// The first of the functions that the compiler does not have. The library is there.
pub(crate) fn missing_in_compiler() -> Option<&'static str> {
    // SAFETY: as above.
    COMPILER.into_iter().find(|name| unsafe { nvrtc::culib().get::<*const ()>(name.as_bytes()) }.is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The functions that a text calls: `sys::name(`, or `call!(name(`.
    fn calls(text: &str) -> BTreeSet<String> {
        let after = ["sys::", "call!("].into_iter().flat_map(|before| text.split(before).skip(1));
        let name = |rest: &str| {
            let (name, _) = rest.split_once('(')?;
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            // Those that are of `cudarc` are no functions of the libraries.
            let is_theirs =
                name.starts_with("nvrtc") || name.starts_with("cu") && name.contains(char::is_uppercase);
            (is_name && is_theirs).then(|| name.to_owned())
        };
        after.filter_map(name).collect()
    }

    #[test]
    fn all_that_is_called_is_looked_for() {
        let folders = ["", "backend", "ops"].map(|name| format!("{}/src/{name}", env!("CARGO_MANIFEST_DIR")));
        let entries = folders.into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let files = entries.map(|entry| entry.unwrap().path()).filter(|file| file.is_file());
        let texts = files.map(|file| std::fs::read_to_string(file).unwrap());
        let called: BTreeSet<String> = texts.flat_map(|text| calls(&text)).collect();
        let listed = DRIVER.into_iter().chain(COMPILER).map(str::to_owned).collect();
        assert_eq!(called, listed);
    }
}
