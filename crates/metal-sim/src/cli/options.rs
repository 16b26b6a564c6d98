//! What the words of a command line mean.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use metal::device::{CompileOptions, ConstantValue, FunctionConstants, LanguageVersion, MathMode, Size};

use super::values;

/// A file's name, its text and where its includes are looked for.
pub type SourceFile = (String, String, Vec<PathBuf>);

/// Everything that a command line may say.
#[derive(Default)]
pub struct Options {
    pub files: Vec<PathBuf>,
    pub include_directories: Vec<PathBuf>,
    pub compile: CompileOptions,
    pub kernel: Option<String>,
    pub output: Option<PathBuf>,
    pub grid: Option<Size>,
    pub threadgroup: Option<Size>,
    pub buffers: Vec<(usize, Content)>,
    pub bytes: Vec<(usize, Vec<u8>)>,
    pub threadgroup_memory: Vec<(usize, usize)>,
    pub constants: FunctionConstants,
    pub prints: Vec<(usize, String)>,
    pub saves: Vec<(usize, PathBuf)>,
    pub repeat: usize,
}

impl Options {
    /// Reads the words behind a command.
    pub fn parse(command: &str, arguments: &[String]) -> Result<Self, String> {
        let compile = CompileOptions { version: LanguageVersion::V3_1, ..CompileOptions::default() };
        let mut options = Self { compile, repeat: 1, ..Self::default() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if !argument.starts_with('-') {
                options.files.push(argument.into());
                continue;
            }
            let (name, attached) = split(argument);
            if !belongs(command, name) {
                let is_known = ["run", "build"].iter().any(|command| belongs(command, name));
                return Err(if is_known {
                    format!("{name}: not an option of {command}")
                } else {
                    format!("{name}: unknown option")
                });
            }
            if name == "--safe-math" {
                options.compile.math = MathMode::Safe;
                continue;
            }
            let value = match attached {
                Some(value) => value,
                None => rest.next().ok_or_else(|| format!("{name}: a value is missing"))?,
            };
            options.set(name, value).map_err(|reason| format!("{name} {value}: {reason}"))?;
        }
        if options.files.is_empty() {
            return Err(format!("no file\n{}", super::USAGE));
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "-I" => self.include_directories.push(value.into()),
            "-D" => {
                let (name, value) = value.split_once('=').unwrap_or((value, "1"));
                self.compile.macros.insert(name.to_owned(), value.to_owned());
            }
            "-std" => self.compile.version = language_version(value)?,
            "--kernel" => self.kernel = Some(value.to_owned()),
            "-o" => self.output = Some(value.into()),
            "--grid" => self.grid = Some(size(value)?),
            "--threadgroup" => self.threadgroup = Some(size(value)?),
            "--buffer" => {
                let (slot, content) = slot_and(value, buffer_content)?;
                self.is_free(slot)?;
                self.buffers.push((slot, content));
            }
            "--bytes" => {
                let (slot, bytes) = slot_and(value, values::content)?;
                self.is_free(slot)?;
                self.bytes.push((slot, bytes));
            }
            "--threadgroup-memory" => self.threadgroup_memory.push(slot_and(value, number)?),
            "--constant" => {
                let (index, value) = slot_and(value, constant)?;
                let index = u32::try_from(index).map_err(|error| error.to_string())?;
                self.constants = std::mem::take(&mut self.constants).set(index, value);
            }
            "--print" => {
                let print = slot_and(value, |kind| values::show(&[], kind).map(|_| kind.to_owned()))?;
                self.prints.push(print);
            }
            "--save" => self.saves.push(slot_and(value, |path| Ok(path.into()))?),
            "--repeat" => self.repeat = number(value)?,
            _ => return Err("unknown option".to_owned()),
        }
        Ok(())
    }

    /// The slots whose buffers are printed or saved.
    pub fn outputs(&self) -> impl Iterator<Item = usize> {
        let saved = self.saves.iter().map(|(slot, _)| *slot);
        self.prints.iter().map(|(slot, _)| *slot).chain(saved)
    }

    /// Refuses to bind a slot twice.
    fn is_free(&self, slot: usize) -> Result<(), String> {
        let mut taken =
            self.buffers.iter().map(|(slot, _)| slot).chain(self.bytes.iter().map(|(slot, _)| slot));
        if taken.any(|&taken| taken == slot) {
            return Err(format!("buffer({slot}) is bound twice"));
        }
        Ok(())
    }

    /// Reads a file. Comments may hold any bytes: those that are no UTF-8 are the compiler's to judge.
    pub fn source(&self, path: &PathBuf) -> Result<SourceFile, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut directories = self.include_directories.clone();
        directories.extend(path.parent().map(PathBuf::from).filter(|parent| !parent.as_os_str().is_empty()));
        Ok((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned(), directories))
    }

    /// Reads the file of a command that takes one.
    pub fn only_source(&self, command: &str) -> Result<SourceFile, String> {
        match &self.files[..] {
            [path] => self.source(path),
            files => Err(format!("{command} takes one file, found {}", files.len())),
        }
    }
}

/// Name and value of `-Iname`, `-Dname`, `-std=value` and `--name=value`.
fn split(argument: &str) -> (&str, Option<&str>) {
    match argument.split_at_checked(2) {
        Some((name @ ("-I" | "-D"), value)) if !value.is_empty() => (name, Some(value)),
        _ => match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        },
    }
}

fn belongs(command: &str, option: &str) -> bool {
    match option {
        "-I" | "-D" | "-std" | "--safe-math" => true,
        "--kernel" => command != "lint",
        "-o" => command == "build",
        "--grid"
        | "--threadgroup"
        | "--buffer"
        | "--bytes"
        | "--threadgroup-memory"
        | "--constant"
        | "--print"
        | "--save"
        | "--repeat" => command == "run",
        _ => false,
    }
}

fn language_version(text: &str) -> Result<LanguageVersion, String> {
    let number = text.strip_prefix("macos-").unwrap_or(text).strip_prefix("metal");
    Ok(match number {
        Some("2.4") => LanguageVersion::V2_4,
        Some("3.0") => LanguageVersion::V3_0,
        Some("3.1") => LanguageVersion::V3_1,
        Some("3.2") => LanguageVersion::V3_2,
        _ => return Err("expected metal2.4, metal3.0, metal3.1 or metal3.2".to_owned()),
    })
}

pub fn number<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("'{text}': {error}"))
}

fn size(text: &str) -> Result<Size, String> {
    let counts = text.split(',').map(number).collect::<Result<Vec<usize>, _>>()?;
    match counts[..] {
        [x] => Ok(Size::width(x)),
        [x, y] => Ok(Size::new(x, y, 1)),
        [x, y, z] => Ok(Size::new(x, y, z)),
        _ => Err("expected one to three numbers".to_owned()),
    }
}

fn slot_and<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<(usize, T), String> {
    let (slot, value) = text.split_once('=').ok_or("expected SLOT=...")?;
    Ok((number(slot)?, parse(value)?))
}

/// What a buffer holds before the run.
pub enum Content {
    Bytes(Vec<u8>),
    /// So many bytes that nobody wrote.
    New(usize),
}

pub fn buffer_content(text: &str) -> Result<Content, String> {
    match text.strip_prefix("new:") {
        Some(length) => Ok(Content::New(number(length)?)),
        None => Ok(Content::Bytes(values::content(text)?)),
    }
}

fn constant(text: &str) -> Result<ConstantValue, String> {
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
