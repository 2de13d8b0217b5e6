//! The serial line of a simulated server: a boot log, a login, and a shell that knows a few commands. Nothing is behind it, and nothing is
//! kept: each connection begins anew.

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;

use resources::Instance;

/// Longest line that can be typed; what goes beyond is not taken.
const LONGEST_LINE: usize = 1024;

const HELP: &str = "This server is simulated: nothing is behind this line.\r\n\
    uname [-a]   the system\r\n\
    ip addr      the addresses\r\n\
    hostname, whoami, uptime\r\n\
    exit         log out\r\n";

/// What the line answers with.
struct Facts {
    host: String,
    image: String,
    vcpu: i32,
    memory_gb: i32,
    disk_gb: i32,
    ipv4: Option<String>,
    private_ipv4: Option<String>,
    ipv6: Option<String>,
    started_at: Timestamp,
}

/// One end of the line: takes what is typed, and gives what is shown.
pub struct SerialLine {
    facts: Facts,
    /// Who has logged in.
    user: Option<String>,
    /// What has been typed of a line.
    typed: String,
    /// The part of a key's escape sequence that has arrived.
    escape: Escape,
    last_was_return: bool,
    output: BytesMut,
}

/// Where in an escape sequence, as arrow keys send it, the input is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    No,
    Begun,
    Bracket,
}

impl SerialLine {
    /// The line of a server as somebody connects to it.
    pub fn connected(instance: &Instance) -> Self {
        let status = instance.status.as_ref();
        let plan = status
            .and_then(|status| status.plan)
            .unwrap_or(instance.spec.plan);
        let size = plan.size();
        let host: String = instance
            .display_name()
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let mut line = Self {
            facts: Facts {
                host: host.to_ascii_lowercase(),
                image: instance.spec.image.clone(),
                vcpu: size.vcpu,
                memory_gb: size.memory_gb,
                disk_gb: size.disk_gb,
                ipv4: status.and_then(|status| status.ip_address.clone()),
                private_ipv4: status.and_then(|status| status.private_ip_address.clone()),
                ipv6: status.and_then(|status| status.ipv6_address.clone()),
                started_at: status
                    .and_then(|status| status.started_at)
                    .unwrap_or(Timestamp::UNIX_EPOCH),
            },
            user: None,
            typed: String::new(),
            escape: Escape::No,
            last_was_return: false,
            output: BytesMut::new(),
        };
        line.boot();
        line.prompt();
        line
    }

    /// What is to be shown since the last call, if anything.
    pub fn shown(&mut self) -> Option<Bytes> {
        (!self.output.is_empty()).then(|| self.output.split().freeze())
    }

    /// Takes what is typed.
    pub fn typed(&mut self, bytes: &[u8], now: Timestamp) {
        for character in String::from_utf8_lossy(bytes).chars() {
            self.key(character, now);
        }
    }

    fn key(&mut self, character: char, now: Timestamp) {
        let after_return = std::mem::replace(&mut self.last_was_return, character == '\r');
        match (self.escape, character) {
            (Escape::No, '\u{1b}') => self.escape = Escape::Begun,
            (Escape::Begun, '[' | 'O') => self.escape = Escape::Bracket,
            (Escape::Bracket, '0'..='9' | ';') => {}
            (Escape::Begun | Escape::Bracket, _) => self.escape = Escape::No,
            // Some terminals send both.
            (Escape::No, '\n') if after_return => {}
            (Escape::No, '\r' | '\n') => {
                let line = std::mem::take(&mut self.typed);
                self.show("\r\n");
                self.enter(line.trim(), now);
                self.prompt();
            }
            (Escape::No, '\u{8}' | '\u{7f}') => {
                if self.typed.pop().is_some() {
                    self.show("\u{8} \u{8}");
                }
            }
            // Ctrl-C gives up the line.
            (Escape::No, '\u{3}') => {
                self.typed.clear();
                self.show("^C\r\n");
                self.prompt();
            }
            // Ctrl-D logs out.
            (Escape::No, '\u{4}') => {
                if self.typed.is_empty() && self.user.take().is_some() {
                    self.show("logout\r\n\r\n");
                    self.prompt();
                }
            }
            (Escape::No, character) if character.is_control() => {}
            (Escape::No, character) => {
                if self.typed.len() < LONGEST_LINE {
                    self.typed.push(character);
                    self.show(character.encode_utf8(&mut [0; 4]));
                }
            }
        }
    }

    fn enter(&mut self, line: &str, now: Timestamp) {
        let Some(user) = &self.user else {
            if !line.is_empty() {
                self.user = Some(line.chars().filter(|c| !c.is_whitespace()).take(32).collect());
                self.show("\r\nThis server is simulated: nothing is behind this line. `help` lists what it knows.\r\n\r\n");
            }
            return;
        };
        let facts = &self.facts;
        let mut words = line.split_whitespace();
        let Some(command) = words.next() else { return };
        let words: Vec<&str> = words.collect();
        let text = match (command, words.as_slice()) {
            ("uname", []) => "Linux\r\n".to_owned(),
            ("uname", ["-r"]) => "6.12.0-simulated\r\n".to_owned(),
            ("uname", ["-a"]) => format!(
                "Linux {} 6.12.0-simulated #1 SMP PREEMPT_DYNAMIC x86_64 GNU/Linux\r\n",
                facts.host
            ),
            ("ip", ["a" | "addr" | "address", ..]) => facts.addresses(),
            ("hostname", []) => format!("{}\r\n", facts.host),
            ("whoami", []) => format!("{user}\r\n"),
            ("uptime", []) => format!("up {} minutes\r\n", facts.minutes_up(now)),
            ("help", _) => HELP.to_owned(),
            ("exit" | "logout", _) => {
                self.user = None;
                "\r\n".to_owned()
            }
            (command, _) => format!("sh: {command}: not found\r\n"),
        };
        self.show(&text);
    }

