//! `/v1/networks`: list, create, detail, change, delete.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use super::{
    App,
    extract::{
        Caller, Change, Post, Target,
        body::required,
        fields::Fields,
        idempotency::{self, Retention},
        query::Paging,
    },
    openapi::examples,
    response::{
        self,
        error::{Detail, Error, ErrorAnswer},
    },
};
use crate::service::{
    error::quota_used_up,
    id::NetworkId,
    networks::{IndexedNetwork, still_in_use},
};
use api::{ChangeNetwork, CreateNetwork, List, PrivateNetwork, Seconds, Single};
use domain::{catalogue::Catalogue, network};
use resources::validation;

/// A network as lists and its detail show it.
fn view(item: &IndexedNetwork, instances: usize) -> PrivateNetwork {
    let network = &*item.network;
    let message = item.why_not_ready();
    PrivateNetwork {
        id: item.id.to_string(),
        name: network.display_name().to_owned(),
        region: network.spec.region.clone(),
        prefix: network.prefix().map(str::to_owned),
        ready: message.is_none(),
        message,
        instances,
        created_at: Seconds(network.created_at()),
    }
}

fn shown(app: &App, item: &IndexedNetwork) -> PrivateNetwork {
    view(item, app.service.attached(item))
}

/// Reads a request to create one; 422 names every invalid field.
fn read(mut fields: Fields, catalogue: &Catalogue) -> Result<CreateNetwork, Error> {
    let name = fields.string("name", &validation::name);
    let region = fields.string("region", &|text| match catalogue.offer(text) {
        Some(offer) if offer.private_networks => Ok(()),
        Some(_) => Err("has no private networks; GET /v1/regions says which regions have"),
        None => Err("is not available; GET /v1/regions lists the regions"),
    });
    let region = fields.missing("region", region);
    let prefix = fields.string("prefix", &|text| network::parse(text).map(drop));
    fields.finish()?;
    Ok(CreateNetwork {
        name,
        // Unreachable: `finish` reports that it is missing.
        region: region.ok_or_else(Error::fault)?,
        prefix,
    })
}

/// Reads a request to change one; 422 names every invalid field.
fn read_change(mut fields: Fields) -> Result<ChangeNetwork, Error> {
    if fields.is_empty() {
        return Err(Error::invalid(vec![Detail::new(
            "body",
            "missing",
            "must have name",
        )]));
    }
    let name = fields.string("name", &validation::name);
    fields.immutable(
        "region",
        "cannot be changed; create another private network in that region",
    );
    fields.immutable(
        "prefix",
        "cannot be changed; create another private network with that prefix",
    );
    for field in ["id", "ready", "message", "instances", "created_at"] {
        fields.immutable(field, "cannot be set");
    }
    fields.finish()?;
    Ok(ChangeNetwork { name })
}

/// Lists private networks
///
/// Newest first, then by id.
#[utoipa::path(
    get,
    path = "/v1/networks",
    operation_id = "listNetworks",
    tag = "networks",
    params(Paging),
    responses((status = 200, description = "A page of private networks", body = List<PrivateNetwork>)),
)]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, paging: Paging) -> Result<Response, Error> {
    let networks = app.service.list_networks(caller.namespace(), paging);
    response::list(paging, networks, |item| shown(&app, item))
}

/// Creates a private network
///
/// Instances of the same region that are created with its id as `private_network` are attached to it, and have an address in it. The
/// networks of an account do not overlap. `GET /v1/regions` says which regions have private networks.
#[utoipa::path(
    post,
    path = "/v1/networks",
    operation_id = "createNetwork",
    tag = "networks",
    request_body(content = CreateNetwork, example = json!({"name": "backend", "region": "fr-par-1"})),
    responses(
        (status = 201, description = "The private network", body = Single<PrivateNetwork>, headers(("ETag"))),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("private networks")))),
    ),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_body(request).await?;
    let (tenant, request) = (caller.tenant(), post.idempotent.as_ref());
    let created = match read(post.fields, &app.service.catalogue()) {
        Ok(new) => app.service.create_network(tenant, &new, request).await?,
        // The region may have been available when the request was sent first.
        Err(refusal) => {
            let created = app.service.network_created_by(tenant, request).await?;
            created.ok_or(refusal)?
        }
    };
    let item = &*created.item;
    let mut response = response::single(StatusCode::CREATED, &*item.network, shown(&app, item), None)?;
    response::locate(&mut response, "/v1/networks", item.id);
    idempotency::mark(&mut response, request, created.replayed, Retention::Resource);
    Ok(response)
}

