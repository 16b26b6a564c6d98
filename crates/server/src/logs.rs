//! Where logs go and what they look like.

use tracing_subscriber::EnvFilter;

/// What a line of the log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// Sends the program's logs to stderr. `RUST_LOG` chooses what; by default everything from `info` up. A second call has
/// no effect.
pub fn init_logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // Where stderr is gone, a complaint about that would panic in the middle of a request.
        .log_internal_errors(false);
    // An error means that logs go somewhere already.
    let _ = match format {
        LogFormat::Text => logs.with_ansi(false).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).try_init(),
    };
}
