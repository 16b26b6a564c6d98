//! Where models come from: paths, aliases, pip packages and Hugging Face repositories.
