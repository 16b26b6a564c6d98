use std::fmt;

/// Why a template could not be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The template's text is not a valid template.
    Syntax {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// The template refused the conversation by calling `raise_exception`; its own words.
    Raised(String),
    /// The template failed, as it would in Python: an operation on a missing value, an unknown filter, a
    /// value of a wrong type.
    Failed {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
        /// What failed.
        message: String,
    },
    /// The template did more work than any honest template does on a conversation of this size.
    OutOfFuel {
        /// The budget: about one per instruction, and one per 64 bytes of data made.
        limit: u64,
    },
    /// The rendered text would be longer than any honest prompt for a conversation of this size.
    TooLong {
        /// The largest size allowed, in bytes.
        limit: usize,
    },
    /// The template calls itself or nests too deeply.
    TooDeep {
        /// Line in the template, from 1; 0 if unknown.
        line: usize,
    },
    /// The template compares without end, which the budget does not count.
    TooSlow {
        /// How long it was waited for, in seconds.
        seconds: u64,
    },
    /// Renderings that were given up still run, so that no other is begun: it may be in a while.
    Stuck {
        /// How many.
        renderings: usize,
    },
    /// The conversation has more of the signs that control tokens are made of than can be told apart.
    TooManyMarks {
        /// How many.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A message is not a JSON object.
    NotAnObject {
        /// Index in the conversation.
        index: usize,
        /// What it is instead.
        found: &'static str,
    },
    /// The conversation has no message.
    Empty,
    /// The conversation is full of control tokens that the template acts on, so that it cannot be told what in
    /// the text is the template's own.
    Ambiguous {
        /// How often it was rendered to find out.
        renderings: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |line: &usize| if *line == 0 { String::new() } else { format!(" in line {line}") };
        match self {
            Self::Syntax { line, message } => {
                write!(f, "the chat template is not valid{}: {message}", at(line))
            }
            Self::Raised(message) => write!(f, "the chat template refuses this conversation: {message}"),
            Self::Failed { line, message } => write!(f, "the chat template failed{}: {message}", at(line)),
            Self::OutOfFuel { limit } => {
                write!(f, "the chat template did not finish within its budget of {limit} steps")
            }
            Self::TooLong { limit } => {
                write!(f, "the chat template wrote more than {limit} bytes, the most that is allowed here")
            }
            Self::TooDeep { line } => write!(f, "the chat template nests too deeply{}", at(line)),
            Self::TooSlow { seconds } => {
                write!(f, "the chat template was not done after {seconds} s")
            }
            Self::Stuck { renderings } => write!(
                f,
                "the chat template is not rendered now: {renderings} renderings that were given up still run, the most \
                 that are allowed"
            ),
            Self::TooManyMarks { found, most } => write!(
                f,
                "the conversation has {found} signs that control tokens begin or end with, expected at most {most}"
            ),
            Self::NotAnObject { index, found } => {
                write!(f, "message {index} is {found}, expected an object with a role and a content")
            }
            Self::Ambiguous { renderings } => write!(
                f,
                "the conversation holds too many control tokens that the chat template acts on: after {renderings} \
                 renderings it is not known which are the template's own"
            ),
            Self::Empty => f.write_str("the conversation is empty, expected at least one message"),
        }
    }
}

impl std::error::Error for Error {}
