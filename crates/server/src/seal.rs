//! Sealing: encrypts and authenticates cookies and tickets, so that who carries them can neither read nor change them.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Length of a key in bytes.
pub const KEY: usize = 32;
/// Maximum length of a text that is opened; browsers keep no longer cookies, and tickets are shorter.
const MAX_TEXT: usize = 4096;

/// A key that seals and opens texts (ChaCha20-Poly1305, RFC 8439).
pub struct Seal(LessSafeKey);

impl Seal {
    /// The seal with a key; `None` if the length of the key is not [`KEY`].
    pub fn new(key: &[u8]) -> Option<Self> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).ok()?;
        Some(Self(LessSafeKey::new(key)))
    }

    /// Seals contents for a purpose; they can be opened for this purpose only.
    pub fn seal(&self, purpose: &str, content: &[u8]) -> Option<String> {
        // Random: 96 bits are enough for four billion texts with one key (NIST SP 800-38D, section 8.3).
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut sealed = content.to_vec();
        let aad = Aad::from(purpose.as_bytes());
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .ok()?;
        Some(BASE64_URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat()))
    }

    /// The contents of a text that was sealed with this key for this purpose.
    pub fn open(&self, purpose: &str, text: &str) -> Option<Vec<u8>> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut opened = sealed.to_vec();
        let aad = Aad::from(purpose.as_bytes());
        let content = self
            .0
            .open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut opened)
            .ok()?;
        Some(content.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_with_the_same_key_for_the_same_purpose_opens() {
        let seal = Seal::new(&[1; KEY]).unwrap();
        let text = seal.seal("session", b"content").unwrap();
        assert_eq!(seal.open("session", &text).as_deref(), Some(&b"content"[..]));
        assert!(seal.open("note", &text).is_none());
        assert!(Seal::new(&[2; KEY]).unwrap().open("session", &text).is_none());
        for at in [0, 20, text.len() - 1] {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(seal.open("session", &changed).is_none(), "{at}");
        }
        for wrong in ["", "AAAA", "%", &"A".repeat(5000)] {
            assert!(seal.open("session", wrong).is_none());
        }
        assert_ne!(text, seal.seal("session", b"content").unwrap(), "nonces differ");
        assert!(Seal::new(&[1; 31]).is_none());
    }
}
