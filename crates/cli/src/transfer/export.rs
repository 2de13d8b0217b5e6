//! `stellage export`.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Resource as _, ResourceExt,
    api::{ListParams, VersionMatch},
    core::{ApiResource, DynamicObject, TypeMeta},
};

use super::{
    file::{Counts, Header, Writer},
    kinds::{self, Kind, Which},
    lease::Leadership,
    packing::{Buffer, KeyArgs, Packer},
    store::Upload,
};
use crate::{CliError, account, connect::Cluster, objects, output::note};
use resources::{ACCOUNT_LABEL, Account, ids, invoice::ACCOUNT_ORIGIN_LABEL, origin};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

/// Types of Secrets that are never ours, and may be large or many: releases of Helm, and tokens.
const NOT_OURS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";

const EXAMPLES: &str = "\
Examples:
  stellage export --output stellage.export
  stellage export --account ada --output ada.export
  stellage export --key-file stellage.keys --output stellage.export.gz.age";

/// Write all accounts, or one, and what they have into a file, to move or restore them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// File to write, which must not exist yet; `-` is stdout. With --key-file it is compressed and encrypted
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    keys: KeyArgs,

    /// Only this account
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    account: Option<String>,

    /// Export although the operator runs: the file has the state of one moment if reading takes less than five minutes. Once it is
    /// imported, what was delivered after that moment is delivered again, under the same ids
    #[arg(long)]
    while_running: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,
}

pub(crate) async fn run(args: ExportArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let keys = args.keys.read()?;
    let cluster = Cluster::of(which).await?;
    let namespace = &args.operator_namespace;
    let mut before = unfinished_import(&cluster, namespace).await?;
    if !args.while_running && !before.is_free().await? {
        return Err(CliError::Plain(format!(
            "the operator runs: {} holds the Lease, and goes on delivering events that the file would deliver again\nStop it: kubectl scale deployment --all --replicas=0 -n {namespace}; or export the state of this moment with --while-running.",
            before.holder().unwrap_or("somebody")
        )));
    }
    let account = match &args.account {
        Some(name) => Some(account::get(&cluster, name).await?),
        None => None,
    };
    let failed = |source| CliError::File {
        path: args.output.clone(),
        source,
    };
    let file = create(&args.output).map_err(failed)?;
    let out = match &keys {
        None => Packer::Plain(file),
        keys => Packer::new(file, keys.as_ref()).map_err(failed)?,
    };
    let header = Header::new(ids::random_suffix(), namespace);
    let out = Writer::new(out, &header).map_err(failed)?;
    let mut export = Export::with(&cluster, namespace, out, &args.output).await?;
    export.account = account;
    export.all(None).await?;
    // Check before writing the last line, without which the file cannot be imported.
    let after = Leadership::read(&cluster, namespace).await?;
    if !args.while_running && after.version() != before.version() {
        return Err(CliError::Plain(
            "an operator was started meanwhile, so the file is not what this installation has now\nStop it, and export again into another file.".to_owned(),
        ));
    }
    let (out, counts) = export.out.end().map_err(failed)?;
    let file = out.finish().map_err(failed)?;
    close(file, &args.output).map_err(failed)?;
    note(&format!("exported {}", words(&counts)));
    Ok(())
}

/// The Lease, unless an import holds it: what it has made so far is nothing to export.
pub(super) async fn unfinished_import<'a>(
    cluster: &'a Cluster,
    namespace: &'a str,
) -> Result<Leadership<'a>, CliError> {
    let lease = Leadership::read(cluster, namespace).await?;
    match lease.import() {
        None => Ok(lease),
        Some(import) => Err(CliError::Plain(format!(
            "the import of export {import} is not finished here: run stellage import again with its file"
        ))),
    }
}

/// Exports all accounts into an upload, whatever the operator does meanwhile. `packer` writes into the upload's buffer.
pub(super) async fn into(
    cluster: &Cluster,
    header: &Header,
    packer: Packer<Buffer>,
    upload: &mut Upload<'_>,
    name: &Path,
) -> Result<Counts, CliError> {
    let failed = |source| CliError::File {
        path: name.to_owned(),
        source,
    };
    let out = Writer::new(packer, header).map_err(failed)?;
    let mut export = Export::with(cluster, &header.operator_namespace, out, name).await?;
    export.all(Some(upload)).await?;
    let (packer, counts) = export.out.end().map_err(failed)?;
    packer.finish().map_err(failed)?;
    Ok(counts)
}