    fn prompt(&mut self) {
        let prompt = match &self.user {
            Some(user) => format!("{user}@{}:~$ ", self.facts.host),
            None => format!("{} login: ", self.facts.host),
        };
        self.show(&prompt);
    }

    fn boot(&mut self) {
        let facts = &self.facts;
        let text = format!(
            "[    0.000000] Linux version 6.12.0-simulated (x86_64)\r\n\
             [    0.004211] Memory: {memory} GB, {vcpu} CPUs\r\n\
             [    0.512034] virtio_blk virtio1: [vda] {disk} GB\r\n\
             [    0.733120] virtio_net virtio0 eth0: link is up\r\n\
             [    1.208419] systemd[1]: Hostname set to <{host}>.\r\n\
             [    2.904112] cloud-init: finished\r\n\
             \r\n{image} {host} ttyS0 (simulated)\r\n\r\n",
            memory = facts.memory_gb,
            vcpu = facts.vcpu,
            disk = facts.disk_gb,
            host = facts.host,
            image = facts.image,
        );
        self.show(&text);
    }

    fn show(&mut self, text: &str) {
        self.output.extend_from_slice(text.as_bytes());
    }
}

impl Facts {
    /// As `ip addr` prints them.
    fn addresses(&self) -> String {
        let mut text = String::from(
            "1: lo: <LOOPBACK,UP> mtu 65536\r\n    inet 127.0.0.1/8 scope host lo\r\n2: eth0: <BROADCAST,MULTICAST,UP> mtu 1500\r\n",
        );
        // Writing to a string cannot fail.
        if let Some(address) = &self.ipv4 {
            let _ = write!(text, "    inet {address}/32 scope global eth0\r\n");
        }
        if let Some(address) = &self.ipv6 {
            let _ = write!(text, "    inet6 {address}/128 scope global\r\n");
        }
        if let Some(address) = &self.private_ipv4 {
            let _ = write!(
                text,
                "3: eth1: <BROADCAST,MULTICAST,UP> mtu 1500\r\n    inet {address} scope global eth1\r\n"
            );
        }
        text
    }

    fn minutes_up(&self, now: Timestamp) -> i64 {
        now.duration_since(self.started_at).as_mins().max(0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line() -> SerialLine {
        let object = json!({
            "metadata": { "name": "i-4q7hz0c9k2m8x1ta", "namespace": "demo", "uid": "u" },
            "spec": { "name": "Web.1", "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
            "status": { "state": "running", "ipAddress": "198.18.0.7", "privateIPAddress": "10.0.0.7", "startedAt": "2026-11-21T10:00:00Z" },
        });
        SerialLine::connected(&serde_json::from_value(object).unwrap())
    }

    fn answer(line: &mut SerialLine, typed: &str) -> String {
        line.typed(typed.as_bytes(), "2026-11-21T10:07:30Z".parse().unwrap());
        let shown = line.shown().unwrap_or_default();
        assert!(line.shown().is_none(), "shown once");
        String::from_utf8(shown.to_vec()).unwrap()
    }

    #[test]
    fn a_simulated_server_boots_lets_in_and_answers() {
        let mut line = line();
        let boot = answer(&mut line, "");
        assert!(
            boot.contains("Linux version") && boot.ends_with("web-1 login: "),
            "{boot}"
        );
        assert!(answer(&mut line, "\r").ends_with("web-1 login: "));
        assert!(answer(&mut line, "ada\r\n").ends_with("ada@web-1:~$ "));
        assert_eq!(answer(&mut line, "uname\r"), "uname\r\nLinux\r\nada@web-1:~$ ");
        let addresses = answer(&mut line, "ip addr\r");
        assert!(addresses.contains("inet 198.18.0.7/32"), "{addresses}");
        assert!(
            addresses.contains("inet 10.0.0.7 scope global eth1"),
            "{addresses}"
        );
        assert!(answer(&mut line, "uptime\r").contains("up 7 minutes"));
        assert!(answer(&mut line, "rm -rf /\r").contains("sh: rm: not found"));
        assert!(answer(&mut line, "exit\r").ends_with("web-1 login: "));
    }

    #[test]
    fn keys_edit_the_line_and_escape_sequences_do_nothing() {
        let mut line = line();
        answer(&mut line, "ada\r");
        assert_eq!(answer(&mut line, "unamf\u{7f}e"), "unamf\u{8} \u{8}e");
        assert_eq!(answer(&mut line, "\u{1b}[A\u{1b}[1;5C\u{1b}OP\t"), "");
        assert_eq!(answer(&mut line, "\r"), "\r\nLinux\r\nada@web-1:~$ ");
        assert_eq!(answer(&mut line, "x\u{3}"), "x^C\r\nada@web-1:~$ ");
        assert!(answer(&mut line, "\u{4}").ends_with("web-1 login: "));
        let long = answer(&mut line, &"x".repeat(5000));
        assert_eq!(long.len(), LONGEST_LINE);
    }
}
