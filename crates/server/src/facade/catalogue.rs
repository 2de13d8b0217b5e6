//! `/v1/plans`, `/v1/regions`, `/v1/images`: what can be ordered.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    App,
    extract::{
        Caller,
        query::{Paging, Parameters},
    },
    openapi::examples,
    response::{
        self,
        error::ApiError,
        view::{List, Pagination},
    },
};
use domain::catalogue::Prices;
use resources::{
    Plan,
    money::{Cents, UnitPrice},
};

/// An amount of money.
#[derive(Serialize, ToSchema)]
pub struct Money {
    /// Decimal number with two decimal places.
    #[schema(pattern = r"^[0-9]+\.[0-9]{2}$", example = "5.00")]
    value: String,
    /// ISO 4217 code.
    #[schema(pattern = "^[A-Z]{3}$", example = "EUR")]
    currency: String,
}

/// The price of one unit.
#[derive(Serialize, ToSchema)]
pub struct UnitMoney {
    /// Decimal number with five decimal places.
    #[schema(pattern = r"^[0-9]+\.[0-9]{5}$", example = "0.00745")]
    value: String,
    /// ISO 4217 code.
    #[schema(pattern = "^[A-Z]{3}$", example = "EUR")]
    currency: String,
}

impl Money {
    /// An amount.
    pub(super) fn of(cents: Cents, currency: &str) -> Self {
        Self {
            value: cents.to_string(),
            currency: currency.to_owned(),
        }
    }
}

impl UnitMoney {
    /// A price.
    pub(super) fn of(price: UnitPrice, currency: &str) -> Self {
        Self {
            value: price.to_string(),
            currency: currency.to_owned(),
        }
    }
}

/// A plan that can be ordered.
#[derive(Serialize, ToSchema)]
pub struct PlanOffer {
    /// Identifier of the plan, as used in requests.
    id: Plan,
    /// Virtual CPUs.
    #[schema(minimum = 1)]
    vcpu: i32,
    /// Memory in GB.
    #[schema(minimum = 1)]
    memory: i32,
    /// Disk in GB.
    #[schema(minimum = 1)]
    disk_size: i32,
    /// Price per month.
    price_monthly: Money,
    /// Price per hour: a 672nd of the month's, rounded up to a thousandth of a cent.
    price_hourly: UnitMoney,
}

/// A region in which instances can be created.
#[derive(Serialize, ToSchema)]
pub struct RegionOffer<'a> {
    /// Region code, as used in requests: `<country>-<city>-<n>`.
    #[schema(pattern = "^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$", example = "fr-par-1")]
    id: &'a str,
    /// Country, as an ISO 3166 code in lower case.
    #[schema(pattern = "^[a-z]{2}$", example = "fr")]
    country: &'a str,
    /// City code.
    #[schema(pattern = "^[a-z]{3,}$", example = "par")]
    city: &'a str,
}

/// An image that can be installed.
#[derive(Serialize, ToSchema)]
pub struct ImageOffer<'a> {
    /// Identifier of the image, as used in requests.
    #[schema(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", example = "debian-13")]
    id: &'a str,
    /// The distribution.
    #[schema(example = "debian")]
    distribution: &'a str,
    /// Version of the distribution; `null` if the identifier contains none.
    #[schema(required, example = "13")]
    version: Option<&'a str>,
}

impl PlanOffer {
    fn of(plan: Plan, prices: &Prices) -> Self {
        let size = plan.size();
        Self {
            id: plan,
            vcpu: size.vcpu,
            memory: size.memory_gb,
            disk_size: size.disk_gb,
            price_monthly: Money::of(prices.monthly(plan), prices.currency.as_str()),
            price_hourly: UnitMoney::of(prices.hourly(plan), prices.currency.as_str()),
        }
    }
}

impl<'a> RegionOffer<'a> {
    fn of(region: &'a str) -> Self {
        let mut parts = region.split('-');
        Self {
            id: region,
            country: parts.next().unwrap_or_default(),
            city: parts.next().unwrap_or_default(),
        }
    }
}

impl<'a> ImageOffer<'a> {
    fn of(image: &'a str) -> Self {
        let (distribution, version) = match image.split_once('-') {
            Some((distribution, version)) => (distribution, Some(version)),
            None => (image, None),
        };
        Self {
            id: image,
            distribution,
            version,
        }
    }
}

/// Lists the plans
///
/// Smallest first.
#[utoipa::path(
    get, path = "/v1/plans", operation_id = "listPlans", tag = "catalogue",
    params(Paging),
    responses((status = 200, description = "A page of plans", body = List<PlanOffer>, example = json!(examples::page(PlanOffer::of(Plan::Starter, &Prices::default()))))),
)]
pub async fn plans(
    State(app): State<Arc<App>>,
    _: Caller,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let catalogue = app.service.catalogue();
    page(&parameters, &Plan::ALL, |plan| {
        PlanOffer::of(*plan, &catalogue.prices)
    })
}

/// Lists the regions
#[utoipa::path(
    get, path = "/v1/regions", operation_id = "listRegions", tag = "catalogue",
    params(Paging),
    responses((status = 200, description = "A page of regions", body = List<RegionOffer<'static>>, example = json!(examples::page(RegionOffer::of("fr-par-1"))))),
)]
pub async fn regions(
    State(app): State<Arc<App>>,
    _: Caller,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    page(&parameters, &app.service.catalogue().regions, |region| {
        RegionOffer::of(region)
    })
}

/// Lists the images
#[utoipa::path(
    get, path = "/v1/images", operation_id = "listImages", tag = "catalogue",
    params(Paging),
    responses((status = 200, description = "A page of images", body = List<ImageOffer<'static>>, example = json!(examples::page(ImageOffer::of("debian-13"))))),
)]
pub async fn images(
    State(app): State<Arc<App>>,
    _: Caller,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    page(&parameters, &app.service.catalogue().images, |image| {
        ImageOffer::of(image)
    })
}

fn page<'a, T, I: Serialize>(
    parameters: &Parameters,
    all: &'a [T],
    item: impl Fn(&'a T) -> I,
) -> Result<Response, ApiError> {
    let paging = parameters.paging()?;
    let skip = usize::try_from(paging.page - 1)
        .unwrap_or(usize::MAX)
        .saturating_mul(paging.limit);
    let list = List {
        data: all.iter().skip(skip).take(paging.limit).map(item).collect(),
        pagination: Pagination::new(paging.page, paging.limit, all.len()),
    };
    response::json(StatusCode::OK, &list, 1024)
}
