//! `smelt tokenize`: turns text into token ids.

use crate::args::TokenizeArgs;
use crate::error::{Error, Result};
use crate::output::{Output, print, print_json};
use crate::prompt::token_text;
use crate::{input, load};
use tokenizer::EncodeOptions;

/// Runs the command.
pub fn run(args: &TokenizeArgs, output: &Output) -> Result<()> {
    let text = match &args.text[..] {
        [] => None,
        [text] => Some(text.as_str()),
        // Joined they would have the spaces that the shell left of them, and those have tokens.
        [first, second, ..] => {
            let message = format!("one TEXT expected, found '{first}' and '{second}': put it in quotes");
            return Err(Error::Usage(message));
        }
    };
    let path = load::resolve(&args.model.model, output)?;
    let text = input::text(text, args.file.as_deref(), "text")?;
    let (_, tokenizer) = load::vocabulary(&path)?;
    let options = EncodeOptions { add_special: !args.no_bos, parse_special: !args.no_special };
    let ids = tokenizer.encode(&text, options);
    if args.json {
        return print_json(&ids);
    }
    let mut lines = String::new();
    for id in ids {
        lines.push_str(&format!("{id:>7}  '{}'\n", token_text(&tokenizer, id).escape_debug()));
    }
    print(&lines)
}
