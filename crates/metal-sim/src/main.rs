//! The command line of the simulator: `metal-sim run`, `metal-sim check`, `metal-sim translate`.

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
            eprintln!("metal-sim: {message}");
            ExitCode::FAILURE
        }
    }
}
