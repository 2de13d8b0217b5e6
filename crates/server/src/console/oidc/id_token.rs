//! ID tokens: who signed them, for whom, and what they say (OpenID Connect Core 1.0, section 3.1.3.7).

use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind, Header, Validation,
    crypto::{CryptoProvider, JwtVerifier, KeyUtils},
    decode,
    errors::ErrorKind,
    get_current_timestamp,
    jwk::{Jwk, KeyAlgorithm, PublicKeyUse},
    signature::{Error as SignatureError, Verifier},
};
use ring::{error::Unspecified, signature as ring_signature};
use serde::Deserialize;
use serde_json::Value;

/// Seconds by which the clocks may differ.
const LEEWAY: u64 = 60;

/// The claims of an ID token that matter here.
#[derive(Debug, Deserialize)]
pub struct Claims {
    /// The user at the provider.
    pub sub: String,
    aud: Value,
    azp: Option<String>,
    iat: f64,
    nonce: Option<String>,
    /// The user's e-mail address.
    #[serde(flatten)]
    pub email: Email,
}

/// An e-mail address, in an ID token or from the UserInfo endpoint.
#[derive(Debug, Deserialize)]
pub struct Email {
    email: Option<String>,
    // Not a `bool`: providers that send anything else have not verified it.
    email_verified: Option<Value>,
}

impl Email {
    /// The address, if there is one.
    pub fn address(&self) -> Option<&str> {
        self.email.as_deref().filter(|address| !address.is_empty())
    }

    /// Whether the provider has verified that the address belongs to the user.
    pub fn is_verified(&self) -> bool {
        self.email_verified == Some(Value::Bool(true))
    }
}

/// The provider's key that a token with this header is signed with, if there is one.
pub fn key_for<'a>(keys: &'a [Jwk], header: &Header) -> Option<&'a Jwk> {
    let mut fitting = keys.iter().filter(|key| {
        let common = &key.common;
        let is_for_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let is_of_algorithm = common
            .key_algorithm
            .is_none_or(|algorithm| algorithm == KeyAlgorithm::from(header.alg));
        let is_of_family =
            DecodingKey::from_jwk(key).is_ok_and(|decoding| decoding.family() == header.alg.family());
        is_for_signatures && is_of_algorithm && is_of_family
    });
    let Some(kid) = &header.kid else {
        // If the token names no key, the provider must have only one that fits.
        return fitting.next().filter(|_| fitting.next().is_none());
    };
    fitting.find(|key| key.common.key_id.as_ref() == Some(kid))
}

/// Checks everything but the e-mail address. The error says what is wrong.
pub fn verify(
    token: &str,
    header: &Header,
    key: &Jwk,
    issuer: &str,
    client_id: &str,
    nonce: &str,
) -> Result<Claims, String> {
    let key = DecodingKey::from_jwk(key).map_err(|error| error.to_string())?;
    // `Verifying` has no algorithm with a shared secret.
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY;
    validation.validate_nbf = true;
    validation.set_issuer(&[issuer]);
    validation.set_audience(&[client_id]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let claims = decode::<Claims>(token, &key, &validation)
        .map_err(|error| error.to_string())?
        .claims;
    let is_only_audience = claims.aud.as_array().is_none_or(|all| all.len() == 1);
    match claims.azp.as_deref() {
        Some(party) if party != client_id => return Err("it was issued to another client".to_owned()),
        None if !is_only_audience => return Err("it has several audiences and no azp".to_owned()),
        _ => {}
    }
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
    let latest = (get_current_timestamp() + LEEWAY) as f64;
    if claims.iat > latest {
        return Err("it was issued in the future".to_owned());
    }
    if claims.nonce.as_deref() != Some(nonce) {
        return Err("it belongs to another sign-in: its nonce is another".to_owned());
    }
    Ok(claims)
}

/// Cryptography for `jsonwebtoken`, which has none of its own: that of this program.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        if key.family() != algorithm.family() {
            return Err(ErrorKind::InvalidAlgorithm.into());
        }
        Ok(Box::new(Verifying {
            algorithm: *algorithm,
            key: key.clone(),
        }))
    },
    // Only needed for thumbprints and for keys in PEM files, which are not used here.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use ring.
pub fn use_ring() {
    // Fails if it already does.
    let _ = RING.install_default();
}

