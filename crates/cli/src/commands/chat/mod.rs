//! `smelt chat`: a conversation that keeps its KV cache.

mod command;
mod lines;
mod session;

use crate::args::ChatArgs;
use crate::error::{Error, Result};
use crate::exit::describe;
use crate::output::{Output, print};
use crate::{interrupt, load};
use command::Command;
use engine::Engine;
use lines::{Line, Lines};
use session::Session;
use std::fs;
use std::path::Path;

/// Runs the command.
pub fn run(args: &ChatArgs, output: &Output) -> Result<()> {
    let options = args.sampling.options()?;
    if args.template.as_deref() == Some(Path::new("-")) {
        return Err(Error::Usage("stdin is the conversation, so --template cannot be `-`".into()));
    }
    let mut engine = load::engine(&args.model, &args.load, output)?;
    args.sampling.check(engine.tokenizer())?;
    let mut session = Session::new(&engine, args, options)?;
    let mut lines = Lines::new(output);
    loop {
        let line = match lines.next()? {
            Line::Text(line) => line,
            Line::Interrupted => continue,
            Line::Invalid => {
                output.error("terminal: expected UTF-8, found an invalid byte; the line is dropped");
                continue;
            }
            Line::End => return Ok(()),
        };
        if line.trim().is_empty() {
            continue;
        }
        let command = match Command::parse(&line) {
            Ok(command) => command,
            Err(message) if lines.interactive() => {
                output.error(&message);
                continue;
            }
            // Going on without what was meant would only go wrong later, and out of sight.
            Err(message) => return Err(Error::Content { path: "stdin".into(), message }),
        };
        if command == Command::Exit {
            return Ok(());
        }
        // A person wants the conversation back, whatever a turn is doing; a script wants its end.
        let polled = lines.interactive().then(interrupt::polled);
        let done = turn(command, &mut session, &mut engine, output);
        drop(polled);
        // What goes wrong in a turn does not end the conversation, unless nobody is listening any more or would see
        // it: a script wants to know.
        match done {
            Ok(()) => {}
            Err(error @ Error::Stdout(_)) => return Err(error),
            Err(error) if lines.interactive() => {
                output.error(&describe(&error));
                if matches!(error, Error::Engine(engine::Error::ContextExceeded { .. })) {
                    output.info("/undo or /clear makes room");
                }
            }
            Err(error) => return Err(error),
        }
        if interrupt::take() && !lines.interactive() {
            return Err(Error::Interrupted);
        }
    }
}

fn turn(command: Command, session: &mut Session, engine: &mut Engine, output: &Output) -> Result<()> {
    match command {
        Command::Say(text) => session.say(engine, &text, output),
        Command::Regenerate => session.regenerate(engine, output),
        Command::Undo => {
            output.info(if session.undo() { "forgot the last question" } else { "nothing to forget" });
            Ok(())
        }
        Command::Clear => {
            session.clear();
            output.info("a new conversation");
            Ok(())
        }
        Command::System(text) => {
            session.set_system(&text);
            output.info(if text.is_empty() { "no system message" } else { "system message set" });
            Ok(())
        }
        Command::Save(path) => {
            load::replaceable(Path::new(&path), "[", "a conversation")?;
            let text = session.to_json() + "\n";
            fs::write(&path, text).map_err(Error::file(Path::new(&path)))?;
            output.info(format_args!("{path}: saved {}", session.count()));
            Ok(())
        }
        Command::Load(path) => {
            let path = Path::new(&path);
            session.load(path, &crate::input::file(path)?)?;
            output.info(format_args!("{}: loaded {}", path.display(), session.count()));
            Ok(())
        }
        Command::Stats => print(&session.stats(engine)),
        Command::Help => print(command::HELP),
        Command::Exit => Ok(()),
    }
}