/// Shows a private network
#[utoipa::path(
    get,
    path = "/v1/networks/{id}",
    operation_id = "getNetwork",
    tag = "networks",
    params(Target<NetworkId>),
    responses((status = 200, description = "The private network", body = Single<PrivateNetwork>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<NetworkId>,
) -> Result<Response, Error> {
    let item = app.service.network(caller.namespace(), id).await?;
    response::single(StatusCode::OK, &*item.network, shown(&app, &item), None)
}

/// Changes a private network
///
/// Only its name can be changed.
#[utoipa::path(
    patch,
    path = "/v1/networks/{id}",
    operation_id = "changeNetwork",
    tag = "networks",
    params(Target<NetworkId>),
    request_body(content = ChangeNetwork, example = json!({"name": "backend"})),
    responses((status = 200, description = "The changed private network", body = Single<PrivateNetwork>, headers(("ETag")))),
)]
pub async fn change(call: Change<NetworkId>) -> Result<Response, Error> {
    let change = read_change(required(call.request).await?)?;
    let item = call
        .app
        .service
        .change_network(call.caller.namespace(), call.id, &change, &call.precondition)
        .await?;
    response::single(StatusCode::OK, &*item.network, shown(&call.app, &item), None)
}

/// Deletes a private network
///
/// Not allowed while instances are in it.
#[utoipa::path(
    delete,
    path = "/v1/networks/{id}",
    operation_id = "deleteNetwork",
    tag = "networks",
    params(Target<NetworkId>),
    responses(
        (status = 204, description = "The private network is deleted"),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(still_in_use("pn-4t8kq2m6x1r9z3wb", 2)))),
    ),
)]
pub async fn delete(call: Change<NetworkId>) -> Result<StatusCode, Error> {
    let (service, namespace) = (&call.app.service, call.caller.namespace());
    let deleting = service.delete_network(namespace, call.id, &call.precondition);
    deleting.await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facade::extract::body::fields;
    use domain::catalogue::testing::catalogue;

    #[test]
    fn wrong_fields_are_refused_all_at_once() {
        let read = |body: &Value| read(fields(&body.to_string()).ok().unwrap(), &catalogue());
        let new =
            read(&json!({ "name": "backend", "region": "fr-par-1", "prefix": "10.128.4.0/24" })).unwrap();
        assert_eq!(
            (new.name.as_deref(), new.prefix.as_deref()),
            (Some("backend"), Some("10.128.4.0/24"))
        );
        for (body, wrong) in [
            (
                json!({ "region": "xx-abc-1", "prefix": "192.0.2.0/24", "name": "-" }),
                vec!["name", "region", "prefix"],
            ),
            (json!({}), vec!["region"]),
            (json!({ "region": "de-fra-1" }), vec!["region"]),
            (
                json!({ "region": "fr-par-1", "gateway": "10.0.0.1" }),
                vec!["gateway"],
            ),
        ] {
            let details = read(&body).unwrap_err().details;
            let fields: Vec<_> = details.iter().map(|detail| &*detail.field).collect();
            assert_eq!(fields, wrong, "{body}");
        }
    }

    #[test]
    fn only_the_name_can_be_changed() {
        let read = |body: &Value| read_change(fields(&body.to_string()).ok().unwrap());
        assert_eq!(read(&json!({ "name": "b" })).unwrap().name.as_deref(), Some("b"));
        for (body, field) in [
            (json!({}), "body"),
            (json!({ "name": null }), "name"),
            (json!({ "prefix": "10.128.4.0/24" }), "prefix"),
            (json!({ "region": "fr-par-1" }), "region"),
        ] {
            assert_eq!(read(&body).unwrap_err().details[0].field, field, "{body}");
        }
    }
}
