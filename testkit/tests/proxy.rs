//! The proxy misbehaves as told, seen by a client that knows only sockets.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use tidegate_testkit::{Proxy, Server};

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("the proxy accepts");
        Self(stream)
    }

    /// Nothing is heard where the server is not reached: a timeout is the sign of that and so it is short.
    fn ping(&mut self, timeout: Duration) -> io::Result<[u8; 7]> {
        self.0.set_read_timeout(Some(timeout))?;
        self.0.write_all(b"PING\r\n")?;
        let mut answer = [0; 7];
        self.0.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn is_healthy(&mut self) -> bool {
        self.ping(Duration::from_secs(5)).is_ok_and(|answer| answer == *b"+PONG\r\n")
    }

    fn is_silent(&mut self) -> bool {
        self.ping(Duration::from_millis(50)).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    fn is_closed(&mut self) -> bool {
        self.ping(Duration::from_secs(5)).is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
    }
}

fn clients_of(server: &Server) -> usize {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).expect("it answers");
    list.lines().count() - 1
}

#[test]
fn forwards() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut connection = redis::Client::open(proxy.url()).expect("the URL is valid").get_connection().expect("it connects");
    // More than any buffer on the way.
    let value = vec![7_u8; 32 << 20];
    redis::cmd("SET").arg("key").arg(&value).exec(&mut connection).expect("it writes");
    assert!(redis::cmd("GET").arg("key").query(&mut connection) == Ok(value));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn closing_one_end_closes_the_other() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert!(client.is_healthy());
    let deadline = Instant::now() + Duration::from_secs(10);
    // The server takes a moment to see that the connection by which it was awaited has gone.
    while clients_of(&server) != 1 {
        assert!(Instant::now() < deadline, "the server has not this client alone");
        thread::sleep(Duration::from_millis(1));
    }
    drop(client);
    while clients_of(&server) > 0 {
        assert!(Instant::now() < deadline, "the server still has the client");
        thread::sleep(Duration::from_millis(1));
    }

    let mut client = Client::connect(&proxy);
    assert!(client.is_healthy());
    server.kill();
    assert!(client.is_closed());
    assert!(Client::connect(&proxy).is_closed(), "there is no server");
    server.restart();
    assert!(Client::connect(&proxy).is_healthy());
}

#[test]
fn half_open_for_ever() {
    let mut server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut old = Client::connect(&proxy);
    assert!(old.is_healthy());
    proxy.blackhole(true);
    assert!(old.is_silent());
    let mut new = Client::connect(&proxy);
    assert!(new.is_healthy(), "a connection made while it is on");
    assert_eq!(clients_of(&server), 2, "the server keeps its end");
    proxy.blackhole(false);
    assert!(old.is_silent());
    assert!(new.is_healthy());
    proxy.blackhole(true);
    assert!(new.is_silent());
    server.kill();
    assert!(old.is_silent() && new.is_silent(), "the end of the server is not heard of");
    assert_eq!(proxy.connections(), 2);
}

#[test]
fn new_connections_lead_nowhere() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut old = Client::connect(&proxy);
    assert!(old.is_healthy());
    proxy.blackhole_new(true);
    let mut new = Client::connect(&proxy);
    assert!(new.is_silent() && old.is_healthy());
    proxy.blackhole_new(false);
    assert!(new.is_silent() && Client::connect(&proxy).is_healthy());
    proxy.cut();
    assert!(new.is_closed());
}

#[test]
fn cuts() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut clients = [Client::connect(&proxy), Client::connect(&proxy), Client::connect(&proxy)];
    assert!(clients.iter_mut().all(Client::is_healthy));
    proxy.blackhole(true);
    let mut new = Client::connect(&proxy);
    assert!(new.is_healthy());
    proxy.cut();
    assert!(clients.iter_mut().all(Client::is_closed), "half-open ones as well");
    assert!(new.is_closed());
    assert!(Client::connect(&proxy).is_healthy());
}

#[test]
fn refuses() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut old = Client::connect(&proxy);
    assert!(old.is_healthy());
    proxy.refuse(true);
    assert!(Client::connect(&proxy).is_closed() && Client::connect(&proxy).is_closed());
    assert!(old.is_healthy());
    assert_eq!(proxy.connections(), 3);
    proxy.refuse(false);
    assert!(Client::connect(&proxy).is_healthy());
}

#[test]
fn delays() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::connect(&proxy);
    assert!(client.is_healthy());
    proxy.delay(Duration::from_millis(20));
    let start = Instant::now();
    assert!(client.is_healthy());
    assert!(start.elapsed() >= Duration::from_millis(40), "there and back");
    proxy.delay(Duration::ZERO);
    assert!(client.is_healthy());
}

#[test]
fn a_dropped_proxy_closes() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (mut client, port) = (Client::connect(&proxy), proxy.port());
    assert!(client.is_healthy());
    drop(proxy);
    assert!(client.is_closed());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
