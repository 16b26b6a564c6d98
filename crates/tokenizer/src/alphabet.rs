//! The alphabet of byte-level BPE: a printable character for each byte (as in GPT-2), so that tokens are text.

/// Bytes that are printable in Latin-1 stand for themselves.
const fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Characters beyond Latin-1 that the alphabet uses, from U+0100 on: one for each byte that is not printable.
const EXTRA: usize = 68;

/// The byte of each of those characters: the bytes that are not printable, in order.
static EXTRA_BYTES: [u8; EXTRA] = {
    let mut bytes = [0; EXTRA];
    let (mut byte, mut count) = (0, 0);
    while byte < 256 {
        if !printable(byte as u8) {
            bytes[count] = byte as u8;
            count += 1;
        }
        byte += 1;
    }
    // At compile time.
    assert!(count == EXTRA);
    bytes
};

/// The character of each byte.
static CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut byte = 0;
    while byte < 256 {
        chars[byte] = byte as u8 as char;
        byte += 1;
    }
    let mut extra = 0;
    while extra < EXTRA {
        // All of U+0100..U+0144 are characters.
        if let Some(c) = char::from_u32(0x100 + extra as u32) {
            chars[EXTRA_BYTES[extra] as usize] = c;
        }
        extra += 1;
    }
    chars
};

/// The character of a byte: itself where it is printable in Latin-1, or else the next of those from U+0100 on.
pub(crate) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// Appends bytes as characters of the alphabet.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| char_of(byte)));
}

/// The bytes that a token's text stands for; `None` if a character is not of the alphabet.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => printable(byte).then_some(byte),
        Err(_) => EXTRA_BYTES.get(code as usize - 0x100).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        encode(&bytes, &mut text);
        assert_eq!(text.chars().count(), 256);
        assert_eq!(decode(&text), Some(bytes));
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!(decode("a b"), None);
        assert_eq!(decode("中"), None);
    }
}
