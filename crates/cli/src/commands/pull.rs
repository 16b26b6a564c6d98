//! `smelt pull`: fetches a model, or lists those that can be had by name.

use crate::args::PullArgs;
use crate::error::{Error, Result};
use crate::load;
use crate::output::{Download, Output, print};
use hub::{ALIASES, Options};
use indicatif::DecimalBytes;

/// Runs the command; prints where the file is.
pub fn run(args: &PullArgs, output: &Output) -> Result<()> {
    let options = Options { verify: args.verify, ..load::hub_options(output) };
    let model = match &args.model {
        Some(model) => model,
        None if args.list => return list(&options),
        None => {
            return Err(Error::Usage("expected a MODEL; `smelt pull --list` shows those with a name".into()));
        }
    };
    let path = hub::resolve(model, &options, &mut Download::new(output))?;
    // Whoever prepares a machine wants to hear now that a file is damaged.
    gguf::File::open(&path)?;
    print(&format!("{}\n", path.display()))
}

/// The aliases, then what else is in the cache.
fn list(options: &Options) -> Result<()> {
    let cached = hub::list_cached(options).map_err(Error::Hub)?;
    let mut text = String::new();
    for alias in ALIASES {
        let here = if cached.iter().any(|model| model.spec == alias.name) { "here" } else { "" };
        let size = DecimalBytes(alias.size).to_string();
        text.push_str(&format!("{:<20} {size:>10}  {here:<4}  {}\n", alias.name, alias.description));
    }
    for model in cached.iter().filter(|model| hub::Alias::find(&model.spec).is_none()) {
        let size = DecimalBytes(model.size).to_string();
        text.push_str(&format!("{:<20} {size:>10}  here  {}\n", model.spec, model.path.display()));
    }
    print(&text)
}
