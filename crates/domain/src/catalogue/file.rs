//! The catalogue as a YAML file: `--catalogue`. What the file leaves out has the value of the built-in catalogue.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use thiserror::Error;

use super::{
    Alerts, Catalogue, InvoiceTerms, Prices, Region,
    alerts::AlertsSection,
    region_section::{self, RegionEntry},
};
use resources::{
    Plan,
    invoice::{MAX_TEXT, Party},
    money::{Cents, Currency, TaxRate},
    validation,
};

/// Maximum size of a file; the sample has less than 2 KiB.
const MAX_BYTES: u64 = 256 * 1024;
/// Maximum number of regions, and of images, in a file.
const MAX_ENTRIES: usize = 1000;
/// Maximum number of announced changes.
const MAX_CHANGES: usize = 10;
/// Maximum number of days after its issue within which an invoice is due.
const MAX_DUE_DAYS: u16 = 365;

/// Why a file cannot be used as the catalogue.
#[derive(Debug, Error)]
pub enum CatalogueError {
    /// The file cannot be read.
    #[error("cannot read --catalogue {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The file is not YAML.
    #[error("--catalogue {} is not valid YAML: {reason}", path.display())]
    Yaml {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A field has a value that is not allowed, or is unknown.
    #[error("--catalogue {}: {field}: {problem}", path.display())]
    Field {
        /// Path of the file.
        path: PathBuf,
        /// Path of the field, such as `plans.starter.priceMonthly`; `.` for the whole file.
        field: String,
        /// What is wrong with it, and what is allowed.
        problem: String,
    },
}

impl Catalogue {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, CatalogueError> {
        Self::parse(&read(path)?, path)
    }

    /// The catalogue that the text of the file at `path` describes.
    pub fn parse(text: &str, path: &Path) -> Result<Self, CatalogueError> {
        let wrong = |(field, problem): (String, String)| CatalogueError::Field {
            path: path.to_owned(),
            field,
            problem,
        };
        let value: Value = serde_saphyr::from_str(text).map_err(|error| CatalogueError::Yaml {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        // A file in which everything is commented out.
        let value = if value.is_null() {
            serde_json::json!({})
        } else {
            value
        };
        check_shape(&value).map_err(wrong)?;
        let mut contents: Contents = serde_path_to_error::deserialize(value)
            .map_err(|error| wrong((error.path().to_string(), error.inner().to_string())))?;
        contents.check().map_err(wrong)?;
        let alerts = std::mem::take(&mut contents.alerts).alerts().map_err(wrong)?;
        let regions = region_section::regions(std::mem::take(&mut contents.regions)).map_err(wrong)?;
        check_list("regions", regions.iter().map(|region| &region.code)).map_err(wrong)?;
        Ok(contents.into_catalogue(regions, alerts))
    }
}

/// Checks that every section is a map of fields: serde would also accept a list of the values.
fn check_shape(file: &Value) -> Result<(), (String, String)> {
    let plans = file.get("plans");
    let each = plans.and_then(Value::as_object).into_iter().flatten();
    let each = each.map(|(name, plan)| (format!("plans.{name}"), plan));
    let all = [(".".to_owned(), file)].into_iter();
    let alerts = file.get("alerts");
    let rules = alerts.and_then(|alerts| alerts.get("rules")?.as_array());
    let rules = rules.into_iter().flatten().enumerate();
    let rules = rules.map(|(index, rule)| (format!("alerts.rules[{index}]"), rule));
    let all = all
        .chain(
            ["plans", "backups", "invoices", "alerts"]
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), file.get(name)?))),
        )
        .chain(each)
        .chain(rules);
    match all.into_iter().find(|(_, value)| !value.is_object()) {
        Some((field, _)) => Err((
            field,
            "must have fields, as in examples/catalogue.yaml".to_owned(),
        )),
        None => Ok(()),
    }
}

