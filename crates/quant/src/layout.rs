//! The block layouts as data, and the C header that GPU kernels include.

use std::fmt::Write as _;

use half::f16;

use crate::blocks::*;
use crate::{E2M1_DOUBLED_VALUES, Format, IQ4_NL_VALUES};

/// The type of a field's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Element {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Element::U8 | Element::I8 => 1,
            Element::U16 | Element::I16 | Element::F16 => 2,
            Element::F32 => 4,
        }
    }

    /// The element's type in the generated header. Only built-in types, since not every GPU compiler has
    /// `stdint.h`; `QUANT_F16` is defined by the header's preamble.
    pub const fn c_type(self) -> &'static str {
        match self {
            Element::U8 => "unsigned char",
            Element::I8 => "signed char",
            Element::U16 => "unsigned short",
            Element::I16 => "short",
            Element::F16 => "QUANT_F16",
            Element::F32 => "float",
        }
    }
}

/// One field of a block structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, the same in Rust and in C.
    pub name: &'static str,
    /// The type of its elements.
    pub element: Element,
    /// The length of the array; `None` for a single value.
    pub count: Option<usize>,
    /// Bytes from the start of the block.
    pub offset: usize,
}

/// The layout of a block structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The format it belongs to.
    pub format: Format,
    /// The name of the structure, the same in Rust and in C.
    pub name: &'static str,
    /// Bytes of one block.
    pub size: usize,
    /// The fields, in the order of their offsets, without gaps.
    pub fields: &'static [Field],
}

impl Layout {
    /// The layout of every block structure, in the order of the formats' ids.
    pub const ALL: [Layout; 14] = [
        BlockQ4_0::LAYOUT,
        BlockQ4_1::LAYOUT,
        BlockQ5_0::LAYOUT,
        BlockQ5_1::LAYOUT,
        BlockQ8_0::LAYOUT,
        BlockQ2_K::LAYOUT,
        BlockQ3_K::LAYOUT,
        BlockQ4_K::LAYOUT,
        BlockQ5_K::LAYOUT,
        BlockQ6_K::LAYOUT,
        BlockQ8_K::LAYOUT,
        BlockIQ4_NL::LAYOUT,
        BlockIQ4_XS::LAYOUT,
        BlockMXFP4::LAYOUT,
    ];

    /// The layout of the format's blocks; `None` for the float formats, which have no structure.
    pub fn of(format: Format) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.format == format)
    }
}

/// How the type of a structure's field appears in a [`Layout`].
pub(crate) trait FieldType {
    const ELEMENT: Element;
    const COUNT: Option<usize>;
}

macro_rules! field_types {
    ($($ty:ty => $element:ident),+) => { $(
        impl FieldType for $ty {
            const ELEMENT: Element = Element::$element;
            const COUNT: Option<usize> = None;
        }
        impl<const N: usize> FieldType for [$ty; N] {
            const ELEMENT: Element = Element::$element;
            const COUNT: Option<usize> = Some(N);
        }
    )+ };
}
field_types!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, f16 => F16, f32 => F32);

/// What the header starts with: the half-precision type of each language, and its static assertion.
const PREAMBLE: &str = "\
/* Block layouts of GGUF tensors. Generated from the definitions in the `quant` crate: do not edit.
   For C, C++, CUDA C++ (include cuda_fp16.h before) and the Metal Shading Language. */
#pragma once

/* The type of half-precision fields; where the language has none, their bits. */
#ifndef QUANT_F16
#if defined(__METAL_VERSION__)
#define QUANT_F16 half
#elif defined(__CUDACC__)
#define QUANT_F16 __half
#else
#define QUANT_F16 unsigned short
#endif
#endif

#ifdef __cplusplus
#define QUANT_ASSERT(condition, message) static_assert(condition, message)
#else
#define QUANT_ASSERT(condition, message) _Static_assert(condition, message)
#endif
";

/// A header with the structure of every block format, the number of elements in a block
/// (`QUANT_Q4_K_LEN`) and the tables of the formats that have one (`QUANT_IQ4_NL_VALUES`, initialiser lists).
///
/// One text serves C, C++, CUDA C++ and the Metal Shading Language: the kernels see the same definition as the
/// Rust code, and the header checks the sizes when it is compiled.
pub fn c_header() -> String {
    let mut out = String::from(PREAMBLE);
    for layout in Layout::ALL {
        // Writing to a `String` cannot fail.
        let _ = write_struct(&mut out, &layout);
    }
    let _ = write_table(&mut out, "QUANT_IQ4_NL_VALUES", &IQ4_NL_VALUES);
    let _ = write_table(&mut out, "QUANT_E2M1_DOUBLED_VALUES", &E2M1_DOUBLED_VALUES);
    out
}

fn write_struct(out: &mut String, layout: &Layout) -> std::fmt::Result {
    let Layout { format, name, size, fields } = layout;
    writeln!(out, "\n#define QUANT_{format}_LEN {}", format.block_len())?;
    writeln!(out, "typedef struct {{")?;
    for field in *fields {
        write!(out, "    {} {}", field.element.c_type(), field.name)?;
        match field.count {
            Some(count) => writeln!(out, "[{count}];")?,
            None => writeln!(out, ";")?,
        }
    }
    writeln!(out, "}} {name};")?;
    writeln!(out, "QUANT_ASSERT(sizeof({name}) == {size}, \"{name} has {size} bytes\");")
}

fn write_table(out: &mut String, name: &str, values: &[i8]) -> std::fmt::Result {
    let values: Vec<String> = values.iter().map(i8::to_string).collect();
    writeln!(out, "\n#define {name} {{ {} }}", values.join(", "))
}
