//! `stellage console INSTANCE`: the serial line of an instance in this terminal, through the REST API.

use std::{
    io::{self, IsTerminal as _, Read as _, Write as _},
    os::fd::AsFd as _,
    thread,
    time::Duration,
};

use clap::Args;
use futures::{SinkExt as _, StreamExt as _};
use reqwest::{Client, Method, Response, header};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::client::generate_key,
        protocol::{CloseFrame, Message, Role},
    },
};
use url::Url;

use super::{
    CliError,
    connect::innermost,
    http,
    output::{note, printable},
};
use api::{Console, ConsoleType, ErrorAnswer, InstanceSummary, List, OpenConsole, Single};
use resources::public_id::{InstanceId, PublicId as _};

/// The variable with the API key. Not a flag: all users of the machine can see those.
const KEY: &str = "STELLAGE_API_KEY";
/// Ctrl+], which ends it, as in telnet and virsh.
const END: u8 = 0x1d;
/// With input that is not a terminal: how long the line may be silent after its end.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the REST API may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Close codes of a console that ended as it should.
const NORMAL: u16 = 1000;

/// Open the serial console of an instance.
#[derive(Args, Debug)]
pub struct SerialArgs {
    /// Id or name of the instance
    #[arg(required = true)]
    instance: Option<String>,

    /// Where the REST API is, such as https://cloud.example.com
    #[arg(long, env = "STELLAGE_URL", value_name = "URL", required = true)]
    url: Option<Url>,
}

/// The REST API, with a key.
struct Api {
    http: Client,
    url: Url,
    key: String,
}

impl Api {
    async fn call<T: DeserializeOwned>(
        &self,
        doing: &str,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<String>,
    ) -> Result<T, CliError> {
        let refused = |reason: String| CliError::Refused {
            doing: doing.to_owned(),
            reason,
        };
        let mut url = self.url.clone();
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self
            .http
            .request(method, url)
            .bearer_auth(&self.key)
            .timeout(PATIENCE);
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| refused(format!("{} cannot be reached: {}", self.url, innermost(&error))))?;
        let is_success = answer.status().is_success();
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|error| refused(innermost(&error)))?;
        if is_success {
            return serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()));
        }
        let told = serde_json::from_slice::<ErrorAnswer>(&bytes);
        Err(refused(told.map_or_else(
            |_| format!("{} answered {status}", self.url),
            |told| told.error.message,
        )))
    }

    /// The id of the instance that was named.
    async fn id_of(&self, named: &str) -> Result<String, CliError> {
        if InstanceId::parse(named).is_some() {
            return Ok(named.to_owned());
        }
        let list: List<InstanceSummary> = self
            .call(
                "find the instance",
                Method::GET,
                "/v1/instances",
                &[("name", named)],
                None,
            )
            .await?;
        let ids: Vec<String> = list.data.into_iter().map(|found| found.id).collect();
        match ids.as_slice() {
            [id] => Ok(id.clone()),
            [] => Err(CliError::Refused {
                doing: "open the console".to_owned(),
                reason: format!("the account has no instance named {named}"),
            }),
            several => Err(CliError::Refused {
                doing: "open the console".to_owned(),
                reason: format!(
                    "several instances are named {named}; give an id: {}",
                    several.join(", ")
                ),
            }),
        }
    }
}

pub(super) async fn run(args: SerialArgs) -> Result<(), CliError> {
    let (Some(named), Some(url)) = (args.instance, args.url) else {
        // clap requires both.
        return Ok(());
    };
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| CliError::Value {
        flag: KEY,
        why: "is not set: put an API key with the scope write into this environment variable".to_owned(),
    })?;
    let api = Api {
        http: http::client(&url)?,
        url,
        key,
    };
    let id = api.id_of(&named).await?;
    let body = serde_json::to_string(&OpenConsole {
        r#type: ConsoleType::Serial,
    })
    .map_err(|error| CliError::Render(error.to_string()))?;
    let path = format!("/v1/instances/{id}/console");
    let opened: Single<Console> = api
        .call("open the console", Method::POST, &path, &[], Some(body))
        .await?;
    let socket = connect(&opened.data.url).await?;
    note(&format!(
        "Connected to the serial console of {named}. If nothing shows, press Enter; Ctrl+] ends it."
    ));
    // What else may end it is said in the usual mode of the terminal.
    let ended = {
        let _raw = Raw::enter();
        carry(socket).await
    };
    note("");
    ended
}

