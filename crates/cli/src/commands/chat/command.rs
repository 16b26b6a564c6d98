//! The `/` commands of a conversation.

/// What `/help` prints.
pub const HELP: &str = "\
/help          this text
/clear         begin again; the system message stays
/system TEXT   set the system message; without TEXT, remove it
/save FILE     write the conversation as a JSON array of messages
/load FILE     go on from such a file
/stats         tokens and times of the last answer
/undo          forget the last question and its answer
/regen         answer the last question again
/exit, /quit   leave; so does the end of input (Ctrl-D)
Ctrl-C ends an answer; a line that begins with // is a message that begins with /
";

/// A line of the user's.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// A message to the model.
    Say(String),
    /// Answer the last message again.
    Regenerate,
    /// Forget the last message and its answer.
    Undo,
    /// Forget everything but the system message.
    Clear,
    /// Set the system message.
    System(String),
    /// Write the conversation to a file.
    Save(String),
    /// Read a conversation from a file.
    Load(String),
    /// Print tokens and times.
    Stats,
    /// Print the commands.
    Help,
    /// Leave.
    Exit,
}

impl Command {
    /// Reads a line; the error is one for the user.
    pub fn parse(line: &str) -> Result<Command, String> {
        let Some(command) = line.strip_prefix('/') else { return Ok(Command::Say(line.into())) };
        if command.starts_with('/') {
            return Ok(Command::Say(command.into()));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let file =
            || if rest.is_empty() { Err(format!("/{name} needs a FILE")) } else { Ok(rest.to_owned()) };
        let alone = |command| {
            if rest.is_empty() { Ok(command) } else { Err(format!("/{name} takes nothing, found '{rest}'")) }
        };
        match name {
            "help" => alone(Command::Help),
            "clear" => alone(Command::Clear),
            "system" => Ok(Command::System(rest.into())),
            "save" => file().map(Command::Save),
            "load" => file().map(Command::Load),
            "stats" => alone(Command::Stats),
            "undo" => alone(Command::Undo),
            "regen" => alone(Command::Regenerate),
            "exit" | "quit" => alone(Command::Exit),
            _ => Err(format!("unknown command '/{name}': /help lists them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_unless_they_begin_with_a_slash() {
        assert_eq!(Command::parse("a /clear b"), Ok(Command::Say("a /clear b".into())));
        assert_eq!(Command::parse("//clear"), Ok(Command::Say("/clear".into())));
        assert_eq!(Command::parse("/clear "), Ok(Command::Clear));
        assert_eq!(Command::parse("/system Be brief. "), Ok(Command::System("Be brief.".into())));
        assert_eq!(Command::parse("/save a b.json"), Ok(Command::Save("a b.json".into())));
    }

    #[test]
    fn what_is_wrong_with_a_command_is_said() {
        assert_eq!(Command::parse("/load"), Err("/load needs a FILE".into()));
        assert_eq!(Command::parse("/undo 2"), Err("/undo takes nothing, found '2'".into()));
        assert_eq!(Command::parse("/what"), Err("unknown command '/what': /help lists them".into()));
    }

    #[test]
    fn the_help_has_every_command() {
        for name in ["help", "clear", "system", "save", "load", "stats", "undo", "regen", "exit", "quit"] {
            let listed = |line: &str| line.split([' ', ',']).any(|word| word.strip_prefix('/') == Some(name));
            assert!(HELP.lines().any(listed), "{name}");
        }
    }
}
