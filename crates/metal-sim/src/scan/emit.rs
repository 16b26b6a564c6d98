//! The C++ that clang compiles: the rewritten source between the shim and the table of entry points.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Binding, Kernel, Scan};

/// Builds the translation unit for a scanned source. `text` is the preprocessed source that was scanned. With
/// `only`, the kernel of that name is its one entry point, which saves most of the work of compiling a large
/// library.
///
/// # Errors
/// The name of a host-visible kernel that is defined twice, or of an instantiation without a template.
pub fn translate(text: &str, scan: &Scan, only: Option<&str>) -> Result<String, String> {
    let mut out = rewritten(text, scan, "kernel.h");
    out.push_str("\n# 1 \"<kernel table>\"\n");
    entry_table(&mut out, scan, only)?;
    Ok(out)
}

/// The translation unit for the compiler's part of a lint: the rewritten source and a use of every kernel.
pub fn translate_for_lint(text: &str, scan: &Scan) -> String {
    let mut out = rewritten(text, scan, "lint.h");
    out.push_str("\n# 1 \"<kernel table>\"\n");
    // What is left out here, `translate` reports.
    for (number, (_, _, expression)) in entries(scan).unwrap_or_default().iter().enumerate() {
        let _ = writeln!(out, "static const auto metal_sim_use_{number} = {expression};");
    }
    out
}

/// One entry point of a library for whoever emits a table of its own.
#[derive(Clone, Debug)]
pub struct EntryPoint {
    /// Name on the host side.
    pub host_name: String,
    /// The C++ type whose `run` calls the kernel with its parameters filled in.
    pub entry: String,
}

/// All entry points, in the order of the table that [`translate`] writes.
///
/// # Errors
/// As for [`translate`].
pub fn entry_points(scan: &Scan) -> Result<Vec<EntryPoint>, String> {
    let entries = entries(scan)?.into_iter();
    Ok(entries
        .map(|(host_name, kernel, expression)| EntryPoint {
            host_name,
            entry: entry_type(kernel, &expression),
        })
        .collect())
}

fn entry_type(kernel: &Kernel, expression: &str) -> String {
    let mut attributes = String::new();
    for parameter in &kernel.parameters {
        let _ = match parameter.binding {
            Binding::Buffer(slot) => write!(attributes, ", metal_sim::Buffer<{slot}>"),
            Binding::Threadgroup(slot) => write!(attributes, ", metal_sim::ThreadgroupMemory<{slot}>"),
            Binding::Builtin(name) => write!(attributes, ", metal_sim::{name}"),
        };
    }
    format!("metal_sim::Entry<{expression}{attributes}>")
}

/// The rewritten source behind an include of `header`.
pub fn rewritten(text: &str, scan: &Scan, header: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    swizzles(&mut out, &scan.swizzles);
    // In brackets: a file of that name where the compiler runs is not meant.
    let _ = writeln!(out, "#include <{header}>");
    let mut at = 0;
    for edit in &scan.edits {
        out.push_str(&text[at..edit.start]);
        out.push_str(&edit.text);
        at = edit.end;
    }
    out.push_str(&text[at..]);
    out
}

/// The component names that the source uses, as lists for each vector width.
fn swizzles(out: &mut String, names: &BTreeSet<String>) {
    for width in 2..=4usize {
        let _ = write!(out, "#define METAL_SIM_SWIZZLES_{width}");
        for name in names {
            let indices: Vec<usize> = name
                .bytes()
                .filter_map(|byte| b"xyzw".iter().chain(b"rgba").position(|&known| known == byte))
                .map(|index| index % 4)
                .collect();
            if indices.iter().all(|&index| index < width) {
                let list: Vec<String> = indices.iter().map(usize::to_string).collect();
                let _ = write!(out, " METAL_SIM_SWIZZLE({width}, {name}, {})", list.join(", "));
            }
        }
        out.push('\n');
    }
}

