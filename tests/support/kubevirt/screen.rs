//! A screen of one colour over VNC (RFB 3.8, RFC 6143): blue at first, then that of the last key that was pressed.

use axum::extract::ws::{Message, WebSocket};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

const WIDTH: u16 = 64;
const HEIGHT: u16 = 48;
/// Red, green and blue before the first key.
pub const BLUE: [u8; 3] = [0, 0, 255];

/// The colour after a key, by its keysym.
pub const fn colour(keysym: u32) -> [u8; 3] {
    let [_, _, high, low] = keysym.to_be_bytes();
    [low, high, 0]
}

/// Serves until the client goes.
pub async fn serve(socket: WebSocket) {
    let mut client = Client {
        socket,
        arrived: BytesMut::new(),
    };
    let _ended = client.serve().await;
}

struct Client {
    socket: WebSocket,
    arrived: BytesMut,
}

impl Client {
    /// `None` once the client has gone.
    async fn serve(&mut self) -> Option<()> {
        self.send(b"RFB 003.008\n".as_slice()).await?;
        self.take(12).await?;
        // One type of security: none.
        self.send([1, 1].as_slice()).await?;
        self.take(1).await?;
        self.send([0; 4].as_slice()).await?;
        self.take(1).await?;
        self.send(greeting()).await?;
        let (mut shown, mut told, mut is_asked) = (BLUE, None, false);
        loop {
            match self.take(1).await?[0] {
                // SetPixelFormat
                0 => drop(self.take(19).await?),
                // SetEncodings
                2 => {
                    let count = self.take(3).await?.slice(1..).get_u16();
                    self.take(4 * usize::from(count)).await?;
                }
                // FramebufferUpdateRequest
                3 => {
                    is_asked = true;
                    if self.take(9).await?[0] == 0 {
                        told = None;
                    }
                }
                // KeyEvent
                4 => {
                    let mut key = self.take(7).await?;
                    if key.get_u8() == 1 {
                        shown = colour(key.slice(2..).get_u32());
                    }
                }
                // PointerEvent
                5 => drop(self.take(5).await?),
                unknown => panic!("message {unknown}"),
            }
            if is_asked && told != Some(shown) {
                self.send(picture(shown)).await?;
                (told, is_asked) = (Some(shown), false);
            }
        }
    }

    async fn send(&mut self, bytes: impl Into<Vec<u8>>) -> Option<()> {
        self.socket.send(Message::Binary(bytes.into().into())).await.ok()
    }

    /// The next bytes, however the client has cut them into messages.
    async fn take(&mut self, count: usize) -> Option<Bytes> {
        while self.arrived.len() < count {
            match self.socket.recv().await?.ok()? {
                Message::Binary(bytes) => self.arrived.extend_from_slice(&bytes),
                Message::Close(_) => return None,
                _ => {}
            }
        }
        Some(self.arrived.split_to(count).freeze())
    }
}

/// ServerInit: 32 bits a pixel, like QEMU's.
fn greeting() -> Vec<u8> {
    let mut init = Vec::new();
    init.put_u16(WIDTH);
    init.put_u16(HEIGHT);
    init.put_slice(&[32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0]);
    init.put_u32(3);
    init.put_slice(b"web");
    init
}

/// FramebufferUpdate: one raw rectangle, in the format that noVNC always asks for.
fn picture([red, green, blue]: [u8; 3]) -> Vec<u8> {
    let mut update = vec![0, 0, 0, 1, 0, 0, 0, 0];
    update.put_u16(WIDTH);
    update.put_u16(HEIGHT);
    update.put_i32(0);
    for _ in 0..u32::from(WIDTH) * u32::from(HEIGHT) {
        update.put_slice(&[red, green, blue, 255]);
    }
    update
}
