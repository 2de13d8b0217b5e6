//! The console's three files: styles, htmx, and a script of the console's own. Their names contain their hashes, so
//! browsers may keep them forever.

use std::{io::Write as _, sync::LazyLock};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

/// The path of the assets.
pub const FOLDER: &str = "/console/assets/";

/// A file.
pub struct Asset {
    /// Its path, with its hash.
    pub path: String,
    kind: &'static str,
    content: &'static [u8],
    compressed: Bytes,
}

impl Asset {
    fn new(name: &str, extension: &str, kind: &'static str, content: &'static [u8]) -> Self {
        let hash = hex::encode(&Sha256::digest(content)[..8]);
        Self {
            path: format!("{FOLDER}{name}-{hash}.{extension}"),
            kind,
            content,
            compressed: compressed(content, Compression::best()),
        }
    }
}

/// All files. Each is compressed once.
pub struct Assets {
    pub styles: Asset,
    /// htmx 4.0.1, which refreshes what changes (0BSD, see `assets/htmx-LICENSE`).
    pub htmx: Asset,
    /// Shows times in the reader's zone, and decides when a page refreshes itself.
    pub script: Asset,
}

/// The files.
pub static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let script = "text/javascript; charset=utf-8";
    Assets {
        styles: Asset::new(
            "console",
            "css",
            "text/css; charset=utf-8",
            include_bytes!("assets/console.css"),
        ),
        htmx: Asset::new("htmx", "js", script, include_bytes!("assets/htmx-4.0.1.min.js")),
        script: Asset::new("page", "js", script, include_bytes!("assets/page.js")),
    }
});

/// Answers a request for a file; `None` if there is no such file.
pub fn answer(path: &str, headers: &HeaderMap) -> Option<Response> {
    let assets = &*ASSETS;
    let asset = [&assets.styles, &assets.htmx, &assets.script]
        .into_iter()
        .find(|asset| asset.path == path)?;
    let is_compressed = accepts_gzip(headers);
    let body = if is_compressed {
        asset.compressed.clone()
    } else {
        Bytes::from_static(asset.content)
    };
    let mut response = (StatusCode::OK, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=31536000, immutable"),
    );
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if is_compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(response)
}

/// Whether the client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::ACCEPT_ENCODING).iter();
    codings
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let is_refused = parameters
                .trim()
                .strip_prefix("q=")
                .and_then(|quality| quality.trim().parse::<f32>().ok())
                .is_some_and(|quality| quality <= 0.0);
            name.trim().eq_ignore_ascii_case("gzip") && !is_refused
        })
}

/// Compresses `content` with gzip.
pub fn compressed(content: &[u8], level: Compression) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(content.len() / 3), level);
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        let accepts = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("accept-encoding", value.parse().unwrap());
            accepts_gzip(&headers)
        };
        assert!(accepts("gzip, deflate, br") && accepts("br;q=1.0, GZIP;q=0.5"));
        assert!(!accepts("br") && !accepts("gzip;q=0") && !accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn a_file_is_found_under_its_hash_and_its_licence_is_kept() {
        let path = &ASSETS.htmx.path;
        assert!(answer(path, &HeaderMap::new()).is_some());
        assert!(answer("/console/assets/htmx.js", &HeaderMap::new()).is_none());
        assert!(include_str!("assets/htmx-LICENSE").contains("Zero-Clause BSD"));
        // The file is pinned: changing it is a decision.
        assert_eq!(ASSETS.htmx.content.len(), 37_448);
    }
}
