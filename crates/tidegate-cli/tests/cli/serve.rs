//! `tidegate serve` as a shell and its clients see it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::tempdir;
use tidegate_server::config::{Listen, SETTINGS};
use tidegate_testkit::process::free_ports;

use super::running::{Running, command};

#[test]
fn without_a_file_a_hundred_requests_of_a_user_are_allowed() {
    let folder = tempdir().expect("a folder");
    let running = Running::start(folder.path(), &[]);
    for said in [
        "per-user: 100/min for each user",
        "per-ip: ",
        "per-key: ",
        "memory",
        "not served by this version: grpc, resp\n",
        "/metrics",
    ] {
        assert!(running.greeting.contains(said), "{}", running.greeting);
    }
    for _ in 0..100 {
        assert!(running.get("/v1/check?user=42").starts_with("HTTP/1.1 200 "));
    }
    let denied = running.get("/v1/check?user=42");
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    for header in ["retry-after: ", "ratelimit: \"per-user\";r=0;t=", "ratelimit-policy: \"per-user\";q=100;w=60\r\n"] {
        assert!(denied.contains(header), "{denied}");
    }
    assert!(running.get("/v1/check?user=43").starts_with("HTTP/1.1 200 "));
    assert_eq!(running.end(Signal::SIGTERM), Some(0));
}

#[test]
fn what_was_counted_is_there_after_a_restart() {
    let folder = tempdir().expect("a folder");
    let file = "[store]\nsnapshot = \"counted\"\n[[policy]]\nname = \"daily\"\nkey = [\"user\"]\nquota = \"10/day\"\n";
    fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
    for (signal, left) in [(Signal::SIGTERM, 9), (Signal::SIGINT, 8), (Signal::SIGTERM, 7)] {
        let running = Running::start(folder.path(), &["--config", "tidegate.toml"]);
        assert!(running.greeting.contains("memory, kept in counted"), "{}", running.greeting);
        let reply = running.get("/v1/check?user=42");
        assert!(reply.contains(&format!("\"remaining\":{left},")), "{reply}");
        assert_eq!(running.end(signal), Some(0));
    }
}

/// A request without its body: it is under way by the time that another is answered.
fn unfinished(running: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(&running.address).expect("connected");
    let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

/// The reply to it, or as much as there is.
fn finished(stream: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    let _ = stream.write_all(br#"{"attributes":{}}"#);
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).expect("text")
}

#[test]
fn a_second_signal_does_not_wait_for_the_grace_time() {
    let folder = tempdir().expect("a folder");
    fs::write(folder.path().join("tidegate.toml"), "[limits]\nshutdown_grace = \"1h\"\nheader_timeout = \"1h\"").expect("a file");
    let mut running = Running::start(folder.path(), &["--config", "tidegate.toml"]);
    let [mut first, _never_finished] = [(); 2].map(|()| unfinished(&running));
    // By the time that another is answered, this one is under way.
    assert!(running.get("/v1/check").starts_with("HTTP/1.1 200 "));
    running.signal(Signal::SIGTERM);
    while TcpStream::connect(&running.address).is_ok() {
        std::thread::yield_now();
    }
    // It has heard that one, and waits: for this, and then for the other.
    let reply = finished(&mut first);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert!(running.process.try_wait().expect("known").is_none(), "it waits");
    assert_eq!(running.end(Signal::SIGINT), Some(0));
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let folder = tempdir().expect("a folder");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("one").to_string();
    fs::write(folder.path().join("wrong.toml"), "[store]\nurll = \"memory\"").expect("a file");
    fs::write(folder.path().join("secret.toml"), "[store]\nurl = \"redis://127.0.0.1:1/\"\npassword_file = \"none\"")
        .expect("a file");
    fs::write(folder.path().join("empty.toml"), " \n").expect("a file");
    fs::write(folder.path().join("snapshot.toml"), "[store]\nsnapshot = \"none/limits\"").expect("a file");
    let is_taken = format!("{address} is taken by another program; end that one, or listen elsewhere with --http ADDR\n");
    for (arguments, code, said) in [
        (&["--http", address.as_str()][..], 1, is_taken.as_str()),
        (&["--http", "off"], 2, "nothing listens: "),
        (&["--store", "mysql://host/"], 2, "--store: not a store; "),
        (&["--http", "127.0.0.1:0", "--config", "none.toml"], 2, "none.toml cannot be read: "),
        (&["--http", "127.0.0.1:0", "--config", "wrong.toml"], 2, "wrong.toml:2:1: unknown key `urll`"),
        (&["--http", "127.0.0.1:0", "--config", "secret.toml"], 2, "store.password_file: none cannot be read: "),
        (&["--http", "127.0.0.1:0", "--config", "empty.toml"], 2, "empty.toml is empty; `tidegate config init` prints a file "),
        (&["--http", "127.0.0.1:0", "--config", "snapshot.toml"], 2, "store.snapshot: none is not there; make this folder, "),
        (&["--http", "127.0.0.1:0", "--admin", "0.0.0.0:0"], 2, "--admin: who can reach this can change the server; "),
    ] {
        let output = command(folder.path(), arguments).output().expect("it runs");
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(said), "{arguments:?}: {stderr}");
    }
}

