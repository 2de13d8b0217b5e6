//! Amounts and prices, in integers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Hours for which an hourly price is charged until it has reached the month's: those of the shortest month, 28 days
/// (decisions, section 7).
const HOURS_OF_A_MONTH: u64 = 672;
/// Thousandths of a cent in a cent.
const PER_CENT: u64 = 1000;
/// Parts of an [`Exact`] amount in a cent.
const EXACT_PER_CENT: u64 = 1_000_000;
/// Highest price, a million. It keeps every sum far within 64 bits.
const MAX_PRICE: Cents = Cents(100_000_000);

/// A rate of 100 %, in hundredths of a percent.
const MAX_RATE: u32 = 10_000;

const RATE: &str = "must be a rate in percent from 0 to 100 with at most two decimals, such as 19 or 7.7";
const PRICE: &str = "a price from 0 to 1000000 with at most two decimals, such as 5 or 4.99";

/// An amount of money in cents, that is, hundredths of a [`Currency`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cents(pub u64);

/// A price in thousandths of a cent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitPrice(pub u64);

impl UnitPrice {
    /// The hour's price: the month's divided by 672, rounded up to a thousandth of a cent.
    pub const fn hourly(monthly: Cents) -> Self {
        Self((monthly.0 * PER_CENT).div_ceil(HOURS_OF_A_MONTH))
    }
}

/// An amount that is not rounded: hours in thousandths times a price of an hour in thousandths of a cent, so in millionths of a cent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct Exact(pub u64);

impl Exact {
    /// What so many thousandths of an hour cost. Beyond 64 bits, which no price and size that are allowed reach in a month, it stays
    /// the highest amount.
    pub const fn of(thousandths: u64, unit_price: UnitPrice) -> Self {
        Self(thousandths.saturating_mul(unit_price.0))
    }

    /// Rounded half up to cents.
    pub const fn rounded(self) -> Cents {
        Cents(self.0.saturating_add(EXACT_PER_CENT / 2) / EXACT_PER_CENT)
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// By how much it exceeds `other`; 0 if it does not.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Cents> for Exact {
    fn from(cents: Cents) -> Self {
        Self(cents.0.saturating_mul(EXACT_PER_CENT))
    }
}

impl fmt::Display for Exact {
    /// With five decimals, or up to eight if it has so many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 100 * EXACT_PER_CENT;
        let decimals = format!("{:08}", self.0 % unit);
        let (five, rest) = decimals.split_at(5);
        write!(f, "{}.{five}{}", self.0 / unit, rest.trim_end_matches('0'))
    }
}

/// The amount of a reduction: 0 or negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction(pub Exact);

impl fmt::Display for Reduction {
    /// Like the amount, with its sign.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0.0 == 0 { "" } else { "-" };
        write!(f, "{sign}{}", self.0)
    }
}

/// A number of hours, or of GB-hours of backups, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct Hours(pub u64);

impl Hours {
    /// Whole hours.
    pub const fn whole(hours: u64) -> Self {
        Self(hours.saturating_mul(1000))
    }
}

impl fmt::Display for Hours {
    /// With as many of three decimals as it has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / 1000)?;
        match self.0 % 1000 {
            0 => Ok(()),
            decimals => write!(f, ".{}", format!("{decimals:03}").trim_end_matches('0')),
        }
    }
}

impl fmt::Display for Cents {
    /// With two decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl fmt::Display for UnitPrice {
    /// With five decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 100 * PER_CENT;
        write!(f, "{}.{:05}", self.0 / unit, self.0 % unit)
    }
}

/// A decimal number with at most two decimals, in hundredths. Without sign, exponent or space.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<2}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(decimals)
}

/// A price in a file: a number, or a text with one.
impl<'de> Deserialize<'de> for Cents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Price;
        impl de::Visitor<'_> for Price {
            type Value = Cents;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(PRICE)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Cents, E> {
                self.visit_str(&number.to_string())
            }

            // The shortest text that stands for this number, so 4.99 is 4.99.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Cents, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Cents, E> {
                let price = hundredths(text).map(Cents);
                price
                    .filter(|price| *price <= MAX_PRICE)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Price)
    }
}

/// A rate of tax, in hundredths of a percent. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaxRate(u32);

impl TaxRate {
    /// A rate up to 100 %.
    pub const fn from_hundredths(hundredths: u32) -> Option<Self> {
        if hundredths <= MAX_RATE {
            Some(Self(hundredths))
        } else {
            None
        }
    }

    /// Whether there is no tax.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The tax that is contained in an amount with tax, rounded half up.
    pub const fn contained_in(self, gross: Cents) -> Cents {
        let (rate, all) = (self.0 as u64, MAX_RATE as u64);
        Cents((gross.0 * rate + u64::midpoint(all, rate)) / (all + rate))
    }

    /// The tax on an amount, rounded half up.
    pub const fn of(self, net: Cents) -> Cents {
        // Lossless, as `From` is, which cannot be called here.
        let (rate, all) = (self.0 as u64, MAX_RATE as u64);
        Cents((net.0 * rate + all / 2) / all)
    }
}

