//! Prints the ids of a text: `ids FILE.gguf TEXT`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (file, text) = (args.next().ok_or("a GGUF file")?, args.next().ok_or("a text")?);
    let tokenizer = tokenizer::Tokenizer::from_metadata(gguf::File::open(file)?.metadata())?;
    let options = tokenizer::EncodeOptions { add_special: true, parse_special: true };
    println!("{:?}", tokenizer.encode(&text, options));
    Ok(())
}
