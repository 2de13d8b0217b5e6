//! `stellage export`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::Args;
use kube::{
    Resource as _, ResourceExt,
    api::{ListParams, VersionMatch},
    core::{ApiResource, DynamicObject, TypeMeta},
};

use super::{
    file::{Header, Writer},
    kinds::{self, Kind, Which},
    lease::Leadership,
};
use crate::{CliError, account, connect::Cluster, objects, output::note};
use resources::{
    ACCOUNT_LABEL, Account, ids, instance::USER_DATA_LABEL, invoice::ACCOUNT_ORIGIN_LABEL, origin,
    webhook::WEBHOOK_SECRET_LABEL,
};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

const EXAMPLES: &str = "\
Examples:
  stellage export --output stellage.export
  stellage export --account ada --output ada.export
  stellage export --output - | age --recipient KEY > stellage.export.age";

/// Write all accounts, or one, and what they have into a file, to move or restore them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// File to write, which must not exist yet; `-` is stdout
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    /// Only this account
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    account: Option<String>,

    /// Export although the operator runs: the file has the state of one moment. Once it is imported, what was delivered after that
    /// moment is delivered again, under the same ids
    #[arg(long)]
    while_running: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,
}

pub(crate) async fn run(args: ExportArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    let namespace = &args.operator_namespace;
    let mut before = Leadership::read(&cluster, namespace).await?;
    if let Some(import) = before.import() {
        return Err(CliError::Transfer(format!(
            "the import of export {import} is not finished here: run stellage import again with its file"
        )));
    }
    if !args.while_running && !before.is_free().await? {
        return Err(CliError::Transfer(format!(
            "the operator runs: {} holds the Lease, and goes on delivering events that the file would deliver again\nStop it: kubectl scale deployment --all --replicas=0 -n {namespace}; or export the state of this moment with --while-running.",
            before.holder().unwrap_or("somebody")
        )));
    }
    let account = match &args.account {
        Some(name) => Some(account::get(&cluster, name).await?),
        None => None,
    };
    let header = Header::new(ids::random_suffix(), namespace);
    let failed = |source| CliError::File {
        path: args.output.clone(),
        source,
    };
    let out = Writer::new(open(&args.output).map_err(failed)?, &header).map_err(failed)?;
    let mut export = Export {
        cluster: &cluster,
        operator_namespace: namespace,
        account,
        version: version(&cluster).await?,
        namespaces: BTreeMap::new(),
        written: BTreeSet::new(),
        out,
        path: &args.output,
    };
    export.all().await?;
    // Check before writing the last line, without which the file cannot be imported.
    let after = Leadership::read(&cluster, namespace).await?;
    if !args.while_running && after.version() != before.version() {
        return Err(CliError::Transfer(
            "an operator was started meanwhile, so the file is not what this installation has now\nStop it, and export again into another file.".to_owned(),
        ));
    }
    let (out, counts) = export.out.end().map_err(failed)?;
    out.done().map_err(failed)?;
    let counts: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    note(&format!("exported {}", counts.join(", ")));
    Ok(())
}

/// Where the file goes.
enum Out {
    File(BufWriter<File>),
    Stdout(BufWriter<io::Stdout>),
}

fn open(path: &Path) -> io::Result<Out> {
    if path == Path::new("-") {
        return Ok(Out::Stdout(BufWriter::new(io::stdout())));
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path)?;
    Ok(Out::File(BufWriter::new(file)))
}

impl Out {
    fn done(self) -> io::Result<()> {
        match self {
            Self::File(file) => file.into_inner()?.sync_all(),
            Self::Stdout(mut stdout) => stdout.flush(),
        }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Stdout(stdout) => stdout.flush(),
        }
    }
}

/// The resourceVersion of now. All lists are of this one, so that the file has the state of one moment.
async fn version(cluster: &Cluster) -> Result<String, CliError> {
    let accounts = kinds::api(&cluster.client, &ApiResource::erase::<Account>(&()), None);
    let page = ListParams::default().limit(1);
    let list = cluster
        .call("list the Accounts", accounts.list_metadata(&page))
        .await?;
    Ok(list.metadata.resource_version.unwrap_or_default())
}

