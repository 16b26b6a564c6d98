//! The `smelt` program.
fn main() {}
