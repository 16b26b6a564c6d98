//! The clock of `strftime_now`.

use std::fmt::Write;

/// A local date and time, as Python's naive `datetime` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    /// Year, as in 2026.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl LocalTime {
    /// The time now, where this machine says it is.
    pub fn now() -> Self {
        let now = jiff::Zoned::now();
        let part = |value: i8| u32::try_from(value).unwrap_or(0);
        Self {
            year: now.year().into(),
            month: part(now.month()),
            day: part(now.day()),
            hour: part(now.hour()),
            minute: part(now.minute()),
            second: part(now.second()),
        }
    }

    fn is_leap_year(self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    /// Day of the year, from 1.
    fn ordinal(self) -> u32 {
        let lengths = [31, if self.is_leap_year() { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let months = self.month.clamp(1, 12) as usize - 1;
        lengths[..months].iter().sum::<u32>().saturating_add(self.day)
    }

    /// Day of the week, 0 for Sunday.
    fn weekday(self) -> u32 {
        // Days since the Sunday before 1 January of year 1 in the proleptic Gregorian calendar.
        let years = i64::from(self.year) - 1;
        let days = years * 365 + years.div_euclid(4) - years.div_euclid(100)
            + years.div_euclid(400)
            + i64::from(self.ordinal());
        days.rem_euclid(7) as u32
    }

    /// Formats as C's `strftime` does in the C locale, which is what Python calls. An unknown directive is
    /// copied, as glibc does; a naive time has no zone, so `%Z` and `%z` are empty.
    pub(crate) fn strftime(self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let directive = &rest[at + 1..];
            // glibc: `-` no padding, `_` spaces, `0` zeros, `^` upper case.
            let flag = directive.chars().next().filter(|c| "-_0^".contains(*c));
            let after_flag = &directive[flag.map_or(0, char::len_utf8)..];
            let Some(kind) = after_flag.chars().next() else {
                out.push_str(&rest[at..]);
                return out;
            };
            match self.directive(kind, flag) {
                Some(text) if flag == Some('^') => out.push_str(&text.to_uppercase()),
                Some(text) => out.push_str(&text),
                None => {
                    let length = 1 + flag.map_or(0, char::len_utf8) + kind.len_utf8();
                    out.push_str(&rest[at..at + length]);
                }
            }
            rest = &after_flag[kind.len_utf8()..];
        }
        out.push_str(rest);
        out
    }

    fn directive(self, kind: char, flag: Option<char>) -> Option<String> {
        let hour12 = (self.hour + 11) % 12 + 1;
        let month = MONTHS[self.month.clamp(1, 12) as usize - 1];
        let day = DAYS[self.weekday() as usize];
        // The default padding of a number is zeros, for %e, %k and %l spaces.
        let number = |value: i64, width: usize, pad: char| {
            let mut text = String::new();
            let pad = match flag {
                Some('-') => None,
                Some('_') => Some(' '),
                Some('0') => Some('0'),
                _ => Some(pad),
            };
            // Writing to a string cannot fail.
            let _ = match pad {
                None => write!(text, "{value}"),
                Some('0') => write!(text, "{value:0width$}"),
                Some(_) => write!(text, "{value:width$}"),
            };
            text
        };
        let zeros = |value: u32, width| number(value.into(), width, '0');
        let spaces = |value: u32, width| number(value.into(), width, ' ');
        let nested = |format| Some(self.strftime(format));
        let weekday = self.weekday();
        Some(match kind {
            'a' => day[..3].to_owned(),
            'A' => day.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'B' => month.to_owned(),
            'd' => zeros(self.day, 2),
            'e' => spaces(self.day, 2),
            'm' => zeros(self.month, 2),
            'Y' => number(self.year.into(), 1, '0'),
            'y' => number(self.year.rem_euclid(100).into(), 2, '0'),
            'C' => number(self.year.div_euclid(100).into(), 2, '0'),
            'H' => zeros(self.hour, 2),
            'I' => zeros(hour12, 2),
            'k' => spaces(self.hour, 2),
            'l' => spaces(hour12, 2),
            'M' => zeros(self.minute, 2),
            'S' => zeros(self.second, 2),
            'f' => "000000".to_owned(),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'P' => if self.hour < 12 { "am" } else { "pm" }.to_owned(),
            'j' => zeros(self.ordinal(), 3),
            'u' => zeros(if weekday == 0 { 7 } else { weekday }, 1),
            'w' => zeros(weekday, 1),
            'U' => zeros((self.ordinal() + 6 - weekday) / 7, 2),
            'W' => zeros((self.ordinal() + 6 - (weekday + 6) % 7) / 7, 2),
            'D' | 'x' => return nested("%m/%d/%y"),
            'F' => return nested("%Y-%m-%d"),
            'T' | 'X' => return nested("%H:%M:%S"),
            'R' => return nested("%H:%M"),
            'r' => return nested("%I:%M:%S %p"),
            'c' => return nested("%a %b %e %H:%M:%S %Y"),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: LocalTime = LocalTime { year: 2024, month: 3, day: 5, hour: 0, minute: 7, second: 9 };

    #[test]
    fn directives_are_formatted_as_python_does() {
        // Each right side is what datetime(2024, 3, 5, 0, 7, 9).strftime gives.
        for (format, expected) in [
            ("%Y-%m-%d", "2024-03-05"),
            ("%d %b %Y", "05 Mar 2024"),
            ("%A, %B %-d, %Y", "Tuesday, March 5, 2024"),
            ("%a %e|%_d|%-m|%^b", "Tue  5| 5|3|MAR"),
            ("%H:%M:%S %I %p %-I", "00:07:09 12 AM 12"),
            ("%j %U %W %w %u %y %C", "065 09 10 2 2 24 20"),
            ("%c|%x|%X|%D|%F|%R", "Tue Mar  5 00:07:09 2024|03/05/24|00:07:09|03/05/24|2024-03-05|00:07"),
            ("100%% [%Z%z] %f é%n", "100% [] 000000 é\n"),
        ] {
            assert_eq!(TIME.strftime(format), expected, "{format}");
        }
    }

    #[test]
    fn an_unknown_or_cut_directive_is_copied() {
        assert_eq!(TIME.strftime("%é %"), "%é %");
        assert_eq!(TIME.strftime("50%-"), "50%-");
    }

    #[test]
    fn weekdays_are_right_over_centuries() {
        for (year, month, day, expected) in
            [(1970, 1, 1, 4), (2000, 2, 29, 2), (1900, 3, 1, 4), (2026, 11, 30, 1)]
        {
            let time = LocalTime { year, month, day, ..TIME };
            assert_eq!(time.weekday(), expected, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn now_is_after_this_was_written() {
        assert!(LocalTime::now().year >= 2025);
    }
}
