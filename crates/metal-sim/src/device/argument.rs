//! What a kernel wants against what it gets: for every device that executes MSL compiled by this crate.

use metal::device::{ConstantValue, Error, FunctionConstants, Interface, Parameter, ParameterSpace, Result};

use crate::runtime::{Argument, ArgumentKind, Constant, Kernel};

/// What a kernel asks of its dispatches, with at most `max_threads` threads in a threadgroup.
pub fn interface(kernel: &Kernel, max_threads: usize) -> Interface {
    let parameter = |argument: &Argument| {
        let space = match argument.kind {
            ArgumentKind::Builtin => return None,
            ArgumentKind::Buffer => ParameterSpace::Buffer,
            ArgumentKind::Threadgroup => ParameterSpace::Threadgroup,
        };
        Some(Parameter {
            name: argument.name.clone(),
            space,
            slot: argument.slot,
            is_optional: argument.optional,
            // Of what a pointer leads to nobody knows how much is read.
            size: if argument.reference { argument.size } else { 0 },
            alignment: argument.alignment,
        })
    };
    Interface {
        name: kernel.name.clone(),
        parameters: kernel.arguments.iter().filter_map(parameter).collect(),
        max_threads: kernel.max_threads.map_or(max_threads, |own| own.min(max_threads)),
        // The launch tells.
        static_memory: 0,
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
