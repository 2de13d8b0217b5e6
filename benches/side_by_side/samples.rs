//! The measured values, round by round, and how they are shown: the median, with the minimum and maximum.

/// A unit, and the number of decimals shown.
#[derive(Clone, Copy)]
pub struct Unit(pub &'static str, pub usize);

/// Per second.
pub const PER_SECOND: Unit = Unit("/s", 0);
/// Milliseconds.
pub const MILLIS: Unit = Unit(" ms", 2);
/// Microseconds.
pub const MICROS: Unit = Unit(" µs", 0);
/// Milliseconds of CPU time on one core.
pub const CORE_MILLIS: Unit = Unit(" core-ms", 2);
/// Seconds.
pub const SECONDS: Unit = Unit(" s", 1);
/// Megabytes, of a million bytes each.
pub const MEGABYTES: Unit = Unit(" MB", 1);
/// Mebibytes.
pub const MEBIBYTES: Unit = Unit(" MiB", 1);
/// A number without a unit, for example writes per event.
pub const EACH: Unit = Unit("", 2);

/// One value per round, in order.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The median; NaN if there are no values.
    pub fn median(&self) -> f64 {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => f64::NAN,
            odd if odd % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        }
    }

    /// The ratios to the other samples, round by round.
    pub fn over(&self, beside: &Self) -> Self {
        self.0
            .iter()
            .zip(&beside.0)
            .map(|(own, other)| own / other)
            .collect()
    }

    /// The differences from the other samples, round by round.
    pub fn minus(&self, beside: &Self) -> Self {
        self.0
            .iter()
            .zip(&beside.0)
            .map(|(own, other)| own - other)
            .collect()
    }

    /// The median, followed by the minimum and maximum in parentheses if there is more than one value.
    pub fn shown(&self, Unit(unit, decimals): Unit) -> String {
        let number = |value: f64| format!("{value:.decimals$}");
        let median = format!("{}{unit}", number(self.median()));
        if self.0.len() < 2 {
            return median;
        }
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!("{median} ({}–{})", number(least), number(greatest))
    }

    /// Like [`Self::shown`], for ratios.
    pub fn shown_as_ratio(&self) -> String {
        // Nothing was measured on either side.
        if self.median().is_nan() {
            return String::new();
        }
        self.shown(Unit("", if self.median() >= 10.0 { 0 } else { 2 }))
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl From<f64> for Samples {
    fn from(value: f64) -> Self {
        Self(vec![value])
    }
}
