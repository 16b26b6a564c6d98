//! What the program's commands do.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use metal::device::*;
use metal::library::{Sources, compile_options};
use metal_sim::compile::{Clang, Source};
use metal_sim::record;
use sim_ptx::{PtxBuffer, PtxDevice, PtxLibrary, libraries};

const USAGE: &str = "\
usage:
  sim-ptx build FILE.metal -o LIBRARY   compile to a file that needs no clang any more
  sim-ptx backend DIRECTORY             build the libraries of the Metal backend into a directory for
                                        SIM_PTX_LIBRARIES, where a machine without clang finds them
  sim-ptx pack DIRECTORY                build the library of every recorded dispatch (*.case) in a directory
  sim-ptx replay DIRECTORY              run every recorded dispatch and compare with what was recorded
  sim-ptx bench LIBRARY KERNEL WEIGHT-BYTES X-FLOATS Y-FLOATS THREADGROUPS THREADS ARGUMENT...
                                        time a matrix-vector kernel with weights in buffer(0), x in buffer(1),
                                        y in buffer(2) and its arguments (u32, or u64 as N:u64) in buffer(3)

Dispatches are recorded by the simulator's tests where SMELT_SIM_RECORD names a directory.
";

/// Long enough for any of the kernels, and far shorter than a person's patience.
const DEADLINE: Duration = Duration::from_secs(20);

type Outcome<T> = std::result::Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Runs a command; returns what it prints.
pub fn run(arguments: &[String]) -> Outcome<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["build", file, "-o", output] => build(Path::new(file), Path::new(output)),
        ["backend", directory] => backend(Path::new(directory)),
        ["pack", directory] => pack(Path::new(directory)),
        ["replay", directory] => replay(Path::new(directory)),
        ["bench", library, kernel, rest @ ..] => bench(Path::new(library), kernel, rest),
        _ => Err(format!("unknown command\n{USAGE}")),
    }
}

fn build(file: &Path, output: &Path) -> Outcome<String> {
    let source = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let name = file.display().to_string();
    let data = compiled(&name, &source, &CompileOptions::default())?;
    fs::write(output, data).map_err(|error| format!("{}: {error}", output.display()))?;
    Ok(String::new())
}

fn backend(directory: &Path) -> Outcome<String> {
    let clang = Clang::find().map_err(text)?;
    for library in metal::ops::LIBRARIES {
        let source = library.source(&Sources::default());
        let source = Source { name: library.name, text: &source, include_directories: &[], only: None };
        for math in [MathMode::Fast, MathMode::Safe] {
            let options = compile_options(math);
            libraries::add(directory, &clang, source, &options).map_err(text)?;
        }
    }
    Ok(String::new())
}

fn compiled(name: &str, text_of_source: &str, options: &CompileOptions) -> Outcome<Vec<u8>> {
    let clang = Clang::find().map_err(text)?;
    let source = Source { name, text: text_of_source, include_directories: &[], only: None };
    sim_ptx::build(&clang, source, options).map_err(text)
}

/// The recorded dispatches of a directory with the file of each one's library.
fn cases(directory: &Path) -> Outcome<Vec<(record::Dispatch, PathBuf)>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))? {
        let path = entry.map_err(text)?.path();
        if path.extension().is_some_and(|extension| extension == "case") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut sources: Vec<(String, bool)> = Vec::new();
    let mut cases = Vec::new();
    for path in paths {
        let case = record::Dispatch::read(&path).map_err(text)?;
        let key = (case.source.clone(), case.safe_math);
        let number = sources.iter().position(|known| *known == key).unwrap_or_else(|| {
            sources.push(key);
            sources.len() - 1
        });
        cases.push((case, directory.join(format!("{number}.simptx"))));
    }
    Ok(cases)
}

fn pack(directory: &Path) -> Outcome<String> {
    let mut out = String::new();
    for (case, path) in cases(directory)? {
        if path.is_file() {
            continue;
        }
        let math = if case.safe_math { MathMode::Safe } else { MathMode::Fast };
        match compiled(&case.label, &case.source, &CompileOptions { math, ..CompileOptions::default() }) {
            Ok(data) => fs::write(&path, data).map_err(text)?,
            Err(error) => {
                let _ = writeln!(out, "{}: {}", case.label, error.lines().next().unwrap_or_default());
            }
        }
    }
    Ok(out)
}

