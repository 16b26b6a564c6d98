//! The `smelt` program: runs large language models from GGUF files.
//!
//! `args.rs` has every flag, `commands/` a file per command. Answers go to stdout, everything else to stderr.
//! This crate does not know how anything is computed.

mod allocator;
mod args;
mod commands;
mod error;
mod exit;
mod input;
mod interrupt;
mod load;
mod logprobs;
mod output;
mod prompt;
mod system;
mod version;

use args::{Cli, Command};
use clap::Parser;
use output::Output;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    interrupt::install();
    system::tell_of_file_limits();
    let Cli { command, global } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::parsed(&error),
    };
    let output = Output::new(&global);
    let result = match &command {
        Command::Run(args) => commands::run::run(args, &output),
        Command::Chat(args) => commands::chat::run(args, &output),
        Command::Serve(args) => commands::serve::run(args, &output),
        Command::Inspect(args) => commands::inspect::run(args, &output),
        Command::Tokenize(args) => commands::tokenize::run(args, &output),
        Command::Template(args) => commands::template::run(args, &output),
        Command::Perplexity(args) => commands::perplexity::run(args, &output),
        Command::Bench(args) => commands::bench::run(args, &output),
        Command::Pull(args) => commands::pull::run(args, &output),
        Command::Devices(args) => commands::devices::run(args, &output),
    };
    exit::code(result, &output)
}
