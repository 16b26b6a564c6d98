//! What the program's commands do.

mod options;
mod values;

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use metal::device::*;
use metal_sim::compile::{self, Clang, Source};
use metal_sim::device::{SimBuffer, SimDevice};
use metal_sim::runtime::ArgumentKind;

use options::{Content, Options};

const USAGE: &str = "\
usage:
  metal-sim check FILE.metal...         compile and list the kernels with their parameters
  metal-sim lint FILE.metal...          check every kernel against the rules of Apple's compiler
  metal-sim build FILE.metal -o LIBRARY  compile to a file that the device loads without the source
  metal-sim translate FILE.metal...     print the C++ that the file becomes
  metal-sim run FILE.metal --kernel NAME --grid X[,Y,Z] [options]

options of all commands:
  -I DIRECTORY        where #include looks
  -D NAME[=VALUE]     defines a macro
  -std=VERSION        metal2.4, metal3.0, metal3.1 (default) or metal3.2
  --safe-math         no fast arithmetic
  --kernel NAME       compiles only this kernel (not for lint)

options of run:
  --grid X[,Y,Z]             threads of the grid
  --threadgroup X[,Y,Z]      threads of a threadgroup (default 32)
  --buffer SLOT=CONTENT      binds a buffer
  --bytes SLOT=CONTENT       binds inline bytes, such as the arguments of a `constant` reference
  --threadgroup-memory SLOT=BYTES
  --constant INDEX=TYPE:VALUE    sets a function constant, such as 3=int:7
  --print SLOT=TYPE[:COUNT]  prints the buffer after the run
  --save SLOT=FILE           writes the buffer to a file after the run
  --repeat N                 runs the dispatch N times and prints the fastest
  CONTENT is @FILE, zero:BYTES, or TYPE:V,V,... where TYPE is one of
  f32 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64, and V..W counts from V to below W. For --buffer it may be
  new:BYTES, too: memory that nobody wrote, so that the sanitizer reports a read of it.

The simulated GPU is chosen by SMELT_SIM_GPU, such as M4-Max; SMELT_SIM_SANITIZE=1 checks every access.
";

/// Runs a command. What it prints is in `out` even if something of it failed.
pub fn run(arguments: &[String], out: &mut String) -> std::result::Result<(), String> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => return Err(format!("no command\n{USAGE}")),
    };
    let asks_for_help = rest.iter().any(|word| matches!(word.as_str(), "--help" | "-h"));
    let action = match command {
        "help" | "--help" | "-h" => {
            out.push_str(USAGE);
            return Ok(());
        }
        "--version" | "-V" => {
            let _ = writeln!(out, "metal-sim {}", env!("CARGO_PKG_VERSION"));
            return Ok(());
        }
        "check" => check,
        "lint" => lint,
        "build" => build,
        "translate" => translate,
        "run" => dispatch,
        _ => return Err(format!("unknown command '{command}'\n{USAGE}")),
    };
    if asks_for_help {
        out.push_str(USAGE);
        return Ok(());
    }
    action(&Options::parse(command, rest)?, out)
}

