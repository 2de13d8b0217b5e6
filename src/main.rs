//! The `stellage` program: arguments, then run.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use stellage::{
    cli,
    serve::serve,
    settings::{ApiSettings, CommonSettings, ControllerSettings},
};

/// Turns a Kubernetes cluster into a small cloud: instances through a REST API or kubectl
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
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
    /// Run the controllers only; of several replicas one writes
    Controller {
        #[command(flatten)]
        common: CommonSettings,
        #[command(flatten)]
        controller: ControllerSettings,
    },
    #[command(flatten)]
    Administration(cli::Command),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run {
            common,
            api,
            controller,
        } => serve(common, Some(api), Some(controller))
            .await
            .map_err(Into::into),
        Command::Api { common, api } => serve(common, Some(api), None).await.map_err(Into::into),
        Command::Controller { common, controller } => {
            serve(common, None, Some(controller)).await.map_err(Into::into)
        }
        Command::Administration(command) => cli::run(command)
            .await
            .map_err(Box::<dyn std::error::Error>::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