/// The text of the file.
pub fn read(path: &Path) -> Result<String, CatalogueError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
        }
        Ok(text)
    };
    read().map_err(|source| CatalogueError::Read {
        path: path.to_owned(),
        source,
    })
}

/// What the file may contain.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Contents {
    currency: Currency,
    regions: Vec<RegionEntry>,
    images: Vec<Image>,
    plans: Plans,
    alerts: AlertsSection,
    backups: BackupTerms,
    tax: TaxRate,
    seller: Seller,
    invoices: InvoiceSettings,
    changes: Vec<AnnouncedChange>,
}

/// The seller: its name and address, or a list of the name and the address lines.
#[derive(Debug, Default)]
struct Seller(Party);

impl<'de> Deserialize<'de> for Seller {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let lines = match Value::deserialize(deserializer)? {
            fields @ Value::Object(_) => {
                return Party::deserialize(fields).map(Self).map_err(de::Error::custom);
            }
            lines => Vec::<String>::deserialize(lines).map_err(|_| {
                de::Error::custom(
                    "must have fields such as name and vatId, as in examples/catalogue.yaml, or be a list of the name and the address lines",
                )
            })?,
        };
        let mut lines = lines.into_iter();
        Ok(Self(Party {
            name: lines.next().unwrap_or_default(),
            address: lines.collect(),
            ..Party::default()
        }))
    }
}

fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        de::Error::custom(format!(
            "{text:?} must be an RFC 3339 time, such as 2027-01-01T00:00:00Z"
        ))
    })
}

