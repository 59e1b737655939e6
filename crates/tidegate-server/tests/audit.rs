//! What administrators change is in the log, in a process of its own: a log is the process's.

use std::{
    fs, io,
    sync::{Arc, Mutex},
};

use tidegate_server::{
    config::{Sources, parse},
    serve::Server,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// What was logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the admin surface answers, on a connection of its own.
async fn ask(server: &Server, request: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(server.admin().expect("it listens")).await.expect("connected");
    let head = format!(
        "{request} HTTP/1.1\r\n{headers}connection: close\r\ncontent-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("a reply");
    reply
}

#[tokio::test]
async fn each_change_is_a_line_in_the_log_without_anything_of_a_hit_and_so_is_who_was_refused() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    let file = "[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
                [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"3/hour\"\n";
    let server = Server::start(Sources::file("none"), parse(file).expect("right")).await.expect("started");
    for (request, body, status) in [
        ("GET /v1/inspect?policy=per-user&user=sesame", "", 200),
        ("POST /v1/reset", r#"{"attributes":{"user":"sesame"}}"#, 200),
        ("PATCH /v1/policies/per-user", r#"{"quota":"sesame"}"#, 400),
        ("PATCH /v1/policies/sesame", r#"{"quota":"1/s"}"#, 404),
        ("PATCH /v1/policies/per-user", r#"{"quota":"9/hour","blocked":["sesame"]}"#, 200),
        ("PATCH /v1/policies/per-user", r#"{"mode":"shadow","blocked":null,"match":{"kind":"sesame"}}"#, 200),
        ("PUT /v1/policies", r#"{"policies":[]}"#, 200),
        // No policy is left that applies.
        ("POST /v1/reset", r#"{"attributes":{"user":"sesame"}}"#, 200),
    ] {
        let reply = ask(&server, request, "host: localhost\r\n", body).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {reply}");
    }
    let text = String::from_utf8(lines.0.lock().expect("whole").clone()).expect("text");
    let audit: Vec<&str> = text.lines().filter(|line| line.contains("tidegate::audit")).collect();
    const SAID: [&str; 5] =
        [" a key was reset", "a policy was changed", "a policy was changed", "the policies were replaced", "no key was reset"];
    assert_eq!(audit.len(), SAID.len(), "{text}");
    for (line, said) in audit.iter().zip(SAID) {
        assert!(line.contains(said) && line.contains("peer=127.0.0.1:") && line.contains("role=Write"), "{line}");
    }
    for (line, change) in [
        (1, r#"from="per-user quota=3/hour blocked=0" to="per-user quota=9/hour blocked=1""#),
        (2, r#"from="per-user match=0 mode=enforce blocked=1" to="per-user match=1 mode=shadow blocked=0""#),
        (3, r#"quota=9/hour mode=shadow counts=cost override=0 unlimited=0 blocked=0" to="""#),
    ] {
        assert!(audit[line].contains(change), "{}", audit[line]);
    }
    assert!(audit[0].contains("per-user") && audit[1].contains("per-user") && !text.contains("sesame"), "{text}");

    // It may have been done.
    let unreached = format!("[store]\nurl = \"redis://127.0.0.1:1/\"\n{file}");
    let server = Server::start(Sources::file("none"), parse(&unreached).expect("right")).await.expect("started");
    let reply = ask(&server, "POST /v1/reset", "host: localhost\r\n", r#"{"attributes":{"user":"sesame"}}"#).await;
    assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
    let text = String::from_utf8(lines.0.lock().expect("whole").clone()).expect("text");
    assert!(text.contains("a key was to be reset, and the store has not said if it is") && !text.contains("sesame"), "{text}");

    lines.0.lock().expect("whole").clear();
    let folder = tempfile::tempdir().expect("a folder");
    let token = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("{name}-sesame")).expect("a file");
        path
    };
    let file = format!("{file}[admin]\nread_token_file = {:?}\nwrite_token_file = {:?}\n", token("read"), token("write"));
    let server = Server::start(Sources::file("none"), parse(&file).expect("right")).await.expect("started");
    const REFUSED: [(&str, &str); 5] = [
        ("host: sesame.example\r\n", "host"),
        ("host: localhost\r\norigin: http://sesame.example\r\n", "origin"),
        ("host: localhost\r\n", "no-token"),
        ("host: localhost\r\nauthorization: Bearer sesame\r\n", "wrong-token"),
        ("host: localhost\r\nauthorization: Bearer read-sesame\r\n", "role"),
    ];
    // Those that come in the same second are counted, and not told.
    for _ in 0..20 {
        for (headers, _) in REFUSED {
            let reply = ask(&server, "PUT /v1/policies", headers, "").await;
            assert!(reply.starts_with("HTTP/1.1 40"), "{reply}");
        }
    }
    let metrics = ask(&server, "GET /metrics", "host: localhost\r\nauthorization: Bearer read-sesame\r\n", "").await;
    let text = String::from_utf8(lines.0.lock().expect("whole").clone()).expect("text");
    let audit: Vec<&str> = text.lines().filter(|line| line.contains("tidegate::audit")).collect();
    for (_, reason) in REFUSED {
        assert!(metrics.contains(&format!("\ntidegate_admin_refused_total{{reason=\"{reason}\"}} 20\n")), "{metrics}");
        let told: Vec<&&str> = audit.iter().filter(|line| line.contains(&format!("reason=\"{reason}\""))).collect();
        assert!((1..20).contains(&told.len()), "{text}");
        assert!(told.iter().all(|line| line.contains(" WARN ") && line.contains("peer=127.0.0.1:")), "{text}");
    }
    assert!(!text.contains("sesame"), "{text}");
}
