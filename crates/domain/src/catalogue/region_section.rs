//! The regions in the catalogue file: a plain code is simulated, a map names a cluster with KubeVirt.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use jiff::SignedDuration;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::region::{
    EvictionStrategy, Image, ImageSource, Ipv4Prefix, Ipv6Prefix, KubeVirt, Namespaces, Network, ObjectName,
    PrivateNetworks, Profile, Prometheus, PullMethod, Region, Toleration, TolerationOperator, UsageFrom,
};
use crate::provider::Deadlines;
use resources::{ids::is_object_name, validation};

/// Maximum number of images of a region.
const MAX_IMAGES: usize = 1000;
/// Maximum number of IPv4 prefixes of a region, and of exclusions of a prefix.
const MAX_PREFIXES: usize = 64;
const MAX_EXCLUSIONS: usize = 256;
/// Maximum number of name servers, as in a Pod.
const MAX_NAMESERVERS: usize = 3;
/// Maximum number of prefixes that servers must not reach.
const MAX_INTERNAL: usize = 64;
/// Maximum number of attachments for private networks.
const MAX_ATTACHMENTS: usize = 4096;
/// Maximum number of labels in a node selector.
const MAX_LABELS: usize = 16;
/// Maximum number of tolerations.
const MAX_TOLERATIONS: usize = 16;
/// Maximum number of headers of requests to Prometheus, and length of each.
const MAX_HEADERS: usize = 16;
const MAX_HEADER: usize = 1024;
/// Maximum length of a URL.
const MAX_URL: usize = 2048;
/// Maximum length of an image's user data.
const MAX_USER_DATA: usize = 16 * 1024;
/// Maximum length of the namespaces' prefix: names have at most 63 characters, of which the account's takes up to 49.
const MAX_NAMESPACE_PREFIX: usize = 14;
/// Maximum length of a label's value.
const MAX_LABEL: usize = 63;

/// The path of a field, and what is wrong with it.
type Wrong = (String, String);

/// An entry of `regions`.
#[derive(Debug)]
pub(super) enum RegionEntry {
    Simulated(String),
    Real(Box<RegionSection>),
}

impl<'de> Deserialize<'de> for RegionEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;
        impl<'de> Visitor<'de> for Entry {
            type Value = RegionEntry;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a region code, or a map with code and kubevirt or cell")
            }

            fn visit_str<E: de::Error>(self, code: &str) -> Result<RegionEntry, E> {
                Ok(RegionEntry::Simulated(code.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RegionEntry, A::Error> {
                RegionSection::deserialize(MapAccessDeserializer::new(map))
                    .map(|section| RegionEntry::Real(Box::new(section)))
            }
        }
        deserializer.deserialize_any(Entry)
    }
}

/// A section with fields. Without this, serde would also accept a list of the values.
#[derive(Debug, Default)]
pub(super) struct Fields<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(OfMap(PhantomData)).map(Self)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RegionSection {
    code: String,
    /// Reserved: the installation that the region belongs to, where several share a catalogue.
    cell: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    kubevirt: Option<Fields<KubeVirtSection>>,
}