struct Export<'a> {
    cluster: &'a Cluster,
    operator_namespace: &'a str,
    /// The account to export, if not all are.
    account: Option<Account>,
    version: String,
    /// All of the cluster, by name.
    namespaces: BTreeMap<String, DynamicObject>,
    /// Those that are in the file.
    written: BTreeSet<String>,
    out: Writer<Out>,
    path: &'a Path,
}

impl Export<'_> {
    async fn all(&mut self) -> Result<(), CliError> {
        for kind in &kinds::all() {
            self.kind(kind).await?;
        }
        Ok(())
    }

    /// All objects of a kind that are wanted.
    async fn kind(&mut self, kind: &Kind) -> Result<(), CliError> {
        let operator = self.operator_namespace;
        let of_account = self
            .account
            .as_ref()
            .map(|account| account.wanted_namespace().to_owned());
        match kind.which {
            Which::Namespaces => {
                let mut pages = self.pages(kind, None);
                while let Some(found) = self.next(kind, &mut pages).await? {
                    let named = found.into_iter().map(|it| (it.name_any(), it));
                    self.namespaces.extend(named);
                }
                let is_labelled = |namespace: &&DynamicObject| namespace.labels().contains_key(ACCOUNT_LABEL);
                let labelled = self.namespaces.values().filter(is_labelled);
                let names: Vec<String> = match of_account {
                    Some(one) => vec![one],
                    None => labelled.map(DynamicObject::name_any).collect(),
                };
                names.iter().try_for_each(|name| self.add_namespace(name))
            }
            // They belong to the installation.
            Which::Shared(_) | Which::Numbers if of_account.is_some() => Ok(()),
            Which::Numbers => self.add_each(kind, None, |_| true).await,
            Which::Invoices => {
                let account = self.account.as_ref();
                let origin = account.map(|account| origin::uid(&account.metadata).to_owned());
                let is_wanted = |object: &DynamicObject| {
                    let label = object.labels().get(ACCOUNT_ORIGIN_LABEL);
                    origin.is_none() || label == origin.as_ref()
                };
                self.add_each(kind, Some(operator), is_wanted).await
            }
            Which::Shared(names) => {
                let is_shared = |object: &DynamicObject| names.contains(&object.name_any().as_str());
                self.add_each(kind, Some(operator), is_shared).await
            }
            Which::Secrets => {
                for namespace in self.written.clone() {
                    self.add_each(kind, Some(&namespace), is_ours).await?;
                }
                Ok(())
            }
            Which::Ours if kind.resource.kind == Account::kind(&()) => {
                let only = self.account.as_ref().map(ResourceExt::name_any);
                let is_wanted = |object: &DynamicObject| only.is_none() || object.metadata.name == only;
                self.add_each(kind, None, is_wanted).await
            }
            Which::Ours => self.add_each(kind, of_account.as_deref(), |_| true).await,
        }
    }

    /// Adds the objects of a kind that are wanted.
    async fn add_each(
        &mut self,
        kind: &Kind,
        namespace: Option<&str>,
        is_wanted: impl Fn(&DynamicObject) -> bool,
    ) -> Result<(), CliError> {
        let mut pages = self.pages(kind, namespace);
        while let Some(objects) = self.next(kind, &mut pages).await? {
            for object in objects.into_iter().filter(&is_wanted) {
                if let Some(namespace) = object.namespace() {
                    self.add_namespace(&namespace)?;
                }
                self.add(object)?;
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
        let params = ListParams::default().limit(kind.page).at(&self.version);
        Pages::of(api, params.matching(VersionMatch::Exact))
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
    fn add_namespace(&mut self, name: &str) -> Result<(), CliError> {
        if name == self.operator_namespace || !self.written.insert(name.to_owned()) {
            return Ok(());
        }
        match self.namespaces.get(name).cloned() {
            Some(namespace) => self.add(namespace),
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

/// Whether a Secret is for webhooks, or belongs to an instance or an API key.
fn is_ours(secret: &DynamicObject) -> bool {
    let is_labelled = [WEBHOOK_SECRET_LABEL, USER_DATA_LABEL]
        .iter()
        .any(|label| secret.labels().get(*label).is_some_and(|value| value == "true"));
    is_labelled || secret.owner_references().iter().any(kinds::owns_all)
}
