//! The servers do what they say, seen through the `redis` crate.

use std::{
    collections::HashSet,
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::{Client, ClientTlsConfig, Commands, Connection, TlsCertificates};
use tidegate_testkit::Server;

fn connect(url: String) -> redis::RedisResult<Connection> {
    Client::open(url).expect("the URL is valid").get_connection()
}

fn pings(connection: &mut Connection) -> bool {
    redis::cmd("PING").query::<String>(connection).is_ok_and(|answer| answer == "PONG")
}

fn directory(server: &Server) -> PathBuf {
    let socket = server.unix_url();
    Path::new(socket.strip_prefix("unix://").expect("it is a unix URL")).parent().expect("it is in a directory").to_owned()
}

fn runs(pid: u32) -> bool {
    // Where nobody waits for orphans, a dead one remains as a zombie.
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| !status.contains("State:\tZ"))
}

fn eventually(what: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !what() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    what()
}

#[test]
fn starts_empty_and_leaves_nothing() {
    let server = Server::start();
    let (pid, directory) = (server.pid(), directory(&server));
    let mut connection = server.connection();
    assert_eq!(redis::cmd("DBSIZE").query(&mut connection), Ok(0));
    assert_eq!(redis::cmd("CONFIG").arg("GET").arg("save").query(&mut connection), Ok(("save".to_owned(), String::new())));
    assert!(runs(pid) && directory.exists());
    drop(server);
    assert!(!runs(pid) && !directory.exists());
}

#[test]
fn many_start_at_once() {
    let threads: Vec<_> = (0..8).map(|_| thread::spawn(Server::start)).collect();
    let servers: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("it starts")).collect();
    assert_eq!(servers.iter().map(Server::port).collect::<HashSet<_>>().len(), servers.len());
    for server in &servers {
        let info: String = redis::cmd("INFO").arg("server").query(&mut server.connection()).expect("it answers");
        assert!(info.contains(&format!("process_id:{}\r\n", server.pid())));
    }
}

#[test]
fn takes_arguments() {
    let server = Server::start_with(&["--maxmemory", "50mb"]);
    let answer = redis::cmd("CONFIG").arg("GET").arg("maxmemory").query(&mut server.connection());
    assert_eq!(answer, Ok(("maxmemory".to_owned(), 50 << 20)));
}

#[test]
fn starts_with_a_password() {
    let server = Server::start_with(&["--requirepass", "secret"]);
    assert!(!pings(&mut server.connection()));
    assert!(pings(&mut connect(format!("redis://:secret@127.0.0.1:{}/", server.port())).expect("the password is right")));
}

#[test]
#[should_panic = "no-such-option"]
fn says_why_it_does_not_start() {
    Server::builder().argument("--no-such-option").start();
}

#[test]
#[should_panic = "scripts/setup installs it"]
fn says_what_is_missing() {
    Server::builder().binary("no-such-server").start();
}

#[test]
fn a_unix_socket() {
    let server = Server::start();
    let mut connection = connect(server.unix_url()).expect("the socket is there");
    connection.set::<_, _, ()>("key", 7).expect("it writes");
    assert_eq!(server.connection().get("key"), Ok(7));
}

#[test]
fn a_restart_keeps_the_port_and_loses_the_data() {
    let mut server = Server::builder().argument("--maxmemory").argument("50mb").start();
    let (port, pid) = (server.port(), server.pid());
    let mut old = server.connection();
    old.set::<_, _, ()>("key", 7).expect("it writes");

    server.kill();
    assert!(!runs(pid) && !pings(&mut old));
    assert!(connect(server.url()).is_err() && connect(server.unix_url()).is_err());

    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.connection().exists("key"), Ok(false));
    assert!(pings(&mut connect(server.unix_url()).expect("the socket is back")));
    let answer = redis::cmd("CONFIG").arg("GET").arg("maxmemory").query(&mut server.connection());
    assert_eq!(answer, Ok(("maxmemory".to_owned(), 50 << 20)));

    let pid = server.pid();
    server.restart();
    assert!(!runs(pid) && pings(&mut server.connection()));
}

#[test]
fn a_frozen_server_says_nothing() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout can be set");
    server.freeze();
    server.freeze();
    let error = redis::cmd("PING").exec(&mut connection).expect_err("it is frozen");
    assert!(error.is_timeout(), "{error}");
    server.thaw();
    assert!(pings(&mut server.connection()));
    server.freeze();
    // And is dropped all the same.
}

