//! The shader sources: which files make a library, and the one text that a device compiles.

use std::fmt::Write as _;

/// A family of kernels: files that are compiled together. Metal's run-time compiler includes no files, so they are
/// joined here, behind the layouts of quantised blocks and the constants that host and shader share.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The family's name, as in `norm`; also the Rust module beside the kernels.
    pub name: &'static str,
    /// Name and text of each file, headers first.
    pub files: &'static [(&'static str, &'static str)],
    /// What the host's geometry and the kernels must agree on: `#define`d in front of the files.
    pub constants: &'static [(&'static str, usize)],
}

impl Library {
    /// The text that is compiled. Diagnostics name the files and lines that a person can open.
    pub fn source(&self) -> String {
        let mut text =
            String::from("#include <metal_stdlib>\nusing namespace metal;\n#line 1 \"quant_blocks.h\"\n");
        text.push_str(&quant::c_header().replace("#pragma once\n", "\n"));
        for (name, value) in self.constants {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        for (name, file) in self.files {
            let _ = writeln!(text, "#line 1 \"{name}\"");
            text.push_str(file);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_follow_layouts_and_constants_under_their_own_names() {
        let library = Library {
            name: "x",
            files: &[("a.h", "int a;"), ("b.metal", "int b;")],
            constants: &[("ROWS", 4)],
        };
        let text = library.source();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("'{part}' is missing"));
        let order = [
            "#include <metal_stdlib>",
            "} BlockQ4_0;",
            "#define ROWS 4\n",
            "#line 1 \"a.h\"\nint a;\n",
            "#line 1 \"b.metal\"\nint b;\n",
        ];
        assert!(order.map(at).is_sorted());
        assert!(!text.contains("#pragma once"));
    }
}
