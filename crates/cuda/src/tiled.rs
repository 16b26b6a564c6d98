//! How weights lie on the device for products: the sizes of what `kernels/tiled.cuh` describes.

use quant::Format;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes before the first record.
pub(crate) const HEADER: usize = 256;

/// Scales of a unit, as bytes for a number of columns.
enum Scales {
    None,
    /// A half for 32 columns of each of the 16 rows.
    Half,
    /// Two halves, or a float.
    Pair,
    /// 16 bytes for 256 columns.
    Header,
    /// A byte for 16, a half for 256.
    Bytes,
    /// A byte for 16, two halves for 256.
    TwoBytes,
}

/// What the kernel for one row needs to know of activations: the sums over columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Columns that share a scale; 0 for floats, which have none.
    pub(crate) span: usize,
    /// Whether there are minimums.
    pub(crate) min: bool,
}

/// The sums that a format needs.
pub(crate) fn sums(format: Format) -> Sums {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => Sums { span: 0, min: false },
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => Sums { span: 32, min: true },
        Format::Q2_K => Sums { span: 16, min: true },
        Format::Q3_K | Format::Q6_K | Format::IQ4_XS => Sums { span: 16, min: false },
        _ => Sums { span: 32, min: false },
    }
}

/// Bytes that 128 columns of activations take in shared memory, for products with these formats: floats alone, or none.
pub(crate) fn set_bytes(formats: &[Format]) -> usize {
    let any = |is: &dyn Fn(Sums) -> bool| formats.iter().any(|&format| is(sums(format)));
    if any(&|sums| sums.span == 0) {
        return 512;
    }
    let sums = [(32, 16), (16, 32)].map(|(span, bytes)| {
        let kinds = [false, true].map(|min| any(&|sums| sums == Sums { span, min }));
        kinds.into_iter().filter(|&is| is).count() * bytes
    });
    256 + 16 + sums[0] + sums[1]
}

/// The record of a format; `None` if there are no products with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Columns.
    pub(crate) unit: usize,
    /// Bytes.
    pub(crate) bytes: usize,
}

/// The record of a format's tiles.
pub(crate) fn record(format: Format) -> Option<Record> {
    let (bits, scales, unit) = match format {
        Format::F32 => (32, Scales::None, 64),
        Format::F16 | Format::BF16 => (16, Scales::None, 128),
        Format::Q4_0 | Format::IQ4_NL => (4, Scales::Half, 128),
        Format::Q4_1 => (4, Scales::Pair, 128),
        Format::Q5_0 => (5, Scales::Half, 128),
        Format::Q5_1 => (5, Scales::Pair, 128),
        Format::Q8_0 => (8, Scales::Half, 128),
        Format::MXFP4 => (4, Scales::Pair, 128),
        Format::Q2_K => (2, Scales::TwoBytes, 256),
        Format::Q3_K => (3, Scales::Bytes, 256),
        Format::Q4_K => (4, Scales::Header, 256),
        Format::Q5_K => (5, Scales::Header, 256),
        Format::Q6_K => (6, Scales::Bytes, 256),
        Format::IQ4_XS => (4, Scales::Bytes, 256),
        Format::Q8_K => return None,
    };
    let scales = match scales {
        Scales::None => 0,
        Scales::Half | Scales::Header => unit,
        Scales::Pair => unit * 2,
        Scales::Bytes => unit + unit / 8,
        Scales::TwoBytes => unit + unit / 4,
    };
    Some(Record { unit, bytes: bits * unit * TILE_ROWS / 8 + scales })
}

/// Tiles of a matrix, units of its columns, and bytes of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) tiles: u32,
    pub(crate) units: u32,
    pub(crate) bytes: usize,
}

/// The shape of a matrix in tiles; `None` if there are no products with it or its size overflows.
pub(crate) fn shape(format: Format, rows: usize, cols: usize) -> Option<Shape> {
    let record = record(format)?;
    let (tiles, units) = (rows.div_ceil(TILE_ROWS), cols.div_ceil(record.unit));
    let bytes = tiles.checked_mul(units)?.checked_mul(record.bytes)?.checked_add(HEADER)?;
    Some(Shape { tiles: u32::try_from(tiles).ok()?, units: u32::try_from(units).ok()?, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_take_about_the_bytes_of_the_file() {
        for format in Format::ALL {
            let Some(record) = record(format) else {
                assert_eq!(format, Format::Q8_K);
                continue;
            };
            let file =
                16 * format.row_bytes(record.unit.max(256)).unwrap() * record.unit / record.unit.max(256);
            let more = record.bytes as f64 / file as f64;
            // Scales of an odd number of bits are widened in the rarer formats.
            let most = if format == Format::MXFP4 { 1.18 } else { 1.08 };
            assert!((0.999..most).contains(&more), "{format}: {} of {file} bytes", record.bytes);
            assert_eq!(record.bytes % 16, 0, "{format}");
        }
        assert_eq!(shape(Format::Q4_K, 17, 257), Some(Shape { tiles: 2, units: 2, bytes: 256 + 4 * 2304 }));
        assert_eq!(shape(Format::Q8_K, 16, 256), None);
        assert_eq!(shape(Format::F32, usize::MAX, usize::MAX), None);
    }
}
