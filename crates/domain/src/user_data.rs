//! User data: what a new server does at its first boot, as cloud-init takes it. It is checked when an instance is ordered, because
//! otherwise a mistake would only show in the log of a server that perhaps nobody can log in to.

use std::{fmt, io::Read as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::read::MultiGzDecoder;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, options};
use thiserror::Error;

/// Maximum size of user data as it is given, in bytes (decisions, section 4).
pub const MAX_USER_DATA: usize = 32 * 1024;
/// Maximum size of user data that is given as gzip, once it is unpacked. With what Stellage adds, it must fit into a Secret.
const MAX_UNPACKED: usize = 256 * 1024;
/// How far into a MIME message cloud-init looks for the header that makes it one.
const MIME_HEAD: usize = 4096;

/// How gzip begins.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// How each format begins, with capital or small letters.
const FORMATS: [(&str, UserDataFormat); 7] = [
    ("#cloud-config", UserDataFormat::CloudConfig),
    ("#cloud-boothook", UserDataFormat::BootHook),
    ("#include", UserDataFormat::Include),
    ("#!", UserDataFormat::Script),
    ("## template: jinja", UserDataFormat::Jinja),
    ("content-type: multipart/", UserDataFormat::Multipart),
    ("mime-version:", UserDataFormat::Multipart),
];

/// Other formats of cloud-init whose names begin like one of those.
const OTHER_FORMATS: [&str; 2] = ["#cloud-config-archive", "#cloud-config-jsonp"];

/// The format of user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserDataFormat {
    /// `#cloud-config`: YAML with a map at the top.
    CloudConfig,
    /// `#!`: a program that is run at the end of the first boot.
    Script,
    /// `#include`, `#include-once`: URLs of more user data, one a line.
    Include,
    /// `#cloud-boothook`: a program that is run early in every boot.
    BootHook,
    /// `## template: jinja`: a template of one of the formats above.
    Jinja,
    /// A MIME message whose parts have these formats.
    Multipart,
}

/// Valid user data, unpacked.
#[derive(Clone, PartialEq, Eq)]
pub struct UserData {
    format: UserDataFormat,
    text: String,
}

/// Without the text, which often has passwords: they belong in no log.
impl fmt::Debug for UserData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserData({:?}, {} bytes)", self.format, self.text.len())
    }
}

/// Why user data is refused, in words that follow the name of the field. None of its text is quoted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidUserData {
    /// It is larger than [`MAX_USER_DATA`].
    #[error(
        "must be at most 32 KiB; pack it with gzip and send that in base64, or let it load the rest with #include"
    )]
    TooLarge,
    /// It has none of the formats.
    #[error(
        "must begin with #cloud-config, #!, #include, #cloud-boothook, ## template: jinja, Content-Type: multipart/ or MIME-Version:, or be gzip of such text in base64"
    )]
    UnknownFormat,
    /// It is gzip that is damaged.
    #[error("must be gzip that can be unpacked; this is damaged or cut off")]
    Damaged,
    /// It is gzip of more than 256 KiB.
    #[error("must be at most 256 KiB when it is unpacked; let it load the rest with #include")]
    TooLargeUnpacked,
    /// It is not text.
    #[error("must be text in UTF-8")]
    NotText,
    /// It has a NUL.
    #[error("must have no NUL characters")]
    Nul,
    /// It is a MIME message that cloud-init would not recognise.
    #[error("must have the header MIME-Version: 1.0, by which cloud-init recognises a MIME message")]
    NoMimeVersion,
    /// It is a cloud-config that is not YAML.
    #[error(
        "must be valid YAML, since it begins with #cloud-config; there is an error in line {line}, column {column}"
    )]
    NotYaml {
        /// The line, counted from 1; of gzip, that of the unpacked text.
        line: u64,
        /// The column, counted from 1.
        column: u64,
    },
    /// It is a cloud-config that is not a map.
    #[error("must be a YAML map after #cloud-config, such as packages: [nginx]")]
    NotAMap,
}

impl UserData {
    /// Reads user data as it is given: text, or gzip of it in base64; in a Secret also gzip itself.
    pub fn parse(given: &[u8]) -> Result<Self, InvalidUserData> {
        if given.len() > MAX_USER_DATA {
            return Err(InvalidUserData::TooLarge);
        }
        if given.starts_with(GZIP) {
            return Self::of_text(unpacked(given)?);
        }
        let text = str::from_utf8(given).map_err(|_| InvalidUserData::NotText)?;
        match gzip_in_base64(text) {
            Some(packed) => Self::of_text(unpacked(&packed)?),
            None => Self::of_text(text.to_owned()),
        }
    }