struct Verifying {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for Verifying {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Verifying {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let rsa = |parameters: &ring_signature::RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                ring_signature::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(Unspecified),
        };
        let raw = |algorithm: &'static dyn ring_signature::VerificationAlgorithm| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(point) => {
                ring_signature::UnparsedPublicKey::new(algorithm, point).verify(message, signature)
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Unspecified),
        };
        let verified = match self.algorithm {
            Algorithm::RS256 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => raw(&ring_signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => raw(&ring_signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => raw(&ring_signature::ED25519),
            _ => Err(Unspecified),
        };
        verified.map_err(|_| SignatureError::new())
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::decode_header;
    use serde_json::json;

    use super::*;

    /// An RSA key of 2,048 bits, whose private part nobody has kept.
    const MODULUS: &str = "p4JhTbLBoMHnmZ6gAK-rBo0c9pM9g015eVLxQPaWlvylm5FobQ-Vl8jl9EQQ22sraiXueq_scnpweBJolMJ_lddC22mDmtHdGjdOCqj-i2R7nEyFmL1Qm19TXLM5q4yxc8ePBQHFpIY1qPQaZdIc3wE-kjdOHj-EdNG6L7E0qwuyBb2eYIrwupF5HF7wbVdxCvRTFTdZlbcqC5aaadQQO88WDFGcq07OSLNixgnu-BlLukYW9BK4xtPEOKxEm-IkO0bjptX9eDxdbWMvx4dwMsesgmQsWvu2MkIROfh6QMGsgJdZLfGC5CNUDkTj6h6nWCFfxjdjL04VVVfdng328w";
    /// Its signatures over the payload below, made with OpenSSL.
    const SIGNATURES: [(&str, &str); 3] = [
        (
            "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ",
            "kZRpo6Bx2w4rjHkqBdoWirNVUABzCJ64TqeZjZudtcf7SA4Qap3dUc-9253kO2SjPk_hSD3HG7wTkSiYT5epuME3jsYzvtoH94IsUFwAEwHiQqwOQdBzL5f8duR4dSa1Lt2RxcOKJYI0NizP7ey5Jvuj6JgsA6Utsv0F92nHIKqHLqZ_EyeKBovaZuwl4jNUIntNuKYsg21EixwHbDqFtBgX2Csvs0qnta9mER52k4j1g8FUBwMPnpAlKd97sOYf3NgL0MRMECK_bb7bN3Dl8EiJC5Td52BMCWGa-t_Dc9eGjvBmLW6QKgpLDcw8QniYRIZ7H8mtcJzwZvBWNzYy3Q",
        ),
        (
            "eyJhbGciOiJQUzI1NiIsImtpZCI6ImEifQ",
            "pZgCOxWhD0E0UlZvtKqAyFTh3B3QVeJjkkCUCOn7qckx-TADoyIpW4Jz8rAVm3dTc3nnhDMPGMzNeFi7egwmc2b000WYOrRGnZqmu-Uj2z-Rrq8x6WmTAx3ihc3Ki_tA-RHNgnU0IS48hWUhSwqkuxm6nW8vRdvOKb2s3HCZUCKE55g8T9IE0RSNs4ookxR_xBjZXQl2SZpqcJGPu5b8uTcbtEszOqNx0DpSPiE0s8MW_tZzpaj5R2jRHjp5hM2hQcI7nLfTNBp_eo4VUWEW__Gg3Z3nQK4abXkB-CjqzBQA1TirDOGMir1XV51OHCxPemUTx-XOu6sf45lRFOif8A",
        ),
        (
            "eyJhbGciOiJSUzUxMiIsImtpZCI6ImEifQ",
            "Za4KlYmKzb61vT2bzPBlrDr_JAOD9O5LF99QjIGMo4he6UUe4HyUsTmxscJEGQ6sD1DLGX26LAgp7XbQyEEOO4L0dD3VQ0STM1BZJqu5vEYv9xCpys6aTdYlj_Y6YHzshhTerheENRJ5n7fiXWOjYXj7qaoLbQQMQdVe1MkcT07f56GtUFiof8_AC3X5a-y5C8JJb201J2ltApgyDEox8HrIUOlwAGs-ctdRFVYgXKQaJSNKJCkc6qoUwIsl5sE9ktJW3puMty1KqNY7c7jyoZdKjbbqXJg0WQQAsO6ACysffE_yr0wAH7aEOGLRFf8pkwrCz_NKP-cbpKITM_gkUw",
        ),
    ];
    const PAYLOAD: &str = "eyJpc3MiOiJodHRwczovL2EuZXhhbXBsZSIsImF1ZCI6ImIiLCJzdWIiOiJjIiwiaWF0IjoxNzkwMDAwMDAwLCJleHAiOjQxMDI0NDQ4MDAsIm5vbmNlIjoiZCJ9";

    fn key(changes: Value) -> Jwk {
        let mut key = json!({ "kty": "RSA", "n": MODULUS, "e": "AQAB", "kid": "a" });
        for (name, value) in changes.as_object().unwrap() {
            key[name] = value.clone();
        }
        serde_json::from_value(key).unwrap()
    }

    fn check(token: &str, keys: &[Jwk]) -> Result<Claims, String> {
        use_ring();
        let header = decode_header(token).map_err(|error| error.to_string())?;
        let key = key_for(keys, &header).ok_or("no key")?;
        verify(token, &header, key, "https://a.example", "b", "d")
    }

    #[test]
    fn signatures_of_rsa_keys_are_verified() {
        for (header, signature) in SIGNATURES {
            let token = format!("{header}.{PAYLOAD}.{signature}");
            assert_eq!(check(&token, &[key(json!({}))]).unwrap().sub, "c", "{header}");
            let (_, other) = SIGNATURES[usize::from(header == SIGNATURES[0].0)];
            let wrong = format!("{header}.{PAYLOAD}.{other}");
            assert_eq!(check(&wrong, &[key(json!({}))]).unwrap_err(), "InvalidSignature");
        }
    }

    #[test]
    fn a_key_is_found_by_its_id_and_fits_the_algorithm() {
        let token = format!("{}.{PAYLOAD}.{}", SIGNATURES[0].0, SIGNATURES[0].1);
        for wrong in [
            json!({ "kid": "b" }),
            json!({ "kid": null }),
            json!({ "use": "enc" }),
            json!({ "alg": "PS256" }),
        ] {
            assert_eq!(
                check(&token, &[key(wrong.clone())]).unwrap_err(),
                "no key",
                "{wrong}"
            );
        }
        let several = [
            key(json!({ "kid": "b" })),
            key(json!({ "use": "sig", "alg": "RS256" })),
        ];
        assert!(check(&token, &several).is_ok());
        let unnamed = Header::new(Algorithm::RS256);
        assert!(key_for(&several[..1], &unnamed).is_some());
        assert!(key_for(&several, &unnamed).is_none(), "it could be either");
        assert!(key_for(&several, &Header::new(Algorithm::ES256)).is_none());
    }
}