/// A section that may be missing, but not empty.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KubeVirtSection {
    kubeconfig: PathBuf,
    installation: String,
    namespace_prefix: Option<String>,
    #[serde(default)]
    namespaces: Namespaces,
    storage_class: String,
    snapshot_class: Option<String>,
    images: BTreeMap<String, Fields<ImageSection>>,
    network: Fields<NetworkSection>,
    #[serde(default)]
    node_selector: BTreeMap<String, String>,
    #[serde(default)]
    tolerations: Vec<Fields<Toleration>>,
    #[serde(default)]
    eviction_strategy: EvictionStrategy,
    cpu_model: Option<String>,
    soft_stop_grace: Option<String>,
    #[serde(default)]
    deadlines: Fields<DeadlinesSection>,
    calls_at_once: Option<usize>,
    prometheus: Option<Fields<PrometheusSection>>,
    #[serde(default)]
    pod_metrics: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrometheusSection {
    url: String,
    bearer_token_file: Option<PathBuf>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    ca: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct DeadlinesSection {
    create: Option<String>,
    rebuild: Option<String>,
    other: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ImageSection {
    data_source: Option<String>,
    snapshot: Option<String>,
    pvc: Option<String>,
    registry: Option<String>,
    pull_method: Option<PullMethod>,
    http: Option<String>,
    cert_config_map: Option<String>,
    user: String,
    user_data: Option<String>,
    #[serde(default)]
    config_drive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkSection {
    profile: ProfileWord,
    attachment: Option<String>,
    subnet: Option<String>,
    #[serde(default)]
    ipv4: Vec<Fields<Ipv4Section>>,
    ipv6: Option<Fields<Ipv6Section>>,
    #[serde(default)]
    nameservers: Vec<String>,
    #[serde(default)]
    internal_cidrs: Vec<String>,
    #[serde(default)]
    private_networks: PrivateNetworksWord,
    #[serde(default)]
    private_attachments: Vec<String>,
    anti_spoofing: Option<AntiSpoofingWord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ProfileWord {
    Pod,
    Bridge,
    KubeOvn,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PrivateNetworksWord {
    #[default]
    None,
    Nad,
    KubeOvn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum AntiSpoofingWord {
    External,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ipv4Section {
    prefix: String,
    gateway: String,
    #[serde(default)]
    exclude: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ipv6Section {
    prefix: String,
    gateway: String,
}

/// Adds the path of a field to what is wrong with it.
trait At<T> {
    fn at(self, path: &str, field: &str) -> Result<T, Wrong>;
}

impl<T, E: Into<String>> At<T> for Result<T, E> {
    fn at(self, path: &str, field: &str) -> Result<T, Wrong> {
        self.map_err(|problem| (format!("{path}.{field}"), problem.into()))
    }
}

/// The regions of a file.
pub(super) fn regions(entries: Vec<RegionEntry>) -> Result<Vec<Region>, Wrong> {
    let mut regions = Vec::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        regions.push(region(entry, &format!("regions[{index}]"))?);
    }
    check_together(&regions)?;
    Ok(regions)
}

fn region(entry: RegionEntry, path: &str) -> Result<Region, Wrong> {
    match entry {
        RegionEntry::Simulated(code) => {
            check_code(&code).map_err(|problem| (path.to_owned(), problem))?;
            Ok(Region { code, kubevirt: None })
        }
        RegionEntry::Real(section) => {
            let RegionSection { code, cell, kubevirt } = *section;
            check_code(&code).at(path, "code")?;
            if let Some(cell) = &cell {
                validation::installation(cell).at(path, "cell")?;
            }
            let kubevirt = kubevirt
                .map(|section| section.0.read(&format!("{path}.kubevirt")))
                .transpose()?;
            if kubevirt.is_none() && cell.is_none() {
                return Err((path.to_owned(), "missing field `kubevirt`".to_owned()));
            }
            Ok(Region {
                code,
                kubevirt: kubevirt.map(Arc::new),
            })
        }
    }
}

fn check_code(code: &str) -> Result<(), String> {
    validation::region(code)
        .map_err(|_| format!("{code:?} must be a region code <country>-<city>-<n>, such as fr-par-1"))
}

impl KubeVirtSection {
    fn read(self, path: &str) -> Result<KubeVirt, Wrong> {
        absolute(&self.kubeconfig, "/etc/stellage/regions/de-fra-1/kubeconfig").at(path, "kubeconfig")?;
        let installation = label_value(self.installation).at(path, "installation")?;
        let namespace_prefix = self.namespace_prefix.unwrap_or_else(|| "stellage-".to_owned());
        check_namespace_prefix(&namespace_prefix).at(path, "namespacePrefix")?;
        let storage_class = object_name(self.storage_class).at(path, "storageClass")?;
        let snapshot_class = self.snapshot_class.map(object_name).transpose();
        let snapshot_class = snapshot_class.at(path, "snapshotClass")?;
        let images = images(self.images, &format!("{path}.images"))?;
        let network = self.network.0.read(&format!("{path}.network"))?;
        let node_selector = node_selector(self.node_selector).at(path, "nodeSelector")?;
        let tolerations = tolerations(self.tolerations, &format!("{path}.tolerations"))?;
        let cpu_model = self.cpu_model.map(label_value).transpose().at(path, "cpuModel")?;
        let time = |text: Option<String>, default: Duration, field| {
            text.map_or(Ok(default), |text| duration(&text)).at(path, field)
        };
        let deadlines = self.deadlines.0;
        let half_an_hour = Duration::from_mins(30);
        let deadlines = Deadlines {
            soft_stop_grace: time(self.soft_stop_grace, Duration::from_mins(2), "softStopGrace")?,
            create: time(deadlines.create, half_an_hour, "deadlines.create")?,
            rebuild: time(deadlines.rebuild, half_an_hour, "deadlines.rebuild")?,
            other: time(deadlines.other, Duration::from_mins(15), "deadlines.other")?,
        };
        if deadlines.other <= deadlines.soft_stop_grace {
            let problem =
                "must be longer than softStopGrace, or every soft stop that is forced would count as failed";
            return Err(problem).at(path, "deadlines.other");
        }
        let calls_at_once = self.calls_at_once.unwrap_or(32);
        if !(1..=1000).contains(&calls_at_once) {
            return Err(format!("{calls_at_once} must be 1 to 1000")).at(path, "callsAtOnce");
        }
        if self.prometheus.is_some() && self.pod_metrics {
            return Err("must be left out: prometheus is set, and knows more").at(path, "podMetrics");
        }
        let prometheus = self.prometheus.map(|section| {
            let prometheus = section.0.read(&format!("{path}.prometheus"));
            prometheus.map(UsageFrom::Prometheus)
        });
        let usage = prometheus.transpose()?;
        let usage = usage.or(self.pod_metrics.then_some(UsageFrom::PodMetrics));
        Ok(KubeVirt {
            kubeconfig: self.kubeconfig,
            installation,
            namespace_prefix,
            namespaces: self.namespaces,
            storage_class,
            snapshot_class,
            images,
            network,
            node_selector,
            tolerations,
            eviction_strategy: self.eviction_strategy,
            cpu_model,
            deadlines,
            calls_at_once,
            usage,
        })
    }
}

impl PrometheusSection {
    fn read(self, path: &str) -> Result<Prometheus, Wrong> {
        let url = url(&self.url, &["https://", "http://"]).at(path, "url")?;
        if url.contains(['?', '#', '@']) {
            let problem = format!(
                "{url:?} must have no query, fragment or user; use headers or bearerTokenFile for who is asking"
            );
            return Err(problem).at(path, "url");
        }
        if let Some(file) = &self.bearer_token_file {
            absolute(file, "/etc/stellage/prometheus/de-fra-1/token").at(path, "bearerTokenFile")?;
        }
        if let Some(file) = &self.ca {
            absolute(file, "/etc/stellage/prometheus/de-fra-1/ca.crt").at(path, "ca")?;
            if url.starts_with("http://") {
                return Err("must be left out: url begins with http://").at(path, "ca");
            }
        }
        if self.headers.len() > MAX_HEADERS {
            let problem = format!(
                "has {} entries; must have at most {MAX_HEADERS}",
                self.headers.len()
            );
            return Err(problem).at(path, "headers");
        }
        for (name, value) in &self.headers {
            let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || name.len() > MAX_HEADER || !name.bytes().all(is_inner) {
                let problem = format!("{name:?} must be the name of a header, such as X-Scope-OrgID");
                return Err(problem).at(path, "headers");
            }
            let path = format!("{path}.headers");
            if name.eq_ignore_ascii_case("authorization") && self.bearer_token_file.is_some() {
                return Err("must be left out: bearerTokenFile sets it").at(&path, name);
            }
            let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            if value.len() > MAX_HEADER || value.trim() != value || !value.bytes().all(is_visible) {
                let problem = format!(
                    "must be at most {MAX_HEADER} visible ASCII characters, without spaces at its ends"
                );
                return Err(problem).at(&path, name);
            }
        }
        Ok(Prometheus {
            url: url.trim_end_matches('/').to_owned(),
            bearer_token_file: self.bearer_token_file,
            headers: self.headers,
            ca: self.ca,
        })
    }
}

fn absolute(path: &Path, example: &str) -> Result<(), String> {
    if path.is_absolute() {
        return Ok(());
    }
    let path = path.display().to_string();
    Err(format!("{path:?} must be an absolute path, such as {example}"))
}

/// The value of a label that is not empty.
fn label_value(text: String) -> Result<String, String> {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let bytes = text.as_bytes();
    let ends = is_end(bytes.first().copied()) && is_end(bytes.last().copied());
    if ends && bytes.len() <= MAX_LABEL && bytes.iter().copied().all(is_inner) {
        return Ok(text);
    }
    Err(format!(
        "{text:?} must be 1 to {MAX_LABEL} letters, digits, '.', '_' or '-', with a letter or digit at both ends"
    ))
}

fn object_name(text: String) -> Result<String, String> {
    if is_object_name(&text) {
        return Ok(text);
    }
    Err(format!(
        "{text:?} must be the name of an object: lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
    ))
}

/// `namespace/name`.
fn namespaced(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if is_object_name(namespace) && is_object_name(name) => Ok(ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err(format!(
            "{text:?} must be <namespace>/<name> of an object, such as golden-images/debian-13"
        )),
    }
}

fn check_namespace_prefix(prefix: &str) -> Result<(), String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = prefix
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase());
    if begins && prefix.len() <= MAX_NAMESPACE_PREFIX && prefix.bytes().all(is_inner) {
        if prefix.starts_with("kube-") {
            return Err(format!("{prefix:?} must not begin with kube-"));
        }
        return Ok(());
    }
    Err(format!(
        "{prefix:?} must be 1 to {MAX_NAMESPACE_PREFIX} lower-case letters, digits or '-', and begin with a letter"
    ))
}

fn node_selector(labels: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    if labels.len() > MAX_LABELS {
        return Err(format!(
            "has {} labels; must have at most {MAX_LABELS}",
            labels.len()
        ));
    }
    for (key, value) in &labels {
        check_key(key)?;
        if !value.is_empty() {
            label_value(value.clone()).map_err(|problem| format!("{key}: {problem}"))?;
        }
    }
    Ok(labels)
}

/// Checks the key of a label or taint.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("a", key));
    if is_object_name(prefix) && label_value(name.to_owned()).is_ok() {
        return Ok(());
    }
    Err(format!("{key:?} must be a key such as example.com/pool"))
}

fn tolerations(sections: Vec<Fields<Toleration>>, path: &str) -> Result<Vec<Toleration>, Wrong> {
    if sections.len() > MAX_TOLERATIONS {
        let problem = format!(
            "has {} entries; must have at most {MAX_TOLERATIONS}",
            sections.len()
        );
        return Err((path.to_owned(), problem));
    }
    let read = |(index, Fields(toleration)): (usize, Fields<Toleration>)| {
        let path = format!("{path}[{index}]");
        let is_any = toleration.operator == TolerationOperator::Exists;
        match &toleration.key {
            Some(key) => check_key(key).at(&path, "key")?,
            None if is_any => {}
            None => return Err("must be set, unless operator is Exists").at(&path, "key"),
        }
        match &toleration.value {
            Some(_) if is_any => return Err("must be left out: operator is Exists").at(&path, "value"),
            Some(value) if !value.is_empty() => {
                label_value(value.clone()).at(&path, "value")?;
            }
            _ => {}
        }
        Ok(toleration)
    };
    sections.into_iter().enumerate().map(read).collect()
}

/// A time of whole seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let time = text.parse::<SignedDuration>().ok();
    time.filter(|time| time.subsec_nanos() == 0 && (1..=86_400).contains(&time.as_secs()))
        .and_then(|time| Duration::try_from(time).ok())
        .ok_or_else(|| format!("{text:?} must be a time of 1 second to 24 hours, such as 120s or 30m"))
}

fn images(
    sections: BTreeMap<String, Fields<ImageSection>>,
    path: &str,
) -> Result<BTreeMap<String, Image>, Wrong> {
    if !(1..=MAX_IMAGES).contains(&sections.len()) {
        let problem = format!("has {} entries; must have 1 to {MAX_IMAGES}", sections.len());
        return Err((path.to_owned(), problem));
    }
    let read = |(id, section): (String, Fields<ImageSection>)| {
        let path = format!("{path}.{id}");
        if validation::image(&id).is_err() {
            let problem =
                "must be an image identifier of lower-case letters, digits, '.' and '-', such as debian-13";
            return Err((path, problem.to_owned()));
        }
        Ok((id, section.0.read(&path)?))
    };
    sections.into_iter().map(read).collect()
}

impl ImageSection {
    fn read(self, path: &str) -> Result<Image, Wrong> {
        let source = self.source(path)?;
        if self.pull_method.is_some() && self.registry.is_none() {
            return Err("must be left out: it is for registry").at(path, "pullMethod");
        }
        if self.cert_config_map.is_some() && self.http.is_none() {
            return Err("must be left out: it is for http").at(path, "certConfigMap");
        }
        let is_user = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let begins = self
            .user
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if !begins || self.user.len() > 32 || !self.user.bytes().all(is_user) {
            let problem = format!(
                "{:?} must be the login user of the image, such as debian: 1 to 32 lower-case letters, digits, '_' or '-'",
                self.user
            );
            return Err(problem).at(path, "user");
        }
        if self
            .user_data
            .as_ref()
            .is_some_and(|text| text.len() > MAX_USER_DATA)
        {
            return Err(format!("must have at most {MAX_USER_DATA} bytes")).at(path, "userData");
        }
        Ok(Image {
            source,
            user: self.user,
            user_data: self.user_data,
            config_drive: self.config_drive,
        })
    }

    fn source(&self, path: &str) -> Result<ImageSource, Wrong> {
        let named = [
            self.data_source.is_some(),
            self.snapshot.is_some(),
            self.pvc.is_some(),
            self.registry.is_some(),
            self.http.is_some(),
        ];
        if named.into_iter().filter(|is_named| *is_named).count() != 1 {
            let problem = "must have exactly one of dataSource, snapshot, pvc, registry and http";
            return Err((path.to_owned(), problem.to_owned()));
        }
        if let Some(text) = &self.data_source {
            return namespaced(text)
                .map(ImageSource::DataSource)
                .at(path, "dataSource");
        }
        if let Some(text) = &self.snapshot {
            return namespaced(text).map(ImageSource::Snapshot).at(path, "snapshot");
        }
        if let Some(text) = &self.pvc {
            return namespaced(text).map(ImageSource::Pvc).at(path, "pvc");
        }
        if let Some(text) = &self.registry {
            return Ok(ImageSource::Registry {
                url: url(text, &["docker://"]).at(path, "registry")?,
                pull_method: self.pull_method.unwrap_or_default(),
            });
        }
        let text = self.http.as_deref().unwrap_or_default();
        let cert_config_map = self.cert_config_map.clone().map(object_name).transpose();
        Ok(ImageSource::Http {
            url: url(text, &["https://", "http://"]).at(path, "http")?,
            cert_config_map: cert_config_map.at(path, "certConfigMap")?,
        })
    }
}

fn url(text: &str, schemes: &[&str]) -> Result<String, String> {
    let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
    let is_well_formed = |rest: &str| {
        !rest.is_empty() && !rest.starts_with('/') && rest.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if text.len() <= MAX_URL && rest.is_some_and(is_well_formed) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} must be a URL that begins with {}, of at most {MAX_URL} characters",
        schemes.join(" or ")
    ))
}

/// How servers are attached to private networks.
fn private_networks(word: PrivateNetworksWord, attachments: &[String]) -> Result<PrivateNetworks, String> {
    check_length(attachments.len(), MAX_ATTACHMENTS)?;
    match word {
        _ if attachments.is_empty() => {}
        PrivateNetworksWord::Nad => {
            let pool: Vec<ObjectName> = attachments
                .iter()
                .map(|text| namespaced(text))
                .collect::<Result<_, _>>()?;
            let twice = pool
                .iter()
                .enumerate()
                .find(|(index, name)| pool[..*index].contains(name));
            return match twice {
                Some((_, ObjectName { namespace, name })) => Err(format!(
                    "has {namespace}/{name} twice; each is given to one network"
                )),
                None => Ok(PrivateNetworks::Pool(pool)),
            };
        }
        PrivateNetworksWord::None | PrivateNetworksWord::KubeOvn => {
            return Err("must be left out: it is for privateNetworks: nad".to_owned());
        }
    }
    Ok(match word {
        PrivateNetworksWord::None => PrivateNetworks::None,
        PrivateNetworksWord::Nad => PrivateNetworks::Nad,
        PrivateNetworksWord::KubeOvn => PrivateNetworks::KubeOvn,
    })
}

impl NetworkSection {
    fn read(self, path: &str) -> Result<Network, Wrong> {
        let is_pod = self.profile == ProfileWord::Pod;
        let unused = [
            ("attachment", is_pod && self.attachment.is_some()),
            (
                "subnet",
                self.profile != ProfileWord::KubeOvn && self.subnet.is_some(),
            ),
            ("ipv4", is_pod && !self.ipv4.is_empty()),
            ("ipv6", is_pod && self.ipv6.is_some()),
        ];
        if let Some((field, _)) = unused.into_iter().find(|(_, is_unused)| *is_unused) {
            return Err("must be left out: the profile has no use for it").at(path, field);
        }
        let attachment = self.attachment.as_deref().map(namespaced).transpose();
        let attachment = attachment.at(path, "attachment")?;
        let profile = match self.profile {
            ProfileWord::Pod => Profile::Pod,
            ProfileWord::Bridge => Profile::Bridge {
                attachment: attachment
                    .ok_or(
                        "is missing: the profile bridge needs the NetworkAttachmentDefinition of the bridge",
                    )
                    .at(path, "attachment")?,
            },
            ProfileWord::KubeOvn => Profile::KubeOvn {
                subnet: self
                    .subnet
                    .ok_or_else(|| "is missing: the profile kubeOvn needs the name of the subnet".to_owned())
                    .and_then(object_name)
                    .at(path, "subnet")?,
                attachment,
            },
        };
        if !is_pod && self.ipv4.is_empty() {
            return Err("is missing: the profile needs the addresses that servers get").at(path, "ipv4");
        }
        check_length(self.ipv4.len(), MAX_PREFIXES).at(path, "ipv4")?;
        check_length(self.nameservers.len(), MAX_NAMESERVERS).at(path, "nameservers")?;
        check_length(self.internal_cidrs.len(), MAX_INTERNAL).at(path, "internalCidrs")?;
        let ipv4 = self.ipv4.into_iter().enumerate();
        let ipv4 = ipv4.map(|(index, section)| section.0.read(&format!("{path}.ipv4[{index}]")));
        let ipv6 = self.ipv6.map(|section| section.0.read(&format!("{path}.ipv6")));
        let nameservers = self.nameservers.iter().enumerate().map(|(index, text)| {
            let address = text.parse::<IpAddr>();
            let address = address.map_err(|_| format!("{text:?} must be an IP address"));
            address.at(path, &format!("nameservers[{index}]"))
        });
        let internal =
            self.internal_cidrs.iter().enumerate().map(|(index, text)| {
                cidr(text, "10.244.0.0/16").at(path, &format!("internalCidrs[{index}]"))
            });
        Ok(Network {
            profile,
            ipv4: ipv4.collect::<Result<_, _>>()?,
            ipv6: ipv6.transpose()?,
            nameservers: nameservers.collect::<Result<_, _>>()?,
            internal_cidrs: internal.collect::<Result<_, _>>()?,
            private_networks: private_networks(self.private_networks, &self.private_attachments)
                .at(path, "privateAttachments")?,
            anti_spoofing_external: self.anti_spoofing.is_some(),
        })
    }
}

fn check_length(length: usize, most: usize) -> Result<(), String> {
    if length > most {
        return Err(format!("has {length} entries; must have at most {most}"));
    }
    Ok(())
}

/// A prefix whose address has no bits behind the prefix.
fn cidr(text: &str, such_as: &str) -> Result<IpNet, String> {
    let net: IpNet = text
        .parse()
        .map_err(|_| format!("{text:?} must be a prefix, such as {such_as}"))?;
    if net.addr() != net.network() {
        return Err(format!("{text:?} must be the prefix itself: {}", net.trunc()));
    }
    Ok(net)
}

impl Ipv4Section {
    fn read(self, path: &str) -> Result<Ipv4Prefix, Wrong> {
        let such_as = "203.0.113.0/24";
        let prefix = match cidr(&self.prefix, such_as).at(path, "prefix")? {
            IpNet::V4(prefix) if prefix.prefix_len() >= 8 && !is_special(prefix.addr()) => prefix,
            _ => {
                let problem = format!(
                    "{:?} must be an IPv4 prefix of servers, a /8 or narrower, such as {such_as}",
                    self.prefix
                );
                return Err(problem).at(path, "prefix");
            }
        };
        let gateway = self.gateway.parse::<Ipv4Addr>().ok();
        let may_route =
            |gateway: &Ipv4Addr| prefix.contains(gateway) || gateway.is_private() || gateway.is_link_local();
        let gateway = gateway.filter(may_route).ok_or_else(|| {
            format!(
                "{:?} must be an IPv4 address in {prefix}, or a private or link-local one",
                self.gateway
            )
        });
        let gateway = gateway.at(path, "gateway")?;
        check_length(self.exclude.len(), MAX_EXCLUSIONS).at(path, "exclude")?;
        let exclude = self.exclude.iter().enumerate();
        let exclude = exclude.map(|(index, text)| range(text, prefix).at(path, &format!("exclude[{index}]")));
        let exclude = exclude.collect::<Result<_, _>>()?;
        let read = Ipv4Prefix {
            prefix,
            gateway,
            exclude,
        };
        if read.size() == 0 {
            return Err("has no address left for a server").at(path, "prefix");
        }
        Ok(read)
    }
}

/// Whether no server can have an address.
fn is_special(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.is_multicast() || address.is_link_local() || address.octets()[0] == 0
}

/// One address, or the first and the last of several.
fn range(text: &str, prefix: Ipv4Net) -> Result<RangeInclusive<Ipv4Addr>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let address = |text: &str| {
        text.trim()
            .parse()
            .ok()
            .filter(|address| prefix.contains(address))
    };
    match (address(first), address(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!(
            "{text:?} must be an address in {prefix}, or the first and the last of several, such as {}-{}",
            prefix.network(),
            prefix.broadcast()
        )),
    }
}

