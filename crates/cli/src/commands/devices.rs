//! `smelt devices`: lists the devices that can run models.

use crate::args::DevicesArgs;
use crate::error::Result;
use crate::output::{print, print_json};
use engine::Device;
use serde::Serialize;

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    description: String,
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> Result<()> {
    let devices = Device::available().into_iter().map(|(name, description)| Entry { name, description });
    if args.json {
        return print_json(&devices.collect::<Vec<_>>());
    }
    print(&devices.map(|device| format!("{:<10} {}\n", device.name, device.description)).collect::<String>())
}