impl fmt::Display for TaxRate {
    /// In percent, with two decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

impl Serialize for TaxRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A rate in a file: a number of percent, or a text with one.
impl<'de> Deserialize<'de> for TaxRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = || de::Error::custom(RATE);
        let text = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::String(text) => text,
            _ => return Err(wrong()),
        };
        text.parse().map_err(|()| wrong())
    }
}

impl FromStr for TaxRate {
    type Err = ();

    /// Reads a number of percent, such as `19` or `7.70`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let rate = hundredths(text).and_then(|rate| u32::try_from(rate).ok());
        rate.and_then(Self::from_hundredths).ok_or(())
    }
}

/// An ISO 4217 code, such as `EUR`, of a currency with two decimals.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Currency(String);

impl Currency {
    /// The code.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Currency {
    fn default() -> Self {
        Self("EUR".to_owned())
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Currency {
    type Error = &'static str;

    fn try_from(code: String) -> Result<Self, Self::Error> {
        match iso_currency::Currency::from_code(&code).map(iso_currency::Currency::exponent) {
            Some(Some(2)) => Ok(Self(code)),
            Some(_) => {
                Err("must be a currency with two decimals, such as EUR: amounts are computed in hundredths")
            }
            None => Err("must be an ISO 4217 code of three capital letters, such as EUR"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_costs_a_672th_of_the_month_rounded_up_to_a_thousandth_of_a_cent() {
        let hourly = |cents| UnitPrice::hourly(Cents(cents)).to_string();
        assert_eq!(
            [5_00, 15_00, 30_00, 60_00].map(hourly),
            ["0.00745", "0.02233", "0.04465", "0.08929"]
        );
        assert_eq!([0, 6_72].map(hourly), ["0.00000", "0.01000"]);
        assert_eq!(hourly(MAX_PRICE.0), "1488.09524");
    }

    #[test]
    fn amounts_have_two_decimals() {
        assert_eq!(
            [0, 7, 60_00, 100_000_005].map(|cents| Cents(cents).to_string()),
            ["0.00", "0.07", "60.00", "1000000.05"]
        );
    }

    #[test]
    fn an_exact_amount_shows_all_of_its_decimals_and_five_at_least() {
        let gb_hours = Hours(16_415);
        let amount = Exact::of(gb_hours.0, UnitPrice(8));
        assert_eq!(
            (gb_hours.to_string(), amount.to_string()),
            ("16.415".to_owned(), "0.0013132".to_owned())
        );
        assert_eq!(Hours::whole(720).to_string(), "720");
        assert_eq!(Exact::of(720_000, UnitPrice(745)).to_string(), "5.36400");
        assert_eq!(Reduction(Exact(36_400_000)).to_string(), "-0.36400");
        assert_eq!(Reduction(Exact(0)).to_string(), "0.00000");
        let round = |cents: u64, more| Exact(Exact::from(Cents(cents)).0 + more).rounded();
        assert_eq!((round(7, 499_999), round(7, 500_000)), (Cents(7), Cents(8)));
        assert_eq!(Exact::of(u64::MAX, UnitPrice(2)).0, u64::MAX);
    }

    #[test]
    fn the_tax_in_an_amount_with_tax_is_the_one_that_was_put_on_it() {
        let rate = TaxRate::from_hundredths(19_00).unwrap();
        for net in 0..2000 {
            let tax = rate.of(Cents(net));
            assert_eq!(rate.contained_in(Cents(net + tax.0)), tax, "{net}");
        }
        assert_eq!(TaxRate::default().contained_in(Cents(5)), Cents(0));
    }

    #[test]
    fn a_tax_rate_is_read_exactly() {
        for (text, rate) in [
            ("19", "19.00"),
            ("7.7", "7.70"),
            ("\"8.25\"", "8.25"),
            ("0", "0.00"),
            ("100", "100.00"),
        ] {
            assert_eq!(serde_json::from_str::<TaxRate>(text).unwrap().to_string(), rate);
        }
        for text in ["100.01", "-1", "\"19%\"", "1e1000", "true", "19.001"] {
            assert!(serde_json::from_str::<TaxRate>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_price_is_read_exactly() {
        for (text, cents) in [
            ("5", 5_00),
            ("4.99", 4_99),
            ("0.1", 10),
            ("0.29", 29),
            ("1000000", 100_000_000),
            ("\"19.90\"", 19_90),
        ] {
            assert_eq!(
                serde_json::from_str::<Cents>(text).unwrap(),
                Cents(cents),
                "{text}"
            );
        }
        for text in [
            "-1",
            "4.999",
            "1e9",
            "1000000.01",
            "\"\"",
            "\"5 EUR\"",
            "\"1.\"",
            "\".5\"",
            "true",
        ] {
            let error = serde_json::from_str::<Cents>(text).unwrap_err().to_string();
            assert!(error.contains(PRICE), "{text}: {error}");
        }
    }
}
