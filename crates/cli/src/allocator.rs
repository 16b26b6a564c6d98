//! How the program ends where the system has no memory left: with a sentence, as after any other failure.

use std::alloc::{GlobalAlloc, Layout, System};

/// Most of what is larger (weights, caches, buffers, files) is asked for by those who can go on without it, or tell what it
/// was for.
const SMALL: usize = 2 << 20;

/// The system's allocator. Where it has nothing for something small there is nothing to go on with: the standard library
/// would abort.
pub struct Allocator;

// SAFETY: every call is passed on to the system's allocator, which keeps the contract, with the arguments as they came; what
// it returns is returned, unless the program ends.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

#[inline]
fn checked(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() && size < SMALL {
        end();
    }
    pointer
}

/// Tells it and ends, without memory: locks and buffers of the standard library may be in use.
#[cold]
fn end() {
    #[cfg(unix)]
    {
        const MESSAGE: &str = "error: no memory is left; a smaller context (-c) takes less, and `ulimit -v` and the limits of a \
                               container say how much there may be\n";
        // SAFETY: the pointer and the length are those of a constant. The program ends here, without handlers that could
        // need what this thread holds.
        unsafe {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(1);
        }
    }
}
