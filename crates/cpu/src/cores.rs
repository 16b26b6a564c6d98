//! How many threads are worth having: one for each physical core that the process may use, and of the big ones only
//! where cores differ.
//!
//! A small core of a big/little processor is slower by more than half. It would add little, and a job ends with the
//! last chunk of whoever took one. Which core a thread runs on is left to the system: it moves busy threads to the
//! big ones.

use std::num::NonZeroUsize;
use std::thread;

/// A thread for each physical core that the process may run on, big ones only where cores differ, at most its share of
/// CPU time (cgroup quota).
pub fn default_threads() -> usize {
    // Takes the affinity mask and the cgroup quota into account.
    let available = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    physical_cores().map_or(available, |cores| cores.clamp(1, available))
}

/// A CPU that the process may run on: a hardware thread.
#[cfg(any(target_os = "linux", test))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    /// The core that it belongs to, known by the first of its hardware threads.
    core: usize,
    /// Its speed in the kernel's units: 1024 is the fastest CPU of the machine. `None` where all are alike.
    capacity: Option<u32>,
}

/// Big cores among the CPUs that the process may run on; `None` where the system does not say.
#[cfg(target_os = "linux")]
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let read = |cpu: usize, name: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/{name}")).ok()
    };
    let cpus: Option<Vec<Cpu>> = parse_cpu_list(allowed)?
        .into_iter()
        .map(|cpu| {
            parse_cpu(&read(cpu, "topology/thread_siblings_list")?, read(cpu, "cpu_capacity").as_deref())
        })
        .collect();
    Some(big_cores(&cpus?))
}

/// Cores of the fastest kind, if the system says.
#[cfg(target_os = "macos")]
fn physical_cores() -> Option<usize> {
    // Level 0 is the fastest; Intel's Macs have no levels.
    sysctl(c"hw.perflevel0.physicalcpu").or_else(|| sysctl(c"hw.physicalcpu"))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn physical_cores() -> Option<usize> {
    None
}

/// A positive integer of the system.
#[cfg(target_os = "macos")]
fn sysctl(name: &std::ffi::CStr) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>();
    // SAFETY: the name ends with a NUL, and `size` says how many bytes may be written to `value`.
    let status = unsafe {
        libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &raw mut size, std::ptr::null_mut(), 0)
    };
    let whole = status == 0 && size == size_of::<libc::c_int>();
    usize::try_from(value).ok().filter(|value| whole && *value > 0)
}

/// What the system's files say about a CPU: the list of its core's hardware threads, and its capacity.
#[cfg(any(target_os = "linux", test))]
fn parse_cpu(siblings: &str, capacity: Option<&str>) -> Option<Cpu> {
    let core = *parse_cpu_list(siblings)?.first()?;
    Some(Cpu { core, capacity: capacity.and_then(|text| text.trim().parse().ok()) })
}

/// Cores with at least two thirds of the greatest capacity among these CPUs; all of them where a capacity is not known.
///
/// The middle cores of processors with three kinds are above two thirds, small ones (530 of 1024 and less) below.
#[cfg(any(target_os = "linux", test))]
fn big_cores(cpus: &[Cpu]) -> usize {
    let capacities: Option<Vec<u32>> = cpus.iter().map(|cpu| cpu.capacity).collect();
    let most = capacities.and_then(|all| all.into_iter().max()).map_or(0, u64::from);
    let big = cpus.iter().filter(|cpu| 3 * cpu.capacity.map_or(most, u64::from) >= 2 * most);
    big.map(|cpu| cpu.core).collect::<std::collections::BTreeSet<_>>().len()
}

/// Parses a list like `0-3,8,10-11`.
#[cfg(any(target_os = "linux", test))]
fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last - first > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list(" 5"), Some(vec![5]));
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list(""), None);
    }

    /// What [`big_cores`] makes of CPUs given as `(siblings, capacity)`.
    fn big(cpus: &[(&str, &str)]) -> usize {
        let parse = |(siblings, capacity): &(&str, &str)| parse_cpu(siblings, Some(*capacity)).unwrap();
        big_cores(&cpus.iter().map(parse).collect::<Vec<_>>())
    }

    #[test]
    fn small_cores_are_left_out() {
        // Four small and four big cores, as boards with the RK3588 have them.
        let two_kinds = [("0", "530\n"), ("1", "530\n"), ("2", "530\n"), ("3", "530\n")].into_iter().chain([
            ("4", "1024\n"),
            ("5", "1024\n"),
            ("6", "1024\n"),
            ("7", "1024\n"),
        ]);
        let two_kinds: Vec<_> = two_kinds.collect();
        assert_eq!(big(&two_kinds), 4);
        // Three kinds: the middle ones count.
        assert_eq!(big(&[("0", "325"), ("1", "325"), ("2", "870"), ("3", "870"), ("4", "1024")]), 3);
        // Only small cores are allowed: they are the biggest that there are.
        assert_eq!(big(&two_kinds[..3]), 3);
    }

    #[test]
    fn equal_cores_all_count_once() {
        assert_eq!(big(&[("0", "1024"), ("1", "1024"), ("2", "1024"), ("3", "1024")]), 4);
        // Two hardware threads each, in either spelling.
        assert_eq!(big(&[("0,2", "1024"), ("1,3", "1024"), ("0,2", "1024"), ("1,3", "1024")]), 2);
        assert_eq!(big(&[("0-1", "1024"), ("0-1", "1024")]), 1);
    }

    #[test]
    fn without_capacities_all_cores_count() {
        let cpu = |siblings: &str, capacity| parse_cpu(siblings, capacity).unwrap();
        assert_eq!(big_cores(&[cpu("0", None), cpu("1", None)]), 2);
        assert_eq!(big_cores(&[cpu("0", Some("1024")), cpu("1", None), cpu("2", Some("100"))]), 3);
        assert_eq!(big_cores(&[cpu("0", Some("fast")), cpu("1", Some("1024"))]), 2);
        assert_eq!(big_cores(&[]), 0);
        assert_eq!(parse_cpu("", Some("1024")), None);
        assert!(default_threads() >= 1);
    }
}
