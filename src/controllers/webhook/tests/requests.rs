//! What the controller asks of the API server, and how often.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    super::{lookup, status_writer},
    locks::{caches, controller, opening},
    webhook,
};
use crate::runtime::watch::Change;

#[tokio::test]
async fn events_need_no_list_of_webhooks_once_the_watch_has_shown_their_version() {
    let (shared, mut listeners, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..1).await;
    let mut changed = webhook(0);
    changed.metadata.resource_version = Some("40".into());
    listeners.webhooks.changed(&Change::Applied(Arc::new(changed)));
    for (version, is_known) in [(40, true), (41, false)] {
        let unlisted = lookup::Unlisted::default();
        // There is no API server to ask.
        let found = lookup::look_up(shared.clone(), "ns".into(), unlisted, Some(version)).await;
        assert_eq!(found, is_known, "{version}");
    }
}

#[test]
fn the_api_server_is_never_made_to_wait_for_a_version_of_a_secret_that_does_not_exist() {
    // The webhook has version 10.
    for (announced, version) in [("9", Some(9)), ("10", Some(10)), ("11", None), ("pending", None)] {
        let mut webhook = webhook(0);
        let annotation = ("stellage.dev/secret-changed".to_owned(), announced.to_owned());
        webhook.metadata.annotations = Some([annotation].into());
        assert_eq!(webhook.announced_secret(), version, "{announced}");
    }
}

#[tokio::test]
async fn the_counters_of_all_webhooks_take_turns_of_a_fifth_of_a_second() {
    let (shared, _, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..3).await;
    let mut state = shared.state.lock();
    let keys: Vec<_> = state.webhooks.keys().cloned().collect();
    let now = Instant::now();
    let mut turns = |at| -> Vec<_> {
        let turn = |key| status_writer::turn(&mut state, key, at).unwrap();
        keys.iter()
            .map(turn)
            .map(|turn| turn.duration_since(now).as_millis())
            .collect()
    };
    assert_eq!(turns(now), [0, 200, 400]);
    assert_eq!(
        turns(now + Duration::from_secs(1)),
        [0, 200, 400],
        "a turn is kept until it is used"
    );
    for cached in state.webhooks.values_mut() {
        cached.turn = None;
    }
    let mut turn = |key, at| status_writer::turn(&mut state, key, at).unwrap();
    assert_eq!(turn(&keys[2], now), now + Duration::from_millis(600));
    let later = now + Duration::from_secs(60);
    assert_eq!(
        turn(&keys[0], later),
        later,
        "turns that nobody took are not made up for"
    );
}
