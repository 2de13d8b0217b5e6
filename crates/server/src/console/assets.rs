//! The console's files: styles, htmx, and scripts of the console's own; xterm.js and noVNC for the consoles of servers. Their paths
//! contain their hashes, or the version of their package, so browsers may keep them forever.

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

/// The files of every page. Each is compressed once.
pub struct Assets {
    pub styles: Asset,
    /// htmx 4.0.1, which refreshes what changes (0BSD, see `assets/htmx-LICENSE`).
    pub htmx: Asset,
    /// Shows times in the reader's zone, and decides when a page refreshes itself.
    pub script: Asset,
}

/// The files of the page with a server's console.
pub struct Terminal {
    /// Shows the serial line or the screen, and takes keys.
    pub script: Asset,
    /// The module of xterm.js 6.0.0, a terminal (npm package `@xterm/xterm`, MIT, see `assets/xterm-LICENSE`).
    pub xterm: Asset,
    pub styles: Asset,
}

/// The modules of noVNC 1.7.0, a client of VNC (npm package `@novnc/novnc`, as it is; MPL-2.0, see `assets/novnc-1.7.0/LICENSE.txt`).
pub struct NoVnc(Vec<Asset>);

impl NoVnc {
    /// The path of the module that imports the others.
    pub fn entry(&self) -> &str {
        let entry = self.0.iter().find(|asset| asset.path.ends_with("/core/rfb.js"));
        entry.map_or("", |asset| &asset.path)
    }
}

/// The Content-Type of scripts.
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page with a server's console.
pub static TERMINAL: LazyLock<Terminal> = LazyLock::new(|| Terminal {
    script: Asset::new(
        "server-console",
        "js",
        SCRIPT,
        include_bytes!("assets/server-console.js"),
    ),
    xterm: Asset::new("xterm", "mjs", SCRIPT, include_bytes!("assets/xterm-6.0.0.mjs")),
    styles: Asset::new(
        "xterm",
        "css",
        "text/css; charset=utf-8",
        include_bytes!("assets/xterm-6.0.0.css"),
    ),
});

/// The paths and contents of noVNC's modules.
macro_rules! modules {
    ($($path:literal,)*) => {
        [$(($path, include_bytes!(concat!("assets/novnc-1.7.0/", $path)) as &'static [u8])),*]
    };
}

/// noVNC. Its modules import each other by their relative paths.
pub static NOVNC: LazyLock<NoVnc> = LazyLock::new(|| {
    let modules = modules![
        "core/base64.js",
        "core/crypto/aes.js",
        "core/crypto/bigint.js",
        "core/crypto/crypto.js",
        "core/crypto/des.js",
        "core/crypto/dh.js",
        "core/crypto/md5.js",
        "core/crypto/rsa.js",
        "core/decoders/copyrect.js",
        "core/decoders/h264.js",
        "core/decoders/hextile.js",
        "core/decoders/jpeg.js",
        "core/decoders/raw.js",
        "core/decoders/rre.js",
        "core/decoders/tight.js",
        "core/decoders/tightpng.js",
        "core/decoders/zlib.js",
        "core/decoders/zrle.js",
        "core/deflator.js",
        "core/display.js",
        "core/encodings.js",
        "core/inflator.js",
        "core/input/domkeytable.js",
        "core/input/fixedkeys.js",
        "core/input/gesturehandler.js",
        "core/input/keyboard.js",
        "core/input/keysym.js",
        "core/input/keysymdef.js",
        "core/input/util.js",
        "core/input/vkeys.js",
        "core/input/xtscancodes.js",
        "core/ra2.js",
        "core/rfb.js",
        "core/util/browser.js",
        "core/util/cursor.js",
        "core/util/element.js",
        "core/util/events.js",
        "core/util/eventtarget.js",
        "core/util/int.js",
        "core/util/logging.js",
        "core/util/strings.js",
        "core/websock.js",
        "vendor/pako/lib/utils/common.js",
        "vendor/pako/lib/zlib/adler32.js",
        "vendor/pako/lib/zlib/constants.js",
        "vendor/pako/lib/zlib/crc32.js",
        "vendor/pako/lib/zlib/deflate.js",
        "vendor/pako/lib/zlib/gzheader.js",
        "vendor/pako/lib/zlib/inffast.js",
        "vendor/pako/lib/zlib/inflate.js",
        "vendor/pako/lib/zlib/inftrees.js",
        "vendor/pako/lib/zlib/messages.js",
        "vendor/pako/lib/zlib/trees.js",
        "vendor/pako/lib/zlib/zstream.js",
    ];
    let asset = |(path, content): (&str, &'static [u8])| Asset {
        path: format!("{FOLDER}novnc-1.7.0/{path}"),
        kind: SCRIPT,
        content,
        compressed: compressed(content, Compression::default()),
    };
    NoVnc(modules.into_iter().map(asset).collect())
});

/// The files of every page.
pub static ASSETS: LazyLock<Assets> = LazyLock::new(|| {
    let script = SCRIPT;
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
        .find(|asset| asset.path == path)
        .or_else(|| of_servers_console(path))?;
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

/// Those of the page with a server's console are compressed when the first of them is asked for.
fn of_servers_console(path: &str) -> Option<&'static Asset> {
    let of_terminal = || {
        let terminal = &*TERMINAL;
        [&terminal.script, &terminal.xterm, &terminal.styles]
    };
    if path.strip_prefix(FOLDER)?.starts_with("novnc-") {
        NOVNC.0.iter().find(|asset| asset.path == path)
    } else {
        of_terminal().into_iter().find(|asset| asset.path == path)
    }
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
        assert_eq!(TERMINAL.xterm.content.len(), 344_970);
        assert!(include_str!("assets/xterm-LICENSE").contains("Permission is hereby granted"));
        assert!(include_str!("assets/novnc-1.7.0/LICENSE.txt").contains("MPL 2.0"));
    }

    #[test]
    fn every_module_that_novnc_imports_is_served() {
        let entry = NOVNC.entry();
        assert!(answer(entry, &HeaderMap::new()).is_some());
        for asset in &NOVNC.0 {
            let text = str::from_utf8(asset.content).unwrap();
            let base = url::Url::parse("http://console")
                .unwrap()
                .join(&asset.path)
                .unwrap();
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
                    "{}: {path}",
                    asset.path
                );
            }
        }
    }
}