    fn of_text(text: String) -> Result<Self, InvalidUserData> {
        if text.contains('\0') {
            return Err(InvalidUserData::Nul);
        }
        let begins = |with: &str| {
            text.get(..with.len())
                .is_some_and(|begin| begin.eq_ignore_ascii_case(with))
        };
        let mut known = FORMATS.iter().filter(|(begin, _)| begins(begin));
        let format = match known.next() {
            Some((_, format)) if !OTHER_FORMATS.iter().any(|other| begins(other)) => *format,
            _ => return Err(InvalidUserData::UnknownFormat),
        };
        match format {
            UserDataFormat::CloudConfig => check_cloud_config(&text)?,
            UserDataFormat::Multipart if !has_mime_version(&text) => {
                return Err(InvalidUserData::NoMimeVersion);
            }
            _ => {}
        }
        Ok(Self { format, text })
    }

    /// Its format.
    pub const fn format(&self) -> UserDataFormat {
        self.format
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The gzip that a text is in base64, perhaps on several lines.
fn gzip_in_base64(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let decoded = BASE64_STANDARD.decode(digits).ok()?;
    decoded.starts_with(GZIP).then_some(decoded)
}

/// The text of gzip. No more of it is unpacked than is allowed.
fn unpacked(gzip: &[u8]) -> Result<String, InvalidUserData> {
    let mut bytes = Vec::new();
    let most = u64::try_from(MAX_UNPACKED).unwrap_or(u64::MAX);
    MultiGzDecoder::new(gzip)
        .take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|_| InvalidUserData::Damaged)?;
    if bytes.len() > MAX_UNPACKED {
        return Err(InvalidUserData::TooLargeUnpacked);
    }
    String::from_utf8(bytes).map_err(|_| InvalidUserData::NotText)
}

fn has_mime_version(text: &str) -> bool {
    let head = &text.as_bytes()[..text.len().min(MIME_HEAD)];
    let header = b"mime-version:";
    head.windows(header.len())
        .any(|found| found.eq_ignore_ascii_case(header))
}

/// Any map: what the keys mean is up to the cloud-init of the image.
struct Map;

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Map;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Map)
            }
        }

        deserializer.deserialize_any(Entries)
    }
}

