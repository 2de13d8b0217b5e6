//! Completions: scripts for shells, and answers to kubectl, which asks its plugins.

use clap::{Arg, Command};
use clap_complete::Shell;

/// The file name under which kubectl finds the program that completes `kubectl stellage`.
pub const PLUGIN_COMPLETER: &str = "kubectl_complete-stellage";

/// Last line of the answer to kubectl: do not complete file names (cobra's `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4";

/// The completion script of a shell.
pub fn script(shell: Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "stellage", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The answer to kubectl. `words` are those after `kubectl stellage`; the last one is to be completed. The command must be built, so
/// that all commands have the options that are for all.
pub fn answer_to_kubectl(command: &Command, words: &[String]) -> String {
    let mut lines = candidates(command, words);
    lines.push(NO_FILES.to_owned());
    lines.join("\n")
}

fn candidates(command: &Command, words: &[String]) -> Vec<String> {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let mut command = command;
    let mut positionals = 0;
    let mut awaits_value: Option<&Arg> = None;
    for word in before {
        if awaits_value.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            awaits_value = option(command, word).filter(|arg| arg.get_action().takes_values());
        } else if let Some(sub) = command.find_subcommand(word) {
            (command, positionals) = (sub, 0);
        } else {
            positionals += 1;
        }
    }
    let mut found: Vec<String> = if let Some(arg) = awaits_value {
        values(arg)
    } else if last.starts_with('-') {
        let options = command.get_arguments().filter(|arg| !arg.is_positional());
        let visible = options.filter(|arg| !arg.is_hide_set());
        let long = visible.filter_map(Arg::get_long);
        // Clap adds these two when the command is built.
        let long = long.filter(|long| !["help", "version"].contains(long));
        long.map(|long| format!("--{long}"))
            .chain(["--help".to_owned()])
            .collect()
    } else {
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let names = visible.map(|sub| sub.get_name().to_owned());
        names
            .chain(
                command
                    .get_positionals()
                    .nth(positionals)
                    .map(values)
                    .into_iter()
                    .flatten(),
            )
            .collect()
    };
    found.retain(|candidate| candidate.starts_with(last));
    found
}

/// The option named by a word such as `-n` or `--namespace`; `None` for `--option=value`, which has its value.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let long = arg
            .get_long()
            .is_some_and(|long| word.strip_prefix("--") == Some(long));
        let mut short = [0; 4];
        long || arg
            .get_short()
            .is_some_and(|letter| word.strip_prefix('-') == Some(letter.encode_utf8(&mut short)))
    })
}

fn values(arg: &Arg) -> Vec<String> {
    let values = arg.get_possible_values();
    let visible = values.iter().filter(|value| !value.is_hide_set());
    visible.map(|value| value.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Subcommand as _};

    use super::*;
    use runtime::kubeconfig::ClusterArgs;

    fn complete(line: &str) -> Vec<String> {
        let command = crate::Command::augment_subcommands(Command::new("stellage"));
        let mut command = ClusterArgs::augment_args(command);
        command.build();
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        candidates(&command, &words)
    }

    #[test]
    fn candidates_are_commands_options_and_their_values() {
        assert!(complete("").contains(&"instance".to_owned()));
        assert_eq!(complete("inst"), ["instance", "installation"]);
        assert_eq!(complete("instance re"), ["reboot", "resize", "rebuild"]);
        assert_eq!(
            complete("instance resize web --plan "),
            ["starter", "business", "performance", "enterprise"]
        );
        assert_eq!(complete("instance resize -n ada web --on"), ["--on-reboot"]);
        assert_eq!(complete("instance stop -o j"), ["json"]);
        assert_eq!(complete("instance stop --con"), ["--context"]);
        assert!(complete("instance stop --context ").is_empty());
        assert!(complete("instance stop -n ").is_empty());
        let script = answer_to_kubectl(&Command::new("stellage"), &[]);
        assert!(script.ends_with(":4"), "{script}");
    }
}
