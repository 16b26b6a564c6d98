//! Rendering for tests that are about the template alone.

use chat::{Conversation, Error, RenderOptions, Template};

/// Renders a template on one user message, `Hello`.
pub fn render(template: &str) -> Result<String, Error> {
    let messages = vec![serde_json::json!({"role": "user", "content": "Hello"})];
    let conversation = Conversation { messages, tools: None };
    Template::new(template)?.render(&conversation, &RenderOptions::default()).map(|rendered| rendered.text)
}
