//! Faults in kernels: signals become errors, and the process lives on.
//!
//! A kernel holds no locks and owns nothing, so that its stacks can be abandoned at any instruction: the signal
//! handler lets the thread continue in `Worker::run_threadgroup`. Outside of kernels every signal goes to
//! whoever handled it before. Linux only; elsewhere a fault in a kernel ends the process.

use super::launch::Launch;

/// What stopped a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    signal: i32,
    /// The processor tells no address: a vector is not aligned, or the address is one that no memory has.
    has_no_address: bool,
    address: usize,
    /// The instruction that was stopped.
    instruction: usize,
}

impl Fault {
    /// Whether the watchdog stopped the kernel, or else the processor.
    pub fn is_timeout(self) -> bool {
        !matches!(self.signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP)
    }

    /// The instruction that was stopped.
    pub fn instruction(self) -> usize {
        self.instruction
    }

    /// Says what happened, with the nearest binding if an address was at fault.
    pub fn describe(self, launch: &Launch, is_guard: impl Fn(usize) -> bool) -> String {
        match self.signal {
            libc::SIGSEGV | libc::SIGBUS if self.has_no_address => {
                "invalid memory access: a vector that is not aligned, or an address outside of all memory"
                    .to_owned()
            }
            libc::SIGSEGV | libc::SIGBUS if is_guard(self.address) => "stack overflow".to_owned(),
            libc::SIGSEGV | libc::SIGBUS => {
                format!("invalid memory access at {:#x}{}", self.address, nearest(launch, self.address))
            }
            libc::SIGFPE => "integer division by zero or overflow (undefined in MSL)".to_owned(),
            libc::SIGILL | libc::SIGTRAP => {
                "an assertion that does not hold, or code that cannot be reached".to_owned()
            }
            _ => format!(
                "the kernel does not end: a threadgroup took more than {:?} of processor time",
                launch.budget
            ),
        }
    }
}

