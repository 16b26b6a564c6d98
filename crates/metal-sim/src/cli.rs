//! What the program's commands do.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use metal::device::*;
use metal_sim::compile::{self, Clang, Source};
use metal_sim::device::{SimBuffer, SimDevice};
use metal_sim::runtime::ArgumentKind;

const USAGE: &str = "\
usage:
  metal-sim check FILE.metal...         compile and list the kernels with their parameters
  metal-sim lint FILE.metal...          check every kernel against the rules of Apple's compiler
  metal-sim build FILE.metal -o LIBRARY  compile to a file that the device loads without the source
  metal-sim translate FILE.metal        print the C++ that the file becomes
  metal-sim run FILE.metal --kernel NAME --grid X[,Y,Z] [options]

options of all commands:
  -I DIRECTORY        where #include looks
  -D NAME[=VALUE]     defines a macro
  --safe-math         no fast arithmetic
  --kernel NAME       compiles only this kernel

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
  f32 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64, and V..W counts. For --buffer it may be
  new:BYTES, too: memory that nobody wrote, so that the sanitizer reports a read of it.

The simulated GPU is chosen by SMELT_SIM_GPU, such as M4-Max.
";

/// Runs a command; returns what it prints.
pub fn run(arguments: &[String]) -> std::result::Result<String, String> {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => return Err(format!("no command\n{USAGE}")),
    };
    match command {
        "check" => check(&Options::parse(rest)?),
        "lint" => lint(&Options::parse(rest)?),
        "build" => build(&Options::parse(rest)?),
        "translate" => translate(&Options::parse(rest)?),
        "run" => dispatch(&Options::parse(rest)?),
        "help" | "--help" | "-h" => Ok(USAGE.to_owned()),
        "--version" | "-V" => Ok(format!("metal-sim {}\n", env!("CARGO_PKG_VERSION"))),
        _ => Err(format!("unknown command '{command}'\n{USAGE}")),
    }
}

#[derive(Default)]
struct Options {
    files: Vec<PathBuf>,
    include_directories: Vec<PathBuf>,
    compile: CompileOptions,
    kernel: Option<String>,
    output: Option<PathBuf>,
    grid: Option<Size>,
    threadgroup: Option<Size>,
    buffers: Vec<(usize, Content)>,
    bytes: Vec<(usize, Vec<u8>)>,
    threadgroup_memory: Vec<(usize, usize)>,
    constants: FunctionConstants,
    prints: Vec<(usize, String)>,
    saves: Vec<(usize, PathBuf)>,
    repeat: usize,
}

impl Options {
    fn parse(arguments: &[String]) -> std::result::Result<Self, String> {
        let mut options = Self { repeat: 1, ..Self::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if !argument.starts_with('-') {
                options.files.push(argument.into());
                continue;
            }
            if argument == "--safe-math" {
                options.compile.math = MathMode::Safe;
                continue;
            }
            let (name, value) = match argument.split_at_checked(2) {
                Some((name @ ("-I" | "-D"), value)) if !value.is_empty() => (name, value),
                _ => (
                    argument.as_str(),
                    rest.next().ok_or_else(|| format!("{argument}: a value is missing"))?.as_str(),
                ),
            };
            options.set(name, value).map_err(|reason| format!("{name} {value}: {reason}"))?;
        }
        if options.files.is_empty() {
            return Err(format!("no file\n{USAGE}"));
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        match name {
            "-I" => self.include_directories.push(value.into()),
            "-D" => {
                let (name, value) = value.split_once('=').unwrap_or((value, "1"));
                self.compile.macros.insert(name.to_owned(), value.to_owned());
            }
            "--kernel" => self.kernel = Some(value.to_owned()),
            "-o" => self.output = Some(value.into()),
            "--grid" => self.grid = Some(size(value)?),
            "--threadgroup" => self.threadgroup = Some(size(value)?),
            "--buffer" => self.buffers.push(slot_and(value, buffer_content)?),
            "--bytes" => self.bytes.push(slot_and(value, content)?),
            "--threadgroup-memory" => self.threadgroup_memory.push(slot_and(value, number)?),
            "--constant" => {
                let (index, value) = slot_and(value, constant)?;
                let index = u32::try_from(index).map_err(|error| error.to_string())?;
                self.constants = std::mem::take(&mut self.constants).set(index, value);
            }
            "--print" => self.prints.push(slot_and(value, |kind| Ok(kind.to_owned()))?),
            "--save" => self.saves.push(slot_and(value, |path| Ok(path.into()))?),
            "--repeat" => self.repeat = number(value)?,
            _ => return Err("unknown option".to_owned()),
        }
        Ok(())
    }

    fn sources(&self) -> std::result::Result<Vec<(String, String, Vec<PathBuf>)>, String> {
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let mut directories = self.include_directories.clone();
            directories
                .extend(path.parent().map(PathBuf::from).filter(|parent| !parent.as_os_str().is_empty()));
            Ok((path.display().to_string(), text, directories))
        };
        self.files.iter().map(read).collect()
    }
}

fn number<T: FromStr>(text: &str) -> std::result::Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("'{text}': {error}"))
}

