//! The alphabet of byte-level BPE: a printable character for each byte (as in GPT-2), so that tokens are text.

/// The character of a byte: itself where it is printable in Latin-1, or else the next of those from U+0100 on.
pub(crate) fn char_of(byte: u8) -> char {
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or('\u{fffd}')
}

fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The bytes that a token's text stands for; `None` if a character is not of the alphabet.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    if let Ok(byte) = u8::try_from(code)
        && printable(byte)
    {
        return Some(byte);
    }
    let index = code.checked_sub(0x100)? as usize;
    (0..=255u8).filter(|&b| !printable(b)).nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let text: String = (0..=255).map(char_of).collect();
        assert_eq!(decode(&text), Some((0..=255).collect()));
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!(decode("a b"), None);
    }
}