/// Host name, kernel and C++ expression of every entry point.
fn entries(scan: &Scan) -> Result<Vec<(String, &Kernel, String)>, String> {
    let mut entries: Vec<(String, &Kernel, String)> = Vec::new();
    for kernel in scan.kernels.iter().filter(|kernel| !kernel.is_template) {
        let simple = kernel.name.rsplit("::").next().unwrap_or(&kernel.name).to_owned();
        entries.push((kernel.host_name.clone().unwrap_or(simple), kernel, format!("&::{}", kernel.name)));
    }
    for instantiation in &scan.instantiations {
        let kernel = scan
            .kernels
            .iter()
            .find(|kernel| {
                kernel.name == instantiation.kernel
                    || kernel.name.rsplit("::").next() == instantiation.kernel.rsplit("::").next()
            })
            .ok_or_else(|| {
                format!(
                    "host_name \"{}\": no kernel template '{}'",
                    instantiation.host_name, instantiation.kernel
                )
            })?;
        let expression = if instantiation.arguments.starts_with('(') {
            format!("static_cast<void (*){}>(&::{})", instantiation.arguments, kernel.name)
        } else {
            format!("&::{}{}", kernel.name, instantiation.arguments)
        };
        entries.push((instantiation.host_name.clone(), kernel, expression));
    }
    Ok(entries)
}

fn entry_table(out: &mut String, scan: &Scan, only: Option<&str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let mut entries = entries(scan)?;
    entries.retain(|(host_name, ..)| only.is_none_or(|only| only == host_name));
    let mut rows = String::new();
    let mut required = String::new();
    for (number, (host_name, kernel, expression)) in entries.iter().enumerate() {
        if !seen.insert(host_name.clone()) {
            return Err(format!("two kernels are called '{host_name}'"));
        }
        let mut names = String::new();
        let mut optional = 0u64;
        for (index, parameter) in kernel.parameters.iter().enumerate() {
            let _ = write!(names, "\"{}\", ", parameter.name);
            if parameter.optional && index < 64 {
                optional |= 1 << index;
            }
        }
        let entry = entry_type(kernel, expression);
        let _ = write!(required, "{}, ", kernel.required_constants.len());
        for name in &kernel.required_constants {
            let constant = scan.constants.iter().find(|constant| constant.name == *name);
            let _ = write!(required, "({}), ", constant.map_or("0", |constant| &constant.index));
        }
        let _ = writeln!(out, "static const char* const metal_sim_names_{number}[] = {{{names}nullptr}};");
        let _ = writeln!(
            rows,
            "  {{\"{host_name}\", &{entry}::run, {entry}::arguments, metal_sim_names_{number}, {optional}ul, {}, {}}},",
            kernel.parameters.len(),
            kernel.max_threads
        );
    }
    let _ =
        writeln!(out, "static const metal_sim::KernelDescriptor metal_sim_kernels[] = {{\n{rows}  {{}}}};");
    out.push_str("static const metal_sim::ConstantDescriptor metal_sim_constants[] = {\n");
    for constant in &scan.constants {
        let _ = writeln!(
            out,
            "  {{\"{}\", \"{}\", ({}), sizeof({})}},",
            constant.name, constant.type_name, constant.index, constant.type_name
        );
    }
    let _ = writeln!(
        out,
        "  {{}}}};\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const unsigned metal_sim_required_constants[] = {{{required}0}};\n\
         extern \"C\" METAL_SIM_UNCHECKED __attribute__((visibility(\"default\"))) const metal_sim::LibraryDescriptor* metal_sim_attach(const metal_sim::Runtime* runtime) {{\n  \
         static const metal_sim::LibraryDescriptor library = {{metal_sim::abi_version, sizeof(metal_sim::Lane), sizeof(metal_sim::SimdGroup), \
         sizeof(metal_sim::Threadgroup), sizeof(metal_sim::MatrixQueue), {}, {}, metal_sim_kernels, metal_sim_constants}};\n  \
         if (runtime) metal_sim::runtime = runtime;\n  return &library;\n}}",
        entries.len(),
        scan.constants.len()
    );
    Ok(())
}
