//! The one place that checks sizes, offsets, ranges and overlaps of tensors. What passes here is trusted everywhere.

use crate::header::RawTensor;
use crate::{Error, ErrorKind, Metadata, TensorInfo};
use quant::Format;
use std::collections::HashSet;

/// The alignment of files that do not say.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// Largest alignment: more than any device asks for.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// Reads `general.alignment`: a power of two.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    let key = "general.alignment";
    let alignment = metadata.u64(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        return Ok(alignment);
    }
    let expected = format!("a power of two, at most {MAX_ALIGNMENT}");
    Err(ErrorKind::Value { key: key.into(), found: alignment.to_string(), expected }.into())
}

/// Checks the tensor table of a file of `file_len` bytes whose header ends at `header_end`.
pub(crate) fn validate(
    raw: Vec<RawTensor>,
    header_end: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, Error> {
    // The header fits in the file and the alignment is bounded, so this cannot overflow.
    let data_start = header_end.next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(raw.len());
    let mut names = HashSet::with_capacity(raw.len());
    for tensor in raw {
        let info = check(tensor, data_start, alignment, file_len)?;
        if !names.insert(info.name.clone()) {
            return Err(ErrorKind::DuplicateTensor(info.name).into());
        }
        tensors.push(info);
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].len > pair[1].offset {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(ErrorKind::Overlap { first, second }.into());
        }
    }
    Ok(tensors)
}

fn check(tensor: RawTensor, data_start: u64, alignment: u64, file_len: u64) -> Result<TensorInfo, Error> {
    let RawTensor { name, shape, format, offset } = tensor;
    if shape.contains(&0) {
        return Err(ErrorKind::Dimensions { tensor: name, found: format!("{shape:?}") }.into());
    }
    let Some(format) = Format::from_id(format).filter(|&f| f != Format::Q8_K) else {
        let kind = ErrorKind::Format { tensor: name, id: format, name: unsupported_name(format) };
        return Err(kind.into());
    };
    let overflow = |what: &str| ErrorKind::Overflow { tensor: name.clone(), what: what.into() };
    // Everything must fit in i64, as other readers assume, so that no sum below can wrap.
    let fits = |n: Option<u64>| n.filter(|&n| i64::try_from(n).is_ok());
    let elements = shape.iter().try_fold(1u64, |product, &d| fits(product.checked_mul(d)));
    let elements = elements.ok_or_else(|| overflow(&format!("the product of the dimensions {shape:?}")))?;
    if shape[0] % format.block_len() as u64 != 0 {
        return Err(ErrorKind::Block { tensor: name, row: shape[0], format }.into());
    }
    let blocks = elements / format.block_len() as u64;
    let len = fits(blocks.checked_mul(format.block_bytes() as u64)).ok_or_else(|| overflow("the size"))?;
    let start =
        fits(data_start.checked_add(offset)).ok_or_else(|| overflow(&format!("the offset {offset}")))?;
    let end =
        fits(start.checked_add(len)).ok_or_else(|| overflow(&format!("offset {offset} plus size {len}")))?;
    // The writer pads the last tensor too, but a file may end without the padding: only the running total counts.
    fits(end.checked_next_multiple_of(alignment)).ok_or_else(|| overflow("the padded end"))?;
    if offset % alignment != 0 {
        return Err(ErrorKind::Misaligned { tensor: name, offset, alignment }.into());
    }
    if end > file_len {
        return Err(ErrorKind::Incomplete { tensor: name, end, len: file_len }.into());
    }
    Ok(TensorInfo { name, shape, format, part: 0, offset: start, len })
}

/// Names of formats that exist but are not read.
fn unsupported_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
