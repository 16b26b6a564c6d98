//! Argument structs of kernels, defined once for host and shader.

/// The name of a Rust type in the Metal Shading Language.
macro_rules! msl_type {
    (u32) => {
        "uint"
    };
    (i32) => {
        "int"
    };
    (u64) => {
        "ulong"
    };
    (f32) => {
        "float"
    };
}

/// Defines a `#[repr(C)]` struct and, from the same text, its declaration in MSL (`Name::MSL`), a file of the library
/// whose kernels take it. `NoUninit` refuses padding, so the two layouts cannot differ.
macro_rules! kernel_args {
    (
        $(#[$meta:meta])*
        struct $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ident, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, bytemuck::NoUninit)]
        #[repr(C)]
        struct $name {
            $( $(#[$field_meta])* $field: $ty, )+
        }

        impl $name {
            /// The declaration of the struct in MSL.
            const MSL: &str = concat!(
                "struct ", stringify!($name), " {\n",
                $( "    ", $crate::ops::args::msl_type!($ty), " ", stringify!($field), ";\n", )+
                "};\n",
            );
        }
    };
}

pub(super) use {kernel_args, msl_type};

use crate::pass::invariant;
use graph::BackendError;
use std::fmt::Display;

/// A count as the kernels take it: signed, so that differences of counts are safe to form.
pub(super) fn int(what: &str, count: usize) -> Result<i32, BackendError> {
    i32::try_from(count).map_err(|_| invariant(what, format!("at most {}", i32::MAX), count))
}

/// A condition on an operand.
pub(super) fn require(
    holds: bool,
    what: &str,
    expected: impl Display,
    found: impl Display,
) -> Result<(), BackendError> {
    if holds { Ok(()) } else { Err(invariant(what, expected, found)) }
}

#[cfg(test)]
mod tests {
    kernel_args! {
        /// Four types.
        struct Example {
            bytes: u64,
            count: i32,
            mask: u32,
            scale: f32,
            more: i32,
        }
    }

    #[test]
    fn the_declaration_has_the_fields_in_their_order() {
        let expected = "struct Example {\n    ulong bytes;\n    int count;\n    uint mask;\n    float scale;\n    \
                        int more;\n};\n";
        assert_eq!(Example::MSL, expected);
        assert_eq!(size_of::<Example>(), 24);
    }
}
