//! What the user sees: answers on stdout; progress, statistics and messages on stderr.

use crate::args::GlobalArgs;
use crate::error::{Error, Result};
use indicatif::{DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How much to say on stderr.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Progress bars: only on a terminal.
    progress: bool,
    statistics: bool,
    warnings: bool,
    /// Whether models may be fetched.
    pub offline: bool,
}

impl Output {
    /// By the flags, and by what stderr is.
    pub fn new(args: &GlobalArgs) -> Output {
        let terminal = io::stderr().is_terminal();
        Output {
            progress: terminal && !args.quiet,
            statistics: (terminal || args.verbose) && !args.quiet,
            warnings: !args.quiet,
            offline: args.offline,
        }
    }

    /// The one line of a failure.
    pub fn error(&self, message: &str) {
        stderr_line(&format!("error: {message}"));
    }

    /// Something that may matter.
    pub fn warning(&self, message: impl Display) {
        if self.warnings {
            stderr_line(&format!("warning: {message}"));
        }
    }

    /// Statistics, and what a download is doing.
    pub fn note(&self, message: impl Display) {
        if self.statistics {
            stderr_line(&message.to_string());
        }
    }

    /// What the program should say whatever stderr is, unless told to be quiet.
    pub fn info(&self, message: impl Display) {
        if self.warnings {
            stderr_line(&message.to_string());
        }
    }

    /// One line per step of long work, where no bar shows it.
    pub fn step(&self, message: impl Display) {
        if !self.progress {
            self.info(message);
        }
    }

    /// A bar that counts steps; invisible where progress is.
    pub fn steps(&self, what: &'static str, total: u64) -> ProgressBar {
        self.bar(Some(total), "{prefix} {bar:30} {pos}/{len}").with_prefix(what)
    }

    /// A bar that counts bytes.
    pub fn bytes(&self, total: Option<u64>) -> ProgressBar {
        let template = match total {
            Some(_) => "{bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
            None => "{spinner} {decimal_bytes} {decimal_bytes_per_sec}",
        };
        self.bar(total, template)
    }

    fn bar(&self, total: Option<u64>, template: &str) -> ProgressBar {
        let target = if self.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target);
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style.progress_chars("=> ")),
            // The templates are constants; a plain bar is no reason to end the program.
            Err(_) => bar,
        }
    }
}

/// Shows a model's download: a line per step, and a bar while bytes come, or their number where there are no bars.
pub struct Download<'a> {
    output: &'a Output,
    bar: Option<ProgressBar>,
    /// Whether the size of this step was told, where no bar tells it.
    told: bool,
}

impl<'a> Download<'a> {
    /// Nothing is shown until something happens.
    pub fn new(output: &'a Output) -> Download<'a> {
        Download { output, bar: None, told: false }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl hub::Progress for Download<'_> {
    fn message(&mut self, text: &str) {
        self.clear();
        self.told = false;
        self.output.info(text);
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        if let Some(total) = total.filter(|_| !self.output.progress && !self.told) {
            self.told = true;
            self.output.info(format_args!("  {}", DecimalBytes(total)));
        }
        let bar = self.bar.get_or_insert_with(|| self.output.bytes(total));
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}

impl Drop for Download<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Writes to stdout and flushes: a piece of an answer should be seen when it is there.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::Stdout)
}

/// Writes a value as one line of JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|error| Error::Stdout(error.into()))?;
    print(&(text + "\n"))
}

/// Writes a line to stderr. Nobody can be told if stderr is gone.
pub fn stderr_line(text: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless(text));
}

/// A text whose control characters a terminal shows in place of obeying them: names in messages come from files, and
/// files from strangers. Lines stay lines.
fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn a_terminal_obeys_nothing_in_a_message() {
        assert_eq!(harmless("a\x1b[31mb\rc\u{9b}d\0"), "a\\u{1b}[31mb\\rc\\u{9b}d\\u{0}");
        assert_eq!(harmless("ä\tb\nc"), "ä\tb\nc");
    }
}
