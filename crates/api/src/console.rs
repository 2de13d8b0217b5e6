//! Console access: `POST /v1/instances/{id}/console` (decisions, section 6).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Seconds;

/// A console of a server.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    ToSchema,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ConsoleType {
    /// The first serial line: text, as a terminal shows it.
    Serial,
    /// The screen, keyboard and mouse, in the protocol of VNC (RFB).
    Vnc,
}

impl ConsoleType {
    /// The type as it is spelled in bodies.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Which console of an instance is to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenConsole {
    /// The console; `consoles` of its region lists those that there are.
    pub r#type: ConsoleType,
}

/// A console that can be opened.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Console {
    /// The console.
    pub r#type: ConsoleType,
    /// The URL of a WebSocket, which works once, until `expires_at`. Whoever has it needs no API key, so treat it like one.
    #[schema(
        format = "uri",
        example = "wss://cloud.example.com/v1/console?token=0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY"
    )]
    pub url: String,
    /// Until when the URL works. A console that is open by then stays open.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:01:00Z")]
    pub expires_at: Seconds,
}
