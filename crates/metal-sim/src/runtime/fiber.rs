//! Stacks and the switch between them.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use super::MAX_THREADS;
use super::layout::Lane;

/// Bytes of one stack, and its alignment: `shim/runtime.h` finds the lane from the stack pointer alone.
pub(super) const STACK_SIZE: usize = 128 << 10;
const GUARD_SIZE: usize = 4096;
/// Stacks start at different offsets, so that the hot ends of 32 stacks do not share a few cache sets.
const COLOURS: usize = 32;
const COLOUR_STEP: usize = 128 + 64;

/// Saves the callee-saved registers on the current stack, stores the stack pointer to `*save` and continues
/// where `to` was saved.
///
/// # Safety
/// `to` must come from this function or from [`Stacks::prepare`], and must not be continued twice.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn switch(save: *mut *mut c_void, to: *mut c_void) {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        // A return would mispredict, since the caller on the other stack is another one.
        "pop rcx",
        "jmp rcx",
    )
}

/// Continues on the stack that the stack pointer is at already: where a signal handler sends a faulty kernel.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn resume() {
    std::arch::naked_asm!(
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp", "pop rcx", "jmp rcx"
    )
}

/// Saves the callee-saved registers on the current stack, stores the stack pointer to `*save` and continues
/// where `to` was saved.
///
/// # Safety
/// `to` must come from this function or from [`Stacks::prepare`], and must not be continued twice.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(save: *mut *mut c_void, to: *mut c_void) {
    std::arch::naked_asm!(
        "sub sp, sp, #160",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x9, sp",
        "str x9, [x0]",
        "mov sp, x1",
        "ldp x19, x20, [sp]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "br x30",
    )
}

/// Continues on the stack that the stack pointer is at already: where a signal handler sends a faulty kernel.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resume() {
    std::arch::naked_asm!(
        "ldp x19, x20, [sp]",
        "ldp x21, x22, [sp, #16]",
        "ldp x23, x24, [sp, #32]",
        "ldp x25, x26, [sp, #48]",
        "ldp x27, x28, [sp, #64]",
        "ldp x29, x30, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "add sp, sp, #160",
        "br x30",
    )
}

/// Leaves the current stack for good.
///
/// # Safety
/// As for [`switch`]; nothing on the current stack is dropped.
pub(super) unsafe fn leave(to: *mut c_void) -> ! {
    let mut abandoned = ptr::null_mut();
    // SAFETY: the caller vouches for `to`; the saved stack pointer is never used.
    unsafe { switch(&raw mut abandoned, to) };
    unreachable!("an abandoned stack was continued")
}

/// One stack for each thread of a threadgroup, with a guard page below each.
pub(super) struct Stacks {
    mapping: *mut c_void,
    mapping_length: usize,
    base: usize,
}

impl Stacks {
    /// Reserves address space; pages are committed when a stack first uses them.
    pub fn new() -> io::Result<Self> {
        // One stack more than needed, to align the first.
        let mapping_length = STACK_SIZE * (MAX_THREADS + 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), mapping_length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stacks = Self { mapping, mapping_length, base: (mapping as usize).next_multiple_of(STACK_SIZE) };
        for index in 0..MAX_THREADS {
            let guard = (stacks.base + index * STACK_SIZE) as *mut c_void;
            // SAFETY: the page lies inside the mapping that was just made and nothing uses it yet.
            if unsafe { libc::mprotect(guard, GUARD_SIZE, libc::PROT_NONE) } != 0 {
                // The system limits the number of mappings; the rest go without a guard.
                break;
            }
        }
        Ok(stacks)
    }

    /// Notes whose stack this is, where the shim's `current_lane` looks.
    ///
    /// # Safety
    /// `index` must be below [`MAX_THREADS`].
    pub unsafe fn set_owner(&self, index: u32, lane: *mut Lane) {
        let slot = self.top(index) - size_of::<*mut Lane>();
        // SAFETY: the slot is the last word of a stack inside the mapping.
        unsafe { *(slot as *mut *mut Lane) = lane };
    }

    /// Makes a stack that starts at `entry` when it is first switched to; returns its stack pointer.
    ///
    /// # Safety
    /// `index` must be below [`MAX_THREADS`] and its stack unused.
    pub unsafe fn prepare(&self, index: u32, lane: *mut Lane, entry: extern "C" fn() -> !) -> *mut c_void {
        // SAFETY: as the caller says.
        unsafe { self.set_owner(index, lane) };
        let colour = index as usize % COLOURS * COLOUR_STEP;
        let start = (self.top(index) - 64 - colour) & !63;
        #[cfg(target_arch = "x86_64")]
        {
            // Six registers and the address to jump to; the stack is misaligned by a word at a function's
            // entry, as after a call.
            let words = (start - 8 * 8) as *mut usize;
            // SAFETY: the words lie inside the unused stack.
            unsafe {
                for index in 0..6 {
                    *words.add(index) = 0;
                }
                *words.add(6) = entry as usize;
                *words.add(7) = 0;
            }
            words.cast()
        }
        #[cfg(target_arch = "aarch64")]
        {
            let words = (start - 160) as *mut usize;
            // SAFETY: the words lie inside the unused stack.
            unsafe {
                for index in 0..20 {
                    *words.add(index) = 0;
                }
                *words.add(11) = entry as usize;
            }
            words.cast()
        }
    }

    /// The addresses of all stacks.
    pub fn range(&self) -> Range<usize> {
        self.base..self.base + STACK_SIZE * MAX_THREADS
    }

    /// Whether the address lies in a guard page: a stack overflow.
    pub fn is_guard(&self, address: usize) -> bool {
        address >= self.base
            && address < self.base + STACK_SIZE * MAX_THREADS
            && (address - self.base) % STACK_SIZE < GUARD_SIZE
    }

    fn top(&self, index: u32) -> usize {
        self.base + (index as usize + 1) * STACK_SIZE
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and no fiber runs any more.
        unsafe { libc::munmap(self.mapping, self.mapping_length) };
    }
}