fn check_cloud_config(text: &str) -> Result<(), InvalidUserData> {
    // As PyYAML reads it, which cloud-init uses: of a key that is given twice, the last counts.
    let options = || {
        options! {
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
            with_snippet: false,
        }
    };
    if let Err(error) = serde_saphyr::from_str_with_options::<IgnoredAny>(text, options()) {
        let at = error.location();
        return Err(InvalidUserData::NotYaml {
            line: at.map_or(1, |at| at.line()),
            column: at.map_or(1, |at| at.column()),
        });
    }
    match serde_saphyr::from_str_with_options::<Map>(text, options()) {
        Ok(Map) => Ok(()),
        Err(_) => Err(InvalidUserData::NotAMap),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn in_base64(text: &[u8]) -> String {
        BASE64_STANDARD.encode(gzip(text))
    }

    #[test]
    fn each_format_is_told_by_how_it_begins() {
        use UserDataFormat::{BootHook, CloudConfig, Include, Jinja, Multipart, Script};
        for (text, format) in [
            ("#cloud-config\npackages: [nginx]\n", CloudConfig),
            ("#Cloud-Config\r\n---\r\npackages:\r\n- nginx\r\n", CloudConfig),
            ("#!/bin/sh\necho hello\n", Script),
            ("#include\nhttps://example.com/first\n", Include),
            ("#include-once\nhttps://example.com/first\n", Include),
            ("#cloud-boothook\n#!/bin/sh\n", BootHook),
            ("## template: jinja\n#cloud-config\n{% if a %}x: 1\n", Jinja),
            (
                "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b--\n",
                Multipart,
            ),
            (
                "Mime-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b\"\n\n--b--\n",
                Multipart,
            ),
        ] {
            let read = UserData::parse(text.as_bytes());
            assert_eq!(read.as_ref().map(UserData::format), Ok(format), "{text}");
            assert_eq!(read.as_ref().map(UserData::text), Ok(text));
            // The same, packed.
            assert_eq!(UserData::parse(in_base64(text.as_bytes()).as_bytes()), read);
            assert_eq!(UserData::parse(&gzip(text.as_bytes())), read);
        }
    }

    #[test]
    fn gzip_in_base64_may_have_line_breaks() {
        let text = format!("#cloud-config\nusers: [{}]\n", "ada, grace, ".repeat(20));
        let packed = in_base64(text.as_bytes());
        let lines: Vec<_> = packed
            .as_bytes()
            .chunks(20)
            .map(|line| [line, b"\r\n"].concat())
            .collect();
        assert_eq!(UserData::parse(&lines.concat()).unwrap().text(), text);
    }

    #[test]
    fn what_cloud_init_would_not_take_is_refused() {
        use InvalidUserData::{
            Damaged, NoMimeVersion, NotAMap, NotText, Nul, TooLarge, TooLargeUnpacked, UnknownFormat,
        };
        let mut cut_off = gzip(b"#!/bin/sh\necho hello\n");
        cut_off.truncate(12);
        let large = |bytes: usize| format!("#!/bin/sh\n{}", "#".repeat(bytes - 10)).into_bytes();
        let table: Vec<(Vec<u8>, InvalidUserData)> = vec![
            (b"".into(), UnknownFormat),
            (b"packages: [nginx]".into(), UnknownFormat),
            (b"\n#cloud-config\npackages: [nginx]".into(), UnknownFormat),
            (b"\xef\xbb\xbf#!/bin/sh\n".into(), UnknownFormat),
            (b"#cloud-config-archive\n- a\n".into(), UnknownFormat),
            (b"#part-handler\n".into(), UnknownFormat),
            (b"Content-Type: text/plain\n".into(), UnknownFormat),
            (BASE64_STANDARD.encode("#!/bin/sh\n").into(), UnknownFormat),
            (in_base64(b"hello").into(), UnknownFormat),
            (in_base64(&gzip(b"#!/bin/sh\n")).into(), NotText),
            (b"#!/bin/sh\n\xff\n".into(), NotText),
            (b"#!/bin/sh\n\0\n".into(), Nul),
            (in_base64(b"#!/bin/sh\n\0\n").into(), Nul),
            (BASE64_STANDARD.encode(&cut_off).into(), Damaged),
            (large(MAX_USER_DATA + 1), TooLarge),
            (in_base64(&large(MAX_UNPACKED + 1)).into(), TooLargeUnpacked),
            (
                b"Content-Type: multipart/mixed; boundary=b\n\n--b--\n".into(),
                NoMimeVersion,
            ),
            (b"#cloud-config\n- nginx\n".into(), NotAMap),
            (b"#cloud-config\n".into(), NotAMap),
            (b"#cloud-config".into(), NotAMap),
            (b"#cloud-config\nhello\n".into(), NotAMap),
        ];
        for (given, problem) in table {
            let text = String::from_utf8_lossy(&given[..given.len().min(60)]).into_owned();
            assert_eq!(UserData::parse(&given), Err(problem), "{text}");
        }
        assert!(UserData::parse(&large(MAX_USER_DATA)).is_ok());
        assert!(UserData::parse(in_base64(&large(MAX_UNPACKED)).as_bytes()).is_ok());
    }

    #[test]
    fn a_cloud_config_that_is_not_yaml_is_refused_with_the_line_and_without_its_text() {
        for (text, line) in [
            ("#cloud-config\npackages: [nginx\n", 2),
            ("#cloud-config\na: 1\n  b: hunter2\n", 3),
            ("#cloud-config\na: *hunter2\n", 2),
            ("#cloud-config\na: 1\n---\nb: hunter2\n", 4),
        ] {
            let problem = UserData::parse(text.as_bytes()).unwrap_err();
            let InvalidUserData::NotYaml { line: at, .. } = problem else {
                panic!("{problem:?} of {text}");
            };
            assert_eq!(at, line, "{text}");
            assert!(!problem.to_string().contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn all_that_cloud_configs_have_is_taken() {
        let text = "#cloud-config\n# vim: syntax=yaml\nusers:\n  - default\n  - name: ada\n    passwd: !!str 007\nwrite_files:\n- encoding: b64\n  content: !!binary |\n    AAEC\n  path: /etc/x\n  permissions: '0644'\n- content: |\n    a: [\n  path: /etc/y\nbase: &base {a: 1}\nderived:\n  <<: *base\n  b: .inf\n1: x\ntrue: y\nsame: 1\nsame: 2\nnothing:\nruncmd:\n - [ ls, -l, / ]\n - \"echo \\\"hi\\\"\"\n";
        assert_eq!(
            UserData::parse(text.as_bytes()).map(|data| data.format()),
            Ok(UserDataFormat::CloudConfig)
        );
    }

    #[test]
    fn its_text_is_in_no_log() {
        let data = UserData::parse(b"#!/bin/sh\necho hunter2 | passwd --stdin\n").unwrap();
        assert_eq!(format!("{data:?}"), "UserData(Script, 40 bytes)");
    }
}
