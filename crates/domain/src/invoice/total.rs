//! Net amount, tax and total of an invoice.

use resources::{
    Invoice,
    money::{Cents, TaxRate},
};

/// Sums of an invoice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The sum of all lines.
    pub net: Cents,
    pub tax: Cents,
    /// Both together: the amount to be paid.
    pub amount: Cents,
}

impl Total {
    /// The sums of an issued invoice or credit note.
    pub fn of(invoice: &Invoice) -> Self {
        let status = invoice.content();
        Self {
            net: Cents(status.net_cents),
            tax: Cents(status.tax_cents),
            amount: Cents(status.net_cents + status.tax_cents),
        }
    }
}

/// The total of an invoice with these lines. The tax is rounded half up to cents, once, on the sum.
pub fn total(lines: impl IntoIterator<Item = Cents>, rate: TaxRate) -> Total {
    let net: u64 = lines.into_iter().map(|line| line.0).sum();
    let tax = rate.of(Cents(net));
    Total {
        net: Cents(net),
        tax,
        amount: Cents(net + tax.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tax_is_rounded_half_up_once_on_the_sum() {
        let rate = TaxRate::from_hundredths(19_25).unwrap();
        let sums = total([Cents(3), Cents(3)], rate);
        // 1.155 cents.
        assert_eq!((sums.net, sums.tax, sums.amount), (Cents(6), Cents(1), Cents(7)));
        // 0.50 cents.
        let half = TaxRate::from_hundredths(50_00).unwrap();
        assert_eq!(total([Cents(1)], half).tax, Cents(1));
        assert_eq!(total([Cents(100)], TaxRate::default()).amount, Cents(100));
        assert_eq!(total([], rate), Total::default());
    }
}
