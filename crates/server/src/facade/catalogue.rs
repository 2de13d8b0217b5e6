//! `/v1/plans`, `/v1/regions`, `/v1/images`: what can be ordered.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use super::{
    App,
    extract::{
        Caller,
        query::{Paging, Parameters},
    },
    response::{self, error::Error},
};
use api::{ConsoleType, ImageOffer, List, Money, PlanOffer, RegionOffer, UnitMoney};
use domain::catalogue::{Offer, Prices, offer::OfferedImage};
use resources::{Plan, validation};

fn plan_offer(plan: Plan, prices: &Prices) -> PlanOffer {
    let size = plan.size();
    PlanOffer {
        id: plan,
        vcpu: size.vcpu,
        memory: size.memory_gb,
        disk_size: size.disk_gb,
        price_monthly: Money::new(prices.monthly(plan), prices.currency.as_str()),
        price_hourly: UnitMoney::new(prices.hourly(plan), prices.currency.as_str()),
    }
}

fn region_offer(offer: &Offer<'_>, consoles: &[ConsoleType]) -> RegionOffer {
    let mut parts = offer.region.split('-').map(str::to_owned);
    RegionOffer {
        id: offer.region.to_owned(),
        country: parts.next().unwrap_or_default(),
        city: parts.next().unwrap_or_default(),
        simulated: offer.simulated,
        backups: offer.backups,
        private_networks: offer.private_networks,
        consoles: consoles.to_vec(),
    }
}

fn image_offer(image: OfferedImage<'_>) -> ImageOffer {
    let (distribution, version) = match image.id.split_once('-') {
        Some((distribution, version)) => (distribution, Some(version.to_owned())),
        None => (image.id, None),
    };
    ImageOffer {
        id: image.id.to_owned(),
        distribution: distribution.to_owned(),
        version,
        user: image.user.map(str::to_owned),
    }
}

/// Lists the plans
///
/// Smallest first.
#[utoipa::path(
    get, path = "/v1/plans", operation_id = "listPlans", tag = "catalogue",
    params(Paging),
    responses((status = 200, description = "A page of plans", body = List<PlanOffer>)),
)]
pub async fn plans(State(app): State<Arc<App>>, _: Caller, paging: Paging) -> Result<Response, Error> {
    let catalogue = app.service.catalogue();
    let prices = catalogue.prices_at(app.service.now());
    let plans = paging.cut(Plan::ALL.into_iter());
    response::list(paging, plans, |plan| plan_offer(*plan, prices))
}

/// Lists the regions
#[utoipa::path(
    get, path = "/v1/regions", operation_id = "listRegions", tag = "catalogue",
    params(Paging),
    responses((status = 200, description = "A page of regions", body = List<RegionOffer>)),
)]
pub async fn regions(State(app): State<Arc<App>>, _: Caller, paging: Paging) -> Result<Response, Error> {
    let catalogue = app.service.catalogue();
    let offers = paging.cut(catalogue.offers().into_iter());
    response::list(paging, offers, |offer| {
        region_offer(offer, app.service.consoles_in(offer.region))
    })
}

/// Lists the images
///
/// Those of all regions, or those of one. A region that is not available has none.
#[utoipa::path(
    get, path = "/v1/images", operation_id = "listImages", tag = "catalogue",
    params(Paging, ("region" = Option<String>, Query, description = "Only images that can be installed in this region.", example = "fr-par-1")),
    responses((status = 200, description = "A page of images", body = List<ImageOffer>)),
)]
pub async fn images(
    State(app): State<Arc<App>>,
    _: Caller,
    paging: Paging,
    parameters: Parameters,
) -> Result<Response, Error> {
    let catalogue = app.service.catalogue();
    let images = match parameters.get("region") {
        None => catalogue.all_images(),
        Some(region) => {
            let offer = validation::region(region)
                .ok()
                .and_then(|()| catalogue.offer(region));
            offer.map_or_else(Vec::new, |offer| offer.images())
        }
    };
    let images = paging.cut(images.into_iter());
    response::list(paging, images, |image| image_offer(*image))
}