fn replay(directory: &Path) -> Outcome<String> {
    let device = PtxDevice::first().map_err(text)?;
    let mut libraries: BTreeMap<PathBuf, PtxLibrary> = BTreeMap::new();
    let mut out = String::new();
    let (mut agree, mut differ, mut not_run) = (0, 0, 0);
    for (case, path) in cases(directory)? {
        let name = format!("{} {}", case.label, case.kernel);
        if !libraries.contains_key(&path) {
            let Ok(data) = fs::read(&path) else {
                not_run += 1;
                let _ = writeln!(out, "not run  {name}: no library");
                continue;
            };
            libraries.insert(path.clone(), device.new_library_with_data(&case.label, &data).map_err(text)?);
        }
        match execute(&device, &libraries[&path], &case) {
            Ok(found) => {
                let worst = case.buffers.iter().zip(&found).find_map(|((slot, _, _, expected), found)| {
                    difference(expected, found).map(|reason| format!("buffer({slot}): {reason}"))
                });
                match worst {
                    None => agree += 1,
                    Some(reason) => {
                        differ += 1;
                        let _ = writeln!(out, "DIFFERS  {name}: {reason}");
                    }
                }
            }
            Err(error) => {
                not_run += 1;
                let _ = writeln!(out, "FAILED   {name}: {error}");
                // What was in flight may still hold the GPU, and its context may be lost.
                if matches!(error, Error::Timeout { .. } | Error::Execution { .. }) {
                    let _ = writeln!(out, "{agree} agree, {differ} differ, {not_run} not run, then stopped");
                    return Err(out);
                }
            }
        }
    }
    let _ = writeln!(out, "{}: {agree} agree, {differ} differ, {not_run} not run", device.name());
    if differ + not_run == 0 { Ok(out) } else { Err(out) }
}

/// The content of each buffer after the dispatch.
fn execute(device: &PtxDevice, library: &PtxLibrary, case: &record::Dispatch) -> Result<Vec<Vec<u8>>> {
    let pipeline = device.new_pipeline(library, &case.kernel, &case.constants)?;
    let queue = device.new_queue("replay")?;
    let mut buffers: Vec<PtxBuffer> = Vec::new();
    for (_, _, before, _) in &case.buffers {
        let buffer = device.new_buffer("data", before.len())?;
        buffer.write(0, before)?;
        buffers.push(buffer);
    }
    let mut command_buffer = queue.new_command_buffer(&case.label)?;
    let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
    encoder.set_pipeline(&pipeline);
    for ((slot, offset, ..), buffer) in case.buffers.iter().zip(&buffers) {
        encoder.set_buffer(*slot, buffer, *offset)?;
    }
    for (slot, bytes) in &case.bytes {
        encoder.set_bytes(*slot, bytes)?;
    }
    for (slot, length) in &case.threadgroup {
        encoder.set_threadgroup_memory(*slot, *length)?;
    }
    if case.counts_threads {
        encoder.dispatch_threads(case.grid, case.threads)?;
    } else {
        encoder.dispatch_threadgroups(case.grid, case.threads)?;
    }
    drop(encoder);
    command_buffer.commit()?.wait(DEADLINE)?;
    buffers
        .iter()
        .map(|buffer| {
            let mut content = vec![0; buffer.length()];
            buffer.read(0, &mut content).map(|()| content)
        })
        .collect()
}

/// How two contents differ, if they do: bit by bit, or as floats or halves that are close to each other.
fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let floats = |data: &[u8]| -> Vec<f64> {
        data.chunks_exact(4)
            .map(|word| f64::from(f32::from_le_bytes([word[0], word[1], word[2], word[3]])))
            .collect()
    };
    let halves = |data: &[u8]| -> Vec<f64> {
        data.chunks_exact(2).map(|word| half_to_f64(u16::from_le_bytes([word[0], word[1]]))).collect()
    };
    let (as_floats, as_halves) =
        (error(&floats(expected), &floats(found)), error(&halves(expected), &halves(found)));
    if as_floats < 1e-4 || as_halves < 2e-3 {
        return None;
    }
    let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(0);
    let word = |data: &[u8]| data.get(at / 4 * 4..at / 4 * 4 + 4).map(<[u8]>::to_vec);
    Some(format!(
        "at byte {at} expected {:02x?}, found {:02x?}; relative error {as_floats:.1e} as floats",
        word(expected),
        word(found)
    ))
}

