//! The image: a layer, a configuration and a manifest for each architecture, according to the OCI image specification
//! 1.1.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{archive::tar, program::Program};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The user of the process, as a number: only from a number can Kubernetes tell that it is not root.
const USER: &str = "65532:65532";

/// What the image is called and where it comes from.
pub struct Image<'a> {
    pub name: &'a str,
    pub version: &'a str,
    pub commit: &'a str,
    pub created: Timestamp,
    /// By their paths in the image.
    pub licenses: Vec<(String, Vec<u8>)>,
    /// Maximum compressed size of the files for one architecture, in bytes.
    pub largest: usize,
}

/// Everything in the archive, by path. A sorted map makes the archive the same each time.
#[derive(Default)]
struct Layout(BTreeMap<String, Vec<u8>>);

impl Layout {
    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = sha256(&bytes);
        let descriptor =
            json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() });
        self.0.insert(format!("blobs/sha256/{digest}"), bytes);
        descriptor
    }

    fn json(&mut self, media_type: &str, document: &Value) -> Value {
        self.blob(media_type, document.to_string().into_bytes())
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Mozilla's certificate authorities as PEM.
fn authorities() -> String {
    webpki_root_certs::TLS_SERVER_ROOT_CERTS
        .iter()
        .map(|certificate| pem(certificate))
        .collect()
}

fn pem(certificate: &[u8]) -> String {
    let encoded = STANDARD.encode(certificate);
    let lines: Vec<&str> = (0..encoded.len())
        .step_by(64)
        .map(|start| &encoded[start..encoded.len().min(start + 64)])
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

impl Image<'_> {
    /// The files for one architecture.
    fn layer(&self, program: &Program) -> io::Result<Vec<u8>> {
        let authorities = authorities();
        let mut files = vec![
            // Where programs look for them on Debian; the folder is the first that OpenSSL's conventions name.
            ("etc/ssl/certs/ca-certificates.crt", 0o644, authorities.as_bytes()),
            (program.name.as_str(), 0o755, program.bytes.as_slice()),
        ];
        let licenses = self.licenses.iter();
        files.extend(licenses.map(|(path, text)| (path.as_str(), 0o644, text.as_slice())));
        tar(files)
    }

    /// Returns the digest of the image's manifest, or of its index if it is for several architectures, and the archive.
    pub fn pack(&self, programs: &[Program]) -> io::Result<(String, Vec<u8>)> {
        let mut layout = Layout::default();
        let mut manifests = Vec::new();
        for program in programs {
            manifests.push(self.manifest(&mut layout, program)?);
        }
        let mut image = match &manifests[..] {
            [one] => one.clone(),
            _ => layout.json(
                INDEX,
                &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }),
            ),
        };
        let digest = image["digest"].as_str().unwrap_or_default().to_owned();
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        image["annotations"] = json!({
            // For containerd, which imports it under this name.
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag,
        });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [image] });
        let mut files = layout.0;
        files.insert("index.json".to_owned(), index.to_string().into_bytes());
        files.insert(
            "oci-layout".to_owned(),
            br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        );
        let archive = tar(files
            .iter()
            .map(|(path, bytes)| (path.as_str(), 0o644, bytes.as_slice())))?;
        Ok((digest, archive))
    }

    fn labels(&self) -> Value {
        json!({
            "org.opencontainers.image.title": "stellage",
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.revision": self.commit,
            "org.opencontainers.image.created": self.created.to_string(),
            "org.opencontainers.image.licenses": "Apache-2.0",
        })
    }

    /// Adds the image for one architecture and returns the descriptor of its manifest.
    fn manifest(&self, layout: &mut Layout, program: &Program) -> io::Result<Value> {
        let layer = self.layer(program)?;
        let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
        compressed.write_all(&layer)?;
        let compressed = compressed.finish()?;
        if compressed.len() > self.largest {
            return Err(io::Error::other(format!(
                "the image for {} would have {} bytes, and may have {}: find what has made the program larger",
                program.architecture,
                compressed.len(),
                self.largest
            )));
        }
        let config = json!({
            "architecture": program.architecture,
            "os": "linux",
            "created": self.created.to_string(),
            "config": {
                "Entrypoint": [format!("/{}", program.name)],
                "Env": ["PATH=/"],
                "User": USER,
                "WorkingDir": "/",
                "Labels": self.labels(),
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
            "history": [{ "created": self.created.to_string(), "created_by": "packer" }],
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": layout.json(CONFIG, &config),
            "layers": [layout.blob(LAYER, compressed)],
            "annotations": self.labels(),
        });
        let mut descriptor = layout.json(MANIFEST, &manifest);
        descriptor["platform"] = json!({ "architecture": program.architecture, "os": "linux" });
        Ok(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn image(largest: usize) -> Image<'static> {
        Image {
            name: "localhost/stellage:1.2.3",
            version: "1.2.3",
            commit: "c0ffee",
            created: Timestamp::from_second(1_700_000_000).unwrap(),
            licenses: vec![
                ("licenses/LICENSE".to_owned(), b"ours".to_vec()),
                ("licenses/THIRD-PARTY.txt".to_owned(), b"theirs".to_vec()),
            ],
            largest,
        }
    }

    fn pack(architectures: &[&'static str]) -> (String, BTreeMap<String, Vec<u8>>, Vec<u8>) {
        let programs = programs(architectures);
        let (digest, archive) = image(usize::MAX).pack(&programs).unwrap();
        (digest, files(&archive), archive)
    }

    fn programs(architectures: &[&'static str]) -> Vec<Program> {
        let programs = architectures.iter().map(|architecture| Program {
            architecture,
            name: "stellage".to_owned(),
            bytes: architecture.as_bytes().to_vec(),
        });
        programs.collect()
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (0, 0));
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(path, bytes);
        }
        files
    }

    /// The document that a descriptor names, whose digest and size must be right.
    fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap();
        let bytes = &files[&format!("blobs/{}", digest.replace(':', "/"))];
        assert_eq!(format!("sha256:{}", sha256(bytes)), digest);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }

    fn parse(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn the_same_inputs_give_the_same_bytes() {
        assert_eq!(pack(&["amd64", "arm64"]).2, pack(&["amd64", "arm64"]).2);
        assert_ne!(pack(&["amd64"]).0, pack(&["arm64"]).0);
    }

    #[test]
    fn an_image_that_is_too_large_is_refused() {
        let refused = image(1000).pack(&programs(&["amd64"])).unwrap_err().to_string();
        assert!(refused.contains("the image for amd64 would have"), "{refused}");
    }

    #[test]
    fn the_index_leads_to_the_program_certificates_and_licences_for_a_user_who_is_not_root() {
        let (digest, files, _) = pack(&["amd64"]);
        let index = parse(&files["index.json"]);
        let image = &index["manifests"][0];
        assert_eq!(image["digest"], digest);
        assert_eq!(
            image["annotations"]["io.containerd.image.name"],
            "localhost/stellage:1.2.3"
        );
        let manifest = parse(follow(&files, image));
        let config = parse(follow(&files, &manifest["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/stellage"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(
            config["config"]["Labels"]["org.opencontainers.image.revision"],
            "c0ffee"
        );
        let mut layer = Vec::new();
        GzDecoder::new(follow(&files, &manifest["layers"][0]))
            .read_to_end(&mut layer)
            .unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", sha256(&layer))
        );
        let layer = super::tests::files(&layer);
        assert_eq!(layer["stellage"], b"amd64");
        let authorities = std::str::from_utf8(&layer["etc/ssl/certs/ca-certificates.crt"]).unwrap();
        assert!(authorities.matches("BEGIN CERTIFICATE").count() > 50);
        assert_eq!(layer["licenses/LICENSE"], b"ours");
        assert_eq!(layer["licenses/THIRD-PARTY.txt"], b"theirs");
    }

    #[test]
    fn an_image_for_two_architectures_has_an_index_with_both() {
        let (digest, files, _) = pack(&["amd64", "arm64"]);
        let index = parse(&files["index.json"]);
        let both = parse(follow(&files, &index["manifests"][0]));
        assert_eq!(index["manifests"][0]["digest"], digest);
        let architectures: Vec<&Value> = both["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|manifest| &manifest["platform"]["architecture"])
            .collect();
        assert_eq!(architectures, ["amd64", "arm64"]);
    }
}
