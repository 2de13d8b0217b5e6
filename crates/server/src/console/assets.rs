//! The console's files: styles, htmx, and scripts of the console's own; xterm.js and noVNC for the consoles of servers. Their paths
//! contain their hashes, or the version of their package, so browsers may keep them forever.

use std::{
    collections::HashMap,
    io::Write as _,
    sync::{LazyLock, OnceLock},
};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rust_embed::Embed;

/// The path of the assets.
pub const FOLDER: &str = "/console/assets/";

/// The folder with them. Of other projects, as they are published and with their licences: htmx 4.0.1, which refreshes what changes
/// (0BSD); xterm.js 6.0.0, a terminal (npm package `@xterm/xterm`, MIT); noVNC 1.7.0, a client of VNC (npm package `@novnc/novnc`,
/// MPL-2.0).
#[derive(Embed)]
#[folder = "src/console/assets"]
struct Files;

/// A file as it is served.
struct Asset {
    kind: &'static str,
    content: Bytes,
    /// Made when somebody first asks for it.
    compressed: OnceLock<Bytes>,
}

/// The files by their paths.
static ASSETS: LazyLock<HashMap<String, Asset>> = LazyLock::new(|| {
    Files::iter()
        .filter_map(|name| {
            let asset = Asset {
                kind: kind(&name)?,
                content: Bytes::from_owner(Files::get(&name)?.data),
                compressed: OnceLock::new(),
            };
            Some((path(&name), asset))
        })
        .collect()
});

/// The Content-Type of a file; `None` for licences, which are not served.
fn kind(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1 {
        "css" => Some("text/css; charset=utf-8"),
        "js" | "mjs" => Some("text/javascript; charset=utf-8"),
        _ => None,
    }
}

/// The path of a file, with its hash instead of a version. The modules of noVNC import each other by their relative paths.
pub fn path(name: &str) -> String {
    if name.starts_with("novnc-") {
        return format!("{FOLDER}{name}");
    }
    let hash = Files::get(name).map(|file| hex::encode(&file.metadata.sha256_hash()[..8]));
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let (stem, _) = stem
        .split_once(|c: char| c.is_ascii_digit())
        .unwrap_or((stem, ""));
    let stem = stem.trim_end_matches('-');
    format!("{FOLDER}{stem}-{}.{extension}", hash.unwrap_or_default())
}

/// Answers a request for a file; `None` if there is no such file.
pub fn answer(path: &str, headers: &HeaderMap) -> Option<Response> {
    let asset = ASSETS.get(path)?;
    let is_compressed = accepts_gzip(headers);
    let body = if is_compressed {
        let compress = || compressed(&asset.content, Compression::best());
        asset.compressed.get_or_init(compress)
    } else {
        &asset.content
    };
    let mut response = (StatusCode::OK, body.clone()).into_response();
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
        let is_served = |path: &str| answer(path, &HeaderMap::new()).is_some();
        let htmx = path("htmx-4.0.1.min.js");
        assert!(is_served(&htmx) && htmx.starts_with("/console/assets/htmx-"));
        for name in ["console.css", "page.js", "server-console.js", "xterm-6.0.0.css"] {
            assert!(is_served(&path(name)), "{name}");
        }
        assert!(!is_served("/console/assets/htmx.js") && !is_served(&path("novnc-1.7.0/LICENSE.txt")));
        assert!(include_str!("assets/htmx-LICENSE").contains("Zero-Clause BSD"));
        // The file is pinned: changing it is a decision.
        assert_eq!(ASSETS[&htmx].content.len(), 37_448);
        assert_eq!(ASSETS[&path("xterm-6.0.0.mjs")].content.len(), 344_970);
        assert!(include_str!("assets/xterm-LICENSE").contains("Permission is hereby granted"));
        assert!(include_str!("assets/novnc-1.7.0/LICENSE.txt").contains("MPL 2.0"));
    }

    #[test]
    fn every_module_that_novnc_imports_is_served() {
        assert!(answer("/console/assets/novnc-1.7.0/core/rfb.js", &HeaderMap::new()).is_some());
        for (module, asset) in ASSETS.iter().filter(|(path, _)| path.contains("/novnc-")) {
            let text = str::from_utf8(&asset.content).unwrap();
            let base = url::Url::parse("http://console").unwrap().join(module).unwrap();
            let imports = text
                .lines()
                .filter(|line| line.starts_with("import ") || line.starts_with("} from "));
            for line in imports {
                let Some(path) = line.split(['"', '\'']).nth(1) else {
                    continue;
                };
                let imported = base.join(path).unwrap();
                assert!(
                    answer(imported.path(), &HeaderMap::new()).is_some(),
                    "{module}: {path}"
                );
            }
        }
    }
}
