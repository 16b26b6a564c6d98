//! Where compiled libraries lie in memory.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The addresses of the library that holds an instruction.
pub(super) fn containing(instruction: usize) -> Option<Range<usize>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the answer goes to memory of the right type.
    let base = unsafe {
        if libc::dladdr(instruction as *const c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init().dli_fbase as usize
    };
    Some(base..end(base, instruction))
}

/// One past the last address of the library at `base`.
#[cfg(target_os = "linux")]
fn end(base: usize, instruction: usize) -> usize {
    struct Search {
        base: usize,
        end: usize,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        search: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: the dynamic linker passes a valid description, and the pointer is the one given below.
        unsafe {
            let (info, search) = (&*info, &mut *search.cast::<Search>());
            if info.dlpi_addr as usize != search.base || info.dlpi_phdr.is_null() {
                return 0;
            }
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
                search.end = search.end.max(search.base + header.p_vaddr as usize + header.p_memsz as usize);
            }
            1
        }
    }
    let mut search = Search { base, end: instruction };
    // SAFETY: the callback gets the pointer to `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.end
}

/// One past the last address of the library at `base`, roughly: there is no portable way to ask.
#[cfg(not(target_os = "linux"))]
fn end(_: usize, instruction: usize) -> usize {
    instruction + (16 << 20)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_program_holds_its_own_functions_and_constants() {
        static CONSTANT: &str = "somewhere in this program";
        let image = super::containing(super::containing as *const () as usize).unwrap();
        assert!(image.contains(&(CONSTANT.as_ptr() as usize)), "{image:x?}");
        assert_eq!(super::containing(16), None);
    }
}
