//! The file of an export: one JSON document per line. The first says what the file is; the last has the number of objects of each kind in
//! between and their digest, so that a truncated or damaged file is rejected.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
};

use jiff::Timestamp;
use kube::{Resource as _, core::DynamicObject};
use semver::Version;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use resources::Account;

/// Version of the file format.
const FORMAT: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    /// The version of the format.
    stellage_export: u32,
    /// Identifies this export.
    pub(super) id: String,
    /// The program's version.
    pub(super) version: String,
    /// When the export began.
    pub(super) exported_at: Timestamp,
    /// The operator's namespace.
    pub(super) operator_namespace: String,
}

impl Header {
    pub(super) fn new(id: String, operator_namespace: &str) -> Self {
        Self {
            stellage_export: FORMAT,
            id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            exported_at: Timestamp::now(),
            operator_namespace: operator_namespace.to_owned(),
        }
    }
}

/// The number of objects of each kind.
pub(super) type Counts = BTreeMap<String, u64>;

/// Whether there is anything to restore: an installation begins with its accounts.
pub(super) fn has_accounts(counts: &Counts) -> bool {
    counts.contains_key(&*Account::kind(&()))
}

/// The last line.
#[derive(Debug, Deserialize, Serialize)]
struct End {
    counts: Counts,
    /// SHA-256 of all lines before this one, in hexadecimal.
    sha256: String,
}

/// Writes a file.
pub(super) struct Writer<W> {
    out: W,
    digest: Sha256,
    pub(super) counts: Counts,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub(super) fn new(out: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self {
            out,
            digest: Sha256::new(),
            counts: Counts::new(),
        };
        writer.line(header)?;
        Ok(writer)
    }

    pub(super) fn add(&mut self, object: &DynamicObject) -> io::Result<()> {
        let kind = object.types.as_ref().map(|types| types.kind.clone());
        *self.counts.entry(kind.unwrap_or_default()).or_default() += 1;
        self.line(object)
    }

    /// Ends the file.
    pub(super) fn end(mut self) -> io::Result<(W, Counts)> {
        let end = End {
            counts: self.counts.clone(),
            sha256: hex::encode(self.digest.clone().finalize()),
        };
        self.line(&end)?;
        self.out.flush()?;
        Ok((self.out, self.counts))
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.digest.update(&line);
        self.out.write_all(&line)
    }
}

/// Reads the first line.
pub(super) fn header(file: &mut impl BufRead) -> Result<Header, String> {
    let mut line = Vec::new();
    file.read_until(b'\n', &mut line)
        .map_err(|error| error.to_string())?;
    parse_header(&line)
}

fn parse_header(line: &[u8]) -> Result<Header, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Format {
        stellage_export: u32,
    }
    let format: Format =
        serde_json::from_slice(line).map_err(|_| "this is no file of `stellage export`".to_owned())?;
    if format.stellage_export != FORMAT {
        return Err(format!(
            "the file has format {}, and this program reads format {FORMAT}: use the version of the program that wrote it",
            format.stellage_export
        ));
    }
    let header: Header = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    check_version(&header.version, env!("CARGO_PKG_VERSION"))?;
    Ok(header)
}

/// Refuses the file of a newer program: it may have fields that this one does not know and would lose. Any newer program can read
/// the file of an older one (docs/upgrading.md).
fn check_version(writer: &str, own: &str) -> Result<(), String> {
    let version = |text: &str| Version::parse(text).map_err(|error| format!("the version {text}: {error}"));
    if version(writer)?.cmp_precedence(&version(own)?).is_gt() {
        return Err(format!(
            "it was written by version {writer}, and this program has version {own}, which may not know all that is in it: install the operator of version {writer} or newer, and import with the program of that version"
        ));
    }
    Ok(())
}

/// Reads the whole file once, to make sure that it is complete and undamaged.
pub(super) fn check(file: &mut impl BufRead) -> Result<(Header, Counts), String> {
    let (mut digest, mut header, mut last) = (Sha256::new(), None, Vec::new());
    let mut lines: u64 = 0;
    loop {
        let mut line = Vec::new();
        if file
            .read_until(b'\n', &mut line)
            .map_err(|error| error.to_string())?
            == 0
        {
            break;
        }
        if header.is_none() {
            header = Some(parse_header(&line)?);
        }
        digest.update(&last);
        last = line;
        lines += 1;
    }
    let header = header.ok_or_else(|| "the file is empty".to_owned())?;
    let end: End = serde_json::from_slice(&last)
        .ok()
        .filter(|_| last.ends_with(b"\n"))
        .ok_or_else(|| "the file is cut off: its last line is missing; export again".to_owned())?;
    let objects: u64 = end.counts.values().sum();
    if end.sha256 != hex::encode(digest.finalize()) || objects + 2 != lines {
        return Err("the file is damaged: it is not what `stellage export` has written".to_owned());
    }
    Ok((header, end.counts))
}

/// The object of a line; `None` for the last one.
pub(super) fn object(line: &[u8]) -> Result<Option<DynamicObject>, String> {
    if line.starts_with(br#"{"counts":"#) {
        return Ok(None);
    }
    serde_json::from_slice(line)
        .map(Some)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written() -> Vec<u8> {
        let header = Header::new("id".to_owned(), "stellage-system");
        let mut writer = Writer::new(Vec::new(), &header).unwrap();
        for name in ["a", "b"] {
            let object =
                json!({ "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name } });
            writer.add(&serde_json::from_value(object).unwrap()).unwrap();
        }
        writer.end().unwrap().0
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_or_damaged_is_refused() {
        let file = written();
        let (header, counts) = check(&mut &*file).unwrap();
        assert_eq!(header.operator_namespace, "stellage-system");
        assert_eq!(counts, Counts::from([("Account".to_owned(), 2)]));
        for length in 0..file.len() {
            assert!(check(&mut &file[..length]).is_err(), "{length} bytes");
        }
        let text = String::from_utf8(file).unwrap();
        for damaged in [
            text.replace(r#""name":"a""#, r#""name":"c""#),
            text.replace("\"stellageExport\":1", "\"stellageExport\":2"),
            text.lines()
                .skip(1)
                .fold(String::new(), |all, line| all + line + "\n"),
        ] {
            assert_ne!(damaged, text);
            assert!(check(&mut damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    #[test]
    fn what_a_newer_program_has_written_is_refused_and_what_an_older_one_has_is_not() {
        for older in ["0.3.1", "0.3.0", "0.2.9", "0.3.1-rc.1", "0.3.1+build.7"] {
            assert_eq!(check_version(older, "0.3.1"), Ok(()), "{older}");
        }
        for newer in ["0.3.2", "0.10.0", "1.0.0", "0.4.0-rc.1"] {
            let refused = check_version(newer, "0.3.1").unwrap_err();
            assert!(
                refused.contains(&format!("the operator of version {newer} or newer")),
                "{refused}"
            );
        }
        assert!(check_version("newest", "0.3.1").is_err());
    }
}
