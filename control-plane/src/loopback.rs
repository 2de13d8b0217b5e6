//! A minimal HTTP client for readiness checks on loopback, without another dependency.

use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Sends one HTTP/1.0 request to `authority` (`127.0.0.1:port`) and returns status and body. The timeout is two seconds.
pub async fn request(
    authority: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<(u16, String)> {
    let mut head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {authority}\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(name);
        head.push_str(": ");
        head.push_str(value);
        head.push_str("\r\n");
    }
    let exchange = async {
        let mut stream = TcpStream::connect(authority).await?;
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(Duration::from_secs(2), exchange).await??;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))?;
    Ok((status, body.to_owned()))
}
