//! How a library is compiled and a kernel specialised.

use std::collections::BTreeMap;

/// A version of the Metal Shading Language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LanguageVersion {
    /// Metal 2.4.
    V2_4,
    /// Metal 3.0.
    V3_0,
    /// Metal 3.1, the first with `bfloat`.
    V3_1,
    /// Metal 3.2.
    V3_2,
}

impl LanguageVersion {
    /// Its number, before and behind the point.
    pub const fn number(self) -> (usize, usize) {
        match self {
            Self::V2_4 => (2, 4),
            Self::V3_0 => (3, 0),
            Self::V3_1 => (3, 1),
            Self::V3_2 => (3, 2),
        }
    }

    /// The value of `__METAL_VERSION__`.
    pub const fn macro_value(self) -> usize {
        let (major, minor) = self.number();
        100 * major + 10 * minor
    }
}

/// How freely floating-point arithmetic may be rearranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MathMode {
    /// Metal's default: reassociation, reciprocals and approximate functions.
    Fast,
    /// IEEE 754 semantics as far as the device has them.
    Safe,
}

/// Options of [`Device::new_library`](super::Device::new_library).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompileOptions {
    /// Language version.
    pub version: LanguageVersion,
    /// Arithmetic mode.
    pub math: MathMode,
    /// Preprocessor macros with their values.
    pub macros: BTreeMap<String, String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self { version: LanguageVersion::V3_1, math: MathMode::Fast, macros: BTreeMap::new() }
    }
}

/// The value of one function constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConstantValue {
    /// `bool`
    Bool(bool),
    /// `char` (signed, 8 bits)
    I8(i8),
    /// `uchar`
    U8(u8),
    /// `short`
    I16(i16),
    /// `ushort`
    U16(u16),
    /// `int`
    I32(i32),
    /// `uint`
    U32(u32),
    /// `long`
    I64(i64),
    /// `ulong`
    U64(u64),
    /// `float`
    F32(f32),
    /// `half`, as its bits
    F16(u16),
}

impl ConstantValue {
    /// The MSL name of the value's type.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "char",
            Self::U8(_) => "uchar",
            Self::I16(_) => "short",
            Self::U16(_) => "ushort",
            Self::I32(_) => "int",
            Self::U32(_) => "uint",
            Self::I64(_) => "long",
            Self::U64(_) => "ulong",
            Self::F32(_) => "float",
            Self::F16(_) => "half",
        }
    }

    /// The value's bytes in the low end of a word, as the device stores it.
    pub const fn bits(self) -> u64 {
        match self {
            Self::Bool(v) => v as u64,
            Self::I8(v) => v as u8 as u64,
            Self::U8(v) => v as u64,
            Self::I16(v) => v as u16 as u64,
            Self::U16(v) | Self::F16(v) => v as u64,
            Self::I32(v) => v as u32 as u64,
            Self::U32(v) => v as u64,
            Self::I64(v) => v as u64,
            Self::U64(v) => v,
            Self::F32(v) => v.to_bits() as u64,
        }
    }
}

/// Values for the `[[function_constant(index)]]` declarations of a library.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FunctionConstants {
    values: BTreeMap<u32, ConstantValue>,
}

impl FunctionConstants {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the value with the given index.
    pub fn set(mut self, index: u32, value: ConstantValue) -> Self {
        self.values.insert(index, value);
        self
    }

    /// The value with the given index.
    pub fn get(&self, index: u32) -> Option<ConstantValue> {
        self.values.get(&index).copied()
    }

    /// All values in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, ConstantValue)> + '_ {
        self.values.iter().map(|(&index, &value)| (index, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_values_keep_their_width() {
        assert_eq!(ConstantValue::I16(-2).bits(), 0xfffe);
        assert_eq!(ConstantValue::I64(-1).bits(), u64::MAX);
        assert_eq!(ConstantValue::F32(1.0).bits(), 0x3f80_0000);
    }

    #[test]
    fn the_last_value_of_an_index_wins() {
        let constants = FunctionConstants::new().set(3, ConstantValue::I32(1)).set(3, ConstantValue::I32(2));
        assert_eq!(constants.get(3), Some(ConstantValue::I32(2)));
        assert_eq!(constants.iter().count(), 1);
    }
}
