//! Fetches a model and prints where it is: `cargo run -p smelt-hub --example pull -- smollm2 [--verify]`.

use std::process::ExitCode;

/// Prints each step on its own line with a percentage that overwrites itself.
#[derive(Default)]
struct Terminal {
    percent: u64,
}

impl hub::Progress for Terminal {
    fn message(&mut self, text: &str) {
        self.percent = 0;
        eprintln!("\r{text}");
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        let Some(total) = total else { return };
        let percent = done * 100 / total.max(1);
        if percent != self.percent {
            self.percent = percent;
            eprint!("\r{percent:3} %");
        }
    }
}

fn main() -> ExitCode {
    let mut options = hub::Options::from_env();
    let mut specs = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--verify" => options.verify = true,
            _ => specs.push(argument),
        }
    }
    if specs.is_empty() {
        specs.push(hub::DEFAULT_ALIAS.to_owned());
    }
    for spec in specs {
        match hub::resolve(&spec, &options, &mut Terminal::default()) {
            Ok(path) => println!("{}", path.display()),
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