/// What was exported, for messages.
pub(super) fn words(counts: &Counts) -> String {
    let counts: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    counts.join(", ")
}

/// Makes the file; `-` is stdout.
fn create(path: &Path) -> io::Result<BufWriter<File>> {
    let file = if path == Path::new("-") {
        File::from(io::stdout().as_fd().try_clone_to_owned()?)
    } else {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)?
    };
    Ok(BufWriter::new(file))
}

/// Writes what is left, and makes sure that a file is on the disk.
fn close(file: BufWriter<File>, path: &Path) -> io::Result<()> {
    let file = file.into_inner()?;
    if path == Path::new("-") {
        return Ok(());
    }
    file.sync_all()
}

/// The resourceVersion of now. All lists are of this one for as long as the API server keeps it, so that the file has the state of one
/// moment.
async fn version(cluster: &Cluster) -> Result<String, CliError> {
    let accounts = kinds::api(&cluster.client, &ApiResource::erase::<Account>(&()), None);
    let page = ListParams::default().limit(1);
    let list = cluster
        .call("list the Accounts", accounts.list_metadata(&page))
        .await?;
    Ok(list.metadata.resource_version.unwrap_or_default())
}

struct Export<'a, W: Write> {
    cluster: &'a Cluster,
    operator_namespace: &'a str,
    /// The account to export, if not all are.
    account: Option<Account>,
    version: String,
    /// Namespaces that are in the file, or gone.
    seen: BTreeSet<String>,
    out: Writer<W>,
    path: &'a Path,
}

impl<'a, W: Write> Export<'a, W> {
    async fn with(
        cluster: &'a Cluster,
        operator_namespace: &'a str,
        out: Writer<W>,
        path: &'a Path,
    ) -> Result<Self, CliError> {
        Ok(Self {
            cluster,
            operator_namespace,
            account: None,
            version: version(cluster).await?,
            seen: BTreeSet::new(),
            out,
            path,
        })
    }

    /// Writes all kinds, and sends each page if there is an upload.
    async fn all(&mut self, mut upload: Option<&mut Upload<'_>>) -> Result<(), CliError> {
        for kind in &kinds::all() {
            self.kind(kind, &mut upload).await?;
        }
        Ok(())
    }

    /// All objects of a kind that are wanted.
    async fn kind(&mut self, kind: &Kind, upload: &mut Option<&mut Upload<'_>>) -> Result<(), CliError> {
        let operator = self.operator_namespace;
        let of_account = self
            .account
            .as_ref()
            .map(|account| account.wanted_namespace().to_owned());
        match kind.which {
            Which::Namespaces => match of_account {
                Some(one) => self.add_namespace(&one).await,
                None => self.account_namespaces(kind).await,
            },
            // They belong to the installation.
            Which::Shared(_) | Which::Numbers if of_account.is_some() => Ok(()),
            Which::Numbers => self.add_each(kind, None, upload, |_| true).await,
            Which::Invoices => {
                let account = self.account.as_ref();
                let origin = account.map(|account| origin::uid(&account.metadata).to_owned());
                let is_wanted = |object: &DynamicObject| {
                    let label = object.labels().get(ACCOUNT_ORIGIN_LABEL);
                    origin.is_none() || label == origin.as_ref()
                };
                self.add_each(kind, Some(operator), upload, is_wanted).await
            }
            Which::Shared(names) => self.add_named(kind, operator, names).await,
            Which::Secrets => {
                let namespaces = self.seen.clone();
                let is_wanted = |object: &DynamicObject| {
                    kinds::is_part_of_account(&object.metadata)
                        && object.namespace().is_some_and(|it| namespaces.contains(&it))
                };
                self.add_each(kind, of_account.as_deref(), upload, is_wanted)
                    .await
            }
            Which::Ours if kind.resource.kind == Account::kind(&()) => {
                let only = self.account.as_ref().map(ResourceExt::name_any);
                let is_wanted = |object: &DynamicObject| only.is_none() || object.metadata.name == only;
                self.add_each(kind, None, upload, is_wanted).await
            }
            Which::Ours => self.add_each(kind, of_account.as_deref(), upload, |_| true).await,
        }
    }

