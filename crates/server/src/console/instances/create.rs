//! The form for a new instance.

use askama::Template;
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{SECTION, offers, view};
use crate::console::{
    backups::view::Backup,
    call::Call,
    form::{Form, INSTALL},
    networks::Network,
    page::{Shell, page},
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{ImageOffer, List, NewInstance, PlanOffer, RegionOffer, Single};

#[derive(Template)]
#[template(path = "console/instances/create.html")]
struct CreatePage {
    shell: Shell,
    form: Form,
    plans: Vec<PlanOffer>,
    regions: Vec<RegionOffer>,
    /// Whether regions differ in what they offer.
    depends: bool,
    /// Whether the chosen region has backups.
    has_backups: bool,
    has_private_networks: bool,
    networks: Vec<Network>,
    images: Vec<ImageOffer>,
    backups: Vec<Backup>,
}

/// What can be ordered.
struct Offers {
    plans: Vec<PlanOffer>,
    regions: Vec<RegionOffer>,
    /// The chosen region.
    region: String,
    /// Images of the chosen region.
    images: Vec<ImageOffer>,
    /// Backups that can be restored in the chosen region.
    backups: Vec<Backup>,
    /// Private networks of all regions.
    networks: Vec<Network>,
}

impl Offers {
    /// The first plan whose disk has room for the backup. If there is no such backup, the first plan.
    fn smallest_plan_for(&self, backup: &str) -> Option<&PlanOffer> {
        let of_backup = self.backups.iter().find(|offer| offer.id == backup);
        let disk_size = of_backup.and_then(|backup| backup.disk_size).unwrap_or(0);
        self.plans.iter().find(|plan| plan.disk_size >= disk_size)
    }
}

/// What can be ordered in a region: in the one that is `asked` for, that of the `backup`, or else the first.
async fn orders(request: &SessionRequest, asked: &str, backup: &str) -> Result<Offers, Refusal> {
    let plans: List<PlanOffer> = request.get(&Call::get("/v1/plans?limit=100")).await?;
    let regions = offers::regions(request).await?;
    let backups: List<Backup> = request
        .get(&Call::get("/v1/backups?status=completed&limit=100"))
        .await?;
    let networks: List<Network> = request.get(&Call::get("/v1/networks?limit=100")).await?;
    let of_backup = backups.data.iter().find(|offer| offer.id == backup);
    let region = Some(asked)
        .filter(|asked| !asked.is_empty())
        .or_else(|| of_backup?.region.as_deref())
        .or_else(|| regions.first().map(|region| region.id.as_str()))
        .unwrap_or_default()
        .to_owned();
    let restores = |backup: &Backup| offers::restores(&regions, backup, &region);
    Ok(Offers {
        plans: plans.data,
        images: offers::images(request, &region).await?,
        backups: backups.data.into_iter().filter(restores).collect(),
        networks: networks.data,
        regions,
        region,
    })
}

/// Shows the form.
pub async fn show(request: SessionRequest) -> Answer {
    request.check_may_write()?;
    let backup = request.query.get("backup");
    let offers = orders(&request, request.query.get("region"), backup).await?;
    let install = if backup.is_empty() {
        let image = view::newest_of_the_first(&offers.images);
        image.map(|image| format!("image:{}", image.id))
    } else {
        Some(format!("backup:{backup}"))
    };
    let plan = offers.smallest_plan_for(backup).map(|plan| plan.id.as_str());
    let form = Form::new()
        .with("name", request.query.get("name"))
        .with("plan", plan.unwrap_or_default())
        .with("region", &offers.region)
        .with(INSTALL, &install.unwrap_or_default());
    Ok(filled(&request, StatusCode::OK, form, offers))
}

fn filled(request: &SessionRequest, status: StatusCode, form: Form, offers: Offers) -> Response {
    let call = create(&form);
    let chosen = offers.regions.iter().find(|region| region.id == offers.region);
    let template = CreatePage {
        depends: offers.regions.iter().any(|region| !region.simulated),
        has_backups: chosen.is_none_or(|region| region.backups),
        has_private_networks: chosen.is_none_or(|region| region.private_networks),
        shell: request.shell_with(SECTION, "New instance", &[call]),
        form,
        plans: offers.plans,
        regions: offers.regions,
        images: offers.images,
        backups: offers.backups,
        networks: offers.networks,
    };
    page(status, &template)
}

/// The request for a form.
fn create(form: &Form) -> Call {
    let mut body = Map::new();
    for field in ["name", "plan", "region"] {
        body.insert(field.to_owned(), json!(form.text(field)));
    }
    let (source, id) = form.install();
    body.insert(source.to_owned(), json!(id));
    let mut list = |field: &str, values: Vec<&str>| {
        if !values.is_empty() {
            body.insert(field.to_owned(), json!(values));
        }
    };
    list("ssh_keys", form.lines("ssh_keys"));
    list("tags", form.words("tags"));
    for field in ["backup_enabled", "monitoring_enabled"] {
        if form.has(field, "true") {
            body.insert(field.to_owned(), json!(true));
        }
    }
    // Browsers end each line of a form with CRLF, which shells do not take.
    let user_data = form.value("user_data").replace("\r\n", "\n");
    if !user_data.trim().is_empty() {
        body.insert("user_data".to_owned(), json!(user_data));
    }
    let network = form.text("private_network");
    if !network.is_empty() {
        body.insert("private_network".to_owned(), json!(network));
    }
    Call::with(Method::POST, "/v1/instances", Value::Object(body)).once(form.key())
}

/// Creates the instance.
pub async fn send(request: SessionRequest, mut form: Form) -> Answer {
    match request.get::<Single<NewInstance>>(&create(&form)).await {
        Ok(created) => {
            let path = format!("/console/instances/{}", created.data.id);
            let note = created.message.unwrap_or_default();
            Ok(request.begun(&path, &note).await)
        }
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            let offers = orders(&request, form.text("region"), "").await?;
            Ok(filled(&request, status, form, offers))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_the_body_that_it_asks_for() {
        let form = Form::parse(
            "name=+web-1&plan=starter&region=fr-par-1&install=image%3Adebian-13&tags=a%2C+b&ssh_keys=%0D%0Assh-ed25519+AAAA%0D%0A&backup_enabled=true&private_network=",
        );
        assert_eq!(
            create(&form).body,
            Some(json!({
                "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["a", "b"],
                "ssh_keys": ["ssh-ed25519 AAAA"], "backup_enabled": true,
            }))
        );
        let form = Form::parse(
            "install=backup%3Abkp_1&private_network=pn-a&user_data=%23%21%2Fbin%2Fsh%0D%0Aecho+1%0D%0A",
        );
        assert_eq!(
            create(&form).body,
            Some(json!({
                "name": "", "plan": "", "region": "", "backup": "bkp_1", "private_network": "pn-a",
                "user_data": "#!/bin/sh\necho 1\n",
            }))
        );
        let form = Form::parse("user_data=%0D%0A+");
        assert_eq!(create(&form).body.unwrap().get("user_data"), None);
    }
}
