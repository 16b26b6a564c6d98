//! Exit codes, and the last words of a command that failed.

use crate::args::GlobalArgs;
use crate::error::{Error, Result};
use crate::output::Output;
use std::error::Error as StdError;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// It failed.
const FAILURE: u8 = 1;
/// The command line is wrong; clap's own code for it, too.
const USAGE: u8 = 2;
/// Interrupted: 128 and the number of SIGINT, as shells tell it.
pub const INTERRUPTED: u8 = 130;

/// Reports an error and turns a command's result into the program's.
pub fn code(result: Result<()>, output: &Output) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    match &error {
        Error::Stdout(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        // Whoever pressed Ctrl-C knows.
        Error::Interrupted => return INTERRUPTED.into(),
        _ => output.error(&describe(&error)),
    }
    failed(&error).into()
}

/// The exit code of a failure that was told.
fn failed(error: &Error) -> u8 {
    match error {
        Error::Hint { error, .. } => failed(error),
        Error::Usage(_)
        | Error::Engine(engine::Error::Option { .. })
        | Error::Server(
            server::Error::Unprotected { .. }
            | server::Error::Option { .. }
            | server::Error::Engine(engine::Error::Option { .. }),
        ) => USAGE,
        _ => FAILURE,
    }
}

/// Prints what became of a command line that names no command to run: the help, the version, or what is wrong.
pub fn parsed(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        // Nobody can be told if stderr is gone.
        let _ = error.print();
        return USAGE.into();
    }
    let printed = error.print().and_then(|()| io::stdout().flush()).map_err(Error::Stdout);
    code(printed, &Output::new(&GlobalArgs::default()))
}

/// The error and its causes on one line. Most errors tell their cause themselves; what was told is not repeated.
pub fn describe(error: &Error) -> String {
    let mut text = one_line(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = one_line(&error.to_string());
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    if is_out_of_address_space(error) {
        text.push_str(
            "; models are mapped into memory: the process needs address space for the file (`ulimit -v`)",
        );
    }
    text
}

/// Whether a model's file could not be mapped, which takes addresses and no memory.
fn is_out_of_address_space(error: &Error) -> bool {
    let mut file = match error {
        Error::Gguf(error) | Error::Engine(engine::Error::File(error)) => error,
        Error::Hint { error, .. } => return is_out_of_address_space(error),
        _ => return false,
    };
    while let gguf::Error::InFile { error, .. } = file {
        file = error;
    }
    matches!(file, gguf::Error::Io(error) if error.kind() == ErrorKind::OutOfMemory)
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_cause_is_told_once() {
        let error = Error::file(Path::new("a.gguf"))(io::Error::other("disk on fire"));
        assert_eq!(describe(&error), "a.gguf: disk on fire");
    }

    #[test]
    fn many_lines_become_one() {
        assert_eq!(describe(&Error::Usage("first:\n  second\n\nthird\n".into())), "first:; second; third");
    }
}