    /// The namespaces of accounts. Others that have objects of ours come with the first of these.
    async fn account_namespaces(&mut self, kind: &Kind) -> Result<(), CliError> {
        let mut pages = self.pages(kind, None);
        while let Some(found) = self.next(kind, &mut pages).await? {
            for namespace in found
                .into_iter()
                .filter(|it| it.labels().contains_key(ACCOUNT_LABEL))
            {
                if self.seen.insert(namespace.name_any()) {
                    self.add(namespace)?;
                }
            }
        }
        Ok(())
    }

    /// The objects with these names, of those that all replicas share.
    async fn add_named(&mut self, kind: &Kind, namespace: &str, names: &[&str]) -> Result<(), CliError> {
        let api = kinds::api(&self.cluster.client, &kind.resource, Some(namespace));
        for name in names {
            let doing = format!("read the {} {name}", kind.resource.kind);
            if let Some(mut object) = self.cluster.call(&doing, api.get_opt(name)).await? {
                object.types = Some(types(&kind.resource));
                self.add(object)?;
            }
        }
        Ok(())
    }

    /// Adds the objects of a kind that are wanted.
    async fn add_each(
        &mut self,
        kind: &Kind,
        namespace: Option<&str>,
        upload: &mut Option<&mut Upload<'_>>,
        is_wanted: impl Fn(&DynamicObject) -> bool,
    ) -> Result<(), CliError> {
        let mut pages = self.pages(kind, namespace);
        while let Some(objects) = self.next(kind, &mut pages).await? {
            for object in objects.into_iter().filter(&is_wanted) {
                if let Some(namespace) = object.namespace() {
                    self.add_namespace(&namespace).await?;
                }
                self.add(object)?;
            }
            if let Some(upload) = upload {
                upload.send().await?;
            }
            if let Some(count) = self.out.counts.get(&kind.resource.kind)
                && pages.has_next()
            {
                note(&format!("{}: {count} so far", kind.resource.kind));
            }
        }
        Ok(())
    }

    fn pages(&self, kind: &Kind, namespace: Option<&str>) -> Pages<DynamicObject> {
        let api = kinds::api(&self.cluster.client, &kind.resource, namespace);
        let mut params = ListParams::default().limit(kind.page).at(&self.version);
        if kind.which == Which::Secrets {
            params = params.fields(NOT_OURS);
        }
        Pages::of(api, params.matching(VersionMatch::Exact)).outliving_its_state()
    }

    async fn next(
        &self,
        kind: &Kind,
        pages: &mut Pages<DynamicObject>,
    ) -> Result<Option<Vec<DynamicObject>>, CliError> {
        let failed = |error| {
            self.cluster
                .failure(&format!("list {}", kind.resource.plural), &error)
        };
        let page = pages.next().await.map_err(failed)?;
        Ok(page.map(|mut page| {
            for object in &mut page.items {
                object.types = Some(types(&kind.resource));
            }
            page.items
        }))
    }

    /// Adds a namespace before its first object.
    async fn add_namespace(&mut self, name: &str) -> Result<(), CliError> {
        if name == self.operator_namespace || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let kind = ApiResource::erase::<Namespace>(&());
        let api = kinds::api(&self.cluster.client, &kind, None);
        let found = self
            .cluster
            .call(&format!("read namespace {name}"), api.get_opt(name))
            .await?;
        match found {
            Some(mut namespace) => {
                namespace.types = Some(types(&kind));
                self.add(namespace)
            }
            None => Ok(()),
        }
    }

    fn add(&mut self, mut object: DynamicObject) -> Result<(), CliError> {
        object.metadata.resource_version = None;
        self.out.add(&object).map_err(|source| CliError::File {
            path: self.path.to_owned(),
            source,
        })
    }
}

fn types(resource: &ApiResource) -> TypeMeta {
    TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    }
}
