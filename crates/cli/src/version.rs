//! What `--version` says.

use engine::Device;

/// Version, target, and what the devices are: what a bug report needs.
pub fn long() -> String {
    let mut text = format!(
        "{}\ntarget: {}-{}{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        if cfg!(debug_assertions) { " (debug build)" } else { "" }
    );
    for (name, description) in Device::available() {
        text.push_str(&format!("\n{name}: {description}"));
    }
    text
}
