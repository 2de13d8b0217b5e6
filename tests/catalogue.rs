//! The catalogue's file: `--catalogue`.

use std::{fs, path::Path, process::Command};

use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use reqwest::Method;

use crate::support::{Operator, STELLAGE, Tenant, eventually, shared};

#[test]
fn the_program_does_not_start_with_a_mistake_in_the_catalogue_and_says_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalogue.yaml");
    fs::write(&file, "plans: {business: {priceMonthly: free}}").unwrap();
    for command in ["run", "api", "controller"] {
        let output = Command::new(STELLAGE)
            .args([command, "--catalogue"])
            .arg(&file)
            .env("KUBECONFIG", "/nowhere")
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains(
                "plans.business.priceMonthly: invalid value: string \"free\", expected a price from 0"
            ),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_changed_catalogue_is_served_without_a_restart_and_a_bad_one_is_reported() {
    let plane = shared().await.plane;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalogue.yaml");
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/catalogue.yaml");
    let sample = fs::read_to_string(sample).unwrap();
    let write = |text: &str| {
        let new = folder.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &file).unwrap();
    };
    write(&sample.replace("priceMonthly: 5.00", "priceMonthly: 4.20"));
    // The shared operator is the leader; this one is a standby that serves the API.
    let mut operator = Operator::start(plane, &["run", "--catalogue", file.to_str().unwrap()]).await;
    let tenant = Tenant::on(plane, &operator, "catalogue-file").await;
    let first = async |path: &str| tenant.call(Method::GET, path, None).await.json()["data"][0].clone();
    let plan = first("/v1/plans").await;
    assert_eq!(
        (&plan["price_monthly"]["value"], &plan["price_hourly"]["value"]),
        (&"4.20".into(), &"0.00625".into())
    );

    let changed = sample.replace("EUR", "CHF").replace("  - fr-par-1\n", "");
    write(&changed);
    eventually(
        "the new regions",
        async || first("/v1/regions").await,
        |region| region["id"] == "de-fra-1",
    )
    .await;
    assert_eq!(first("/v1/plans").await["price_hourly"]["currency"], "CHF");

    write(&changed.replace("nl-ams-1", "Amsterdam"));
    let events: Api<Event> = Api::namespaced(tenant.kube.clone(), "stellage-system");
    let bad = ListParams::default().fields("reason=InvalidCatalogue");
    let events = eventually(
        "an Event about the mistake",
        async || events.list(&bad).await.unwrap().items,
        |events| !events.is_empty(),
    )
    .await;
    let note = events[0].note.as_deref().unwrap_or_default();
    assert!(
        note.contains("regions[1]: \"Amsterdam\" must be a region code"),
        "{note}"
    );
    assert!(
        operator
            .metric("stellage_catalogue_reloads_total", "invalid")
            .await
            > 0.0
    );
    assert_eq!(first("/v1/regions").await["id"], "de-fra-1");
    operator.stop().await;
}
