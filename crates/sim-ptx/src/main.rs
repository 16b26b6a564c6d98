//! The command line: `sim-ptx build`, `sim-ptx pack`, `sim-ptx replay`, `sim-ptx bench`.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match cli::run(&arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("sim-ptx: {message}");
            ExitCode::FAILURE
        }
    }
}
