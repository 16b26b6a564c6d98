//! The scanner: from preprocessed MSL to C++ that clang compiles against the shim.
//!
//! It does not parse MSL. It finds what C++ does not know (attributes of kernel parameters, threadgroup
//! variables, function constants, explicit instantiations with a host name), rewrites it in place, and leaves
//! types and overloads to the compiler. What the simulator cannot run is refused with file, line and column.

mod body;
mod calls;
mod declarations;
mod emit;
mod integers;
mod lint;
mod names;
mod required;
mod token;

use std::fmt;

pub use declarations::{scan, scan_for_lint};
pub use emit::{EntryPoint, entry_points, rewritten, translate, translate_for_lint};

/// One complaint about the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// File name as in the line markers.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column of the preprocessed text, from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

/// What a kernel parameter is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// `[[buffer(slot)]]`
    Buffer(u32),
    /// `[[threadgroup(slot)]]`
    Threadgroup(u32),
    /// An attribute such as `[[thread_position_in_grid]]`.
    Builtin(&'static str),
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name, empty if it has none.
    pub name: String,
    /// What it is bound to.
    pub binding: Binding,
    /// Whether a function constant decides if the parameter exists.
    pub optional: bool,
}

/// A kernel function or a template of kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name with its namespaces.
    pub name: String,
    /// Name on the host side, if it differs.
    pub host_name: Option<String>,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// Whether it needs explicit instantiations.
    pub is_template: bool,
    /// `[[max_total_threads_per_threadgroup(n)]]`, where it is a plain number.
    pub max_threads: u32,
    /// Names of the function constants that must have a value.
    pub required_constants: Vec<String>,
    /// Where it is defined.
    pub line: u32,
}

/// `template [[host_name("...")]] kernel ... name<arguments>(...)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instantiation {
    /// Name on the host side.
    pub host_name: String,
    /// The kernel template.
    pub kernel: String,
    /// The template arguments in angle brackets, or the parameters in parentheses, which select the instance.
    pub arguments: String,
}

/// `constant T name [[function_constant(index)]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// Its type as written.
    pub type_name: String,
    /// Its index, an integer constant expression.
    pub index: String,
}

/// Everything that the scanner found, and the edits that make C++ of the source.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Kernels in the order of their definitions.
    pub kernels: Vec<Kernel>,
    /// Explicit instantiations with a host name.
    pub instantiations: Vec<Instantiation>,
    /// Function constants.
    pub constants: Vec<Constant>,
    /// Names that look like vector swizzles.
    pub swizzles: std::collections::BTreeSet<String>,
    /// Replacements of byte ranges, in order and apart.
    edits: Vec<Edit>,
}

/// The replacement of one range of the preprocessed text.
#[derive(Clone, Debug)]
struct Edit {
    start: usize,
    end: usize,
    text: String,
}
