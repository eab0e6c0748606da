//! `echo-server`: HTTP responses with the names of server and client; UDP echo on the same port.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
};

use anyhow::{Context as _, Result};
use mc_tests::traffic::LISTENING;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// TCP and UDP port.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Name in the responses instead of the host name.
    #[arg(long)]
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => nix::unistd::gethostname()?.to_string_lossy().into_owned(),
    };
    // Dual-stack, or IPv4 on a host without IPv6.
    let address = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, args.port)) {
        Ok(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port)),
        Err(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.port)),
    };
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on TCP port {}", args.port))?;
    let udp = UdpSocket::bind(address).with_context(|| format!("cannot listen on UDP port {}", args.port))?;
    println!("{LISTENING} on port {}", args.port);
    thread::spawn(move || echo(&udp));
    for connection in listener.incoming() {
        let (connection, name) = (connection?, name.clone());
        // A broken connection is not an error of the server.
        thread::spawn(move || drop(serve(&connection, &name)));
    }
    Ok(())
}

/// Returns every datagram to its sender.
fn echo(socket: &UdpSocket) {
    let mut buffer = vec![0; 65_536];
    loop {
        // ICMP errors about earlier responses surface here; the next datagram is unaffected.
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        if let Some(datagram) = buffer.get(..length) {
            drop(socket.send_to(datagram, from));
        }
    }
}

/// Serves the requests of one connection until the client closes it or requests its closure.
fn serve(connection: &TcpStream, name: &str) -> Result<()> {
    connection.set_nodelay(true)?;
    let body = format!("{name} {}\n", connection.peer_addr()?.ip().to_canonical());
    let mut requests = BufReader::new(connection);
    loop {
        let mut close = false;
        let mut lines = 0;
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            lines += 1;
            close |= line.eq_ignore_ascii_case("connection: close") || line.ends_with("HTTP/1.0");
        }
        if lines == 0 {
            continue;
        }
        let connection_header = if close { "close" } else { "keep-alive" };
        let mut answer = connection;
        write!(
            answer,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
             Connection: {connection_header}\r\n\r\n{body}",
            body.len()
        )?;
        if close {
            return Ok(());
        }
    }
}
