//! `stellage backup …`, and restoring one with `stellage instance rebuild`.

use kube::{Api, api::ListParams};
use providers::simulator::FAULT_ANNOTATION;
use resources::{Backup, InstanceState};

use super::run;
use crate::support::Tenant;

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_made_and_restored_and_the_next_image_takes_its_place() {
    let tenant = Tenant::new("cmd-backups").await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let run = async |line: &str| run("cmd-backups", line).await;

    let made = run("backup create web --name nightly --wait --timeout 3m --output json").await;
    let made = made.json();
    assert_eq!(
        (&made["kind"], &made["status"]["phase"]),
        (&"Backup".into(), &"Completed".into())
    );
    let id = made["status"]["id"].as_str().unwrap();
    let image = made["status"]["source"]["image"].as_str().unwrap();

    run("instance rebuild web --image fedora-42 --wait --timeout 3m")
        .await
        .text();
    let restored = run(&format!("instance rebuild web --backup {id} --wait --timeout 3m")).await;
    assert_eq!(restored.text(), "instance web is running");
    let web = tenant.instances().get("web").await.unwrap();
    assert_eq!(web.status.unwrap().image.as_deref(), Some(image));
    assert_eq!(
        web.spec.restore_from.as_deref(),
        made["metadata"]["name"].as_str()
    );

    run("instance rebuild web --image fedora-42 --wait --timeout 3m")
        .await
        .text();
    let web = tenant.instances().get("web").await.unwrap();
    assert_eq!(web.status.unwrap().image.as_deref(), Some("fedora-42"));
    assert_eq!(web.spec.restore_from, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_fails_says_why_and_is_not_restored() {
    let tenant = Tenant::new("cmd-backup-fails").await;
    tenant
        .apply("web", |web| {
            let annotations = web.metadata.annotations.get_or_insert_default();
            annotations.insert(FAULT_ANNOTATION.to_owned(), "backup".to_owned());
        })
        .await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let run = async |line: &str| run("cmd-backup-fails", line).await;

    let failed = run("backup create web --wait --timeout 3m").await;
    assert!(failed.error().contains("has failed: "), "{failed:?}");
    let backups: Api<Backup> = Api::namespaced(tenant.kube.clone(), "cmd-backup-fails");
    let backup = backups
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0);
    let refused = run(&format!("instance rebuild web --backup {}", backup.id())).await;
    assert!(
        refused
            .error()
            .contains("is failed; only a completed backup can be restored"),
        "{refused:?}"
    );
    let missing = run("backup create nothing").await;
    assert!(
        missing.error().contains("there is no instance nothing"),
        "{missing:?}"
    );
    let unknown = run("instance rebuild web --backup bkp_0000000000000000").await;
    assert!(
        unknown
            .error()
            .contains("there is no backup bkp_0000000000000000"),
        "{unknown:?}"
    );
}
