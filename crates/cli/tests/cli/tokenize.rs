use crate::tiny;
use crate::util::Dir;
use serde_json::json;

#[test]
fn ids_and_their_texts() {
    let dir = Dir::new();
    dir.file("v.gguf", tiny::vocabulary());
    assert_eq!(dir.smelt(&["tokenize", "v.gguf", "a\n"]).ok(), "     97  'a'\n     10  '\\n'\n");
    assert_eq!(dir.smelt(&["tokenize", "v.gguf", "é", "--json"]).json(), json!([0xc3, 0xa9]));
}

#[test]
fn special_tokens_are_parsed_unless_told_otherwise() {
    let dir = Dir::new();
    dir.file("v.gguf", tiny::vocabulary());
    let ids =
        |args: &[&str]| dir.smelt(&[&["tokenize", "v.gguf", "a<|im_end|>", "--json"], args].concat()).json();
    assert_eq!(ids(&[]), json!([97, tiny::END]));
    assert_eq!(ids(&["--no-special"]).as_array().unwrap().len(), "a<|im_end|>".len());
}

#[test]
fn the_text_comes_from_an_argument_a_file_or_stdin() {
    let dir = Dir::new();
    dir.file("v.gguf", tiny::vocabulary());
    dir.file("t.txt", "ab\n");
    let expected = json!([97, 98, 10]);
    assert_eq!(dir.smelt(&["tokenize", "v.gguf", "ab\n", "--json"]).json(), expected);
    assert_eq!(dir.smelt(&["tokenize", "v.gguf", "-f", "t.txt", "--json"]).json(), expected);
    assert_eq!(dir.smelt_with(&["tokenize", "v.gguf", "--json"], "ab\n").json(), expected);
    assert_eq!(dir.smelt_with(&["tokenize", "v.gguf", "-f", "-", "--json"], "ab\n").json(), expected);
    dir.file("bad.txt", b"ab\xff");
    let message = dir.smelt(&["tokenize", "v.gguf", "-f", "bad.txt"]).fails(1);
    assert!(message.contains("bad.txt") && message.contains("byte at 2"), "{message}");
}
