//! A TCP proxy in front of a server: it knows bytes and connections, and nothing of what they mean.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// A TCP proxy in front of a server, in threads of its own: for half-open connections, delays and cuts. Dropping it closes
/// its port and its connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    delay_micros: AtomicU64,
}

#[derive(Default)]
struct State {
    links: Vec<Weak<Link>>,
    accepted: usize,
    refuse: bool,
    blackhole_new: bool,
    stopped: bool,
}

/// One connection: both of its ends, closed when neither pump runs any more.
struct Link {
    client: TcpStream,
    /// None where nothing was ever to be forwarded.
    server: Option<TcpStream>,
    dead: AtomicBool,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1. Where the target does not accept, a new connection is closed.
    pub fn start(target_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("the listener is bound").port();
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.accept(&listener, target_port))
        };
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// `redis://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// On: the present connections become half-open. They stay open, what either end sends or closes from now on never
    /// arrives, and no off brings them back. Connections accepted later work, unless [`Self::blackhole_new`] is on.
    pub fn blackhole(&self, on: bool) {
        for link in self.shared.lock().links.iter().filter_map(Weak::upgrade) {
            link.dead.fetch_or(on, Ordering::SeqCst);
        }
    }

    /// While on: new connections are accepted and nothing is ever forwarded on them. They do not reach the target.
    pub fn blackhole_new(&self, on: bool) {
        self.shared.lock().blackhole_new = on;
    }

    /// Closes all present connections, at both ends.
    pub fn cut(&self) {
        for link in self.shared.lock().links.drain(..).filter_map(|link| link.upgrade()) {
            link.close();
        }
    }

    /// While on: new connections are closed at once.
    pub fn refuse(&self, on: bool) {
        self.shared.lock().refuse = on;
    }

    /// Holds everything back for so long, in each direction, before it is forwarded. Zero ends it.
    pub fn delay(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).expect("a delay is no age");
        self.shared.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        // A last connection wakes the acceptor.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
            let _ = self.acceptor.take().map(JoinHandle::join);
        }
        self.cut();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn accept(self: Arc<Self>, listener: &TcpListener, target_port: u16) {
        for client in listener.incoming().flatten() {
            // Held until the link is in the list: a switch or a cut comes wholly before this connection or after it.
            let mut state = self.lock();
            if state.stopped {
                return;
            }
            state.accepted += 1;
            if state.refuse {
                continue;
            }
            let server = (!state.blackhole_new).then(|| TcpStream::connect((Ipv4Addr::LOCALHOST, target_port)));
            let Ok(server) = server.transpose() else { continue };
            let link = Arc::new(Link { dead: AtomicBool::new(server.is_none()), client, server });
            for end in link.ends() {
                // Two small writes are not to wait for each other's acknowledgement.
                let _ = end.set_nodelay(true);
            }
            state.links.retain(|link| link.strong_count() > 0);
            state.links.push(Arc::downgrade(&link));
            for upward in [true, false] {
                let (shared, link) = (Arc::clone(&self), Arc::clone(&link));
                thread::spawn(move || shared.pump(&link, upward));
            }
        }
    }

    /// Forwards one direction of a link until it ends.
    fn pump(&self, link: &Link, upward: bool) {
        let ends = (Some(&link.client), link.server.as_ref());
        let (from, to) = if upward { ends } else { (ends.1, ends.0) };
        let Some(mut from) = from else { return };
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = from.read(&mut buffer).unwrap_or(0);
            thread::sleep(Duration::from_micros(self.delay_micros.load(Ordering::SeqCst)));
            if let Some(mut to) = to
                && !link.dead.load(Ordering::SeqCst)
            {
                if length == 0 {
                    let _ = to.shutdown(Shutdown::Write);
                } else if to.write_all(&buffer[..length]).is_err() {
                    return link.close();
                }
            }
            if length == 0 {
                return;
            }
        }
    }
}

impl Link {
    fn ends(&self) -> impl Iterator<Item = &TcpStream> {
        [Some(&self.client), self.server.as_ref()].into_iter().flatten()
    }

    fn close(&self) {
        for end in self.ends() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
