//! Amounts and prices.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use resources::money::{Cents, Exact, Reduction, UnitPrice};

/// An amount of money.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Money {
    /// Decimal number with two decimal places.
    #[schema(pattern = r"^[0-9]+\.[0-9]{2}$", example = "5.00")]
    pub value: String,
    /// ISO 4217 code.
    #[schema(pattern = "^[A-Z]{3}$", example = "EUR")]
    pub currency: String,
}

/// A price of one unit, or what is computed from it exactly.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct UnitMoney {
    /// Decimal number with five decimal places, or up to eight where GB-hours have so many.
    #[schema(pattern = r"^-?[0-9]+\.[0-9]{5,8}$", example = "0.00745")]
    pub value: String,
    /// ISO 4217 code.
    #[schema(pattern = "^[A-Z]{3}$", example = "EUR")]
    pub currency: String,
}

impl Money {
    /// An amount in this currency.
    pub fn new(amount: Cents, currency: &str) -> Self {
        Self {
            value: amount.to_string(),
            currency: currency.to_owned(),
        }
    }
}

impl UnitMoney {
    /// A price in this currency.
    pub fn new(price: UnitPrice, currency: &str) -> Self {
        Self {
            value: price.to_string(),
            currency: currency.to_owned(),
        }
    }

    /// An exact amount in this currency.
    pub fn exact(amount: Exact, currency: &str) -> Self {
        Self {
            value: amount.to_string(),
            currency: currency.to_owned(),
        }
    }

    /// A reduction in this currency.
    pub fn reduction(reduction: Reduction, currency: &str) -> Self {
        Self {
            value: reduction.to_string(),
            currency: currency.to_owned(),
        }
    }
}
