//! `get`: the smallest HTTP client that tells whether a Service answers, and who answered.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `http://HOST[:PORT][/PATH]`.
    url: String,
    /// Requests to send, each over a connection of its own.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Seconds between two requests.
    #[arg(long, default_value_t = 0.0)]
    interval: f64,
    /// Seconds to wait for a connection and for each answer.
    #[arg(long, default_value_t = 3.0)]
    timeout: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let url = Url::parse(&args.url)?;
    let timeout = Duration::try_from_secs_f64(args.timeout).context("--timeout")?;
    let interval = Duration::try_from_secs_f64(args.interval).context("--interval")?;
    for number in 0..args.count {
        if number > 0 {
            thread::sleep(interval);
        }
        let mut connection = url
            .connect(timeout)
            .with_context(|| format!("request {number}"))?;
        url.ask(&mut connection, "close")?;
        let answer = answer(&mut BufReader::new(&connection));
        print!("{}", answer.with_context(|| format!("request {number}"))?);
    }
    Ok(())
}

/// The parts of a URL that matter here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
    path: String,
}

impl Url {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("`{url}` does not start with http://")
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().with_context(|| format!("port of `{url}`"))?),
            None => (authority, 80),
        };
        if host.is_empty() {
            bail!("`{url}` names no host");
        }
        Ok(Self {
            // An IPv6 address is in brackets (RFC 3986).
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port,
            path,
        })
    }

    pub(crate) fn connect(&self, timeout: Duration) -> Result<TcpStream> {
        let to = (self.host.as_str(), self.port);
        let address = to
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {to:?}"))?
            .next();
        let address = address.with_context(|| format!("no address for {to:?}"))?;
        let connection = TcpStream::connect_timeout(&address, timeout)
            .with_context(|| format!("cannot connect to {address}"))?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(timeout))?;
        Ok(connection)
    }

    pub(crate) fn ask(&self, connection: &mut TcpStream, connection_header: &str) -> Result<()> {
        write!(
            connection,
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: {connection_header}\r\n\r\n",
            self.path, self.host
        )
        .context("cannot send the request")
    }
}

/// Reads one answer and returns its body; a status other than 200 is an error.
pub(crate) fn answer(from: &mut impl BufRead) -> Result<String> {
    let mut status = String::new();
    from.read_line(&mut status).context("no answer")?;
    if status.split_whitespace().nth(1) != Some("200") {
        bail!("status `{}`", status.trim_end());
    }
    let mut length = None;
    loop {
        let mut line = String::new();
        from.read_line(&mut line).context("answer ends in its headers")?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(
                value
                    .trim()
                    .parse::<u64>()
                    .with_context(|| format!("header `{line}`"))?,
            );
        }
    }
    let mut body = String::new();
    match length {
        Some(length) => from.take(length).read_to_string(&mut body),
        None => from.read_to_string(&mut body),
    }
    .context("answer ends in its body")?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parts() {
        let url = Url::parse("http://10.0.0.1:8080/a/b").unwrap();
        assert_eq!(
            url,
            Url {
                host: "10.0.0.1".to_owned(),
                port: 8080,
                path: "/a/b".to_owned()
            }
        );
        assert_eq!(Url::parse("http://web").unwrap().port, 80);
        for bad in ["https://web", "http://", "http://web:x/"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn body_is_as_long_as_the_answer_says() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1";
        assert_eq!(answer(&mut text.as_bytes()).unwrap(), "abc");
        assert!(answer(&mut "HTTP/1.1 503 Busy\r\n\r\n".as_bytes()).is_err());
    }
}
