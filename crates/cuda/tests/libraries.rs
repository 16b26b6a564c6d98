//! Drivers and other libraries that lack something, are too old, fail or are stuck: libraries in their places, built by the C
//! compiler, whose functions do as they are told. Nothing panics, and every error says what is wrong.
//!
//! A library stays loaded as long as a program runs, so each test runs itself again, with the libraries where the system looks first.
#![cfg(target_os = "linux")]

use cuda::CudaBackend;
use graph::Backend;
use std::path::PathBuf;
use std::process::Command;

/// Set where a test runs itself.
const AGAIN: &str = "SMELT_FAKE_LIBRARIES";
/// Before what the test has to say.
const TOLD: &str = "TOLD:";

/// What the libraries are like.
#[derive(Default)]
struct Fakes<'a> {
    /// Functions that they do not have.
    without: &'a [&'a str],
    /// Results of functions, and what they tell: ",name=number,...".
    results: &'a str,
    values: &'a str,
}

/// What `tell` says in a process of its own, which finds such libraries. `test` is the name of the test that calls this.
#[track_caller]
fn told(test: &str, fakes: &Fakes<'_>, tell: impl FnOnce() -> String) -> String {
    if std::env::var_os(AGAIN).is_some() {
        return format!("{TOLD}{}", tell());
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let is_there = |line: &&str| {
        !fakes
            .without
            .iter()
            .any(|name| line.contains(&format!("{name})")) || line.contains(&format!(" {name}(")))
    };
    let source: String =
        include_str!("libraries/fake.c").lines().filter(is_there).flat_map(|line| [line, "\n"]).collect();
    let file = folder.join("fake.c");
    std::fs::write(&file, source).unwrap();
    for library in ["libcuda.so", "libnvrtc.so", "libnccl.so.2"] {
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .arg(folder.join(library))
            .arg(&file)
            .status();
        assert!(compiled.unwrap().success(), "{}", file.display());
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(AGAIN, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .env("FAKE_RESULTS", fakes.results)
        .env("FAKE_VALUES", fakes.values)
        .env("SMELT_CUDA_TIMEOUT", "1")
        .env_remove("SMELT_NVRTC")
        .env_remove("SMELT_NCCL")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    let found = out.lines().find_map(|line| Some(line.split_once(TOLD)?.1.to_owned()));
    assert!(again.status.success(), "{out}{err}");
    found.unwrap_or_else(|| panic!("{out}{err}"))
}

/// Runs a test with such libraries, and judges what it told.
macro_rules! says {
    ($test:ident, $fakes:expr, $tell:expr, $expected:expr) => {
        #[test]
        fn $test() {
            let told = told(stringify!($test), &$fakes, $tell);
            match told.strip_prefix(TOLD) {
                Some(_) => println!("{told}"),
                None => assert_eq!(told, $expected),
            }
        }
    };
}

/// The error of opening the first GPU.
fn opened() -> String {
    match CudaBackend::new() {
        Ok(backend) => backend.description(),
        Err(error) => error.to_string(),
    }
}

says!(
    a_whole_driver_opens,
    Fakes::default(),
    opened,
    "a fake GPU, compute capability 9.0, 132 multiprocessors, 4.0 GiB of memory, 4.0 GiB free"
);
says!(
    a_function_that_the_driver_lacks_is_named,
    Fakes { without: &["cuLaunchKernelEx"], ..Fakes::default() },
    opened,
    "the NVIDIA driver's library (libcuda) has no function cuLaunchKernelEx: needed is a driver for CUDA 12.0 or later"
);
says!(
    a_library_that_is_no_driver_is_told,
    Fakes { without: &["cuDriverGetVersion"], ..Fakes::default() },
    opened,
    "the NVIDIA driver's library (libcuda) has no function cuDriverGetVersion: needed is a driver for CUDA 12.0 or later"
);
says!(
    an_old_driver_is_told_by_its_version,
    Fakes { without: &["cuLaunchKernelEx"], values: ",version=11080", ..Fakes::default() },
    opened,
    "the NVIDIA driver is for CUDA 11.8, needed is one for CUDA 12.0 or later"
);
says!(
    no_gpu_is_told_where_the_driver_refuses_to_start,
    Fakes { results: ",cuInit=100", ..Fakes::default() },
    opened,
    "the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES can hide those that there are)"
);
says!(
    no_gpu_is_told_where_the_driver_shows_none,
    Fakes { values: ",devices=0", ..Fakes::default() },
    opened,
    "the NVIDIA driver finds no GPU (CUDA_VISIBLE_DEVICES can hide those that there are)"
);
says!(
    an_old_gpu_is_named,
    Fakes { values: ",capability=7", ..Fakes::default() },
    opened,
    "a fake GPU has compute capability 7.0, needed is 8.0 or later"
);
says!(
    a_gpu_without_memory_for_a_context_is_told,
    Fakes { results: ",cuDevicePrimaryCtxRetain=2", ..Fakes::default() },
    opened,
    "cuDevicePrimaryCtxRetain: out of memory"
);
says!(
    a_host_without_memory_to_lock_is_told,
    Fakes { results: ",cuMemHostAlloc=2", ..Fakes::default() },
    opened,
    "cuMemHostAlloc: out of memory"
);
says!(
    a_result_without_a_text_is_told_by_its_name,
    Fakes { results: ",cuStreamCreate=1", ..Fakes::default() },
    opened,
    "cuStreamCreate: CUDA_ERROR_INVALID_VALUE"
);
says!(
    a_function_that_the_compiler_lacks_is_named,
    Fakes { without: &["nvrtcGetCUBIN"], ..Fakes::default() },
    opened,
    "the CUDA run-time compiler (libnvrtc) cannot be loaded: it has no function nvrtcGetCUBIN, needed is that of CUDA 12.0 or later"
);
says!(
    too_little_memory_is_told_with_what_is_free,
    Fakes { results: ",cuMemAlloc_v2=2", ..Fakes::default() },
    || CudaBackend::new().unwrap().alloc_buffer(1 << 20).unwrap_err().to_string(),
    "no memory for a buffer (1048576 bytes)"
);
says!(
    a_gpu_that_does_not_finish_is_given_up,
    Fakes { results: ",cuStreamQuery=600", ..Fakes::default() },
    after_a_copy,
    "device: the GPU did not finish within 1 seconds; then device: stopped after an earlier failure: the GPU did not finish within 1 \
     seconds"
);
says!(
    a_gpu_that_fails_takes_no_more_work,
    Fakes { results: ",cuStreamQuery=719", ..Fakes::default() },
    after_a_copy,
    "device: cuStreamQuery: unspecified launch failure; then device: stopped after an earlier failure: cuStreamQuery: unspecified \
     launch failure"
);

says!(
    gpus_that_exchange_values_are_connected,
    Fakes { values: ",devices=2", ..Fakes::default() },
    connected,
    "connected"
);
says!(
    an_exchange_that_fails_is_told,
    Fakes { values: ",devices=2", results: ",ncclAllReduce=2", ..Fakes::default() },
    connected,
    "ncclAllReduce: unhandled system error"
);
says!(
    an_exchange_that_is_stuck_is_given_up,
    Fakes { values: ",devices=2,stuck=1", ..Fakes::default() },
    connected,
    "the GPU did not finish within 1 seconds"
);
says!(
    a_group_that_never_comes_to_be_is_given_up,
    Fakes { values: ",devices=2,stuck_init=1", ..Fakes::default() },
    connected,
    "the GPU did not finish within 1 seconds"
);

/// What becomes of two GPUs that are to exchange values.
fn connected() -> String {
    let [mut first, mut second] = [0, 1].map(|ordinal| CudaBackend::open(ordinal).unwrap());
    match cuda::connect(&mut [&mut first, &mut second]) {
        Ok(()) => "connected".into(),
        Err(error) => error.to_string(),
    }
}

/// The errors of a copy, and of what comes after it.
fn after_a_copy() -> String {
    let mut backend = CudaBackend::new().unwrap();
    let buffer = backend.alloc_buffer(64).unwrap();
    let copied = backend.read_host(buffer, 0, &mut [0; 64]).unwrap_err();
    let next = backend.synchronize().unwrap_err();
    format!("{copied}; then {next}")
}
