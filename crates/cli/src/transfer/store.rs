//! Where backups are: in a bucket of S3, or of a service that speaks its protocol, or in a folder.

use std::{
    cmp::Reverse,
    fs::File,
    io::{self, Write as _},
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use futures::TryStreamExt as _;
use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use object_store::{
    ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig,
    aws::AmazonS3Builder,
    client::{HttpClient, HttpConnector},
    local::LocalFileSystem,
    path::Path,
};
use serde::Serialize;
use url::Url;

use super::packing::Buffer;
use crate::{CliError, connect::innermost, http};

/// Size of the parts that a backup is sent in, in bytes: S3 takes 10,000 of them, each but the last of at least 5 MiB, and some services
/// only if all have the same size.
const PART: usize = 8 << 20;
/// How long the service may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// Where Amazon's service is, as far as TLS is concerned.
const AMAZON: &str = "https://s3.amazonaws.com";
/// How often, and for how long, a request is repeated that the service has not answered, or with an error of its own.
const RETRIES: usize = 6;
const RETRIED_FOR: Duration = Duration::from_secs(90);
/// The time in the name of a backup.
const TIME: &str = "%Y%m%dT%H%M%SZ";
/// How many letters of the UID of the operator's namespace tell the backups of two installations apart.
const INSTALLATION: usize = 12;

/// Where the backups are.
#[derive(Args, Debug)]
pub(super) struct StoreArgs {
    /// Where the backups are: s3://BUCKET/PREFIX, or a folder. The credentials for S3 are in AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY, or come from the identity that the machine or the pod has at Amazon
    #[arg(long, value_name = "TARGET")]
    target: String,

    /// URL of a service that speaks the protocol of S3; by default Amazon's
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL")]
    s3_endpoint: Option<Url>,

    /// Region of the bucket; most services other than Amazon's take any
    #[arg(long, value_name = "REGION", env = "AWS_REGION", default_value = "us-east-1")]
    s3_region: String,
}

/// A place with backups.
pub(super) struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// As it was given.
    target: String,
    /// If it is one.
    folder: Option<PathBuf>,
}

/// What the name of a backup says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Which installation has written it.
    pub(super) installation: String,
    /// When it began.
    pub(super) at: Timestamp,
    /// Random, so that no backup overwrites another.
    pub(super) id: String,
    pub(super) is_encrypted: bool,
}

/// A backup that is complete.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Backup {
    pub(super) name: String,
    pub(super) at: Timestamp,
    pub(super) installation: String,
    pub(super) encrypted: bool,
    pub(super) bytes: u64,
}

