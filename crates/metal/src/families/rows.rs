//! Gathering rows by index.

use super::args::kernel_args;
use super::{COMMON, FORMATS, Library};

pub(crate) const LIBRARY: Library = Library {
    name: "rows",
    files: &[
        ("rows_args.h", GetRowsArgs::MSL),
        COMMON,
        FORMATS,
        ("rows.metal", include_str!("../../kernels/rows.metal")),
    ],
    constants: &[],
};

kernel_args! {
    struct GetRowsArgs {
        row_bytes: u64,
        cols: i32,
        table_rows: i32,
    }
}
