//! `stream-send` and `stream-recv`: throughput of TCP connections, one thread each.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use mc_tests::traffic::{LISTENING, StreamReport};

/// Bytes per read and write.
const BLOCK: usize = 128 << 10;
/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(crate) struct SendArgs {
    /// Destination `ADDRESS:PORT`.
    to: SocketAddr,
    /// Duration in seconds.
    #[arg(long, default_value_t = 3.0)]
    duration: f64,
    /// Number of connections.
    #[arg(long, default_value_t = 1)]
    streams: usize,
}

pub(crate) fn send(args: &SendArgs) -> Result<()> {
    let duration = Duration::try_from_secs_f64(args.duration).context("--duration")?;
    let connect = || -> Result<TcpStream> {
        let connection = TcpStream::connect_timeout(&args.to, CONNECT)
            .with_context(|| format!("cannot connect to {}", args.to))?;
        connection.set_write_timeout(Some(CONNECT))?;
        Ok(connection)
    };
    let connections = (0..args.streams)
        .map(|_| connect())
        .collect::<Result<Vec<TcpStream>>>()?;
    in_parallel(connections, |connection| write_until(connection, duration))?;
    println!("sent");
    Ok(())
}

/// Runs `work` on every connection in parallel and returns the results.
fn in_parallel<T: Send>(
    connections: Vec<TcpStream>,
    work: impl Fn(TcpStream) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = connections
            .into_iter()
            .map(|connection| scope.spawn(move || work(connection)))
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

/// Writes for the given duration.
fn write_until(mut connection: TcpStream, duration: Duration) -> Result<()> {
    let block = vec![0x6d; BLOCK];
    let start = Instant::now();
    while start.elapsed() < duration {
        connection.write_all(&block).context("stream stalled or broken")?;
    }
    Ok(())
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecvArgs {
    /// TCP port.
    #[arg(long)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    bind: IpAddr,
    /// Uncounted seconds after the first byte, for slow start.
    #[arg(long, default_value_t = 0.3)]
    warm_up: f64,
    /// Timeout in seconds for a connection and for more bytes.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
    /// Number of connections.
    #[arg(long, default_value_t = 1)]
    streams: usize,
}

pub(crate) fn recv(args: &RecvArgs) -> Result<()> {
    let warm_up = Duration::try_from_secs_f64(args.warm_up).context("--warm-up")?;
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let listener = TcpListener::bind((args.bind, args.port))
        .with_context(|| format!("cannot listen on TCP port {}", args.port))?;
    println!("{LISTENING} on port {}", args.port);
    let mut connections = Vec::new();
    for _ in 0..args.streams {
        let (connection, _) = listener.accept()?;
        connection.set_read_timeout(Some(timeout))?;
        connections.push(connection);
    }
    let streams = in_parallel(connections, |connection| measure(connection, warm_up))?;
    if streams.iter().all(|one| one.seconds <= 0.0) {
        bail!("every stream ended within the warm-up of {warm_up:?}");
    }
    let report = StreamReport {
        bytes: streams.iter().map(|one| one.bytes).sum(),
        seconds: streams.iter().map(|one| one.seconds).fold(0.0, f64::max),
        bits_per_second: streams.iter().map(|one| one.bits_per_second).sum(),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Reads one stream to its end and measures it.
fn measure(mut connection: TcpStream, warm_up: Duration) -> Result<StreamReport> {
    let mut block = vec![0; BLOCK];
    let (mut bytes, mut first, mut counted_from) = (0u64, None, None);
    let mut last = Instant::now();
    loop {
        let length = match connection.read(&mut block) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => bail!("stream stalled or broken: {error}"),
        };
        last = Instant::now();
        let first = *first.get_or_insert(last);
        if last.duration_since(first) < warm_up {
            continue;
        }
        if counted_from.is_none() {
            // This read ends the warm-up and starts the clock; its bytes arrived before.
            counted_from = Some(last);
            continue;
        }
        bytes += u64::try_from(length)?;
    }
    let seconds = counted_from.map_or(0.0, |from| last.duration_since(from).as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "no run has 2^52 bytes")]
    let bits = bytes as f64 * 8.0;
    // One of several streams may be starved during a short measurement.
    let bits_per_second = if seconds > 0.0 { bits / seconds } else { 0.0 };
    Ok(StreamReport {
        bytes,
        seconds,
        bits_per_second,
    })
}