#[test]
fn tls_asks_for_a_certificate() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut server = Server::builder().tls().start();
    let certificates = server.certificates();
    let root_cert = Some(certificates.root.clone().into_bytes());
    let client_tls = Some(ClientTlsConfig {
        client_cert: certificates.client_cert.clone().into_bytes(),
        client_key: certificates.client_key.clone().into_bytes(),
    });
    let stranger = Server::builder().tls().start();
    let strange_root = Some(stranger.certificates().root.clone().into_bytes());
    let pings_with = |url: String, client_tls: &Option<ClientTlsConfig>, root_cert: &Option<Vec<u8>>| {
        let certificates = TlsCertificates { client_tls: client_tls.clone(), root_cert: root_cert.clone() };
        let client = Client::build_with_tls(url, certificates).expect("the certificates are well-formed");
        client.get_connection().is_ok_and(|mut connection| pings(&mut connection))
    };

    assert!(pings_with(server.tls_url(), &client_tls, &root_cert));
    assert!(pings_with(server.tls_url().replace("localhost", "127.0.0.1"), &client_tls, &root_cert));
    assert!(!pings_with(server.tls_url(), &None, &root_cert), "without a certificate");
    assert!(!pings_with(server.tls_url(), &client_tls, &strange_root), "a client that trusts another authority");
    assert!(!pings_with(stranger.tls_url(), &client_tls, &strange_root), "a client of another authority");
    assert!(pings(&mut server.connection()), "in the clear, beside it");

    let url = server.tls_url();
    server.restart();
    assert_eq!(server.tls_url(), url);
    assert!(pings_with(url, &client_tls, &root_cert));
}

#[test]
fn counts_commands() {
    let server = Server::start();
    let before = server.commands();
    assert_eq!(server.commands() - before, 1, "the call before");
    let mut connection = server.connection();
    assert_eq!(server.commands() - before, 2, "a connection is no command");
    assert!(pings(&mut connection) && pings(&mut connection));
    assert_eq!(server.commands() - before, 5);
    let script = redis::Script::new("redis.call('SET', 'a', 1) redis.call('SET', 'b', 1)");
    script.load(&mut connection).expect("it loads");
    let before = server.commands();
    script.invoke::<()>(&mut connection).expect("it runs");
    assert_eq!(server.commands() - before, 4, "the call before, the script and what it calls");
}

#[test]
fn measures_memory() {
    let server = Server::start();
    let before = server.used_memory();
    server.connection().set::<_, _, ()>("key", vec![0_u8; 1 << 20]).expect("it writes");
    let grown = server.used_memory() - before;
    assert!((1 << 20..3 << 20).contains(&grown), "{grown}");
}

#[test]
fn measures_cpu_time() {
    let server = Server::start();
    let before = server.cpu_micros();
    redis::Script::new("for _ = 1, 3e6 do end").invoke::<()>(&mut server.connection()).expect("it works");
    let spent = server.cpu_micros() - before;
    assert!(spent > 1_000, "{spent}");
    let before = server.cpu_micros();
    thread::sleep(Duration::from_millis(100));
    let idle = server.cpu_micros() - before;
    assert!(idle < 50_000, "{idle}");
}

#[test]
fn valkey_where_it_is_installed() {
    let Some(server) = Server::try_valkey() else { return println!("there is no valkey-server") };
    let info: String = redis::cmd("INFO").arg("server").query(&mut server.connection()).expect("it answers");
    assert!(info.contains("valkey_version:"), "{info}");
    assert!(pings(&mut connect(server.unix_url()).expect("the socket is there")));
    assert!(server.used_memory() > 0 && server.commands() > 0 && server.cpu_micros() > 0);
}

/// Started again by the test below: leaves a server to the end of this process.
#[test]
fn forgets_a_server() {
    if env::var_os("TESTKIT_FORGET").is_none() {
        return;
    }
    let server = Server::start();
    println!("\nforgotten {} {}", server.pid(), directory(&server).display());
    std::mem::forget(server);
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_server_ends_with_its_process() {
    let mut child = Command::new(env::current_exe().expect("this test is a program"))
        .args(["--exact", "forgets_a_server", "--nocapture"])
        .env("TESTKIT_FORGET", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.strip_prefix("forgotten ").map(str::to_owned)).expect("it starts a server");
    let (pid, directory) = line.split_once(' ').expect("there are two words");
    let pid = pid.parse().expect("it is a number");
    assert!(runs(pid) && fs::exists(directory).is_ok_and(|there| there));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(eventually(|| !runs(pid) && fs::exists(directory).is_ok_and(|there| !there)));
}