/// Prices and a tax that hold from a time. What it leaves out stays as it is before.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnnouncedChange {
    #[serde(deserialize_with = "moment")]
    from: Timestamp,
    #[serde(default)]
    plans: BTreeMap<Plan, PlanTerms>,
    backups: Option<BackupTerms>,
    tax: Option<TaxRate>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BackupTerms {
    #[serde(rename = "pricePerGBMonthly")]
    price_per_gb_monthly: Cents,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct InvoiceSettings {
    due_days: u16,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Plans {
    starter: PlanTerms,
    business: PlanTerms,
    performance: PlanTerms,
    enterprise: PlanTerms,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlanTerms {
    price_monthly: Cents,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Image(String);

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        validation::image(&id).map_err(|_| {
            de::Error::custom(format!(
                "{id:?} must be an image identifier of lower-case letters, digits, '.' and '-', such as debian-13"
            ))
        })?;
        Ok(Self(id))
    }
}

impl Default for Contents {
    fn default() -> Self {
        let Catalogue {
            regions,
            images,
            prices,
            invoices,
            ..
        } = Catalogue::default();
        Self {
            currency: prices.currency,
            regions: regions
                .into_iter()
                .map(|region| RegionEntry::Simulated(region.code))
                .collect(),
            images: images.into_iter().map(Image).collect(),
            plans: Plans::default(),
            alerts: AlertsSection::default(),
            backups: BackupTerms {
                price_per_gb_monthly: prices.backup_gb,
            },
            tax: prices.tax,
            seller: Seller::default(),
            changes: Vec::new(),
            invoices: InvoiceSettings {
                due_days: invoices.due_days,
            },
        }
    }
}

impl Default for Plans {
    fn default() -> Self {
        let prices = Prices::default();
        let terms = |plan| PlanTerms {
            price_monthly: prices.monthly(plan),
        };
        Self {
            starter: terms(Plan::Starter),
            business: terms(Plan::Business),
            performance: terms(Plan::Performance),
            enterprise: terms(Plan::Enterprise),
        }
    }
}

impl Contents {
    fn monthly(&self) -> [Cents; 4] {
        let plans = &self.plans;
        [
            &plans.starter,
            &plans.business,
            &plans.performance,
            &plans.enterprise,
        ]
        .map(|terms| terms.price_monthly)
    }

    /// Checks what concerns more than one value. The error is the path of a field and what is wrong with it.
    fn check(&self) -> Result<(), (String, String)> {
        check_list("images", self.images.iter().map(|image| &image.0))?;
        check_seller(&self.seller.0)?;
        if self.invoices.due_days > MAX_DUE_DAYS {
            let problem = format!("{} must be at most {MAX_DUE_DAYS}", self.invoices.due_days);
            return Err(("invoices.dueDays".to_owned(), problem));
        }
        check_order(&self.monthly(), "")?;
        if self.changes.len() > MAX_CHANGES {
            let problem = format!(
                "has {} entries; must have at most {MAX_CHANGES}",
                self.changes.len()
            );
            return Err(("changes".to_owned(), problem));
        }
        if let Some(index) = self
            .changes
            .windows(2)
            .position(|pair| pair[0].from >= pair[1].from)
        {
            let problem = "must be later than the change before it".to_owned();
            return Err((format!("changes[{}].from", index + 1), problem));
        }
        let announced = self.announced();
        for (index, (_, prices)) in announced.iter().enumerate() {
            check_order(
                &Plan::ALL.map(|plan| prices.monthly(plan)),
                &format!("changes[{index}]."),
            )?;
        }
        Ok(())
    }

    /// The prices and the tax before the first change.
    fn prices(&self) -> Prices {
        Prices {
            currency: self.currency.clone(),
            monthly: self.monthly(),
            backup_gb: self.backups.price_per_gb_monthly,
            tax: self.tax,
        }
    }

    /// The prices and the tax after each change.
    fn announced(&self) -> Vec<(Timestamp, Prices)> {
        let mut prices = self.prices();
        let changes = self.changes.iter().map(|change| {
            for (plan, terms) in &change.plans {
                prices.monthly[*plan as usize] = terms.price_monthly;
            }
            if let Some(backups) = &change.backups {
                prices.backup_gb = backups.price_per_gb_monthly;
            }
            prices.tax = change.tax.unwrap_or(prices.tax);
            (change.from, prices.clone())
        });
        changes.collect()
    }
}

/// Checks that no plan is cheaper than a smaller one.
fn check_order(monthly: &[Cents; 4], path: &str) -> Result<(), (String, String)> {
    for (pair, plans) in monthly.windows(2).zip(Plan::ALL.windows(2)) {
        if let ([smaller_price, price], [smaller, plan]) = (pair, plans)
            && price < smaller_price
        {
            return Err((
                format!("{path}plans.{}.priceMonthly", plan.as_str()),
                format!(
                    "{price} is less than the smaller plan {} costs; must be at least {smaller_price}",
                    smaller.as_str()
                ),
            ));
        }
    }
    Ok(())
}

fn check_seller(seller: &Party) -> Result<(), (String, String)> {
    let wrong = |field: &str, problem: String| Err((format!("seller.{field}"), problem));
    validation::address(&seller.address).or_else(|(line, problem)| {
        wrong(
            &line.map_or_else(|| "address".to_owned(), |line| format!("address[{line}]")),
            problem,
        )
    })?;
    let is_set = *seller != Party::default();
    if is_set && seller.name.is_empty() {
        return wrong(
            "name",
            "must not be empty: invoices name who issues them".to_owned(),
        );
    }
    let country = seller.country.as_deref();
    if country.is_some_and(|code| code.len() != 2 || !code.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return wrong(
            "country",
            "must be an ISO 3166-1 code of two capital letters, such as DE".to_owned(),
        );
    }
    if seller.reference.is_some() {
        return wrong(
            "reference",
            "must be left out: it is the buyer's, in the Account's spec.billing".to_owned(),
        );
    }
    for (field, text) in [
        ("name", Some(&seller.name)),
        ("vatId", seller.vat_id.as_ref()),
        ("email", seller.email.as_ref()),
    ] {
        let is_wrong = |text: &&String| text.chars().count() > MAX_TEXT || text.chars().any(char::is_control);
        if text.as_ref().is_some_and(is_wrong) {
            return wrong(
                field,
                format!("must have at most {MAX_TEXT} characters, and no control characters"),
            );
        }
    }
    Ok(())
}

fn check_list<'a>(
    name: &str,
    list: impl ExactSizeIterator<Item = &'a String>,
) -> Result<(), (String, String)> {
    if !(1..=MAX_ENTRIES).contains(&list.len()) {
        let problem = format!("has {} entries; must have 1 to {MAX_ENTRIES}", list.len());
        return Err((name.to_owned(), problem));
    }
    let mut seen = HashSet::new();
    for (index, entry) in list.enumerate() {
        if !seen.insert(entry) {
            let problem = format!("{entry:?} is listed twice; each entry must be another one");
            return Err((format!("{name}[{index}]"), problem));
        }
    }
    Ok(())
}

impl Contents {
    fn into_catalogue(self, regions: Vec<Region>, alerts: Alerts) -> Catalogue {
        Catalogue {
            prices: self.prices(),
            announced: self.announced(),
            regions,
            images: self.images.into_iter().map(|image| image.0).collect(),
            invoices: InvoiceTerms {
                seller: self.seller.0,
                due_days: self.invoices.due_days,
            },
            alerts: Arc::new(alerts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Catalogue, String> {
        Catalogue::parse(text, Path::new("file")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_sample_is_the_built_in_catalogue() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/catalogue.yaml");
        assert_eq!(Catalogue::load(&path).unwrap(), Catalogue::default());
        // It also lists every field, so a copy of it shows everything that can be set.
        let sample: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let fields: Vec<&String> = sample.as_object().unwrap().keys().collect();
        assert_eq!(fields.len(), 10, "{fields:?}");
        assert_eq!(sample["plans"].as_object().unwrap().len(), Plan::ALL.len());
    }

    #[test]
    fn what_a_file_leaves_out_is_as_in_the_built_in_catalogue() {
        for text in ["", "# nothing yet\n", "{}"] {
            assert_eq!(parse(text), Ok(Catalogue::default()), "{text:?}");
        }
        let catalogue = parse("currency: CHF\nplans:\n  starter: {priceMonthly: 4.99}\n").unwrap();
        let prices = &catalogue.prices;
        assert_eq!(prices.currency.as_str(), "CHF");
        assert_eq!(
            Plan::ALL.map(|plan| prices.monthly(plan).to_string()),
            ["4.99", "15.00", "30.00", "60.00"]
        );
        assert_eq!(catalogue.regions, Catalogue::default().regions);
        let catalogue = parse(
            "tax: 7.7\nseller: [Stellage Ltd]\ninvoices: {dueDays: 30}\nbackups: {pricePerGBMonthly: 0.05}\n",
        )
        .unwrap();
        let terms = &catalogue.invoices;
        let (tax, backups) = (catalogue.prices.tax.to_string(), catalogue.prices.backup_gb);
        assert_eq!((tax.as_str(), terms.due_days, backups), ("7.70", 30, Cents(5)));
        assert_eq!(terms.seller.lines(), ["Stellage Ltd"]);
        let catalogue = parse("regions: [ch-zrh-1]\nimages: [alpine-3]\n").unwrap();
        assert_eq!(
            (catalogue.region_codes(), catalogue.images),
            ("ch-zrh-1".to_owned(), vec!["alpine-3".to_owned()])
        );
    }

    #[test]
    fn a_seller_has_fields_or_is_a_list_of_the_name_and_the_address_lines() {
        let seller = |text: &str| parse(&format!("seller: {text}")).unwrap().invoices.seller.lines();
        assert_eq!(
            seller("[Stellage Ltd, 1 Main Street]"),
            ["Stellage Ltd", "1 Main Street"]
        );
        assert_eq!(
            seller("{name: Stellage Ltd, address: [1 Main Street], country: DE, vatId: DE123456789}"),
            ["Stellage Ltd", "1 Main Street", "DE", "VAT ID DE123456789"]
        );
    }

    #[test]
    fn prices_and_the_tax_can_be_announced_and_each_change_builds_on_the_one_before_it() {
        let catalogue = parse(
            "tax: 19\nchanges:\n- {from: 2027-01-01T00:00:00Z, plans: {starter: {priceMonthly: 6}}}\n- {from: 2027-07-01T00:00:00Z, tax: 16, backups: {pricePerGBMonthly: 0.05}}\n",
        )
        .unwrap();
        let at = |time: &str| {
            let prices = catalogue.prices_at(time.parse().unwrap());
            let starter = prices.monthly(Plan::Starter).to_string();
            (starter, prices.tax.to_string(), prices.backup_gb.to_string())
        };
        let of = |starter: &str, tax: &str, backups: &str| {
            (starter.to_owned(), tax.to_owned(), backups.to_owned())
        };
        assert_eq!(at("2026-12-31T23:59:59Z"), of("5.00", "19.00", "0.00"));
        assert_eq!(at("2027-01-01T00:00:00Z"), of("6.00", "19.00", "0.00"));
        assert_eq!(at("2027-07-01T00:00:00Z"), of("6.00", "16.00", "0.05"));
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a list of mistakes")]
    fn an_error_names_the_field_and_what_is_allowed() {
        for (text, field, allowed) in [
            (
                "region: [a]",
                "region",
                "expected one of `currency`, `regions`, `images`, `plans`, `alerts`, `backups`, `tax`, `seller`, `invoices`, `changes`",
            ),
            (
                "plans: {starter: {price: 5}}",
                "plans.starter.price",
                "expected `priceMonthly`",
            ),
            (
                "plans: {small: {}}",
                "plans.small",
                "expected one of `starter`, `business`",
            ),
            (
                "plans: {starter: {}}",
                "plans.starter",
                "missing field `priceMonthly`",
            ),
            (
                "plans: {starter: {priceMonthly: -5}}",
                "plans.starter.priceMonthly",
                "a price from 0 to 1000000",
            ),
            (
                "plans: {business: {priceMonthly: 4.999}}",
                "plans.business.priceMonthly",
                "two decimals",
            ),
            (
                "plans: {business: {priceMonthly: 4.99}}",
                "plans.business.priceMonthly",
                "at least 5.00",
            ),
            ("regions: [fr-par-1, Paris]", "regions[1]", "<country>-<city>-<n>"),
            ("regions: [fr-par-1, fr-par-1]", "regions[1]", "listed twice"),
            ("regions: []", "regions", "1 to 1000"),
            ("regions: fr-par-1", "regions", "expected a sequence"),
            ("images: ['Debian 13']", "images[0]", "such as debian-13"),
            ("currency: euro", "currency", "three capital letters"),
            ("currency: XYZ", "currency", "an ISO 4217 code"),
            ("currency: JPY", "currency", "two decimals"),
            ("currency: KWD", "currency", "two decimals"),
            ("[]", ".", "must have fields"),
            ("tax: 101", "tax", "percent from 0 to 100"),
            ("seller: [a, '']", "seller.address[0]", "1 to 100 characters"),
            (
                "seller: [a, b, c, d, e, f, g, h]",
                "seller.address",
                "at most 6 lines",
            ),
            ("seller: a", "seller", "must have fields such as name"),
            ("seller: {vatId: DE1}", "seller.name", "who issues them"),
            (
                "seller: {name: a, country: Germany}",
                "seller.country",
                "such as DE",
            ),
            (
                "seller: {name: a, reference: b}",
                "seller.reference",
                "spec.billing",
            ),
            ("seller: {name: a, vat: DE1}", "seller", "unknown field `vat`"),
            ("changes: [{tax: 19}]", "changes[0]", "missing field `from`"),
            ("changes: [{from: tomorrow}]", "changes[0].from", "tomorrow"),
            (
                "changes: [{from: 2027-01-01T00:00:00Z, tax: 7}, {from: 2027-01-01T00:00:00Z, tax: 8}]",
                "changes[1].from",
                "later than the change before it",
            ),
            (
                "changes: [{from: 2027-01-01T00:00:00Z, plans: {starter: {priceMonthly: 16}}}]",
                "changes[0].plans.business.priceMonthly",
                "at least 16.00",
            ),
            ("invoices: {dueDays: 366}", "invoices.dueDays", "at most 365"),
            ("invoices: {days: 1}", "invoices.days", "expected `dueDays`"),
            ("invoices: 3", "invoices", "must have fields"),
            (
                "backups: {pricePerGBMonthly: -1}",
                "backups.pricePerGBMonthly",
                "a price from 0",
            ),
            ("plans: 5", "plans", "must have fields"),
            ("plans: {starter: [5]}", "plans.starter", "must have fields"),
            ("alerts: [60s]", "alerts", "must have fields"),
            ("alerts: {rules: [cpu]}", "alerts.rules[0]", "must have fields"),
            (
                "alerts: {every: 60s}",
                "alerts.every",
                "expected `interval` or `rules`",
            ),
            (
                "alerts: {interval: 61s}",
                "alerts.interval",
                "1 to 60 whole seconds",
            ),
            (
                "alerts: {interval: 0s}",
                "alerts.interval",
                "1 to 60 whole seconds",
            ),
            (
                "alerts: {interval: 1500ms}",
                "alerts.interval",
                "1 to 60 whole seconds",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with(&format!("--catalogue file: {field}: ")),
                "{text}: {error}"
            );
            assert!(error.contains(allowed), "{text}: {error}");
        }
        let rule = "name: cpu, metric: cpu_usage, threshold: 90, for: 5m, rearmBelow: 80";
        for (from, to, field, allowed) in [
            ("name: cpu", "name: 'CPU'", "name", "such as cpu_usage_high"),
            ("cpu_usage", "load", "metric", "expected one of `cpu_usage`"),
            ("threshold: 90", "threshold: 101", "threshold", "from 0 to 100"),
            (
                "threshold: 90",
                "threshold: 90.125",
                "threshold",
                "at most two decimals",
            ),
            ("for: 5m", "for: soon", "for", "such as 30s or 1m"),
            ("for: 5m", "for: 25h", "for", "1 to 86400"),
            ("rearmBelow: 80", "rearmBelow: 91", "rearmBelow", "at most 90 %"),
        ] {
            let error = parse(&format!("alerts: {{rules: [{{{}}}]}}", rule.replace(from, to))).unwrap_err();
            assert!(
                error.contains(&format!("file: alerts.rules[0].{field}: ")),
                "{to}: {error}"
            );
            assert!(error.contains(allowed), "{to}: {error}");
        }
        let twice = parse(&format!("alerts: {{rules: [{{{rule}}}, {{{rule}}}]}}")).unwrap_err();
        assert!(
            twice.contains("alerts.rules[1].name: \"cpu\" is the name of another"),
            "{twice}"
        );
        let many = parse(&format!(
            "alerts: {{rules: [{}]}}",
            vec![format!("{{{rule}}}"); 17].join(", ")
        ));
        assert!(many.unwrap_err().contains("must have at most 16"));
        let none = parse("alerts: {rules: [], interval: 15s}").unwrap().alerts;
        assert_eq!((none.rules.len(), none.interval.as_secs()), (0, 15));
        for text in ["regions: [", "currency: EUR\ncurrency: CHF"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("is not valid YAML"), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_endless_is_an_error() {
        let missing = Catalogue::load(Path::new("/nowhere/catalogue.yaml")).unwrap_err();
        assert!(
            missing
                .to_string()
                .starts_with("cannot read --catalogue /nowhere/catalogue.yaml: No such file")
        );
        let endless = Catalogue::load(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.to_string().contains("more than"), "{endless}");
    }
}
