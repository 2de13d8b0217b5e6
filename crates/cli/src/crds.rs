//! `stellage crds`.

use std::path::PathBuf;

use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{CliError, objects, output, program};
use resources::POLICIES;

const EXAMPLES: &str = "\
Examples:
  stellage crds --with-policies | kubectl apply --server-side -f -
  stellage crds --with-policies --operator-namespace cloud --service-account cloud-controller --api-service-account cloud-api
  stellage crds --output-dir crds";

/// The namespace of the operator in the files of the policies.
const NAMESPACE: &str = "stellage-system";

/// Print the CRDs as YAML, or write them to files.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CrdsArgs {
    /// Also print the admission policies, with their bindings: spec.deletionProtection holds for kubectl too, and only the
    /// operator writes statuses and Deliveries
    #[arg(long)]
    with_policies: bool,

    #[command(flatten)]
    operator: Operator,

    /// Write one file per CRD into this folder instead of printing them
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
}

/// Whom the policies let do what only the operator may. `stellage doctor` prints what an installation needs.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Operator {
    /// Namespace of the operator, for the policies; stellage-system by default
    #[arg(long = "operator-namespace", value_name = "NAMESPACE", requires = "with_policies", value_parser = objects::name)]
    namespace: Option<String>,

    /// Service account of the operator, or of the controllers if --api-service-account is given, for the policies; stellage, or
    /// stellage-controller and stellage-api, by default
    #[arg(long, value_name = "NAME", requires = "with_policies", value_parser = objects::name)]
    service_account: Option<String>,

    /// Service account of the REST API, if it has one of its own, for the policies
    #[arg(long, value_name = "NAME", requires = "service_account", value_parser = objects::name)]
    api_service_account: Option<String>,

    /// User whom the policies let write statuses and records, such as system:serviceaccount:velero:velero, while a backup is restored with
    /// other tools; nobody by default, so print the policies again without it afterwards
    #[arg(long, value_name = "USER", requires = "with_policies", value_parser = user)]
    restorer: Option<String>,
}

/// Checks the name of a user, which becomes part of rules.
fn user(text: &str) -> Result<String, &'static str> {
    let is_good = !text.is_empty() && !text.contains(['\'', '"', '\\']) && !text.contains(char::is_control);
    let wrong =
        "must be the name of a user, as `kubectl auth whoami` shows it, without quotes and backslashes";
    is_good.then(|| text.to_owned()).ok_or(wrong)
}

impl Operator {
    /// `controller` also serves the REST API if `api` is not given.
    pub(super) fn new(namespace: &str, controller: Option<&str>, api: Option<&str>) -> Self {
        let is_default = matches!(
            (controller, api),
            (Some("stellage"), None) | (Some("stellage-controller"), Some("stellage-api"))
        );
        Self {
            namespace: Some(namespace.to_owned()).filter(|name| name != NAMESPACE),
            service_account: controller.filter(|_| !is_default).map(ToOwned::to_owned),
            api_service_account: api.filter(|_| !is_default).map(ToOwned::to_owned),
            restorer: None,
        }
    }

    /// What installs the CRDs and the policies for this operator.
    pub(super) fn command(&self) -> String {
        let options = [
            ("--operator-namespace", &self.namespace),
            ("--service-account", &self.service_account),
            ("--api-service-account", &self.api_service_account),
        ];
        let options = options
            .into_iter()
            .filter_map(|(option, value)| Some(format!(" {option} {}", value.as_ref()?)));
        format!(
            "{} crds --with-policies{} | kubectl apply --server-side -f -",
            program(),
            options.collect::<String>()
        )
    }

