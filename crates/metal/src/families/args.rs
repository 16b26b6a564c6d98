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
        pub(crate) struct $name {
            $( $(#[$field_meta])* pub(crate) $field: $ty, )+
        }

        impl $name {
            /// The declaration of the struct in MSL.
            pub(crate) const MSL: &str = concat!(
                "struct ", stringify!($name), " {\n",
                $( "    ", $crate::families::args::msl_type!($ty), " ", stringify!($field), ";\n", )+
                "};\n",
            );
        }
    };
}

pub(super) use {kernel_args, msl_type};

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
