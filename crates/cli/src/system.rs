//! What the standard library does not ask of the operating system.

/// Whether there is something to read on stdin now: not a terminal's, and without waiting for it.
#[cfg(unix)]
pub fn stdin_has_data() -> bool {
    use std::io::IsTerminal;
    if std::io::stdin().is_terminal() {
        return false;
    }
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int`, to where `bytes` is. A closed or unsuitable stdin is an error, not a fault.
    let status = unsafe { libc::ioctl(libc::STDIN_FILENO, libc::FIONREAD, &raw mut bytes) };
    status == 0 && bytes > 0
}

/// It cannot be asked.
#[cfg(not(unix))]
pub fn stdin_has_data() -> bool {
    false
}

/// Lets a write beyond the limit on the size of files (`ulimit -f`) fail, so that it can be told: by default the system
/// ends the program instead.
#[cfg(unix)]
pub fn tell_of_file_limits() {
    // SAFETY: nothing runs when the signal comes, and no other thread runs yet that could depend on it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// There is no such limit.
#[cfg(not(unix))]
pub fn tell_of_file_limits() {}
