//! Notices that the data of the API server was put back to an older state, such as that of a backup of etcd. Its resourceVersions then
//! start again from a lower one, and what is in memory would count as newer than whatever comes.

use std::time::Duration;

use kube::{Api, Client, api::ListParams};
use thiserror::Error;

use crate::client::bounded;
use resources::Account;

/// How often to look.
const EVERY: Duration = Duration::from_secs(5);
/// How often to look while the API server does not answer: it does not while it is restored, and its data changes quickly after that.
const WITHOUT_ANSWER: Duration = Duration::from_millis(500);

/// The data of the API server was put back to an older state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the API server's data was put back to an older state, from resourceVersion {known} to {listed}: what this process knows is worth nothing; start it again"
)]
pub struct Restored {
    /// The resourceVersion of an earlier list.
    known: u64,
    /// That of the latest list.
    listed: u64,
}

/// Waits until the API server's data is put back to an older state: until a list is older than one before it.
pub async fn noticed(client: Client) -> Restored {
    look(client, EVERY, WITHOUT_ANSWER).await
}

async fn look(client: Client, every: Duration, without_answer: Duration) -> Restored {
    let mut known = 0;
    loop {
        let pause = match revision(&client).await {
            Some(listed) if listed < known => return Restored { known, listed },
            Some(listed) => {
                known = listed;
                every
            }
            None => without_answer,
        };
        tokio::time::sleep(pause).await;
    }
}

/// The resourceVersion of a list that is up to date; `None` without an answer.
async fn revision(client: &Client) -> Option<u64> {
    let accounts: Api<Account> = Api::all(client.clone());
    let one = ListParams::default().limit(1);
    let list = bounded(accounts.list_metadata(&one)).await.ok()?;
    list.metadata.resource_version?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;

    use super::*;
    use crate::testing::answered_by;

    #[tokio::test]
    async fn a_list_that_is_older_than_one_before_it_is_noticed() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let client = answered_by(move |_, _, _| {
            let answers = [
                Some("100"),
                Some("100"),
                Some("1000"),
                None,
                Some("999"),
                Some("1001"),
            ];
            let answer = answers[count.fetch_add(1, Ordering::SeqCst)];
            async move {
                let list = json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": { "resourceVersion": answer }, "items": [],
                });
                match answer {
                    Some(_) => (200, list),
                    None => (503, json!({ "kind": "Status", "code": 503, "status": "Failure" })),
                }
            }
        });
        let restored = look(client, Duration::ZERO, Duration::ZERO).await;
        assert_eq!((restored.known, restored.listed), (1000, 999));
        assert_eq!(asked.load(Ordering::SeqCst), 5);
    }
}
