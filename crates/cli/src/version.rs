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
    // The text is made with the command line's description, on every start; devices are only opened for who asks.
    if std::env::args_os().any(|argument| argument == "--version") {
        for (name, description) in Device::available() {
            text.push_str(&format!("\n{name}: {description}"));
        }
    }
    text
}
