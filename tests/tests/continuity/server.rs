//! Backends: one address each, in the namespace of a Pod. Each answer carries the address of its backend.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UdpSocket, tcp::OwnedWriteHalf},
    time::{MissedTickBehavior, interval},
};

use crate::{
    runtime::Runtime,
    wire::{BULK, RECORD, REQUEST, Record, Request},
};

/// TCP and UDP port of every backend.
pub(crate) const PORT: u16 = 8080;
/// Time between two records of a bulk stream: 320 KiB/s.
const BULK_INTERVAL: Duration = Duration::from_millis(50);

/// Starts a backend for each address and waits until they listen.
pub(crate) fn start(runtime: &Runtime, addresses: Vec<IpAddr>) -> Result<()> {
    runtime.run(async move {
        for address in addresses {
            let at = SocketAddr::from((address, PORT));
            let listener = TcpListener::bind(at).await.with_context(|| format!("TCP {at}"))?;
            let socket = UdpSocket::bind(at).await.with_context(|| format!("UDP {at}"))?;
            tokio::spawn(accept(listener, address));
            tokio::spawn(answer(socket, address));
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, backend: IpAddr) {
    while let Ok((connection, _)) = listener.accept().await {
        // The client detects a broken connection.
        tokio::spawn(async move { serve(connection, backend).await.ok() });
    }
}

async fn serve(connection: TcpStream, backend: IpAddr) -> Result<()> {
    connection.set_nodelay(true)?;
    let (mut reader, mut writer) = connection.into_split();
    let latest = Arc::new(AtomicU64::new(0));
    let mut stream = None;
    let mut bytes = [0; REQUEST];
    while reader.read_exact(&mut bytes).await.is_ok() {
        let request = Request::decode(&bytes);
        latest.store(request.number, Ordering::Relaxed);
        if request.bulk {
            stream = Some(tokio::spawn(send_stream(writer, backend, Arc::clone(&latest))));
            break;
        }
        let record = Record {
            backend,
            position: 0,
            number: request.number,
        };
        writer.write_all(&record.encode()).await?;
    }
    while reader.read_exact(&mut bytes).await.is_ok() {
        latest.store(Request::decode(&bytes).number, Ordering::Relaxed);
    }
    if let Some(stream) = stream {
        stream.abort();
    }
    Ok(())
}

async fn send_stream(mut writer: OwnedWriteHalf, backend: IpAddr, latest: Arc<AtomicU64>) -> Result<()> {
    let mut due = interval(BULK_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for position in 0.. {
        due.tick().await;
        let record = Record {
            backend,
            position,
            number: latest.load(Ordering::Relaxed),
        };
        let mut bytes = vec![record.padding(); RECORD + BULK];
        bytes[..RECORD].copy_from_slice(&record.encode());
        writer.write_all(&bytes).await?;
    }
    Ok(())
}

async fn answer(socket: UdpSocket, backend: IpAddr) {
    let mut bytes = [0; 2048];
    loop {
        // ICMP errors about earlier answers surface here; the next datagram is unaffected.
        let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
            continue;
        };
        let Some(request) = bytes.first_chunk() else {
            continue;
        };
        let record = Record {
            backend,
            position: 0,
            number: Request::decode(request).number,
        };
        let mut reply = vec![0; length.max(RECORD)];
        reply[..RECORD].copy_from_slice(&record.encode());
        socket.send_to(&reply, from).await.ok();
    }
}
