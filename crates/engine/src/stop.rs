//! Stop strings: text that could still become one is held back until it is clear.

/// Looks for stop strings in text that comes piece by piece.
#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Empty strings never match.
    pub fn new(strings: Vec<String>) -> StopStrings {
        StopStrings { strings: strings.into_iter().filter(|s| !s.is_empty()).collect(), held: String::new() }
    }

    /// Takes the next piece: the text that is certain to be output, and whether a stop string has ended it.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.strings.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, once nothing more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| text.is_char_boundary(text.len() - n) && stop.starts_with(&text[text.len() - n..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_before_a_stop_string_is_output_and_nothing_after() {
        let mut stop = StopStrings::new(vec!["</end>".into(), "\n\n".into()]);
        assert_eq!(stop.push("abc"), ("abc".into(), false));
        assert_eq!(stop.push("d</e"), ("d".into(), false));
        assert_eq!(stop.push("x\n"), ("</ex".into(), false));
        assert_eq!(stop.push("\nmore"), (String::new(), true));
    }

    #[test]
    fn held_text_is_output_at_the_end() {
        let mut stop = StopStrings::new(vec!["é!".into()]);
        assert_eq!(stop.push("caf"), ("caf".into(), false));
        assert_eq!(stop.push("é"), (String::new(), false));
        assert_eq!(stop.finish(), "é");
    }

    #[test]
    fn the_earliest_of_several_stop_strings_wins_and_empty_ones_never_match() {
        let mut stop = StopStrings::new(vec!["c".into(), "bc".into(), String::new()]);
        assert_eq!(stop.push("abc"), ("a".into(), true));
    }
}
