#![doc = include_str!("../README.md")]

pub mod compile;
pub mod device;
pub mod lint;
pub mod profile;
pub mod record;
pub mod runtime;
pub mod sanitize;
pub mod scan;
