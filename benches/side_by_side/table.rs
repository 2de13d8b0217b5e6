//! The table of results: each measurement, its comparison, its target, and whether it was met.

use std::fmt;

/// The target of a number.
#[derive(Clone, Copy)]
pub enum Aim {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Aim {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(aim) => value >= aim,
            Self::AtMost(aim) => value <= aim,
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(aim) => write!(f, ">= {aim}"),
            Self::AtMost(aim) => write!(f, "<= {aim}"),
        }
    }
}

/// The lines of the table.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
}

const HEADINGS: [&str; 6] = ["", "measured", "beside", "ratio", "aim", ""];

impl Table {
    /// Adds a ratio of two numbers.
    pub fn ratio(&mut self, what: &str, measured: &str, beside: &str, ratio: f64, aim: Option<Aim>) {
        let shown = if ratio >= 10.0 {
            format!("{ratio:.0}")
        } else {
            format!("{ratio:.2}")
        };
        self.push(what, measured, beside, &shown, ratio, aim);
    }

    /// Adds a number without a comparison.
    pub fn value(&mut self, what: &str, value: f64, shown: &str, aim: Option<Aim>) {
        self.push(what, shown, "", "", value, aim);
    }

    /// Adds a line of text.
    pub fn note(&mut self, what: &str) {
        self.push(what, "", "", "", 0.0, None);
    }

    fn push(&mut self, what: &str, measured: &str, beside: &str, ratio: &str, value: f64, aim: Option<Aim>) {
        let verdict = match aim {
            None => "",
            Some(aim) if aim.is_met_by(value) => "met",
            Some(_) => "missed",
        };
        let aim = aim.map(|aim| aim.to_string()).unwrap_or_default();
        self.rows
            .push([what, measured, beside, ratio, &aim, verdict].map(str::to_owned));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = HEADINGS.map(str::to_owned);
        let mut rows: Vec<&[String; 6]> = self.rows.iter().collect();
        rows.insert(0, &headings);
        let widths: [usize; 6] = std::array::from_fn(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        });
        for row in rows {
            let [what, numbers @ ..] = row;
            write!(f, "{what:<width$}", width = widths[0])?;
            for (number, width) in numbers.iter().zip(&widths[1..]) {
                write!(f, "  {number:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
