//! Tokenizers from GGUF vocabularies: byte-level BPE and SentencePiece.
