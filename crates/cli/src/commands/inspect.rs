//! `smelt inspect`: shows what is in a GGUF file. Reads the header alone.

use crate::args::InspectArgs;
use crate::error::Result;
use crate::load;
use crate::output::{Output, print, print_json};
use gguf::{Array, File, TensorInfo, Value};
use indicatif::{BinaryBytes, HumanCount};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Elements of an array that are shown.
const SHOWN: usize = 8;
/// Characters of a string that are shown.
const SHOWN_CHARS: usize = 80;

/// Runs the command.
pub fn run(args: &InspectArgs, output: &Output) -> Result<()> {
    let file = File::open(load::resolve(&args.file, output)?)?;
    if args.json { print_json(&report(&file)) } else { print(&text(&file)) }
}

/// Tensors, elements and bytes of one format.
#[derive(Default)]
struct Sum {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, tensor: &TensorInfo) {
        self.tensors += 1;
        // A checked file's ranges do not overlap, so the bytes fit; a block has few elements per byte, but the sum
        // of elements is only shown, so it may stop at the largest number.
        self.elements = self.elements.saturating_add(tensor.elements());
        self.bytes = self.bytes.saturating_add(tensor.len);
    }
}

/// Per format, by name, and in all.
fn sums(file: &File) -> (BTreeMap<&'static str, Sum>, Sum) {
    let mut formats = BTreeMap::<_, Sum>::new();
    let mut total = Sum::default();
    for tensor in file.tensors() {
        formats.entry(tensor.format.name()).or_default().add(tensor);
        total.add(tensor);
    }
    (formats, total)
}

fn text(file: &File) -> String {
    let mut out = String::new();
    for part in file.parts() {
        let bytes = BinaryBytes(part.bytes().len() as u64);
        out.push_str(&format!("{}: GGUF version {}, {bytes}\n", part.path().display(), file.version()));
    }
    out.push_str(&format!("\nmetadata: {} keys\n", file.metadata().len()));
    let width = file.metadata().iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in file.metadata().iter() {
        let (kind, value) = (kind(value), shown(value));
        out.push_str(&format!("  {:<width$}  {kind:<14}  {value}\n", key.escape_debug().to_string()));
    }
    if file.tensors().is_empty() {
        out.push_str("\nno tensors: a vocabulary alone\n");
        return out;
    }
    out.push_str(&format!("\ntensors: {}\n", file.tensors().len()));
    let width = file.tensors().iter().map(|tensor| tensor.name.chars().count()).max().unwrap_or(0).min(48);
    for tensor in file.tensors() {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let name = tensor.name.escape_debug().to_string();
        let size = BinaryBytes(tensor.len).to_string();
        out.push_str(&format!("  {name:<width$}  {:<7} {shape:<18} {size:>12}\n", tensor.format.name()));
    }
    let (formats, total) = sums(file);
    out.push_str("\nformats\n");
    for (format, sum) in formats.iter().map(|(&name, sum)| (name, sum)).chain([("all", &total)]) {
        let elements = HumanCount(sum.elements).to_string();
        let bytes = BinaryBytes(sum.bytes).to_string();
        out.push_str(&format!(
            "  {format:<7} {:>5} tensors {elements:>18} elements {bytes:>12}\n",
            sum.tensors
        ));
    }
    out
}

fn report(file: &File) -> Json {
    let parts = file.parts().iter().map(|part| json!({ "path": part.path(), "bytes": part.bytes().len() }));
    let metadata: Map<String, Json> =
        file.metadata().iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect();
    let tensors = file.tensors().iter().map(|tensor| {
        json!({
            "name": tensor.name, "format": tensor.format.name(), "shape": tensor.shape,
            "part": tensor.part, "offset": tensor.offset, "bytes": tensor.len,
        })
    });
    let sum = |sum: &Sum| json!({ "tensors": sum.tensors, "elements": sum.elements, "bytes": sum.bytes });
    let (formats, total) = sums(file);
    let formats: Map<String, Json> = formats.iter().map(|(name, s)| ((*name).to_owned(), sum(s))).collect();
    json!({
        "version": file.version(),
        "files": parts.collect::<Vec<_>>(),
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
        "formats": formats,
        "total": sum(&total),
    })
}

fn kind(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        value => value.value_type().to_string(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(array) => {
            let mut items: Vec<String> = head(array).iter().map(shown).collect();
            if array.len() > SHOWN {
                items.push("...".into());
            }
            format!("[{}]", items.join(", "))
        }
        // The shortest digits that are this number again, not those of its double.
        Value::F32(number) => format!("{number:?}"),
        Value::F64(number) => format!("{number:?}"),
        value => to_json(value).to_string(),
    }
}

/// On one line, as JSON writes it.
fn quoted(text: &str) -> String {
    let head: String = text.chars().take(SHOWN_CHARS).collect();
    let more = if head.len() < text.len() { "..." } else { "" };
    format!("{}{more}", Json::String(head))
}

/// The first elements of an array.
fn head(array: &Array) -> Vec<Value> {
    fn each<T: Clone>(items: &[T], value: impl Fn(T) -> Value) -> Vec<Value> {
        items.iter().take(SHOWN).cloned().map(value).collect()
    }
    match array {
        Array::U8(v) => each(v, Value::U8),
        Array::I8(v) => each(v, Value::I8),
        Array::U16(v) => each(v, Value::U16),
        Array::I16(v) => each(v, Value::I16),
        Array::U32(v) => each(v, Value::U32),
        Array::I32(v) => each(v, Value::I32),
        Array::F32(v) => each(v, Value::F32),
        Array::Bool(v) => each(v, Value::Bool),
        Array::String(v) => each(v, Value::String),
        Array::Array(v) => each(v, Value::Array),
        Array::U64(v) => each(v, Value::U64),
        Array::I64(v) => each(v, Value::I64),
        Array::F64(v) => each(v, Value::F64),
    }
}

/// A value in JSON; a long array as its type, length and first elements. JSON has no infinities: they become null.
fn to_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Array(array) => {
            let items: Vec<Json> = head(array).iter().map(to_json).collect();
            if array.len() <= SHOWN {
                return Json::Array(items);
            }
            json!({ "type": array.element_type().to_string(), "len": array.len(), "first": items })
        }
    }
}