impl Ipv6Section {
    fn read(self, path: &str) -> Result<Ipv6Prefix, Wrong> {
        let such_as = "2001:db8:10::/64";
        let is_for_servers = |prefix: &Ipv6Net| {
            prefix.prefix_len() <= 64
                && !prefix.addr().is_multicast()
                && !prefix.addr().is_unicast_link_local()
        };
        let prefix = match cidr(&self.prefix, such_as).at(path, "prefix")? {
            IpNet::V6(prefix) if is_for_servers(&prefix) => prefix,
            _ => {
                let problem = format!(
                    "{:?} must be an IPv6 prefix of servers, a /64 or wider, such as {such_as}",
                    self.prefix
                );
                return Err(problem).at(path, "prefix");
            }
        };
        let gateway = self.gateway.parse::<Ipv6Addr>().ok();
        let gateway = gateway.filter(|gateway| {
            prefix.contains(gateway) || gateway.is_unicast_link_local() || gateway.is_unique_local()
        });
        let gateway = gateway.ok_or_else(|| {
            format!(
                "{:?} must be an IPv6 address in {prefix}, or a link-local or unique local one, such as fe80::1",
                self.gateway
            )
        });
        Ok(Ipv6Prefix {
            prefix,
            gateway: gateway.at(path, "gateway")?,
        })
    }
}

