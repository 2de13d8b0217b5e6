//! The `stellage` program: arguments, then run.

use std::process::ExitCode;

use clap::Parser;
use stellage::cli;

/// Turns a Kubernetes cluster into a small cloud: instances through a REST API or kubectl
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: cli::Command,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match cli::run(arguments.command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