fn size(text: &str) -> std::result::Result<Size, String> {
    let counts = text.split(',').map(number).collect::<std::result::Result<Vec<usize>, _>>()?;
    match counts[..] {
        [x] => Ok(Size::width(x)),
        [x, y] => Ok(Size::new(x, y, 1)),
        [x, y, z] => Ok(Size::new(x, y, z)),
        _ => Err("expected one to three numbers".to_owned()),
    }
}

fn slot_and<T>(
    text: &str,
    parse: impl Fn(&str) -> std::result::Result<T, String>,
) -> std::result::Result<(usize, T), String> {
    let (slot, value) = text.split_once('=').ok_or("expected SLOT=...")?;
    Ok((number(slot)?, parse(value)?))
}

/// What a buffer holds before the run.
enum Content {
    Bytes(Vec<u8>),
    /// So many bytes that nobody wrote.
    New(usize),
}

fn buffer_content(text: &str) -> std::result::Result<Content, String> {
    match text.strip_prefix("new:") {
        Some(length) => Ok(Content::New(number(length)?)),
        None => Ok(Content::Bytes(content(text)?)),
    }
}

fn content(text: &str) -> std::result::Result<Vec<u8>, String> {
    if let Some(path) = text.strip_prefix('@') {
        return fs::read(path).map_err(|error| format!("{path}: {error}"));
    }
    let (kind, values) = text.split_once(':').ok_or("expected @FILE, zero:BYTES or TYPE:VALUES")?;
    if kind == "zero" {
        return Ok(vec![0; number(values)?]);
    }
    let mut bytes = Vec::new();
    for value in values.split(',') {
        if let Some((first, last)) = value.split_once("..") {
            for value in number::<i64>(first)?..number::<i64>(last)? {
                append(&mut bytes, kind, &value.to_string())?;
            }
        } else {
            append(&mut bytes, kind, value)?;
        }
    }
    Ok(bytes)
}

fn append(bytes: &mut Vec<u8>, kind: &str, value: &str) -> std::result::Result<(), String> {
    match kind {
        "f32" => bytes.extend(number::<f32>(value)?.to_ne_bytes()),
        "f16" => bytes.extend(half::f16::from_f32(number(value)?).to_ne_bytes()),
        "bf16" => bytes.extend(half::bf16::from_f32(number(value)?).to_ne_bytes()),
        "i8" => bytes.extend(number::<i8>(value)?.to_ne_bytes()),
        "u8" => bytes.extend(number::<u8>(value)?.to_ne_bytes()),
        "i16" => bytes.extend(number::<i16>(value)?.to_ne_bytes()),
        "u16" => bytes.extend(number::<u16>(value)?.to_ne_bytes()),
        "i32" => bytes.extend(number::<i32>(value)?.to_ne_bytes()),
        "u32" => bytes.extend(number::<u32>(value)?.to_ne_bytes()),
        "i64" => bytes.extend(number::<i64>(value)?.to_ne_bytes()),
        "u64" => bytes.extend(number::<u64>(value)?.to_ne_bytes()),
        _ => return Err(format!("unknown type '{kind}'")),
    }
    Ok(())
}

fn constant(text: &str) -> std::result::Result<ConstantValue, String> {
    let (kind, value) = text.split_once(':').ok_or("expected TYPE:VALUE")?;
    Ok(match kind {
        "bool" => ConstantValue::Bool(number(value)?),
        "char" => ConstantValue::I8(number(value)?),
        "uchar" => ConstantValue::U8(number(value)?),
        "short" => ConstantValue::I16(number(value)?),
        "ushort" => ConstantValue::U16(number(value)?),
        "int" => ConstantValue::I32(number(value)?),
        "uint" => ConstantValue::U32(number(value)?),
        "long" => ConstantValue::I64(number(value)?),
        "ulong" => ConstantValue::U64(number(value)?),
        "float" => ConstantValue::F32(number(value)?),
        "half" => ConstantValue::F16(half::f16::from_f32(number(value)?).to_bits()),
        _ => return Err(format!("unknown type '{kind}'")),
    })
}

fn check(options: &Options) -> std::result::Result<String, String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let mut out = String::new();
    let mut errors = Vec::new();
    for (name, text, include_directories) in options.sources()? {
        let source = Source {
            name: &name,
            text: &text,
            include_directories: &include_directories,
            only: options.kernel.as_deref(),
        };
        match compile::load(&clang, source, &options.compile) {
            Ok(module) => {
                let _ = writeln!(out, "{name}: {} kernels", module.kernels().len());
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
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    if errors.is_empty() { Ok(out) } else { Err(errors.join("\n")) }
}

fn lint(options: &Options) -> std::result::Result<String, String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let mut out = String::new();
    let mut complaints = Vec::new();
    for (name, text, include_directories) in options.sources()? {
        let source =
            Source { name: &name, text: &text, include_directories: &include_directories, only: None };
        let report =
            metal_sim::lint::lint(&clang, source, &options.compile).map_err(|error| error.to_string())?;
        let _ = writeln!(out, "{name}: {} kernels", report.kernels);
        complaints.extend(report.diagnostics.iter().map(ToString::to_string));
    }
    if complaints.is_empty() { Ok(out) } else { Err(complaints.join("\n")) }
}

fn build(options: &Options) -> std::result::Result<String, String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let sources = options.sources()?;
    let ([(name, text, include_directories)], Some(output)) = (&sources[..], &options.output) else {
        return Err("build takes one file and -o LIBRARY".to_owned());
    };
    let source = Source { name, text, include_directories, only: options.kernel.as_deref() };
    let library = compile::build(&clang, source, &options.compile).map_err(|error| error.to_string())?;
    fs::copy(library, output).map_err(|error| format!("{}: {error}", output.display()))?;
    Ok(String::new())
}

