//! The consoles of real servers: through virt-api to a stand-in for virt-handler.

use reqwest::Method;
use resources::InstanceState::Stopped;
use serde_json::json;

use super::installation::{Case, shared};
use crate::console_access::{Console, ticket};
use crate::support::kubevirt::entry::REGION;

#[tokio::test]
async fn the_gateway_opens_the_consoles_of_a_real_server_and_asks_the_region_for_nothing_else() {
    let (case, id) = Case::running("kv-console").await;
    let regions = case.tenant.call(Method::GET, "/v1/regions", None).await.json();
    let all = regions["data"].as_array().unwrap();
    let real = all.iter().find(|region| region["id"] == REGION).unwrap();
    assert_eq!(real["consoles"], json!(["serial", "vnc"]));

    let mut serial = Console::open(&ticket(&case.tenant, &id, "serial").await)
        .await
        .unwrap();
    serial.shows(&format!("console of {id}\r\n")).await;
    serial.types("uname\r").await;
    serial.shows("uname\r").await;
    let large = "0123456789abcdef".repeat(16 * 1024);
    serial.types(&large).await;
    serial.shows(&large[large.len() - 100..]).await;
    let mut screen = Console::open(&ticket(&case.tenant, &id, "vnc").await)
        .await
        .unwrap();
    screen.shows("RFB 003.008\n").await;

    let path = format!("/v1/instances/{id}/poweroff");
    case.tenant.call(Method::POST, &path, None).await;
    for console in [&mut serial, &mut screen] {
        let (code, reason) = console.ends().await;
        // KubeVirt may end the line before the status says that the server is off.
        assert!([1000, 4000].contains(&code), "{code}: {reason}");
    }
    case.settles(&id, Stopped).await;
    let body = json!({ "type": "serial" });
    let path = format!("/v1/instances/{id}/console");
    let refused = case.tenant.call(Method::POST, &path, Some(&body)).await;
    assert_eq!(refused.status.as_u16(), 409, "{}", refused.text);

    let requests = case.region.plane.requests().unwrap();
    let of_gateway: Vec<_> = requests
        .iter()
        .filter(|request| request.user.ends_with("-consoles") && request.namespace == case.namespace)
        .map(|request| format!("{} {}", request.verb, request.resource))
        .collect();
    assert!(
        of_gateway.len() >= 2
            && of_gateway
                .iter()
                .all(|request| request.starts_with("get virtualmachineinstances")),
        "{of_gateway:?}"
    );
    let log = shared(&case.region).await.gateway.log();
    assert!(log.contains("a console was opened"), "{log}");
}