#[test]
fn who_waits_for_its_store_can_be_stopped() {
    let folder = tempdir().expect("a folder");
    // The system accepts for it, and nobody reads.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = format!("redis://{}/", silent.local_addr().expect("one"));
    let [port] = free_ports();
    let http = format!("127.0.0.1:{port}");
    let mut command = command(folder.path(), &["--http", &http, "--store", &store]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    while TcpStream::connect(&http).is_err() {
        std::thread::yield_now();
    }
    kill(Pid::from_raw(i32::try_from(process.id()).expect("one")), Signal::SIGTERM).expect("sent");
    let output = process.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "it has not started: {output:?}");
}

/// What a server says on standard error that is told to stop once it has started.
fn said(command: &mut Command) -> String {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut greeted = String::new();
    let mut output = BufReader::new(process.stdout.as_mut().expect("piped"));
    while !greeted.contains("curl") {
        assert!(output.read_line(&mut greeted).expect("text") > 0, "{greeted}");
    }
    kill(Pid::from_raw(i32::try_from(process.id()).expect("one")), Signal::SIGTERM).expect("sent");
    String::from_utf8(process.wait_with_output().expect("it ends").stderr).expect("text")
}

#[test]
fn the_log_is_on_standard_error_as_it_is_asked_for() {
    let folder = tempdir().expect("a folder");
    let ended = |variable: &str, value: &str| said(command(folder.path(), &["--http", "127.0.0.1:0"]).env(variable, value));
    let json = ended("TIDEGATE_LOG_FORMAT", "json");
    assert!(json.lines().count() > 0 && json.lines().all(|line| line.starts_with("{\"timestamp\":")), "{json}");
    let text = ended("TIDEGATE_LOG_FORMAT", "text");
    assert!(text.contains(" INFO ") && text.contains("stopped allowed=0 denied=0 failed=0"), "{text}");
    assert_eq!(ended("TIDEGATE_LOG", "off"), "");
}

#[test]
fn it_serves_until_it_is_told_to_stop_however_little_it_says() {
    let folder = tempdir().expect("a folder");
    for level in ["off", "error", "warn", "info"] {
        let running = Running::by(command(folder.path(), &["--http", "127.0.0.1:0"]).env("TIDEGATE_LOG", level));
        let mut unfinished = unfinished(&running);
        assert!(running.get("/v1/check").starts_with("HTTP/1.1 200 "), "{level}");
        running.signal(Signal::SIGTERM);
        // To one that was stopping already this would be the second signal, and it would not wait for the rest of the request.
        while TcpStream::connect(&running.address).is_ok() {
            std::thread::yield_now();
        }
        assert!(finished(&mut unfinished).starts_with("HTTP/1.1 200 "), "{level}");
        assert_eq!(running.ended(), Some(0), "{level}");
    }
}

#[test]
fn a_file_that_is_still_wrong_is_told_of_to_who_asks_again() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, "[listen]\nadmin = \"off\"").expect("a file");
    let mut served = command(folder.path(), &["--config", "tidegate.toml", "--http", "127.0.0.1:0"]);
    let mut running = Running::by(served.stderr(Stdio::piped()));
    let stderr = BufReader::new(running.process.stderr.take().expect("piped"));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let places = stderr.lines().map_while(Result::ok).filter(|line| line.contains("tidegate.toml:2:9: "));
        places.for_each(|place| drop(tell.send(place)));
    });
    fs::write(&path, "[listen]\nadmin = \"of\"").expect("a file");
    for _ in 0..3 {
        running.signal(Signal::SIGHUP);
        told.recv_timeout(Duration::from_secs(20)).expect("it is told of");
    }
}

