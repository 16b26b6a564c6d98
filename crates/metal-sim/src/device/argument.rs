//! What a kernel wants against what it gets: for every device that executes MSL compiled by this crate.

use metal::device::{ConstantValue, Error, FunctionConstants, Result};

use crate::runtime::{Argument, ArgumentKind, Constant, Kernel};

/// Checks one parameter of a kernel. `bound` is the length and the address of what is bound to its buffer slot;
/// `has_threadgroup_memory` tells whether a threadgroup slot has memory.
///
/// # Errors
/// [`Error::Unbound`] and [`Error::BindingTooSmall`].
pub fn check_argument(
    kernel: &str,
    argument: &Argument,
    bound: Option<(usize, usize)>,
    has_threadgroup_memory: impl Fn(usize) -> bool,
) -> Result<()> {
    let unbound = |space: &str| Error::Unbound {
        kernel: kernel.to_owned(),
        slot: format!("{space}({})", argument.slot),
        parameter: argument.name.clone(),
    };
    match argument.kind {
        ArgumentKind::Builtin => Ok(()),
        ArgumentKind::Threadgroup if argument.optional || has_threadgroup_memory(argument.slot) => Ok(()),
        ArgumentKind::Threadgroup => Err(unbound("threadgroup")),
        ArgumentKind::Buffer => {
            let Some((length, address)) = bound else {
                return if argument.optional { Ok(()) } else { Err(unbound("buffer")) };
            };
            let wrong = |reason: String| Error::BindingTooSmall {
                kernel: kernel.to_owned(),
                slot: argument.slot,
                parameter: argument.name.clone(),
                reason,
            };
            if argument.reference && length < argument.size {
                return Err(wrong(format!(
                    "{length} bytes bound, the kernel reads an object of {}",
                    argument.size
                )));
            }
            if !address.is_multiple_of(argument.alignment) {
                return Err(wrong(format!(
                    "bound at an address that is no multiple of {}, the alignment of its type",
                    argument.alignment
                )));
            }
            Ok(())
        }
    }
}

/// The values of a library's function constants by index, and which of them are set, for one of its kernels. Values for
/// constants that the library does not declare are ignored, as Metal does.
///
/// # Errors
/// [`Error::FunctionConstant`] for a value of another type than its constant, and for a constant that the kernel needs and
/// that has none.
pub fn constant_values(
    kernel: &Kernel,
    declared: &[Constant],
    constants: &FunctionConstants,
) -> Result<(Vec<u64>, Vec<u8>)> {
    let missing = kernel.required_constants.iter().find(|&&index| constants.get(index).is_none());
    if let Some(&index) = missing {
        let name =
            declared.iter().find(|constant| constant.index == index).map_or("", |constant| &constant.name);
        return Err(Error::FunctionConstant {
            kernel: kernel.name.clone(),
            reason: format!("function constant {index} ('{name}') has no value, and the kernel uses it"),
        });
    }
    let kernel = &kernel.name;
    let count = declared.iter().map(|constant| constant.index as usize + 1).max().unwrap_or(0);
    let mut values = vec![0u64; count];
    let mut defined = vec![0u8; count];
    for (index, value) in constants.iter() {
        for constant in declared.iter().filter(|constant| constant.index == index) {
            check_type(kernel, constant, value)?;
            values[index as usize] = value.bits();
            defined[index as usize] = 1;
        }
    }
    Ok((values, defined))
}

fn check_type(kernel: &str, constant: &Constant, value: ConstantValue) -> Result<()> {
    let declared = match constant.type_name.as_str() {
        "int8_t" => "char",
        "uint8_t" | "unsigned char" => "uchar",
        "int16_t" => "short",
        "uint16_t" | "unsigned short" => "ushort",
        "int32_t" => "int",
        "uint32_t" | "unsigned int" | "unsigned" => "uint",
        "int64_t" => "long",
        "uint64_t" | "size_t" | "unsigned long" => "ulong",
        other => other,
    };
    let known = ["bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "half"];
    if known.contains(&declared) && declared != value.type_name() {
        return Err(Error::FunctionConstant {
            kernel: kernel.to_owned(),
            reason: format!(
                "function constant {} ('{}') is a {declared}, the value a {}",
                constant.index,
                constant.name,
                value.type_name()
            ),
        });
    }
    Ok(())
}
