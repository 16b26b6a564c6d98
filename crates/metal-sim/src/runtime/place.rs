//! From an instruction of a compiled kernel to its place in the MSL source.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

use addr2line::Loader;

use crate::compile::COMPILATION_DIRECTORY;

/// How many bytes of code are looked through for a line.
const REACH: usize = 512;

/// `file:line` of an instruction in a compiled library, past what is inlined from the shim; `None` for any
/// other instruction.
///
/// The compiler gives an instruction that it made of several no line; it counts to the nearest one before it.
pub(crate) fn of_instruction(instruction: usize) -> Option<String> {
    let (library, offset) = containing_library(instruction)?;
    let loader = Loader::new(&library).ok()?;
    let function = loader.find_symbol(offset as u64);
    (offset.saturating_sub(REACH)..=offset)
        .rev()
        .map(|offset| offset as u64)
        .take_while(|&offset| loader.find_symbol(offset) == function)
        .find_map(|offset| of_offset(&loader, offset))
}

fn of_offset(loader: &Loader, offset: u64) -> Option<String> {
    let mut frames = loader.find_frames(offset).ok()?;
    while let Ok(Some(frame)) = frames.next() {
        let Some(location) = frame.location else { continue };
        let (Some(file), Some(line)) = (location.file, location.line) else { continue };
        let is_shim = Path::new(file)
            .parent()
            .and_then(Path::file_name)
            .is_some_and(|folder| folder.to_string_lossy().starts_with("shim-"));
        if !is_shim {
            let name = Path::new(file);
            let name = name.strip_prefix(COMPILATION_DIRECTORY).unwrap_or(name);
            return Some(format!("{}:{line}", name.display()));
        }
    }
    None
}

/// The compiled library that holds an instruction, and the instruction's offset in it.
fn containing_library(instruction: usize) -> Option<(String, usize)> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the answer goes to memory of the right type.
    let info = unsafe {
        if libc::dladdr(instruction as *const c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that is not null is a string of the dynamic linker's that lives as long as the library,
    // which a running kernel keeps loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_str().ok()?;
    let is_ours =
        Path::new(name).parent().and_then(Path::file_name).is_some_and(|folder| folder == "metal-sim");
    is_ours.then(|| (name.to_owned(), instruction - info.dli_fbase as usize))
}
