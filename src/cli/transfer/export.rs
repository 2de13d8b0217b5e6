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
    ResourceExt as _,
    api::{ListParams, VersionMatch},
    core::{ApiResource, DynamicObject, TypeMeta},
};

use super::{
    file::{Header, Writer},
    kinds::{self, Kind},
    lease::Leadership,
};
use crate::{
    cli::{CliError, connect::Cluster, output::note},
    resources::{ACCOUNT_LABEL, Account, ids, webhook::WEBHOOK_SECRET_LABEL},
    runtime::client::next_page,
};

const EXAMPLES: &str = "\
Examples:
  stellage export --output stellage.export
  stellage export --output - | age --recipient KEY > stellage.export.age";

/// Write all accounts and what they have into a file, to move or restore an installation.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// File to write, which must not exist yet; `-` is stdout
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    /// Export although the operator runs: the file has the state of one moment. Once it is imported, what was delivered after that
    /// moment is delivered again, under the same ids
    #[arg(long)]
    while_running: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system")]
    operator_namespace: String,
}

pub(in crate::cli) async fn run(args: ExportArgs) -> Result<(), CliError> {
    let cluster = Cluster::current().await?;
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
    let header = Header::new(ids::random_suffix(), namespace);
    let failed = |source| CliError::File {
        path: args.output.clone(),
        source,
    };
    let out = Writer::new(open(&args.output).map_err(failed)?, &header).map_err(failed)?;
    let mut export = Export {
        cluster: &cluster,
        operator_namespace: namespace,
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
        let namespaces = self.foreign("Namespace", None, |_| true).await?;
        self.namespaces = namespaces
            .into_iter()
            .map(|found| (found.name_any(), found))
            .collect();
        let is_account = |namespace: &&DynamicObject| namespace.labels().contains_key(ACCOUNT_LABEL);
        let of_accounts: Vec<String> = self
            .namespaces
            .values()
            .filter(is_account)
            .map(DynamicObject::name_any)
            .collect();
        for namespace in &of_accounts {
            self.add_namespace(namespace)?;
        }
        let operator = self.operator_namespace;
        for (kind, names) in [
            ("Secret", &kinds::SHARED_SECRETS[..]),
            ("ConfigMap", &kinds::SHARED_MAPS[..]),
        ] {
            let is_shared = |object: &DynamicObject| names.contains(&object.name_any().as_str());
            for object in self.foreign(kind, Some(operator), is_shared).await? {
                self.add(object)?;
            }
        }
        for kind in &kinds::own() {
            self.kind(kind).await?;
            if kind.resource.kind == "Webhook" {
                for namespace in self.written.clone() {
                    for secret in self.foreign("Secret", Some(&namespace), is_signing).await? {
                        self.add(secret)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// All objects of a kind.
    async fn kind(&mut self, kind: &Kind) -> Result<(), CliError> {
        let api = kinds::api(&self.cluster.client, &kind.resource, None);
        let doing = format!("list {}", kind.resource.plural);
        let mut page = self.page(kind.page);
        loop {
            let list = self.cluster.call(&doing, api.list(&page)).await?;
            let has_more = next_page(&mut page, &list.metadata);
            for mut object in list.items {
                object.types = Some(types(&kind.resource));
                if let Some(namespace) = object.namespace() {
                    self.add_namespace(&namespace)?;
                }
                self.add(object)?;
            }
            if !has_more {
                break;
            }
            if let Some(count) = self.out.counts.get(&kind.resource.kind) {
                note(&format!("{}: {count} so far", kind.resource.kind));
            }
        }
        Ok(())
    }

    /// Objects of a kind of Kubernetes.
    async fn foreign(
        &self,
        kind: &str,
        namespace: Option<&str>,
        is_wanted: impl Fn(&DynamicObject) -> bool,
    ) -> Result<Vec<DynamicObject>, CliError> {
        let Some(resource) = kinds::foreign(kind) else {
            return Ok(Vec::new());
        };
        let api = kinds::api(&self.cluster.client, &resource, namespace);
        let doing = format!("list {}", resource.plural);
        let (mut page, mut found) = (self.page(500), Vec::new());
        loop {
            let list = self.cluster.call(&doing, api.list(&page)).await?;
            let has_more = next_page(&mut page, &list.metadata);
            found.extend(list.items.into_iter().filter(&is_wanted).map(|mut object| {
                object.types = Some(types(&resource));
                object
            }));
            if !has_more {
                return Ok(found);
            }
        }
    }

    fn page(&self, limit: u32) -> ListParams {
        let page = ListParams::default().limit(limit);
        page.at(&self.version).matching(VersionMatch::Exact)
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

/// Whether a Secret signs deliveries.
fn is_signing(secret: &DynamicObject) -> bool {
    let is_labelled = secret
        .labels()
        .get(WEBHOOK_SECRET_LABEL)
        .is_some_and(|value| value == "true");
    is_labelled || secret.owner_references().iter().any(kinds::is_webhook)
}