/// Where the admin surface listens.
fn admin(greeting: &str) -> &str {
    greeting.split("admin   http://").nth(1).and_then(|rest| rest.split(',').next()).expect("told")
}

#[test]
fn a_server_whose_log_nobody_reads_serves_and_ends() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let folder = tempdir().expect("a folder");
    let file = "[store]\nsnapshot = \"counted\"\n[[policy]]\nname = \"daily\"\nkey = [\"user\"]\nquota = \"1/day\"\n";
    fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
    let mut served = command(folder.path(), &["--config", "tidegate.toml", "--http", "127.0.0.1:0"]);
    let mut running = Running::by(served.stderr(Stdio::piped()));
    let ask = |address: &str, head: &str| {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        write!(stream, "{head}\r\nconnection: close\r\n\r\n").expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply in time");
        reply
    };
    // Denials are written there too, and are more than a pipe holds.
    for _ in 0..1000 {
        ask(&running.address, "GET /v1/check?user=42 HTTP/1.1\r\nhost: a");
    }
    // Each is a warning, but for those within a second.
    for _ in 0..3 {
        let refused = ask(admin(&running.greeting), "GET /metrics HTTP/1.1\r\nhost: sesame.example");
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    }
    let metrics = ask(admin(&running.greeting), "GET /metrics HTTP/1.1\r\nhost: localhost");
    assert!(metrics.contains("\ntidegate_admin_refused_total{reason=\"host\"} 3\n"), "{metrics}");
    let denied = ask(&running.address, "GET /v1/check?user=42 HTTP/1.1\r\nhost: a");
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");

    running.signal(Signal::SIGTERM);
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match running.process.try_wait().expect("known") {
            None if Instant::now() < deadline => std::thread::yield_now(),
            ended => break ended,
        }
    };
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
    assert!(folder.path().join("counted").exists());
}

#[test]
fn lines_that_nobody_read_in_time_are_counted() {
    // More than a pipe and the queue hold.
    const CHANGES: usize = 1800;
    let folder = tempdir().expect("a folder");
    let mut served = command(folder.path(), &["--http", "127.0.0.1:0"]);
    let mut running = Running::by(served.env("TIDEGATE_LOG", "error").stderr(Stdio::piped()));
    let mut stream = BufReader::new(TcpStream::connect(admin(&running.greeting)).expect("connected"));
    for number in 0..CHANGES {
        let body = format!("{{\"quota\":\"{}/min\"}}", number + 1);
        let head = "PATCH /v1/policies/per-user HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.get_mut().write_all(request.as_bytes()).expect("sent");
        let (mut line, mut length) = (String::new(), 0);
        while stream.read_line(&mut line).expect("text") > 2 {
            length = line.strip_prefix("content-length: ").map_or(length, |length| length.trim().parse().expect("one"));
            line.clear();
        }
        stream.read_exact(&mut vec![0; length]).expect("a body");
    }
    let mut said = running.process.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).expect("text");
        text
    });
    assert_eq!(running.end(Signal::SIGTERM), Some(0));
    let text = reader.join().expect("read");
    let told = text.lines().filter(|line| line.contains("tidegate::audit: a policy was changed")).count();
    let lost = text.lines().filter_map(|line| line.split_once(" lost=")?.1.parse::<usize>().ok());
    let lost: Vec<usize> = lost.collect();
    assert!(!lost.is_empty() && told + lost.iter().sum::<usize>() == CHANGES, "{told} and {lost:?}");
}

#[test]
fn who_has_changed_what_is_said_also_where_little_is() {
    let folder = tempdir().expect("a folder");
    let changed = |level: &str| {
        let mut command = command(folder.path(), &["--http", "127.0.0.1:0"]);
        let command = command.env("TIDEGATE_LOG", level).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let mut greeted = String::new();
        let mut output = BufReader::new(process.stdout.as_mut().expect("piped"));
        while !greeted.contains("curl") {
            output.read_line(&mut greeted).expect("text");
        }
        let mut stream = TcpStream::connect(admin(&greeted)).expect("connected");
        let head = "PUT /v1/policies HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{head}\r\ncontent-length: 15\r\n\r\n{{\"policies\":[]}}").expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        kill(Pid::from_raw(i32::try_from(process.id()).expect("one")), Signal::SIGTERM).expect("sent");
        String::from_utf8(process.wait_with_output().expect("it ends").stderr).expect("text")
    };
    for level in ["warn", "error"] {
        let said = changed(level);
        assert!(
            said.contains("tidegate::audit: the policies were replaced") && said.matches(" INFO ").count() == 1,
            "{level}: {said}"
        );
    }
    assert_eq!(changed("off"), "");
}