/// Opens the WebSocket with the ticket.
async fn connect(ticket: &str) -> Result<WebSocketStream<reqwest::Upgraded>, CliError> {
    let refused = |reason: String| CliError::Refused {
        doing: "open the console".to_owned(),
        reason,
    };
    let of_http = ticket.replacen("ws", "http", 1);
    let url = Url::parse(&of_http).map_err(|error| refused(error.to_string()))?;
    let gateway = url.origin().ascii_serialization();
    let request = http::client(&url)?
        .get(url)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key());
    // The URL in an error has the token, which is worth nothing any more, but looks like a secret.
    let answer = request.send().await.map_err(|error| {
        refused(format!(
            "the console gateway, {gateway}, cannot be reached: {}",
            innermost(&error)
        ))
    })?;
    if answer.status() != reqwest::StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(told(answer).await));
    }
    let stream = answer
        .upgrade()
        .await
        .map_err(|error| refused(innermost(&error)))?;
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
}

async fn told(answer: Response) -> String {
    let status = answer.status();
    let bytes = answer.bytes().await.unwrap_or_default();
    serde_json::from_slice::<ErrorAnswer>(&bytes).map_or_else(
        |_| format!("the console gateway answered {status}"),
        |told| told.error.message,
    )
}

/// Carries bytes between the terminal and the line.
async fn carry(mut socket: WebSocketStream<reqwest::Upgraded>) -> Result<(), CliError> {
    let is_terminal = io::stdin().is_terminal();
    let mut typed = Some(typed());
    let mut silent_at: Option<Instant> = None;
    loop {
        let silent = async {
            match silent_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let next = async {
            match &mut typed {
                Some(typed) => typed.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = silent => return end(socket).await,
            bytes = next => {
                if let Some(mut bytes) = bytes {
                    let ends_at = bytes.iter().position(|byte| is_terminal && *byte == END);
                    if let Some(at) = ends_at {
                        bytes.truncate(at);
                    }
                    if !bytes.is_empty() && socket.send(Message::Binary(bytes.into())).await.is_err() {
                        return Err(lost());
                    }
                    if ends_at.is_some() {
                        return end(socket).await;
                    }
                } else {
                    // The input is a file or a pipe: what it makes the server say is still to come.
                    typed = None;
                    silent_at = Some(Instant::now() + SILENCE);
                }
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    show(&bytes)?;
                    silent_at = silent_at.map(|_| Instant::now() + SILENCE);
                }
                Some(Ok(Message::Text(text))) => show(text.as_bytes())?,
                Some(Ok(Message::Close(frame))) => return closed(frame),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(lost()),
            },
        }
    }
}

/// Leaves.
async fn end(mut socket: WebSocketStream<reqwest::Upgraded>) -> Result<(), CliError> {
    let _ = socket.close(None).await;
    Ok(())
}

fn closed(frame: Option<CloseFrame>) -> Result<(), CliError> {
    match frame {
        Some(frame) if u16::from(frame.code) != NORMAL => Err(CliError::Refused {
            doing: "keep the console open".to_owned(),
            reason: printable(&frame.reason),
        }),
        Some(frame) => {
            note(&printable(&frame.reason));
            Ok(())
        }
        None => Ok(()),
    }
}

fn lost() -> CliError {
    CliError::Refused {
        doing: "keep the console open".to_owned(),
        reason: "the connection was lost".to_owned(),
    }
}

/// Shows what the server sends as it is: it is a terminal that the server writes to.
fn show(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let shown = stdout.write_all(bytes).and_then(|()| stdout.flush());
    shown.map_err(|source| CliError::File {
        path: "the terminal".into(),
        source,
    })
}

/// What is typed, until the end of the input. Read in a thread that nobody waits for: a read cannot be given up.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = io::stdin().read(&mut buffer) {
            if sender.blocking_send(buffer[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The terminal in raw mode: each key goes to the server at once, also Ctrl+C. As before when dropped.
struct Raw(Option<Termios>);

impl Raw {
    fn enter() -> Self {
        let stdin = io::stdin();
        // Without a terminal, there is nothing to change.
        let before = tcgetattr(stdin.as_fd()).ok();
        if let Some(mut raw) = before.clone() {
            raw.make_raw();
            let _ = tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw);
        }
        Self(before)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}
