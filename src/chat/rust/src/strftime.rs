//! `strftime_now(format)`: the C locale's strftime on a time given as "2025-03-14T15:09:26". The clock and the time
//! zone are the caller's.

use std::fmt::Write;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

#[derive(Clone, Copy, Debug)]
pub struct LocalTime {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl LocalTime {
    pub fn parse(text: &str) -> Option<LocalTime> {
        let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u32>().ok().map(i64::from);
        let marks: Vec<char> = text.chars().filter(|c| !c.is_ascii_digit()).take(6).collect();
        if text.len() != 19 || marks != ['-', '-', 'T', ':', ':'] {
            return None;
        }
        let time = LocalTime {
            year: number(0..4)?,
            month: number(5..7)?,
            day: number(8..10)?,
            hour: number(11..13)?,
            minute: number(14..16)?,
            second: number(17..19)?,
        };
        let valid = (1..=12).contains(&time.month)
            && (1..=31).contains(&time.day)
            && time.hour < 24
            && time.minute < 60
            && time.second <= 60;
        valid.then_some(time)
    }

    fn is_leap(&self) -> bool {
        self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0)
    }

    /// From 0.
    fn day_of_year(&self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        BEFORE[self.month as usize - 1] + self.day - 1 + i64::from(self.month > 2 && self.is_leap())
    }

    /// Sunday is 0.
    fn weekday(&self) -> i64 {
        let past = self.year - 1;
        let new_year = 1 + past * 365 + past / 4 - past / 100 + past / 400; // 1 January of year 1 was a Monday.
        (new_year + self.day_of_year()).rem_euclid(7)
    }

    pub fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('-') => match chars.next() {
                    Some(directive) => self.write_directive(&mut out, directive, false),
                    None => out.push_str("%-"),
                },
                Some(directive) => self.write_directive(&mut out, directive, true),
                None => out.push('%'),
            }
        }
        out
    }

    /// `padded`: to the usual width, with zeros.
    fn write_directive(&self, out: &mut String, directive: char, padded: bool) {
        let hour12 = (self.hour + 11) % 12 + 1;
        let weekday = self.weekday();
        let (number, width) = match directive {
            'Y' => (self.year, 1),
            'y' => (self.year % 100, 2),
            'm' => (self.month, 2),
            'd' => (self.day, 2),
            'H' => (self.hour, 2),
            'I' => (hour12, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'j' => (self.day_of_year() + 1, 3),
            'U' => ((self.day_of_year() + 7 - weekday) / 7, 2),
            'W' => ((self.day_of_year() + 7 - (weekday + 6) % 7) / 7, 2),
            'w' => (weekday, 1),
            'u' => ((weekday + 6) % 7 + 1, 1),
            'f' => (0, 6),
            _ => return self.write_text(out, directive),
        };
        let _ = write!(out, "{number:0width$}", width = if padded { width } else { 1 });
    }

    fn write_text(&self, out: &mut String, directive: char) {
        let day = DAYS[self.weekday() as usize];
        let month = MONTHS[self.month as usize - 1];
        match directive {
            'A' => out.push_str(day),
            'a' => out.push_str(&day[..3]),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'e' => {
                let _ = write!(out, "{:2}", self.day);
            }
            'F' => out.push_str(&self.format("%Y-%m-%d")),
            'T' | 'X' => out.push_str(&self.format("%H:%M:%S")),
            'R' => out.push_str(&self.format("%H:%M")),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
            'Z' | 'z' => {} // Python's datetime.now() has no zone either.
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }
}