/// Where an address lies relative to the nearest binding.
fn nearest(launch: &Launch, address: usize) -> String {
    let distance = |slot: &usize| {
        let start = launch.buffers[*slot] as usize;
        if address < start {
            start - address
        } else {
            address.saturating_sub(start + launch.buffer_lengths[*slot])
        }
    };
    let bound = (0..launch.buffers.len()).filter(|&slot| !launch.buffers[slot].is_null());
    if address < 4096 {
        return " (a null pointer: is every buffer that the kernel uses bound?)".to_owned();
    }
    match bound.min_by_key(distance) {
        Some(slot) if distance(&slot) < 1 << 30 => {
            let offset = address as i128 - launch.buffers[slot] as usize as i128;
            format!(" (offset {offset} of buffer({slot}), which has {} bytes)", launch.buffer_lengths[slot])
        }
        _ => String::new(),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{install, interrupt, processor_time};
#[cfg(target_os = "linux")]
pub(super) use linux::{install, interrupt, processor_time};

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::super::fiber;
    use super::super::worker::CURRENT;
    use super::Fault;

    const CAUGHT: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

    /// What Linux says of a fault that is not one of a page's protection.
    const SI_KERNEL: i32 = 0x80;

    struct Previous {
        signal: i32,
        action: libc::sigaction,
    }

    static PREVIOUS: OnceLock<Vec<Previous>> = OnceLock::new();

    fn interrupt_signal() -> i32 {
        libc::SIGRTMAX() - 3
    }

    /// Installs the handlers for the process and an alternate stack for this thread.
    pub fn install() {
        PREVIOUS.get_or_init(|| {
            let mut previous = Vec::new();
            for signal in CAUGHT.into_iter().chain([interrupt_signal()]) {
                // SAFETY: a zeroed sigaction is a valid one, and the handler has the signature that
                // SA_SIGINFO asks for.
                unsafe {
                    let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                    action.sa_sigaction = handle as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
                    libc::sigemptyset(&raw mut action.sa_mask);
                    let mut old: libc::sigaction = MaybeUninit::zeroed().assume_init();
                    if libc::sigaction(signal, &raw const action, &raw mut old) == 0 {
                        previous.push(Previous { signal, action: old });
                    }
                }
            }
            previous
        });
        alternate_stack();
    }

    /// A signal cannot be handled on a fiber whose stack is full. Rust's threads have an alternate stack of
    /// their own; this one is for threads that do not, and is never freed, since the thread may outlive us.
    fn alternate_stack() {
        const LENGTH: usize = 64 << 10;
        // SAFETY: both calls get valid pointers, and the mapping is used for nothing else.
        unsafe {
            let mut current: libc::stack_t = MaybeUninit::zeroed().assume_init();
            if libc::sigaltstack(ptr::null(), &raw mut current) == 0
                && current.ss_flags & libc::SS_DISABLE == 0
            {
                return;
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory =
                libc::mmap(ptr::null_mut(), LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if memory != libc::MAP_FAILED {
                let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: LENGTH };
                libc::sigaltstack(&raw const stack, ptr::null_mut());
            }
        }
    }

    /// Sends the thread the signal that ends its kernel.
    pub fn interrupt(thread: libc::pthread_t) {
        // SAFETY: the caller knows that the thread is alive; the handler is installed.
        unsafe { libc::pthread_kill(thread, interrupt_signal()) };
    }

    /// Processor time that a thread has used.
    pub fn processor_time(thread: libc::pthread_t) -> Option<Duration> {
        // SAFETY: the caller knows that the thread is alive; both pointers are valid.
        unsafe {
            let mut clock = 0;
            let mut time: libc::timespec = MaybeUninit::zeroed().assume_init();
            if libc::pthread_getcpuclockid(thread, &raw mut clock) != 0
                || libc::clock_gettime(clock, &raw mut time) != 0
            {
                return None;
            }
            Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
        }
    }

    extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
        let worker = CURRENT.get();
        // SAFETY: the kernel passes valid pointers; a worker in a kernel is alive, and this thread, which is
        // inside a kernel's code, holds no reference to it.
        unsafe {
            if !worker.is_null() && (*worker).in_kernel.load(Ordering::SeqCst) {
                let context = context.cast::<libc::ucontext_t>();
                #[cfg(target_arch = "x86_64")]
                let instruction = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
                #[cfg(target_arch = "aarch64")]
                let instruction = (*context).uc_mcontext.pc as usize;
                let has_no_address = (*info).si_code == SI_KERNEL;
                let address = (*info).si_addr() as usize;
                (*worker).fault = Some(Fault { signal, has_no_address, address, instruction });
                let stack_pointer = (*worker).main_stack_pointer as usize;
                let target = fiber::resume as *const () as usize;
                #[cfg(target_arch = "x86_64")]
                {
                    (*context).uc_mcontext.gregs[libc::REG_RSP as usize] = stack_pointer as i64;
                    (*context).uc_mcontext.gregs[libc::REG_RIP as usize] = target as i64;
                }
                #[cfg(target_arch = "aarch64")]
                {
                    (*context).uc_mcontext.sp = stack_pointer as u64;
                    (*context).uc_mcontext.pc = target as u64;
                }
                return;
            }
            if signal == interrupt_signal() {
                return;
            }
            let previous =
                PREVIOUS.get().and_then(|all| all.iter().find(|previous| previous.signal == signal));
            let Some(previous) = previous else { return };
            let action = previous.action.sa_sigaction;
            if action == libc::SIG_DFL || action == libc::SIG_IGN {
                // Back to the default: the instruction runs again and the signal takes its course.
                libc::sigaction(signal, &raw const previous.action, ptr::null_mut());
            } else if previous.action.sa_flags & libc::SA_SIGINFO != 0 {
                let next: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(action);
                next(signal, info, context);
            } else {
                let next: extern "C" fn(i32) = std::mem::transmute(action);
                next(signal);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::time::Duration;

    pub fn install() {}
    pub fn interrupt(_: libc::pthread_t) {}
    pub fn processor_time(_: libc::pthread_t) -> Option<Duration> {
        None
    }
}
