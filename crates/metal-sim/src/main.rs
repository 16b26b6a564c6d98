//! The command line of the simulator: `metal-sim run`, `metal-sim check`, `metal-sim translate`.

use std::io::Write;
use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut text = String::new();
    let result = cli::run(&arguments, &mut text);
    // Whoever reads may have left: `metal-sim check ... | head`.
    let _ = std::io::stdout().write_all(text.as_bytes());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("metal-sim: {message}");
            ExitCode::FAILURE
        }
    }
}