#[test]
fn a_server_that_is_told_to_read_its_file_again_while_it_starts_goes_on() {
    let folder = tempdir().expect("a folder");
    let [http, store] = free_ports();
    let (http, store) = (format!("127.0.0.1:{http}"), format!("redis://127.0.0.1:{store}/"));
    let mut served = command(folder.path(), &["--http", &http, "--store", &store]);
    let mut process = served.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    // It listens, and waits for its store.
    while TcpStream::connect(&http).is_err() {
        assert_eq!(process.try_wait().expect("known"), None);
    }
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("one"));
    kill(pid, Signal::SIGHUP).expect("sent");
    let mut stream = TcpStream::connect(&http).expect("connected");
    stream.write_all(b"GET /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("sent");
    let mut reply = String::new();
    let read = stream.read_to_string(&mut reply);
    let _ = kill(pid, Signal::SIGTERM);
    assert_eq!(process.wait().expect("it ends").code(), Some(0), "{read:?}");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

#[test]
fn more_files_are_opened_than_a_shell_allows_at_first() {
    let folder = tempdir().expect("a folder");
    let served = command(folder.path(), &["--http", "127.0.0.1:0"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\""]).arg(served.get_program()).args(served.get_args());
    let running = Running::by(limited.current_dir(folder.path()).env("TIDEGATE_ADMIN", "127.0.0.1:0"));
    let mut connections = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(&running.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        stream.write_all(b"GET /v1/check HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(status, *b"HTTP/1.1 200");
        connections.push(stream);
    }
}

#[test]
fn the_environment_is_heard_and_a_flag_wins() {
    let folder = tempdir().expect("a folder");
    let output = command(folder.path(), &[]).env("TIDEGATE_HTTP", "nowhere").output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("TIDEGATE_HTTP: `nowhere`"), "{output:?}");
    let output = command(folder.path(), &["--http", "there"]).env("TIDEGATE_HTTP", "nowhere").output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("--http: `there`"), "{output:?}");
}

#[test]
fn variables_that_are_misspelt_or_win_over_the_file_are_told_of() {
    let folder = tempdir().expect("a folder");
    fs::write(folder.path().join("tidegate.toml"), "[listen]\nhttp = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:2\"").expect("a file");
    let mut served = command(folder.path(), &["--http", "127.0.0.1:0"]);
    let said = said(served.env("TIDEGATE_CONFIG", "tidegate.toml").env("TIDEGATE_STORE_URL", "redis://:hunter2@127.0.0.1:1/"));
    for line in [
        " WARN tidegate_server::serve: unknown variable `TIDEGATE_STORE_URL`; did you mean `TIDEGATE_STORE`?\n",
        " WARN tidegate_server::serve::policies: no policy is in force: everything is allowed\n",
        ": listen.http is what --http says, and not what the file does\n",
        ": listen.admin is what TIDEGATE_ADMIN says, and not what the file does\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(!said.contains("hunter2") && !said.contains("TIDEGATE_CONFIG"), "{said}");
}

#[test]
fn the_help_tells_defaults_variables_and_exit_codes() {
    let folder = tempdir().expect("a folder");
    let output = command(folder.path(), &["--help"]).output().expect("it runs");
    let help = String::from_utf8(output.stdout).expect("text");
    let listen = Listen::default();
    let variables = SETTINGS.iter().map(|setting| format!("  {} ", setting.variable));
    let defaults = [&listen.http, &listen.admin].map(|listener| format!("[default: {listener}]"));
    let said = ["TIDEGATE_CONFIG", "Examples:", "Exit codes:"].map(str::to_owned);
    for word in variables.chain(defaults).chain(said) {
        assert!(help.contains(&word), "{word}: {help}");
    }
}

#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
    let folder = tempdir().expect("a folder");
    let served = command(folder.path(), &["--http", "127.0.0.1:0"]).env("TIDEGATE_STORE", OsStr::from_bytes(b"mem\xff")).output();
    let output = served.expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "TIDEGATE_STORE: this is not UTF-8; write a text\n");
    assert_eq!(output.status.code(), Some(2));
}
