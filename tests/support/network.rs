//! A network between an operator and the API server.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use control_plane::{ControlPlane, Identity};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

/// The behaviour of a network between an operator and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It works.
    Open,
    /// It works, but whatever the operator sends is delayed by this much.
    Slow(Duration),
    /// It works, but whatever the operator sends arrives only when the mode changes.
    Held,
    /// Connections break, and new ones fail.
    Cut,
    /// Existing connections go silent without either side noticing. New ones work.
    OldOnesSilent,
}

/// A network between an operator and the API server.
pub struct Network {
    mode: watch::Sender<Mode>,
    held: Arc<AtomicUsize>,
    /// The kubeconfig for an operator behind this network.
    pub kubeconfig: PathBuf,
}

impl Network {
    pub async fn to(plane: &ControlPlane) -> Self {
        Self::through(plane, &plane.kubeconfig(Identity::Operator)).await
    }

    /// A network for those who reach the API server with this kubeconfig.
    pub async fn through(plane: &ControlPlane, kubeconfig: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ours = format!("https://{address}");
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        assert!(text.contains(&plane.url()));
        let name = format!("through-{}.kubeconfig", address.port());
        let kubeconfig = plane.folder().join(name);
        std::fs::write(&kubeconfig, text.replace(&plane.url(), &ours)).unwrap();
        let server = plane.url().strip_prefix("https://").unwrap().to_owned();
        let (mode, seen) = watch::channel(Mode::Open);
        let held = Arc::<AtomicUsize>::default();
        let holding = held.clone();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                if *seen.borrow() != Mode::Cut
                    && let Ok(server) = TcpStream::connect(&server).await
                {
                    tokio::spawn(forward(client, server, seen.clone(), holding.clone()));
                }
            }
        });
        Self {
            mode,
            held,
            kubeconfig,
        }
    }

    /// On how many connections something is held.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    mut mode: watch::Receiver<Mode>,
    held: Arc<AtomicUsize>,
) {
    mode.mark_unchanged();
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        let moved = tokio::select! {
            changed = mode.changed() => {
                match (changed, *mode.borrow_and_update()) {
                    (Err(_), _) | (_, Mode::Cut) => return,
                    (_, Mode::Open | Mode::Slow(_) | Mode::Held) => continue,
                    (_, Mode::OldOnesSilent) => break,
                }
            }
            read = client.read(&mut up) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let now = *mode.borrow();
                    match now {
                        Mode::Slow(delay) => sleep(delay).await,
                        // A mode that was set meanwhile applies to what follows.
                        Mode::Held => {
                            held.fetch_add(1, Ordering::Relaxed);
                            let _ = mode.clone().wait_for(|mode| *mode != Mode::Held).await;
                            held.fetch_sub(1, Ordering::Relaxed);
                        }
                        Mode::Open | Mode::Cut | Mode::OldOnesSilent => {}
                    }
                    server.write_all(&up[..count]).await
                }
            },
            read = server.read(&mut down) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => client.write_all(&down[..count]).await,
            },
        };
        if moved.is_err() {
            return;
        }
    }
    // Hold until the test ends or the network is cut.
    let _ = mode.wait_for(|mode| *mode == Mode::Cut).await;
}
