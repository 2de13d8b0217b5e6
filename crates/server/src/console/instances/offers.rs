//! What the regions offer, as the forms need it.

use crate::console::{
    backups::view::Backup,
    call::{Call, with_query},
    refusal::Refusal,
    session_request::SessionRequest,
};
use api::{ImageOffer, List, RegionOffer};

pub async fn regions(request: &SessionRequest) -> Result<Vec<RegionOffer>, Refusal> {
    let regions: List<RegionOffer> = request.get(&Call::get("/v1/regions?limit=100")).await?;
    Ok(regions.data)
}

/// The images that can be installed in a region.
pub async fn images(request: &SessionRequest, region: &str) -> Result<Vec<ImageOffer>, Refusal> {
    let path = with_query("/v1/images", &[("region", region), ("limit", "100")]);
    let images: List<ImageOffer> = request.get(&Call::get(path)).await?;
    Ok(images.data)
}

/// Whether a backup can be restored in a region: only those of simulated servers move.
pub fn restores(regions: &[RegionOffer], backup: &Backup, region: &str) -> bool {
    let is_simulated = |code: &str| {
        let listed = regions.iter().find(|listed| listed.id == code);
        // One that is not listed is simulated while all are.
        listed.map_or_else(
            || regions.iter().all(|listed| listed.simulated),
            |listed| listed.simulated,
        )
    };
    let of_backup = backup.region.as_deref();
    of_backup.is_none_or(|of_backup| of_backup == region || is_simulated(of_backup) && is_simulated(region))
}