fn translate(options: &Options) -> std::result::Result<String, String> {
    let clang = Clang::find().map_err(|error| error.to_string())?;
    let mut out = String::new();
    for (name, text, include_directories) in options.sources()? {
        let source = Source {
            name: &name,
            text: &text,
            include_directories: &include_directories,
            only: options.kernel.as_deref(),
        };
        out.push_str(
            &compile::translate(&clang, source, &options.compile).map_err(|error| error.to_string())?,
        );
    }
    Ok(out)
}

fn dispatch(options: &Options) -> std::result::Result<String, String> {
    let device = SimDevice::from_environment().map_err(|error| error.to_string())?;
    let sources = options.sources()?;
    let [(name, text, include_directories)] = &sources[..] else {
        return Err("run takes one file".to_owned());
    };
    let kernel = options.kernel.as_deref().ok_or("--kernel is missing")?;
    let source = Source { name, text, include_directories, only: Some(kernel) };
    let grid = options.grid.ok_or("--grid is missing")?;
    launch(&device, source, kernel, grid, options).map_err(|error| error.to_string())?
}

/// Errors of the device outside, of the command line inside.
fn launch(
    device: &SimDevice,
    source: Source<'_>,
    kernel: &str,
    grid: Size,
    options: &Options,
) -> Result<std::result::Result<String, String>> {
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
    let mut out = String::new();
    if options.repeat > 1 {
        let _ = writeln!(out, "{kernel}: {:.3} ms", fastest * 1e3);
    }
    let find = |slot: usize| {
        buffers
            .iter()
            .find(|(bound, _)| *bound == slot)
            .map(|(_, buffer)| buffer)
            .ok_or_else(|| format!("no --buffer {slot}=..."))
    };
    for (slot, path) in &options.saves {
        let buffer = match find(*slot) {
            Ok(buffer) => buffer,
            Err(message) => return Ok(Err(message)),
        };
        let mut bytes = vec![0; buffer.length()];
        buffer.read(0, &mut bytes)?;
        if let Err(error) = fs::write(path, bytes) {
            return Ok(Err(format!("{}: {error}", path.display())));
        }
    }
    for (slot, kind) in &options.prints {
        let buffer = match find(*slot) {
            Ok(buffer) => buffer,
            Err(message) => return Ok(Err(message)),
        };
        let mut bytes = vec![0; buffer.length()];
        buffer.read(0, &mut bytes)?;
        match show(&bytes, kind) {
            Ok(values) => {
                let _ = writeln!(out, "buffer({slot}): {values}");
            }
            Err(message) => return Ok(Err(message)),
        }
    }
    Ok(Ok(out))
}

fn show(bytes: &[u8], kind: &str) -> std::result::Result<String, String> {
    let (kind, count) = match kind.split_once(':') {
        Some((kind, count)) => (kind, number(count)?),
        None => (kind, usize::MAX),
    };
    macro_rules! values {
        ($type:ty) => {
            bytes
                .chunks_exact(size_of::<$type>())
                .take(count)
                .map(|chunk| {
                    let mut whole = [0; size_of::<$type>()];
                    whole.copy_from_slice(chunk);
                    <$type>::from_ne_bytes(whole).to_string()
                })
                .collect::<Vec<_>>()
        };
    }
    let values = match kind {
        "f32" => values!(f32),
        "f16" => values!(half::f16),
        "bf16" => values!(half::bf16),
        "i8" => values!(i8),
        "u8" => values!(u8),
        "i16" => values!(i16),
        "u16" => values!(u16),
        "i32" => values!(i32),
        "u32" => values!(u32),
        "i64" => values!(i64),
        "u64" => values!(u64),
        _ => return Err(format!("unknown type '{kind}'")),
    };
    Ok(values.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_words(words: &str) -> std::result::Result<String, String> {
        run(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn contents_are_typed() {
        assert_eq!(content("u8:1,2,250").unwrap(), [1, 2, 250]);
        assert_eq!(content("i16:-1..2").unwrap(), [255, 255, 0, 0, 1, 0]);
        assert_eq!(content("zero:3").unwrap(), [0; 3]);
        assert!(matches!(buffer_content("new:12"), Ok(Content::New(12))));
        assert!(matches!(buffer_content("u8:7"), Ok(Content::Bytes(bytes)) if bytes == [7]));
        assert!(buffer_content("new:x").is_err() && content("new:3").is_err());
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
        assert!(run_words("check").unwrap_err().contains("no file"));
    }
}
