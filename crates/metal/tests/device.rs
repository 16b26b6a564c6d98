//! The contract of the device trait on the simulator anywhere, on Apple's API on a Mac.

mod contract;

contract!(sim, metal_sim::device::SimDevice::from_environment().expect("the simulator needs clang"));
#[cfg(target_os = "macos")]
contract!(objc, metal::device::objc::ObjcDevice::system_default().expect("a Mac has a GPU"));
