//! `get`: a minimal HTTP client that prints the bodies of the responses.

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
    /// Requests to send, each over its own connection.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Seconds between two requests.
    #[arg(long, default_value_t = 0.0)]
    interval: f64,
    /// Timeout in seconds for the connection and for each response.
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
        url.send_request(&mut connection, "close")?;
        let answer = read_response(&mut BufReader::new(&connection));
        print!("{}", answer.with_context(|| format!("request {number}"))?);
    }
    Ok(())
}

/// A URL without scheme.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    host: String,
    port: u16,
    path: String,
}

impl Url {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("URL `{url}` does not start with http://")
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
            bail!("URL `{url}` has no host");
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

    pub(crate) fn send_request(&self, connection: &mut TcpStream, connection_header: &str) -> Result<()> {
        write!(
            connection,
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: {connection_header}\r\n\r\n",
            self.path, self.host
        )
        .context("cannot send the request")
    }
}

/// Reads one response and returns its body; a status other than 200 is an error.
pub(crate) fn read_response(from: &mut impl BufRead) -> Result<String> {
    let mut status = String::new();
    from.read_line(&mut status).context("no response")?;
    if status.split_whitespace().nth(1) != Some("200") {
        bail!("status `{}`", status.trim_end());
    }
    let mut length = None;
    loop {
        let mut line = String::new();
        from.read_line(&mut line).context("truncated headers")?;
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
    .context("truncated body")?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
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
    fn the_body_ends_at_its_content_length() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1";
        assert_eq!(read_response(&mut text.as_bytes()).unwrap(), "abc");
        assert!(read_response(&mut "HTTP/1.1 503 Busy\r\n\r\n".as_bytes()).is_err());
    }
}
