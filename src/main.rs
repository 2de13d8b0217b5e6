//! The `stellage` program: parses the arguments and runs the command.

use std::{io::Write as _, process::ExitCode};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use cli::completions;
use runtime::kubeconfig::ClusterArgs;
use stellage::{
    serve::{serve, serve_gateway},
    settings::{ApiSettings, CommonSettings, ControllerSettings, GatewaySettings, ProcessSettings},
};

// glibc's allocator puts what is needed for long, the objects of the API server, side by side with what is needed for a moment, and
// returns only whole unused pages.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The version; in an image or a release with the commit, which `make image` puts in.
const VERSION: &str = match option_env!("STELLAGE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Turns a Kubernetes cluster into a small cloud: instances through a REST API or kubectl
#[derive(Debug, Parser)]
#[command(version = VERSION, propagate_version = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is only one of them")]
enum Command {
    /// Serve the REST API and run the controllers in one process
    Run {
        #[command(flatten)]
        common: CommonSettings,
        #[command(flatten)]
        api: ApiSettings,
        #[command(flatten)]
        controller: ControllerSettings,
    },
    /// Serve the REST API only; any number of replicas
    Api {
        #[command(flatten)]
        common: CommonSettings,
        #[command(flatten)]
        api: ApiSettings,
    },
    /// Run the controllers only; any number of replicas, one of which is the leader and writes
    Controller {
        #[command(flatten)]
        common: CommonSettings,
        #[command(flatten)]
        controller: ControllerSettings,
    },
    /// Serve the consoles of instances; one replica, with few rights
    ConsoleGateway {
        #[command(flatten)]
        process: ProcessSettings,
        #[command(flatten)]
        gateway: GatewaySettings,
    },
    #[command(flatten)]
    Client(cli::Command),
    /// Print the completions of a shell
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

const COMPLETIONS: &str = "\
Examples:
  source <(stellage completions bash)
  stellage completions zsh > \"${fpath[1]}/_stellage\"
  stellage completions fish > ~/.config/fish/completions/stellage.fish";

/// The command-line interface of `stellage`, or of `kubectl stellage` if called as a plugin.
fn arguments() -> clap::Command {
    let command = Arguments::command();
    if cli::program() == "stellage" {
        command
    } else {
        as_plugin(command.name(cli::PLUGIN).bin_name(cli::program()))
    }
}

/// Rewrites the examples for use with kubectl.
fn as_plugin(command: clap::Command) -> clap::Command {
    let examples = command
        .get_after_help()
        .map(|help| help.to_string().replace("  stellage ", "  kubectl stellage "));
    let command = match examples {
        Some(examples) => command.after_help(examples),
        None => command,
    };
    command.mut_subcommands(as_plugin)
}

/// The completions for `kubectl stellage …`, if kubectl called this program as its completer.
fn answer_to_kubectl() -> Option<String> {
    let mut words = std::env::args();
    let called_as = words.next()?;
    let is_completer = called_as.rsplit('/').next() == Some(completions::PLUGIN_COMPLETER);
    is_completer.then(|| {
        let words: Vec<String> = words.collect();
        let mut command = Arguments::command();
        command.build();
        completions::answer_to_kubectl(&command, &words)
    })
}

/// Prints a text. A closed pipe is not an error.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn main() -> ExitCode {
    match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(run()),
        Err(error) => {
            eprintln!("error: cannot start the threads of the program: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> ExitCode {
    if let Some(answer) = answer_to_kubectl() {
        print(&answer);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_arg_matches(&arguments().get_matches());
    let Arguments { cluster, command } = arguments.unwrap_or_else(|error| error.exit());
    let result: Result<(), Box<dyn std::error::Error>> = match command {
        Command::Run {
            common,
            api,
            controller,
        } => serve(&cluster, common, Some(api), Some(controller))
            .await
            .map_err(Into::into),
        Command::Api { common, api } => serve(&cluster, common, Some(api), None).await.map_err(Into::into),
        Command::Controller { common, controller } => serve(&cluster, common, None, Some(controller))
            .await
            .map_err(Into::into),
        Command::ConsoleGateway { process, gateway } => serve_gateway(&cluster, process, gateway)
            .await
            .map_err(Into::into),
        Command::Client(command) => match cli::run(command, &cluster).await {
            Ok(()) => Ok(()),
            Err(error) => {
                eprintln!("error: {}", cli::printable(&error.to_string()));
                return ExitCode::from(error.exit_code());
            }
        },
        Command::Completions { shell } => {
            print(completions::script(shell, &mut Arguments::command()).trim_end());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