impl Name {
    /// The name of a backup that begins now. `namespace_uid` is that of the operator's namespace.
    pub(super) fn new(namespace_uid: &str, at: Timestamp, id: &str, is_encrypted: bool) -> Self {
        Self {
            installation: installation(namespace_uid),
            at,
            id: id.to_owned(),
            is_encrypted,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("stellage-")?;
        let (rest, is_encrypted) = match rest.strip_suffix(".age") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let mut parts = rest.strip_suffix(".export.gz")?.split('-');
        let (installation, time, id) = (parts.next()?, parts.next()?, parts.next()?);
        let at = strtime::parse(TIME, time).and_then(|time| time.to_datetime());
        let at = at.and_then(|time| time.to_zoned(TimeZone::UTC)).ok()?.timestamp();
        parts.next().is_none().then(|| Self {
            installation: installation.to_owned(),
            at,
            id: id.to_owned(),
            is_encrypted,
        })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ending = if self.is_encrypted { ".age" } else { "" };
        let (installation, at, id) = (&self.installation, self.at.strftime(TIME), &self.id);
        write!(f, "stellage-{installation}-{at}-{id}.export.gz{ending}")
    }
}

/// What tells the backups of an installation from those of another.
pub(super) fn installation(namespace_uid: &str) -> String {
    let letters = namespace_uid.chars().filter(char::is_ascii_alphanumeric);
    letters.take(INSTALLATION).collect()
}

impl Store {
    pub(super) fn of(args: &StoreArgs) -> Result<Self, CliError> {
        let wrong = |why: String| CliError::Value {
            flag: "--target",
            why,
        };
        let target = args.target.clone();
        if !target.contains("://") {
            let folder = PathBuf::from(&target);
            let objects = LocalFileSystem::new_with_prefix(&folder)
                .map_err(|_| wrong(format!("there is no folder {target}")))?
                .with_fsync(true);
            return Ok(Self {
                objects: Arc::new(objects),
                prefix: Path::default(),
                target,
                folder: Some(folder),
            });
        }
        let url = Url::parse(&target).map_err(|error| wrong(error.to_string()))?;
        let bucket = url.host_str().filter(|_| url.scheme() == "s3");
        let bucket = bucket.ok_or_else(|| wrong("must be s3://BUCKET/PREFIX or a folder".to_owned()))?;
        let prefix = Path::from_url_path(url.path()).map_err(|error| wrong(error.to_string()))?;
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_region(&args.s3_region)
            .with_retry(RetryConfig {
                max_retries: RETRIES,
                retry_timeout: RETRIED_FOR,
                ..RetryConfig::default()
            })
            .with_http_connector(Connector(args.s3_endpoint.clone()));
        if let Some(endpoint) = &args.s3_endpoint {
            builder = builder
                .with_endpoint(endpoint.as_str().trim_end_matches('/'))
                .with_allow_http(endpoint.scheme() == "http");
        }
        let objects = builder.build().map_err(|error| wrong(innermost(&error)))?;
        Ok(Self {
            objects: Arc::new(objects),
            prefix,
            target,
            folder: None,
        })
    }

    fn failure(&self, doing: &str, error: &object_store::Error) -> CliError {
        CliError::Plain(format!("cannot {doing} in {}: {error}", self.target))
    }

    /// Where the backup of this name is, for messages.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.target.trim_end_matches('/'))
    }

    /// All complete backups, the newest first. Other objects are ignored.
    pub(super) async fn backups(&self) -> Result<Vec<Backup>, CliError> {
        let listed = self.objects.list_with_delimiter(Some(&self.prefix)).await;
        let listed = listed.map_err(|error| self.failure("list the backups", &error))?;
        let found = listed.objects.into_iter().filter_map(|object| {
            let name = object.location.filename()?.to_owned();
            let parsed = Name::parse(&name)?;
            Some(Backup {
                name,
                at: parsed.at,
                installation: parsed.installation,
                encrypted: parsed.is_encrypted,
                bytes: object.size,
            })
        });
        let mut found: Vec<Backup> = found.collect();
        found.sort_by_key(|backup| Reverse((backup.at, backup.name.clone())));
        Ok(found)
    }

    /// Begins a backup, which is there only once it is [`complete`](Upload::complete).
    pub(super) async fn upload(&self, name: &Name) -> Result<Upload<'_>, CliError> {
        if let Some(folder) = &self.folder {
            // Nobody else may read what is in it. The file itself has the rights of its parts.
            rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
            remove_abandoned(folder, &name.installation).map_err(|source| CliError::File {
                path: folder.clone(),
                source,
            })?;
        }
        let path = self.prefix.clone().join(name.to_string());
        let begun = self.objects.put_multipart(&path).await;
        let parts = begun.map_err(|error| self.failure("begin a backup", &error))?;
        Ok(Upload {
            store: self,
            path,
            parts,
            buffer: Buffer::default(),
            sent: 0,
        })
    }

    /// Copies a backup into a file.
    pub(super) async fn download(&self, name: &str, file: &mut File) -> Result<(), CliError> {
        let failed = |error| self.failure(&format!("read the backup {name}"), &error);
        let found = self
            .objects
            .get(&self.prefix.clone().join(name))
            .await
            .map_err(failed)?;
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await.map_err(failed)? {
            let written = file.write_all(&part);
            written.map_err(|error| CliError::Plain(format!("cannot write a temporary file: {error}")))?;
        }
        Ok(())
    }

    pub(super) async fn delete(&self, name: &str) -> Result<(), CliError> {
        let deleted = self.objects.delete(&self.prefix.clone().join(name)).await;
        deleted.map_err(|error| self.failure(&format!("delete the old backup {name}"), &error))
    }
}

