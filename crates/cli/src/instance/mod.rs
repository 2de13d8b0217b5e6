//! `stellage instance …`: the operations that REST offers on instances, for kubectl users, who list and show them with kubectl.

mod operate;

use clap::{Args, Subcommand, builder::PossibleValuesParser, builder::TypedValueParser as _};

use self::operate::{Operation, operate};
use super::{
    CliError, backup,
    connect::Cluster,
    objects::{self, InNamespace},
    output::Output,
    wait::Waiting,
};
use domain::instance::{Action, Installation};
use resources::{Plan, validation};
use runtime::kubeconfig::ClusterArgs;

/// Operate instances.
///
/// Each command uses your kubectl rights, and requests an operation by changing the instance's spec. `kubectl get instances` and
/// `kubectl describe instance` show instances.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// Power an instance on; allowed from stopped and error
    #[command(after_help = START)]
    Start(OperateArgs),
    /// Shut an instance down, by force if its guest does not do so in time; allowed from running
    #[command(after_help = STOP)]
    Stop(OperateArgs),
    /// Cut the power of an instance; allowed from running, stopping, starting, rebooting and error
    #[command(after_help = POWEROFF)]
    Poweroff(OperateArgs),
    /// Reboot an instance, which also applies a pending plan; allowed from running and error
    #[command(after_help = REBOOT)]
    Reboot(OperateArgs),
    /// Change to another plan, with a reboot if the server is running; allowed from running, stopped and error
    #[command(after_help = RESIZE)]
    Resize(ResizeArgs),
    /// Reinstall an instance from an image or restore a backup, which erases its disk; allowed from running, stopped and error
    #[command(after_help = REBUILD)]
    Rebuild(RebuildArgs),
}

const START: &str = "\
Example:
  stellage instance start web -n ada --wait";
const STOP: &str = "\
Example:
  stellage instance stop web -n ada --wait --timeout 3m";
const POWEROFF: &str = "\
Example:
  stellage instance poweroff web -n ada --wait";
const REBOOT: &str = "\
Example:
  stellage instance reboot web -n ada --wait";
const RESIZE: &str = "\
Examples:
  stellage instance resize web -n ada --plan business --wait
  stellage instance resize web -n ada --plan business --on-reboot";
const REBUILD: &str = "\
Examples:
  stellage instance rebuild web -n ada --image debian-13 --wait
  stellage instance rebuild web -n ada --backup bkp_4q7hz0c9k2m8x1ta --wait";

/// Operate an instance.
#[derive(Args, Debug)]
pub struct OperateArgs {
    /// Name or id of the instance
    #[arg(value_parser = objects::name)]
    name: String,

    #[command(flatten)]
    place: InNamespace,

    #[command(flatten)]
    waiting: Waiting,

    /// Output format: text, or json for the object
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Change to another plan.
#[derive(Args, Debug)]
pub struct ResizeArgs {
    #[command(flatten)]
    operate: OperateArgs,

    /// The new plan
    #[arg(long, value_parser = plans())]
    plan: Plan,

    /// Do not reboot a running server: the plan takes effect with the next reboot, or stop and start
    #[arg(long)]
    on_reboot: bool,
}

/// Reinstall an instance.
#[derive(Args, Debug)]
pub struct RebuildArgs {
    #[command(flatten)]
    operate: OperateArgs,

    #[command(flatten)]
    source: RebuildSource,
}

/// What to install.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct RebuildSource {
    /// The operating-system image, such as debian-13
    #[arg(long, value_parser = image)]
    image: Option<String>,

    /// Name or id of a completed backup, which may be of another instance of the namespace
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    backup: Option<String>,
}

impl RebuildSource {
    async fn installation(self, cluster: &Cluster, namespace: &str) -> Result<Installation, CliError> {
        match self.backup {
            Some(name) => backup::restorable(cluster, namespace, &name)
                .await
                .map(Installation::Backup),
            None => Ok(Installation::Image(self.image.unwrap_or_default())),
        }
    }
}

pub(super) fn plans() -> impl clap::builder::TypedValueParser<Value = Plan> {
    PossibleValuesParser::new(Plan::ALL.map(Plan::as_str))
        .try_map(|text| text.parse::<Plan>().map_err(|()| "is not a plan"))
}

fn image(text: &str) -> Result<String, &'static str> {
    validation::image(text).map(|()| text.to_owned())
}

pub(super) async fn run(command: InstanceCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    let (args, operation) = match command {
        InstanceCommand::Start(args) => (args, Operation::Power(Action::Start)),
        InstanceCommand::Stop(args) => (args, Operation::Power(Action::Stop)),
        InstanceCommand::Poweroff(args) => (args, Operation::Power(Action::PowerOff)),
        InstanceCommand::Reboot(args) => (args, Operation::Power(Action::Reboot)),
        InstanceCommand::Resize(args) => {
            let (plan, on_reboot) = (args.plan, args.on_reboot);
            (args.operate, Operation::Resize { plan, on_reboot })
        }
        InstanceCommand::Rebuild(args) => {
            let namespace = args.operate.place.of(&cluster);
            let installation = args.source.installation(&cluster, namespace).await?;
            (args.operate, Operation::Rebuild(installation))
        }
    };
    let namespace = args.place.of(&cluster);
    let ended = operate(&cluster, namespace, &args.name, &operation, args.waiting).await?;
    objects::print(ended.instance, &ended.message, args.output)
}
