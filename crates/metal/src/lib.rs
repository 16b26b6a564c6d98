//! The Metal backend.
//!
//! [`device`] is the narrow waist: everything above it is written once over the [`device::Device`] trait,
//! everything below it is one implementation (Apple's API on macOS, the simulator anywhere).
//!
//! ```
//! use metal::device::Size;
//!
//! // A grid of 100 threads in threadgroups of 32: four threadgroups, the last one partial.
//! assert_eq!(Size::width(100).div_ceil(Size::width(32)), Size::width(4));
//! ```

pub mod device;