    /// A policy's file for this operator. The chart does the same (templates/policies.yaml), and a test compares the two.
    fn name_in(&self, policy: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or(NAMESPACE);
        let mut policy = policy.replace(NAMESPACE, namespace);
        if let Some(restorer) = &self.restorer {
            policy = policy.replace("username != ''", &format!("username != '{restorer}'"));
        }
        let Some(controller) = &self.service_account else {
            return policy;
        };
        let api = self.api_service_account.as_ref().unwrap_or(controller);
        // In one process, nobody is the controllers alone.
        let alone = self.api_service_account.as_ref().map_or("", |_| controller);
        let user = format!("'system:serviceaccount:{namespace}:");
        let names = [
            (
                format!("{user}stellage', {user}stellage-controller'"),
                format!("{user}{controller}'"),
            ),
            (
                format!("== {user}stellage-controller'"),
                format!("== {user}{alone}'"),
            ),
            (format!("{user}stellage-api'"), format!("{user}{api}'")),
            (
                "['stellage', 'stellage-controller']".to_owned(),
                format!("['{controller}']"),
            ),
            ("['stellage-api']".to_owned(), format!("['{api}']")),
        ];
        names
            .iter()
            .fold(policy, |policy, (from, to)| policy.replace(from, to))
    }
}

/// First line of every generated file.
const HEADER: &str = "# Generated by `make crds` from crates/resources; do not edit.\n";

pub(super) fn run(args: &CrdsArgs) -> Result<(), CliError> {
    let crds = resources::crds();
    let Some(folder) = &args.output_dir else {
        let mut documents = crds.iter().map(yaml).collect::<Result<Vec<_>, _>>()?;
        documents.extend(args.policies().map(|(_, policy)| policy));
        output::line(documents.join("---\n").trim_end());
        return Ok(());
    };
    let file = |path: PathBuf| move |source| CliError::File { path, source };
    std::fs::create_dir_all(folder).map_err(file(folder.clone()))?;
    for crd in &crds {
        let path = folder.join(format!("{}.yaml", crd.spec.names.plural));
        std::fs::write(&path, render_crd(crd)?).map_err(file(path))?;
    }
    for (name, policy) in args.policies() {
        let path = folder.join(name);
        std::fs::write(&path, policy).map_err(file(path))?;
    }
    Ok(())
}

impl CrdsArgs {
    fn policies(&self) -> impl Iterator<Item = (&'static str, String)> {
        let policies = self.with_policies.then_some(POLICIES).into_iter().flatten();
        policies.map(|(name, policy)| (name, self.operator.name_in(policy)))
    }
}

/// The content of a CRD's file in `crds/`.
pub fn render_crd(crd: &CustomResourceDefinition) -> Result<String, CliError> {
    Ok(format!("{HEADER}{}", yaml(crd)?))
}

fn yaml(crd: &CustomResourceDefinition) -> Result<String, CliError> {
    // Block scalars would fold regular expressions and rules across several lines.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut text = serde_saphyr::to_string_with_options(&value(crd)?, options)
        .map_err(|error| CliError::Render(error.to_string()))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// The CRD as JSON, with keys in a fixed order and whole numbers without a fraction.
fn value(crd: &CustomResourceDefinition) -> Result<serde_json::Value, CliError> {
    let mut value = serde_json::to_value(crd).map_err(|error| CliError::Render(error.to_string()))?;
    whole_numbers(&mut value);
    Ok(value)
}

fn whole_numbers(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => map.values_mut().for_each(whole_numbers),
        serde_json::Value::Array(list) => list.iter_mut().for_each(whole_numbers),
        serde_json::Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            if let Some(whole) = text
                .strip_suffix(".0")
                .and_then(|whole| whole.parse::<i64>().ok())
            {
                *value = whole.into();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_crds_are_what_the_code_generates() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        for crd in resources::crds() {
            let path = folder.join(format!("{}.yaml", crd.spec.names.plural));
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == render_crd(&crd).unwrap(),
                "{} differs from crates/resources: run `make crds` and commit the result",
                path.display()
            );
        }
    }

    #[test]
    fn the_yaml_parses_to_the_same_crd() {
        for crd in resources::crds() {
            let back: serde_json::Value = serde_saphyr::from_str(&yaml(&crd).unwrap()).unwrap();
            assert_eq!(back, value(&crd).unwrap());
        }
    }
}