/// The largest difference of two values, relative to their size or to a thousandth.
fn error(expected: &[f64], found: &[f64]) -> f64 {
    let one = |(&e, &f): (&f64, &f64)| {
        if e == f || (e.is_nan() && f.is_nan()) {
            0.0
        } else if e.is_finite() && f.is_finite() {
            (e - f).abs() / e.abs().max(1e-3)
        } else {
            f64::INFINITY
        }
    };
    expected.iter().zip(found).map(one).fold(0.0, f64::max)
}

fn half_to_f64(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

fn bench(library: &Path, kernel: &str, rest: &[&str]) -> Outcome<String> {
    /// More than the GPU's cache holds is read between two uses of the same weights.
    const TRAFFIC: usize = 1 << 30;
    const ROUNDS: usize = 5;
    let [weights, x, y, groups, threads, arguments @ ..] = rest else { return Err(USAGE.to_owned()) };
    let number = |text_of: &str| text_of.parse::<usize>().map_err(|error| format!("{text_of}: {error}"));
    let (weights, x, y) = (number(weights)?, number(x)?, number(y)?);
    let mut inline = Vec::new();
    for argument in arguments {
        match argument.strip_suffix(":u64") {
            Some(value) => inline.extend((number(value)? as u64).to_le_bytes()),
            None => inline.extend(u32::try_from(number(argument)?).map_err(text)?.to_le_bytes()),
        }
    }
    let data = fs::read(library).map_err(|error| format!("{}: {error}", library.display()))?;
    let device = PtxDevice::first().map_err(text)?;
    let seconds = (|| -> Result<Vec<f64>> {
        let library = device.new_library_with_data(kernel, &data)?;
        let pipeline = device.new_pipeline(&library, kernel, &FunctionConstants::new())?;
        let queue = device.new_queue("bench")?;
        let copies = TRAFFIC.div_ceil(weights).max(1);
        // The content is of no account to the time; zeroes are the quickest to make.
        let stride = weights.next_multiple_of(256);
        let weight_buffer = device.new_buffer("weights", copies * stride)?;
        let (x, y) = (device.new_buffer("x", 4 * x)?, device.new_buffer("y", 4 * y)?);
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            let mut command_buffer = queue.new_command_buffer("bench")?;
            let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
            encoder.set_pipeline(&pipeline);
            encoder.set_buffer(1, &x, 0)?;
            encoder.set_buffer(2, &y, 0)?;
            encoder.set_bytes(3, &inline)?;
            for copy in 0..copies {
                for slot in [0, 4, 5, 6, 7, 8] {
                    encoder.set_buffer(slot, &weight_buffer, copy * stride)?;
                }
                let size = |text_of: &str| Size::width(text_of.parse().unwrap_or(1));
                encoder.dispatch_threadgroups(size(groups), size(threads))?;
            }
            drop(encoder);
            let interval = command_buffer.commit()?.wait(DEADLINE)?;
            seconds.push(interval.duration().as_secs_f64() / copies as f64);
        }
        Ok(seconds)
    })()
    .map_err(text)?;
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(format!("{kernel}: {:.1} us, {:.0} GB/s of weights\n", best * 1e6, weights as f64 / best / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn close_floats_are_the_same_and_others_are_told() {
        assert_eq!(difference(&of(&[1.0, -2.0]), &of(&[1.00001, -2.0])), None);
        let reason = difference(&of(&[1.0, 2.0]), &of(&[1.0, 3.0])).unwrap();
        assert!(reason.contains("relative error 5.0e-1"), "{reason}");
        assert!(difference(&of(&[1.0]), &of(&[f32::NAN])).is_some());
    }

    #[test]
    fn halves_have_the_usual_values() {
        let values = [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24)), (0x7bff, 65504.0)];
        assert!(values.iter().all(|&(bits, value)| half_to_f64(bits) == value));
        assert!(half_to_f64(0x7c00).is_infinite() && half_to_f64(0x7e00).is_nan());
    }

    #[test]
    fn commands_say_what_is_wrong() {
        let run = |arguments: &[&str]| {
            run(&arguments.iter().map(|&a| a.to_owned()).collect::<Vec<_>>()).unwrap_err()
        };
        assert!(run(&["fly"]).contains("usage:"));
        assert!(
            run(&["replay", "/nonexistent"]).contains("/nonexistent")
                || run(&["replay", "/nonexistent"]).contains("NVIDIA")
        );
        assert!(run(&["build", "/nonexistent.metal", "-o", "x"]).starts_with("/nonexistent.metal"));
    }
}
