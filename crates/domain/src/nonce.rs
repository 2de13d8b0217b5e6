//! Nonces: the RFC 3339 times in a spec that request an action once (`startRequestedAt`, `rebootRequestedAt`, …).

use jiff::{SignedDuration, Timestamp};

use resources::InstanceSpec;

/// A nonce that differs from those already in the spec of an instance.
pub fn instance_nonce(now: Timestamp, spec: &InstanceSpec) -> String {
    nonce(
        now,
        &[
            &spec.start_requested_at,
            &spec.power_off_requested_at,
            &spec.reboot_requested_at,
            &spec.rebuild_requested_at,
        ]
        .map(|taken| taken.as_deref()),
    )
}

/// `now` with microseconds, increased until it differs from all `taken` ones.
pub fn nonce(now: Timestamp, taken: &[Option<&str>]) -> String {
    let mut time = now;
    loop {
        let text = format!("{time:.6}");
        match time.checked_add(SignedDuration::from_micros(1)) {
            Ok(next) if taken.contains(&Some(text.as_str())) => time = next,
            _ => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_new_even_when_the_clock_stands_still() {
        let now: jiff::Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let mut spec: InstanceSpec = serde_json::from_value(serde_json::json!({
            "plan": "starter", "region": "fr-par-1", "image": "debian-13",
            "rebootRequestedAt": "2026-11-21T10:00:00.000001Z",
        }))
        .unwrap();
        assert_eq!(instance_nonce(now, &spec), "2026-11-21T10:00:00.000000Z");
        spec.start_requested_at = Some("2026-11-21T10:00:00.000000Z".to_owned());
        assert_eq!(instance_nonce(now, &spec), "2026-11-21T10:00:00.000002Z");
    }
}
