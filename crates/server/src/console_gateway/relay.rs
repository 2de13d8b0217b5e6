//! One open console: carries bytes between its client and its server until it ends, and says why it does.

use std::{sync::Arc, time::Duration};

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::{
    Inner,
    sessions::{Ending, Opening, Session},
};
use providers::consoles::{ConsoleError, Line};

/// How often the client is asked whether it is there. Load balancers close connections that are silent for a minute.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a client may leave such questions unanswered.
const SILENT_FOR: Duration = Duration::from_secs(90);
/// How long a client may take to accept what is sent to it.
const SENT_WITHIN: Duration = Duration::from_secs(20);
/// How long a client may take to acknowledge the end. A connection that is closed while the client is sending may lose the reason.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// Bytes carried in each direction.
#[derive(Default)]
struct Carried {
    to_server: usize,
    to_client: usize,
}

/// Runs a console to its end. The log says who opened what, for how long, and never what was typed or shown.
pub(super) async fn run(inner: &Arc<Inner>, mut socket: WebSocket, opening: Opening) {
    let ending = match inner.sessions.enter(&opening) {
        Ok(session) => {
            let ticket = &opening.ticket;
            let peer = opening.peer.map(|peer| peer.to_string());
            tracing::info!(
                console = session.id,
                account = ticket.account,
                namespace = ticket.namespace,
                instance = ticket.instance,
                r#type = ticket.r#type.as_str(),
                key = ticket.key,
                peer,
                "a console was opened"
            );
            let mut carried = Carried::default();
            let ending = carry(inner, &mut socket, &opening, &session, &mut carried).await;
            tracing::info!(
                console = session.id,
                account = ticket.account,
                instance = ticket.instance,
                seconds = session.begun.elapsed().as_secs(),
                to_server = carried.to_server,
                to_client = carried.to_client,
                reason = ending.reason(),
                "a console was closed"
            );
            ending
        }
        Err(ending) => ending,
    };
    close(socket, ending).await;
}

async fn carry(
    inner: &Inner,
    socket: &mut WebSocket,
    opening: &Opening,
    session: &Session,
    carried: &mut Carried,
) -> Ending {
    let opened = tokio::select! {
        ending = session.must_end() => return ending,
        opened = inner.consoles.open(&opening.instance, opening.ticket.r#type) => opened,
    };
    let mut line = match opened {
        Ok(line) => line,
        Err(ConsoleError::NotRunning) => return Ending::Stopped,
        Err(ConsoleError::NotOffered) => return Ending::Failed("the region does not have this console"),
        Err(ConsoleError::Unavailable) => {
            return Ending::Failed("the console cannot be reached at the moment; try again");
        }
    };
    let begun = Instant::now();
    let (mut active, mut heard) = (begun, begun);
    let mut ping = interval_at(begun + PING_EVERY, PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let must_end = session.must_end();
    tokio::pin!(must_end);
    loop {
        tokio::select! {
            ending = &mut must_end => return ending,
            () = sleep_until(active + session.idle) => return Ending::Idle,
            _ = ping.tick() => {
                if heard.elapsed() >= SILENT_FOR {
                    return Ending::Left;
                }
                if inner.health.is_stale() {
                    return Ending::Blind;
                }
                if !send(socket, Message::Ping(Bytes::new())).await {
                    return Ending::Left;
                }
            }
            message = socket.recv() => {
                heard = Instant::now();
                let bytes = match message {
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    Some(Ok(Message::Text(text))) => text.into(),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ending::Left,
                };
                active = heard;
                carried.to_server += bytes.len();
                if !to_server(&mut line, bytes).await {
                    return Ending::LineEnded;
                }
            }
            bytes = line.receive() => {
                let Some(bytes) = bytes else { return Ending::LineEnded };
                active = Instant::now();
                carried.to_client += bytes.len();
                if !send(socket, Message::Binary(bytes)).await {
                    return Ending::Left;
                }
            }
        }
    }
}

async fn to_server(line: &mut Line, bytes: Bytes) -> bool {
    bytes.is_empty() || line.send(bytes).await
}

/// Sends to the client. Returns whether it could.
async fn send(socket: &mut WebSocket, message: Message) -> bool {
    matches!(timeout(SENT_WITHIN, socket.send(message)).await, Ok(Ok(())))
}

/// Tells the client why it ends, and waits until it knows.
async fn close(mut socket: WebSocket, ending: Ending) {
    let frame = CloseFrame {
        code: ending.code(),
        reason: ending.reason().into(),
    };
    let closing = async {
        // A client that has said first that it ends gets its answer as more is read.
        let _ = socket.send(Message::Close(Some(frame))).await;
        while let Some(Ok(_)) = socket.recv().await {}
    };
    let _ = timeout(CLOSED_WITHIN, closing).await;
}
