//! Chat templates, rendered as Python's transformers renders them.