/// Removes the files of backups that were killed before their end: their names end with a number.
fn remove_abandoned(folder: &FilePath, installation: &str) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let begin = name.split_once('#').and_then(|(begin, _)| Name::parse(begin));
        if begin.is_some_and(|begin| begin.installation == installation) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A backup that is being written.
pub(super) struct Upload<'a> {
    store: &'a Store,
    path: Path,
    parts: Box<dyn MultipartUpload>,
    buffer: Buffer,
    /// Bytes that were sent.
    sent: u64,
}

impl Upload<'_> {
    /// Where the bytes go that are to be sent.
    pub(super) fn buffer(&self) -> Buffer {
        self.buffer.clone()
    }

    /// Sends the parts that are full.
    pub(super) async fn send(&mut self) -> Result<(), CliError> {
        while let Some(part) = self.buffer.part(PART) {
            self.put(part).await?;
        }
        Ok(())
    }

    async fn put(&mut self, part: Vec<u8>) -> Result<(), CliError> {
        self.sent += part.len() as u64;
        let put = self.parts.put_part(PutPayload::from(part)).await;
        put.map_err(|error| self.store.failure("write the backup", &error))
    }

    /// Sends the rest, and makes the backup one. Returns its size in bytes.
    pub(super) async fn complete(&mut self) -> Result<u64, CliError> {
        self.send().await?;
        let rest = self.buffer.rest();
        if !rest.is_empty() {
            self.put(rest).await?;
        }
        let failed = |error| self.store.failure("complete the backup", &error);
        self.parts.complete().await.map_err(failed)?;
        let stored = self.store.objects.head(&self.path).await.map_err(failed)?;
        if stored.size == self.sent {
            return Ok(self.sent);
        }
        self.store.objects.delete(&self.path).await.map_err(failed)?;
        Err(CliError::Plain(format!(
            "{} has stored {} bytes of the backup, of which {} were sent, so it was deleted",
            self.store.target, stored.size, self.sent
        )))
    }

    /// Removes what was sent.
    pub(super) async fn abort(mut self) {
        // What is left is no backup, and the service removes it by its own rule.
        let _ = self.parts.abort().await;
    }
}

/// Connects to services with the certificates that all commands trust.
#[derive(Debug)]
struct Connector(Option<Url>);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
            store: "S3",
            source,
        };
        let endpoint = match &self.0 {
            Some(endpoint) => endpoint.clone(),
            None => Url::parse(AMAZON).map_err(|error| failed(error.into()))?,
        };
        let client = http::builder(&endpoint).map_err(|error| failed(error.into()))?;
        let client = client.connect_timeout(SILENCE).read_timeout(SILENCE).build();
        Ok(HttpClient::new(client.map_err(|error| failed(error.into()))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_backup_it_is_of_when_and_is_that_of_nothing_else() {
        let at: Timestamp = "2026-11-28T07:31:24Z".parse().unwrap();
        let uid = "0d3f9c1e-55aa-4b7e-9f31-0242ac120002";
        for is_encrypted in [true, false] {
            let name = Name::new(uid, at, "ab12", is_encrypted);
            assert_eq!(Name::parse(&name.to_string()), Some(name));
        }
        let name = Name::new(uid, at, "ab12", true).to_string();
        assert_eq!(name, "stellage-0d3f9c1e55aa-20261128T073124Z-ab12.export.gz.age");
        for other in [
            "stellage.export",
            "stellage-0d3f9c1e55aa-20261128T073124Z-ab12.export.gz.age#1",
            "stellage-0d3f9c1e55aa-20261128-ab12.export.gz",
            "stellage-0d3f9c1e55aa-20261128T073124Z-ab12-2.export.gz",
            "my-stellage-0d3f9c1e55aa-20261128T073124Z-ab12.export.gz",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
