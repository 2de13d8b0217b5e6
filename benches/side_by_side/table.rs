//! The table of results: each measurement, its comparison, its target, and whether the target was met. Each number is the
//! median of the rounds, with the minimum and maximum in parentheses.

use std::fmt;

use crate::samples::{Samples, Unit};

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
            Self::AtLeast(aim) => write!(f, "≥ {aim}"),
            Self::AtMost(aim) => write!(f, "≤ {aim}"),
        }
    }
}

/// The lines of the table.
#[derive(Default)]
pub struct Table {
    rows: Vec<[String; 6]>,
}

const HEADINGS: [&str; 6] = ["", "measured", "compared with", "ratio", "target", ""];

impl Table {
    /// Adds two quantities measured in the same rounds. The target applies to their ratio.
    pub fn compare(
        &mut self,
        what: &str,
        measured: &Samples,
        beside: &Samples,
        unit: Unit,
        aim: Option<Aim>,
    ) {
        let ratio = measured.over(beside);
        self.push(
            what,
            [measured.shown(unit), beside.shown(unit), ratio.shown_as_ratio()],
            ratio.median(),
            aim,
        );
    }

    /// Adds a quantity that is not compared with another.
    pub fn value(&mut self, what: &str, measured: &Samples, unit: Unit, aim: Option<Aim>) {
        let numbers = [measured.shown(unit), String::new(), String::new()];
        self.push(what, numbers, measured.median(), aim);
    }

    /// Adds a line of text.
    pub fn note(&mut self, what: &str) {
        self.push(what, Default::default(), 0.0, None);
    }

    fn push(&mut self, what: &str, [measured, beside, ratio]: [String; 3], value: f64, aim: Option<Aim>) {
        let verdict = match aim {
            None => "",
            Some(aim) if aim.is_met_by(value) => "met",
            Some(_) => "missed",
        };
        let aim = aim.map(|aim| aim.to_string()).unwrap_or_default();
        self.rows
            .push([what.to_owned(), measured, beside, ratio, aim, verdict.to_owned()]);
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String; 6]| {
            let [what, numbers @ ..] = cells;
            // A row that belongs to the row above is indented.
            let belongs = what.starts_with(' ');
            let what = what.trim().replace('|', "\\|");
            let what = if belongs { format!("… {what}") } else { what };
            format!("| {what} | {} |\n", numbers.join(" | "))
        };
        let rows: String = self.rows.iter().map(line).collect();
        format!(
            "{}|---|---:|---:|---:|---:|---|\n{rows}",
            line(&HEADINGS.map(str::to_owned))
        )
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