/// Checks what concerns more than one region: no address may be given twice, and what regions have in one cluster must be told apart.
fn check_together(regions: &[Region]) -> Result<(), Wrong> {
    let mut taken: Vec<(IpNet, &str)> = Vec::new();
    let mut names: HashMap<(&Path, &'static str, &str), &str> = HashMap::new();
    for (index, region) in regions.iter().enumerate() {
        let Some(kubevirt) = &region.kubevirt else {
            continue;
        };
        let path = format!("regions[{index}].kubevirt");
        let code = region.code.as_str();
        let network = &kubevirt.network;
        let ipv4 = network.ipv4.iter().enumerate();
        let ipv4 = ipv4.map(|(index, prefix)| (IpNet::V4(prefix.prefix), format!("ipv4[{index}]")));
        let ipv6 = network
            .ipv6
            .iter()
            .map(|prefix| (IpNet::V6(prefix.prefix), "ipv6".to_owned()));
        for (prefix, field) in ipv4.chain(ipv6) {
            let overlaps = |(other, _): &&(IpNet, &str)| other.contains(&prefix) || prefix.contains(other);
            if let Some((other, whose)) = taken.iter().find(overlaps) {
                let problem = format!("{prefix} overlaps with {other} of region {whose}");
                return Err(problem).at(&path, &format!("network.{field}.prefix"));
            }
            taken.push((prefix, code));
        }
        for (field, name) in [
            ("installation", &kubevirt.installation),
            ("namespacePrefix", &kubevirt.namespace_prefix),
        ] {
            if let Some(other) = names.insert((kubevirt.kubeconfig.as_path(), field, name), code) {
                let problem = format!(
                    "{name:?} is that of region {other}, which is in the same cluster; regions in one cluster must have different ones"
                );
                return Err(problem).at(&path, field);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use resources::OperationKind;

    /// A region that sets everything.
    const BRIDGE: &str = r#"
code: de-fra-1
kubevirt:
  kubeconfig: /etc/stellage/regions/de-fra-1/kubeconfig
  installation: prod-1
  namespacePrefix: vm-
  namespaces: existing
  storageClass: ceph-block
  snapshotClass: ceph-block-stellage
  images:
    debian-13: {dataSource: stellage-images/debian-13, user: debian, userData: "packages: [qemu-guest-agent]"}
    alpine-3: {registry: "docker://quay.io/containerdisks/alpine:3", pullMethod: node, user: alpine, configDrive: true}
    other-1: {http: "https://images.example/other.qcow2", certConfigMap: images-ca, user: root}
  network:
    profile: bridge
    attachment: stellage-networks/public
    ipv4:
      - {prefix: 203.0.113.0/24, gateway: 203.0.113.1, exclude: [203.0.113.2-203.0.113.9, 203.0.113.250]}
      - {prefix: 198.51.100.0/28, gateway: 169.254.1.1}
    ipv6: {prefix: "2001:db8:10::/64", gateway: "fe80::1"}
    nameservers: [9.9.9.9, "2620:fe::fe"]
    internalCidrs: [10.244.0.0/16, "fd00:10::/48"]
    privateNetworks: nad
    antiSpoofing: external
  nodeSelector: {pool: vms, example.com/zone: ""}
  tolerations: [{key: example.com/pool, value: vms, effect: NoSchedule}, {operator: Exists}]
  evictionStrategy: LiveMigrate
  cpuModel: host-model
  softStopGrace: 90s
  deadlines: {create: 45m, other: 10m}
  callsAtOnce: 8
  prometheus:
    url: https://prometheus.example/tenant/
    bearerTokenFile: /etc/stellage/prometheus/de-fra-1/token
    headers: {X-Scope-OrgID: platform}
    ca: /etc/stellage/prometheus/de-fra-1/ca.crt
"#;

    /// The region that sets least.
    const POD: &str = r"
code: nl-ams-1
kubevirt:
  kubeconfig: /kubeconfig
  installation: prod-1
  storageClass: local
  images: {debian-13: {snapshot: images/debian-13, user: debian}}
  network: {profile: pod}
";

    fn file(regions: &[&str]) -> String {
        let entry = |region: &&str| format!("- {}\n", region.trim().replace('\n', "\n  "));
        format!("regions:\n{}", regions.iter().map(entry).collect::<String>())
    }

    fn parse(regions: &[&str]) -> Result<Vec<Region>, String> {
        let catalogue = Catalogue::parse(&file(regions), Path::new("file"));
        catalogue
            .map(|read| read.regions)
            .map_err(|error| error.to_string())
    }

    fn kubevirt(region: &str) -> KubeVirt {
        let mut regions = parse(&[region]).unwrap();
        KubeVirt::clone(regions.remove(0).kubevirt.as_deref().unwrap())
    }

    #[test]
    fn regions_are_simulated_or_name_a_cluster() {
        let regions = parse(&["fr-par-1", BRIDGE, POD]).unwrap();
        let shown: Vec<_> = regions
            .iter()
            .map(|region| (region.code.as_str(), region.kubevirt.is_some()))
            .collect();
        assert_eq!(
            shown,
            [("fr-par-1", false), ("de-fra-1", true), ("nl-ams-1", true)]
        );
    }

    #[test]
    fn everything_that_a_region_sets_is_read() {
        let read = kubevirt(BRIDGE);
        assert_eq!(
            read.kubeconfig,
            Path::new("/etc/stellage/regions/de-fra-1/kubeconfig")
        );
        assert_eq!(
            (read.installation.as_str(), read.namespace_prefix.as_str()),
            ("prod-1", "vm-")
        );
        assert_eq!(read.namespaces, Namespaces::Existing);
        assert_eq!(read.snapshot_class.as_deref(), Some("ceph-block-stellage"));
        let name = |namespace: &str, name: &str| ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let debian = &read.images["debian-13"];
        assert_eq!(
            debian.source,
            ImageSource::DataSource(name("stellage-images", "debian-13"))
        );
        assert_eq!(debian.user_data.as_deref(), Some("packages: [qemu-guest-agent]"));
        let alpine = &read.images["alpine-3"];
        let from_registry = ImageSource::Registry {
            url: "docker://quay.io/containerdisks/alpine:3".to_owned(),
            pull_method: PullMethod::Node,
        };
        assert_eq!((&alpine.source, alpine.config_drive), (&from_registry, true));
        let network = &read.network;
        let attachment = name("stellage-networks", "public");
        assert_eq!(network.profile, Profile::Bridge { attachment });
        let sizes: Vec<u32> = network.ipv4.iter().map(Ipv4Prefix::size).collect();
        assert_eq!(sizes, [244, 14]);
        assert_eq!(
            network.ipv6.as_ref().unwrap().prefix.to_string(),
            "2001:db8:10::/64"
        );
        assert_eq!((network.nameservers.len(), network.internal_cidrs.len()), (2, 2));
        assert!(network.anti_spoofing_external && network.private_networks == PrivateNetworks::Nad);
        assert_eq!(read.node_selector.len(), 2);
        assert_eq!(
            serde_json::to_value(&read.tolerations).unwrap(),
            serde_json::json!([
                { "key": "example.com/pool", "operator": "Equal", "value": "vms", "effect": "NoSchedule" },
                { "operator": "Exists" },
            ])
        );
        assert_eq!(read.eviction_strategy, EvictionStrategy::LiveMigrate);
        let minutes = |of| read.deadlines.of(of).as_secs() / 60;
        assert_eq!(
            [
                OperationKind::Create,
                OperationKind::Rebuild,
                OperationKind::Start
            ]
            .map(minutes),
            [45, 30, 10]
        );
        assert_eq!(
            (read.deadlines.soft_stop_grace.as_secs(), read.calls_at_once),
            (90, 8)
        );
        let prometheus = Prometheus {
            url: "https://prometheus.example/tenant".to_owned(),
            bearer_token_file: Some("/etc/stellage/prometheus/de-fra-1/token".into()),
            headers: [("X-Scope-OrgID".to_owned(), "platform".to_owned())].into(),
            ca: Some("/etc/stellage/prometheus/de-fra-1/ca.crt".into()),
        };
        assert_eq!(read.usage, Some(UsageFrom::Prometheus(prometheus)));
    }

    #[test]
    fn what_a_region_leaves_out_has_a_default() {
        let read = kubevirt(POD);
        assert_eq!(
            (read.kubeconfig.as_path(), read.namespace_prefix.as_str()),
            (Path::new("/kubeconfig"), "stellage-")
        );
        assert_eq!(
            (read.namespaces, read.snapshot_class),
            (Namespaces::Managed, None)
        );
        assert_eq!(read.eviction_strategy, EvictionStrategy::LiveMigrateIfPossible);
        assert_eq!(read.network.private_networks, PrivateNetworks::None);
        assert_eq!(
            (read.deadlines.soft_stop_grace.as_secs(), read.calls_at_once),
            (120, 32)
        );
        assert_eq!(read.usage, None);
        let with_pod_metrics = kubevirt(&format!("{}\n  podMetrics: true", POD.trim()));
        assert_eq!(with_pod_metrics.usage, Some(UsageFrom::PodMetrics));
        for (privately, driver) in [
            ("none", PrivateNetworks::None),
            ("nad", PrivateNetworks::Nad),
            ("kubeOvn", PrivateNetworks::KubeOvn),
            (
                "nad, privateAttachments: [vlans/vlan-101]",
                PrivateNetworks::Pool(vec![ObjectName {
                    namespace: "vlans".to_owned(),
                    name: "vlan-101".to_owned(),
                }]),
            ),
        ] {
            let text = POD.replace(
                "profile: pod",
                &format!("profile: pod, privateNetworks: {privately}"),
            );
            assert_eq!(kubevirt(&text).network.private_networks, driver);
        }
        let kube_ovn = POD.replace(
            "profile: pod",
            "profile: kubeOvn, subnet: public, ipv4: [{prefix: 192.0.2.0/28, gateway: 192.0.2.1}]",
        );
        let profile = kubevirt(&kube_ovn).network.profile;
        let subnet = "public".to_owned();
        assert_eq!(
            profile,
            Profile::KubeOvn {
                subnet,
                attachment: None
            }
        );
    }

    /// What is wrong in [`BRIDGE`] when the first text is replaced by the second (`\\n` is the end of a line), the field that the error
    /// names, and what it says.
    const MISTAKES: &str = r#"
code: de-fra-1 | code: Frankfurt | code | such as fr-par-1
code: de-fra-1 | name: de-fra-1 | name | unknown field `name`
kubeconfig: /etc | kubeconfig: etc | kubevirt.kubeconfig | an absolute path
  kubeconfig: /etc/stellage/regions/de-fra-1/kubeconfig\n |  | kubevirt | missing field `kubeconfig`
  installation: prod-1 |  | kubevirt | missing field `installation`
prod-1 | -prod | kubevirt.installation | 1 to 63 letters
vm- | a-very-long-prefix- | kubevirt.namespacePrefix | 1 to 14 lower-case
vm- | kube-vm | kubevirt.namespacePrefix | must not begin with kube-
existing | shared | kubevirt.namespaces | expected `managed` or `existing`
storageClass: ceph-block | storageClass: Ceph | kubevirt.storageClass | the name of an object
ceph-block-stellage | '' | kubevirt.snapshotClass | the name of an object
debian-13: {data | Debian: {data | kubevirt.images.Debian | such as debian-13
dataSource: stellage-images/debian-13 | pvc: debian | kubevirt.images.debian-13.pvc | <namespace>/<name>
dataSource: stellage-images/debian-13 | pvc: a/b, http: 'http://a/b' | kubevirt.images.debian-13 | exactly one of
user: debian, |  | kubevirt.images.debian-13 | missing field `user`
user: debian | user: Debian | kubevirt.images.debian-13.user | such as debian
docker://quay | quay | kubevirt.images.alpine-3.registry | begins with docker://
https://images | ftp://images | kubevirt.images.other-1.http | https:// or http://
http: "https://images.example/other.qcow2" | pvc: a/b | kubevirt.images.other-1.certConfigMap | it is for http
registry: "docker://quay.io/containerdisks/alpine:3" | pvc: a/b | kubevirt.images.alpine-3.pullMethod | it is for registry
profile: bridge | profile: vlan | kubevirt.network.profile | expected one of `pod`
profile: bridge | profile: pod | kubevirt.network.attachment | must be left out
    attachment: stellage-networks/public |  | kubevirt.network.attachment | is missing
profile: bridge | profile: kubeOvn | kubevirt.network.subnet | is missing
profile: bridge | profile: bridge\n    subnet: a | kubevirt.network.subnet | must be left out
203.0.113.0/24 | 203.0.113.7/24 | kubevirt.network.ipv4[0].prefix | the prefix itself: 203.0.113.0/24
203.0.113.0/24 | 203.0.113.0 | kubevirt.network.ipv4[0].prefix | such as 203.0.113.0/24
203.0.113.0/24 | 0.0.0.0/0 | kubevirt.network.ipv4[0].prefix | a /8 or narrower
203.0.113.0/24 | '2001:db8::/64' | kubevirt.network.ipv4[0].prefix | an IPv4 prefix
gateway: 203.0.113.1 | gateway: 203.0.114.1 | kubevirt.network.ipv4[0].gateway | in 203.0.113.0/24
gateway: 203.0.113.1 | gatway: 203.0.113.1 | kubevirt.network.ipv4[0].gatway | unknown field
113.2-203.0.113.9 | 113.9-203.0.113.2 | kubevirt.network.ipv4[0].exclude[0] | the first and the last
203.0.113.250 | 203.0.114.1 | kubevirt.network.ipv4[0].exclude[1] | an address in 203.0.113.0/24
198.51.100.0/28 | 203.0.113.128/28 | kubevirt.network.ipv4[1].prefix | overlaps with 203.0.113.0/24
198.51.100.0/28, gateway: 169.254.1.1 | 198.51.100.8/32, gateway: 198.51.100.8 | kubevirt.network.ipv4[1].prefix | no address left
2001:db8:10::/64 | 2001:db8:10::/80 | kubevirt.network.ipv6.prefix | a /64 or wider
fe80::1 | 2001:db8:11::1 | kubevirt.network.ipv6.gateway | such as fe80::1
[9.9.9.9,  | [quad9,  | kubevirt.network.nameservers[0] | an IP address
[9.9.9.9,  | [1.1.1.1, 1.0.0.1, 8.8.8.8,  | kubevirt.network.nameservers | at most 3
10.244.0.0/16 | 10.244.0.0/33 | kubevirt.network.internalCidrs[0] | such as 10.244.0.0/16
privateNetworks: nad | privateNetworks: vlan | kubevirt.network.privateNetworks | `nad`
privateNetworks: nad | privateNetworks: nad\n    privateAttachments: [vlan-101] | kubevirt.network.privateAttachments | <namespace>/<name>
privateNetworks: nad | privateNetworks: nad\n    privateAttachments: [a/b, a/c, a/b] | kubevirt.network.privateAttachments | has a/b twice
privateNetworks: nad | privateNetworks: kubeOvn\n    privateAttachments: [a/b] | kubevirt.network.privateAttachments | must be left out
antiSpoofing: external | antiSpoofing: internal | kubevirt.network.antiSpoofing | `external`
pool: vms | pool: v m s | kubevirt.nodeSelector | pool:
example.com/pool, | a key, | kubevirt.tolerations[0].key | such as example.com/pool
value: vms | value: v m s | kubevirt.tolerations[0].value | 1 to 63
NoSchedule | Never | kubevirt.tolerations[0].effect | expected one of
operator: Exists | operator: Equal | kubevirt.tolerations[1].key | unless operator is Exists
operator: Exists | operator: Exists, value: x | kubevirt.tolerations[1].value | must be left out
evictionStrategy: LiveMigrate | evictionStrategy: Migrate | kubevirt.evictionStrategy | expected one of
cpuModel: host-model | cpuModel: '' | kubevirt.cpuModel | 1 to 63
softStopGrace: 90s | softStopGrace: soon | kubevirt.softStopGrace | such as 120s
softStopGrace: 90s | softStopGrace: 20m | kubevirt.deadlines.other | longer than softStopGrace
create: 45m | create: 25h | kubevirt.deadlines.create | 24 hours
create: 45m | start: 45m | kubevirt.deadlines.start | unknown field
deadlines: {create: 45m, other: 10m} | deadlines: [45m] | kubevirt.deadlines | a map of fields
callsAtOnce: 8 | callsAtOnce: 0 | kubevirt.callsAtOnce | 1 to 1000
callsAtOnce: 8 | podMetrics: true | kubevirt.podMetrics | prometheus is set
https://prom | prom | kubevirt.prometheus.url | https:// or http://
https://prom | http://prom | kubevirt.prometheus.ca | url begins with http://
https://prom | https://ada:secret@prom | kubevirt.prometheus.url | no query, fragment or user
example/tenant/ | example/?tenant=a | kubevirt.prometheus.url | no query, fragment or user
    url: https://prometheus.example/tenant/ |  | kubevirt.prometheus | missing field `url`
bearerTokenFile: / | bearerTokenFile: ./ | kubevirt.prometheus.bearerTokenFile | an absolute path
bearerTokenFile: / | token: / | kubevirt.prometheus.token | unknown field
ca: / | ca: ./ | kubevirt.prometheus.ca | an absolute path
X-Scope-OrgID: platform | 'X Scope': platform | kubevirt.prometheus.headers | such as X-Scope-OrgID
X-Scope-OrgID: platform | X-Scope-OrgID: plättform | kubevirt.prometheus.headers.X-Scope-OrgID | visible ASCII
X-Scope-OrgID: platform | Authorization: platform | kubevirt.prometheus.headers.Authorization | bearerTokenFile sets it
"#;

    #[test]
    fn a_mistake_in_a_region_is_named_by_its_path_with_what_is_allowed() {
        for mistake in MISTAKES.trim().lines() {
            let parts: Vec<String> = mistake
                .split(" | ")
                .map(|part| part.replace("\\n", "\n"))
                .collect();
            let [from, to, field, allowed] = &parts[..] else {
                panic!("{mistake}")
            };
            assert!(BRIDGE.contains(from), "{from}");
            let error = parse(&["fr-par-1", &BRIDGE.replacen(from, to, 1)]).unwrap_err();
            let path = format!("--catalogue file: regions[1].{field}: ");
            assert!(error.starts_with(&path), "{to}: {error}");
            assert!(error.contains(allowed), "{to}: {error}");
        }
        for (region, field, allowed) in [
            ("7", "regions[0]", "a region code, or a map"),
            ("[a]", "regions[0]", "a region code, or a map"),
            ("{code: fr-par-1}", "regions[0]", "missing field `kubevirt`"),
            (
                "{code: fr-par-1, cell: EU-1}",
                "regions[0].cell",
                "lower-case letters and digits",
            ),
            (
                "{code: fr-par-1, kubevirt: null}",
                "regions[0].kubevirt",
                "a map of fields",
            ),
            (
                "{code: fr-par-1, kubevirt: [a]}",
                "regions[0].kubevirt",
                "a map of fields",
            ),
        ] {
            let error = parse(&[region]).unwrap_err();
            assert!(
                error.starts_with(&format!("--catalogue file: {field}: ")),
                "{region}: {error}"
            );
            assert!(error.contains(allowed), "{region}: {error}");
        }
    }

    #[test]
    fn a_region_may_say_which_installation_it_belongs_to_real_or_not() {
        let real = format!("cell: eu1\n{}", BRIDGE.trim_start());
        let regions = parse(&["{code: fr-par-1, cell: us2}", &real]).unwrap();
        assert!(regions[0].kubevirt.is_none() && regions[1].kubevirt.is_some());
    }

    #[test]
    fn regions_share_no_addresses_and_those_of_one_cluster_are_told_apart() {
        let twin = |changes: &[(&str, &str)]| {
            changes
                .iter()
                .fold(BRIDGE.replace("de-fra-1", "de-ber-1"), |region, (from, to)| {
                    region.replacen(from, to, 1)
                })
        };
        let ipv4 = (
            "203.0.113.0/24, gateway: 203.0.113.1, exclude: [203.0.113.2-203.0.113.9, 203.0.113.250]",
            "192.0.2.0/28, gateway: 192.0.2.1",
        );
        let (narrower, ipv6) = (
            ("198.51.100.0/28", "198.51.100.64/28"),
            ("2001:db8:10:", "2001:db8:11:"),
        );
        assert_eq!(parse(&[BRIDGE, &twin(&[ipv4, narrower, ipv6])]).unwrap().len(), 2);
        for (changes, field, says) in [
            (
                &[ipv4, ipv6][..],
                "network.ipv4[1].prefix",
                "overlaps with 198.51.100.0/28 of region de-fra-1",
            ),
            (
                &[ipv4, narrower][..],
                "network.ipv6.prefix",
                "overlaps with 2001:db8:10::/64 of region de-fra-1",
            ),
        ] {
            let error = parse(&[BRIDGE, &twin(changes)]).unwrap_err();
            assert!(
                error.contains(&format!("regions[1].kubevirt.{field}: ")),
                "{error}"
            );
            assert!(error.contains(says), "{error}");
        }
        let error = parse(&[POD, &POD.replace("nl-ams-1", "nl-ams-2")]).unwrap_err();
        assert!(
            error.contains("regions[1].kubevirt.installation: \"prod-1\" is that of region nl-ams-1"),
            "{error}"
        );
        let other = POD.replace("nl-ams-1", "nl-ams-2").replace("prod-1", "prod-2");
        let error = parse(&[POD, &other]).unwrap_err();
        assert!(
            error.contains("regions[1].kubevirt.namespacePrefix: \"stellage-\""),
            "{error}"
        );
        let other = other.replace("  storageClass", "  namespacePrefix: two-\n  storageClass");
        assert_eq!(parse(&[POD, &other]).unwrap().len(), 2);
    }
}
