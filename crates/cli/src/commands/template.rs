//! `smelt template`: renders a chat template, to see exactly what a model is given.

use crate::args::TemplateArgs;
use crate::error::{Error, Result};
use crate::output::{Output, print, print_json};
use crate::prompt::{self, ChatFormat};
use crate::{input, load};
use chat::{Conversation, RenderOptions, Rendered};
use serde_json::Value;
use std::path::Path;

/// Runs the command.
pub fn run(args: &TemplateArgs, output: &Output) -> Result<()> {
    if args.model == "-" {
        return print(&without_model(args)?.text);
    }
    let conversation = conversation(args)?;
    let path = load::resolve(&args.model, output)?;
    let (file, tokenizer) = load::vocabulary(&path)?;
    let model = prompt::Model { path: &path, metadata: file.metadata(), tokenizer: &tokenizer };
    let Some(format) = ChatFormat::new(&model, args.template.as_deref(), conversation.tools.is_some())?
    else {
        let message = "the model has no chat template ('tokenizer.chat_template'); give one with --template";
        return Err(Error::Content { path, message: message.into() });
    };
    let rendered =
        format.render_with(&conversation, &with_flags(format.options(), args)).map_err(at_messages(args))?;
    if args.ids { print_json(&format.encode(&rendered)) } else { print(&rendered.text) }
}

/// With a template alone there are no ids, and the begin and end tokens are what the flags say.
fn without_model(args: &TemplateArgs) -> Result<Rendered> {
    let Some(path) = &args.template else {
        return Err(Error::Usage("MODEL '-' needs --template FILE".into()));
    };
    if args.ids {
        return Err(Error::Usage("--ids needs a MODEL: a template alone has no vocabulary".into()));
    }
    let template = prompt::template(&input::file(path)?, path)?;
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    prompt::render(&template, path, &conversation(args)?, &with_flags(options, args))
        .map_err(at_messages(args))
}

/// An error that is the messages' own names their file, not the template's.
fn at_messages(args: &TemplateArgs) -> impl FnOnce(Error) -> Error + '_ {
    |error| match error {
        Error::Template {
            source: source @ (chat::Error::NotAnObject { .. } | chat::Error::Empty), ..
        } => Error::Content { path: input::name(&args.messages).into(), message: source.to_string() },
        error => error,
    }
}

fn with_flags(mut options: RenderOptions, args: &TemplateArgs) -> RenderOptions {
    options.add_generation_prompt = !args.no_generation_prompt;
    if let Some(bos) = &args.bos {
        options.bos_token.clone_from(bos);
    }
    if let Some(eos) = &args.eos {
        options.eos_token.clone_from(eos);
    }
    options
}

fn conversation(args: &TemplateArgs) -> Result<Conversation> {
    let messages = json_array(&args.messages, "messages")?;
    let tools = args.tools.as_deref().map(|path| json_array(path, "tools")).transpose()?.map(Value::Array);
    Ok(Conversation { messages, tools })
}

fn json_array(path: &Path, items: &str) -> Result<Vec<Value>> {
    input::json_array(&input::file(path)?, path, items)
}
