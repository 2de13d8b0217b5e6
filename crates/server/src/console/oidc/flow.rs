//! One sign-in on its way to the provider and back.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// How long users may take at the provider.
pub const LASTS: SignedDuration = SignedDuration::from_mins(10);

/// What a browser that started a sign-in keeps, sealed, until it comes back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Flow {
    /// Comes back in the URL, which shows that the answer belongs to this browser.
    pub state: String,
    /// Comes back in the ID token, which shows that the token belongs to this sign-in.
    pub nonce: String,
    /// Shows that the code is redeemed by whoever asked for it (RFC 7636).
    pub verifier: String,
    expires_at: Timestamp,
}

impl Flow {
    /// Starts a sign-in.
    pub fn begin(now: Timestamp) -> Self {
        // 256 bits each.
        let random = || BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        Self {
            state: random(),
            nonce: random(),
            verifier: random(),
            expires_at: now.saturating_add(LASTS).unwrap_or(now),
        }
    }

    /// The challenge of the verifier, by the method `S256`.
    pub fn challenge(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&self.verifier))
    }

    /// Whether the sign-in has taken too long.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_rfc_7636_and_a_flow_ends_after_ten_minutes() {
        let now: Timestamp = "2026-11-23T10:00:00Z".parse().unwrap();
        let mut flow = Flow::begin(now);
        assert_ne!(flow, Flow::begin(now));
        assert_eq!(flow.verifier.len(), 43);
        assert!(!flow.is_expired("2026-11-23T10:09:59Z".parse().unwrap()));
        assert!(flow.is_expired("2026-11-23T10:10:00Z".parse().unwrap()));
        // RFC 7636, appendix B.
        flow.verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned();
        assert_eq!(flow.challenge(), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
