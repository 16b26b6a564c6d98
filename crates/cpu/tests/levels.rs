//! `SMELT_CPU` forces the instruction set. The environment belongs to a whole process, so every value is tried in one of
//! its own: this program again, with one of its tests.

use cpu::{CpuBackend, CpuOptions, SimdLevel};
use std::process::Command;

#[test]
fn a_backend_has_the_level_that_the_environment_asks_for() {
    let expected = match std::env::var("SMELT_CPU") {
        Ok(name) => SimdLevel::ALL.into_iter().find(|level| level.name() == name),
        Err(_) => Some(SimdLevel::detect()),
    };
    let backend = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() });
    match backend {
        Ok(backend) => assert_eq!(Some(backend.level()), expected),
        Err(error) => panic!("{error}"),
    }
}

/// Whether a backend starts with this value of `SMELT_CPU` and has that level, and what is said otherwise.
fn starts(value: &str) -> (bool, String) {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_backend_has_the_level_that_the_environment_asks_for", "--nocapture"])
        .env("SMELT_CPU", value)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("running 1 test"), "{said}");
    (done.status.success(), said.into_owned())
}

#[test]
fn every_level_can_be_forced_where_the_processor_has_it() {
    for level in SimdLevel::ALL {
        let (started, said) = starts(level.name());
        assert_eq!(started, level.is_available(), "{level}: {said}");
        let refused = format!("this processor has no {level} instructions; the best level is ");
        assert_eq!(said.contains(&refused), !started, "{level}: {said}");
    }
    for value in ["", "mmx", "AVX2", "avx2 "] {
        let (started, said) = starts(value);
        assert!(!started && said.contains("SMELT_CPU: expected scalar, avx2,"), "'{value}': {said}");
    }
}