/// Does the same to every file: one with a mistake does not keep the others from being looked at.
fn each(
    options: &Options,
    mut action: impl FnMut(&Clang, Source<'_>) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let mut complaints = Vec::new();
    for path in &options.files {
        let result = options.source(path).and_then(|(name, text, include_directories)| {
            let (include_directories, only) = (&include_directories[..], options.kernel.as_deref());
            action(&clang, Source { name: &name, text: &text, include_directories, only })
        });
        complaints.extend(result.err());
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

fn check(options: &Options, out: &mut String) -> std::result::Result<(), String> {
    each(options, |clang, source| {
        let module = compile::load(clang, source, &options.compile).map_err(|error| error.to_string())?;
        let _ = writeln!(out, "{}: {} kernels", source.name, module.kernels().len());
        for kernel in module.kernels() {
            let mut parameters = Vec::new();
            for argument in &kernel.arguments {
                match argument.kind {
                    ArgumentKind::Buffer => {
                        parameters.push(format!("{} buffer({})", argument.name, argument.slot))
                    }
                    ArgumentKind::Threadgroup => {
                        parameters.push(format!("{} threadgroup({})", argument.name, argument.slot))
                    }
                    ArgumentKind::Builtin => {}
                }
            }
            let _ = writeln!(out, "  {}: {}", kernel.name, parameters.join(", "));
        }
        Ok(())
    })
}

fn lint(options: &Options, out: &mut String) -> std::result::Result<(), String> {
    each(options, |clang, source| {
        let report =
            metal_sim::lint::lint(clang, source, &options.compile).map_err(|error| error.to_string())?;
        let _ = writeln!(out, "{}: {} kernels", source.name, report.kernels);
        let complaints: Vec<String> = report.diagnostics.iter().map(ToString::to_string).collect();
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
    })
}

fn translate(options: &Options, out: &mut String) -> std::result::Result<(), String> {
    each(options, |clang, source| {
        let text = compile::translate(clang, source, &options.compile).map_err(|error| error.to_string())?;
        out.push_str(&text);
        Ok(())
    })
}

fn build(options: &Options, _out: &mut String) -> std::result::Result<(), String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let (name, text, include_directories) = options.only_source("build")?;
    let output = options.output.as_ref().ok_or("build: -o LIBRARY is missing")?;
    let (include_directories, only) = (&include_directories[..], options.kernel.as_deref());
    let source = Source { name: &name, text: &text, include_directories, only };
    let library = compile::build(&clang, source, &options.compile).map_err(|error| error.to_string())?;
    fs::copy(library, output).map_err(|error| format!("{}: {error}", output.display()))?;
    Ok(())
}

fn dispatch(options: &Options, out: &mut String) -> std::result::Result<(), String> {
    let (name, text, include_directories) = options.only_source("run")?;
    let kernel = options.kernel.as_deref().ok_or("run: --kernel NAME is missing")?;
    let grid = options.grid.ok_or("run: --grid X[,Y,Z] is missing")?;
    if let Some(slot) =
        options.outputs().find(|&slot| !options.buffers.iter().any(|(bound, _)| *bound == slot))
    {
        return Err(format!("no --buffer {slot}=... to print or to save"));
    }
    let device = SimDevice::from_environment().map_err(|error| error.to_string())?;
    let include_directories = &include_directories[..];
    let source = Source { name: &name, text: &text, include_directories, only: Some(kernel) };
    let buffers = launch(&device, source, kernel, (grid, options), out).map_err(|error| error.to_string())?;
    for (slot, bytes) in buffers {
        for (_, path) in options.saves.iter().filter(|(saved, _)| *saved == slot) {
            fs::write(path, &bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        for (_, kind) in options.prints.iter().filter(|(printed, _)| *printed == slot) {
            let _ = writeln!(out, "buffer({slot}): {}", values::show(&bytes, kind)?);
        }
    }
    Ok(())
}

/// Runs the kernel; returns what the buffers hold then that the command line asks for, in the order in which it asks.
fn launch(
    device: &SimDevice,
    source: Source<'_>,
    kernel: &str,
    (grid, options): (Size, &Options),
    out: &mut String,
) -> Result<Vec<(usize, Vec<u8>)>> {
    let library = device.new_library_from(source, &options.compile)?;
    let pipeline = device.new_pipeline(&library, kernel, &options.constants)?;
    let queue = device.new_queue("run")?;
    let mut buffers: Vec<(usize, SimBuffer)> = Vec::new();
    for (slot, content) in &options.buffers {
        let label = format!("buffer({slot})");
        let buffer = match content {
            Content::New(length) => device.new_buffer(&label, *length)?,
            Content::Bytes(bytes) => {
                let buffer = device.new_buffer(&label, bytes.len())?;
                buffer.write(0, bytes)?;
                buffer
            }
        };
        buffers.push((*slot, buffer));
    }
    let mut fastest = f64::INFINITY;
    for _ in 0..options.repeat.max(1) {
        let mut command_buffer = queue.new_command_buffer("run")?;
        {
            let mut encoder = command_buffer.compute_encoder("run", DispatchMode::Serial);
            encoder.set_pipeline(&pipeline);
            for (slot, buffer) in &buffers {
                encoder.set_buffer(*slot, buffer, 0)?;
            }
            for (slot, bytes) in &options.bytes {
                encoder.set_bytes(*slot, bytes)?;
            }
            for (slot, length) in &options.threadgroup_memory {
                encoder.set_threadgroup_memory(*slot, *length)?;
            }
            encoder.dispatch_threads(grid, options.threadgroup.unwrap_or(Size::width(32)))?;
        }
        let interval = command_buffer.commit()?.wait(Duration::from_secs(3600))?;
        fastest = fastest.min(interval.end - interval.start);
    }
    if options.repeat > 1 {
        let _ = writeln!(out, "{kernel}: {:.3} ms", fastest * 1e3);
    }
    let mut contents: Vec<(usize, Vec<u8>)> = Vec::new();
    for slot in options.outputs() {
        let buffer = buffers.iter().find(|(bound, _)| *bound == slot);
        if let Some((_, buffer)) = buffer.filter(|_| contents.iter().all(|(read, _)| *read != slot)) {
            let mut bytes = vec![0; buffer.length()];
            buffer.read(0, &mut bytes)?;
            contents.push((slot, bytes));
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::options::{Content, buffer_content};
    use super::run;
    use super::values::{content, show};

    fn run_words(words: &str) -> std::result::Result<String, String> {
        let mut out = String::new();
        run(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), &mut out).map(|()| out)
    }

    #[test]
    fn contents_are_typed() {
        assert_eq!(content("u8:1,2,250").unwrap(), [1, 2, 250]);
        assert_eq!(content("i16:-1..2").unwrap(), [255, 255, 0, 0, 1, 0]);
        assert_eq!(content("zero:3").unwrap(), [0; 3]);
        assert!(matches!(buffer_content("new:12"), Ok(Content::New(12))));
        assert!(matches!(buffer_content("u8:7"), Ok(Content::Bytes(bytes)) if bytes == [7]));
        assert!(buffer_content("new:x").is_err() && content("new:3").is_err());
        for (text, expected) in [
            ("zero:99999999999999", "more than there can be"),
            ("i32:0..9999999999999", "more than there can be"),
            ("i32:5..1", "holds no value"),
        ] {
            assert!(content(text).unwrap_err().contains(expected), "{text}");
        }
        assert!(content("u8:256").is_err() && content("f9:1").is_err() && content("5").is_err());
    }

    #[test]
    fn values_are_shown() {
        assert_eq!(show(&content("f32:1.5,-2").unwrap(), "f32").unwrap(), "1.5 -2");
        assert_eq!(show(&content("f16:0.5,1,2").unwrap(), "f16:2").unwrap(), "0.5 1");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(run_words("--version").unwrap().starts_with("metal-sim "));
        assert!(run_words("").unwrap_err().contains("no command"));
        assert!(run_words("walk").unwrap_err().contains("unknown command 'walk'"));
        assert!(run_words("run a.metal --grid").unwrap_err().contains("--grid: a value is missing"));
        assert!(
            run_words("run a.metal --grid 1,2,3,4").unwrap_err().contains("expected one to three numbers")
        );
        assert!(run_words("run a.metal --colour 1").unwrap_err().contains("unknown option"));
        assert!(
            run_words("run /nonexistent.metal --grid 1 --kernel k")
                .unwrap_err()
                .contains("/nonexistent.metal")
        );
        for (words, expected) in [
            ("check", "no file"),
            ("run a.metal --frob", "--frob: unknown option"),
            ("check a.metal --grid 4", "--grid: not an option of check"),
            ("lint a.metal --kernel k", "--kernel: not an option of lint"),
            ("run a.metal --buffer 0=zero:4 --bytes 0=u8:1", "buffer(0) is bound twice"),
            ("run a.metal --print 0=i33", "unknown type 'i33'"),
            ("check a.metal -std=metal9", "expected metal2.4"),
            ("run a.metal b.metal", "run takes one file, found 2"),
            ("build a.metal", "a.metal: No such file"),
        ] {
            assert!(run_words(words).unwrap_err().contains(expected), "{words}");
        }
        assert!(run_words("run --help").unwrap().starts_with("usage"));
    }
}
