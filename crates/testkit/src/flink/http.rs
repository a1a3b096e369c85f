//! JSON over HTTP, as far as Flink's REST interfaces need it: one request a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long one answer may take. The machine may be compiling.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The status and the body of the answer. A body that is no JSON comes as a string.
pub(super) fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no complete HTTP answer"))
}

fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let split = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..split]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut length = None;
    let mut chunked = false;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        }
    }
    let rest = &answer[split + 4..];
    let body = match length {
        _ if chunked => unchunk(rest)?,
        // A connection that broke is no answer.
        Some(length) => rest.get(..length)?.to_vec(),
        None => rest.to_vec(),
    };
    let value = serde_json::from_slice(&body)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    Some((status, value))
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let start = end + 2;
        body.extend(rest.get(start..start + size)?);
        rest = rest.get(start + size + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_with_its_length_is_read() {
        let answer = b"HTTP/1.1 202 Accepted\r\nContent-length: 9\r\n\r\n{\"id\": 1}";
        assert_eq!(parse(answer), Some((202, json!({"id": 1}))));
        assert_eq!(parse(&answer[..answer.len() - 1]), None);
    }

    #[test]
    fn an_answer_in_chunks_is_read() {
        let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{\"id\r\n5;x\r\n\": 1}\r\n0\r\n\r\n";
        assert_eq!(parse(answer), Some((200, json!({"id": 1}))));
        assert_eq!(parse(&answer[..answer.len() - 7]), None);
    }

    #[test]
    fn a_body_that_is_no_json_is_a_string() {
        let answer = b"HTTP/1.1 404 Not Found\r\n\r\nnothing here";
        assert_eq!(parse(answer), Some((404, json!("nothing here"))));
    }
}
