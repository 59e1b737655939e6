//! A site: clients, a real proxy, a server that it asks, and an application behind it. The files are those of `deploy/`, with other ports.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tempfile::{TempDir, tempdir};
use tidegate_testkit::process::{ATTEMPTS, PATIENCE, Process, free_ports, tool};

use crate::repository;

/// A proxy: how it is started from a folder that has `deploy/` in it, as `deploy/README.md` says.
pub(crate) struct Proxy {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) files: &'static [&'static str],
    pub(crate) tidegate: &'static str,
}

pub(crate) struct Site {
    // Before the folder, as fields drop in this order.
    tidegate: Option<Process>,
    _proxy: Process,
    application: Application,
    folder: TempDir,
    config: &'static str,
    port: u16,
    tidegate_port: u16,
}

impl Site {
    pub(crate) fn start(proxy: &Proxy) -> Self {
        let binary = tool(proxy.name);
        assert!(binary.is_file(), "there is no {}; scripts/setup installs it", binary.display());
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let folder = tempdir().expect("a folder");
            let application = Application::start("127.0.0.1:0", "200 OK").expect("a free port");
            let [port, tidegate_port, other] = free_ports();
            let ports = [(":8000", port), (":8001", other), (":8080", tidegate_port), (":3000", application.port)];
            let mut found = [false; 4];
            for file in proxy.files {
                let mut text = fs::read_to_string(repository(file)).expect("a file");
                for ((written, port), found) in ports.iter().zip(&mut found) {
                    *found |= text.contains(written);
                    text = text.replace(written, &format!(":{port}"));
                }
                let path = folder.path().join(file);
                fs::create_dir_all(path.parent().expect("one")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            assert!(found[0] && found[2] && found[3], "{:?} name other ports", proxy.files);

            let mut command = Command::new(&binary);
            // Whatever it keeps, it keeps there.
            command.args(proxy.arguments).env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
            command.env("CADDY_ADMIN", format!("unix/{}", folder.path().join("admin").display()));
            match listening(command, folder.path(), port) {
                Ok(process) => {
                    let config = proxy.tidegate;
                    let mut site = Self { tidegate: None, _proxy: process, application, folder, config, port, tidegate_port };
                    site.start_tidegate();
                    return site;
                }
                Err(log) => said = log,
            }
        }
        panic!("{} does not start:\n{said}", proxy.name)
    }

    /// Starts the server, again if it was killed.
    pub(crate) fn start_tidegate(&mut self) {
        let start = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
            command.arg("serve").arg("--config").arg(repository(self.config));
            command.args(["--http", &format!("127.0.0.1:{}", self.tidegate_port), "--admin", "off"]);
            listening(command, self.folder.path(), self.tidegate_port)
        };
        // The port can be busy with something that passes, such as a client's end of a connection.
        let started = (1..ATTEMPTS).find_map(|_| start().ok()).map_or_else(start, Ok);
        self.tidegate = Some(started.unwrap_or_else(|log| panic!("the server does not start:\n{log}")));
    }

    pub(crate) fn kill_tidegate(&mut self) {
        self.tidegate = None;
    }

    /// The server's process.
    pub(crate) fn tidegate(&self) -> &Process {
        self.tidegate.as_ref().expect("it runs")
    }

    /// Something in the place of the server that was killed, which answers everything with this status.
    pub(crate) fn stand_in(&self, status: &'static str) -> Application {
        Application::start(&format!("127.0.0.1:{}", self.tidegate_port), status).expect("the server is gone")
    }

    /// How many requests have come to the application.
    pub(crate) fn passed_on(&self) -> usize {
        self.application.asked()
    }

    /// A request without headers, from 127.0.0.1.
    pub(crate) fn get(&self, target: &str) -> Reply {
        self.ask(1, &format!("GET {target}"), &[], "")
    }

    /// A request through the proxy, from the address 127.0.0.`from`.
    pub(crate) fn ask(&self, from: u8, request: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = dial(from, self.port).expect("the proxy listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        write!(stream, "{request} HTTP/1.1\r\nhost: example.com\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
            .expect("sent");
        let (head, body) = read(&mut BufReader::new(stream)).expect("a reply").expect("a reply");
        let status = head.0[0].split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Reply { status, head, body }
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: Head,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }
}

/// The lines of a request's or a response's head.
#[derive(Debug)]
struct Head(Vec<String>);

impl Head {
    /// The header's value, if it is there once.
    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.0.iter().filter_map(|line| line.split_once(": "));
        let mut values = headers.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        values.next().filter(|_| values.next().is_none())
    }
}

/// A request or a response; nothing if the connection ends before it.
fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<(Head, String)>> {
    let mut head = Head(Vec::new());
    loop {
        let mut line = String::new();
        match stream.read_line(&mut line)? {
            0 => return Ok(None),
            2 => break,
            _ => head.0.push(line.trim_end().to_owned()),
        }
    }
    let length = head.header("content-length").map_or(Ok(0), str::parse).map_err(io::Error::other)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some((head, String::from_utf8(body).map_err(io::Error::other)?)))
}

/// What is behind the proxy: it counts, and says what has come to it.
pub(crate) struct Application {
    port: u16,
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Application {
    fn start(address: &str, status: &'static str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let port = listener.local_addr()?.port();
        let (asked, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, over) = (Arc::clone(&asked), Arc::clone(&is_over));
        let listening = thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !over.load(Ordering::SeqCst)) {
                let counter = Arc::clone(&counter);
                // A proxy may open a connection and say nothing.
                thread::spawn(move || answer(stream?, status, &counter));
            }
        });
        Ok(Self { port, asked, is_over, listening: Some(listening) })
    }

    /// How many requests have come to it.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = dial(1, self.port);
        let _ = self.listening.take().map(JoinHandle::join);
    }
}

/// One request for each connection, so that none outlives a stand-in.
fn answer(stream: TcpStream, status: &str, counter: &AtomicUsize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let Some((head, body)) = read(&mut stream)? else { return Ok(()) };
    counter.fetch_add(1, Ordering::SeqCst);
    let request = head.0[0].rsplit_once(' ').map_or("", |(request, _version)| request);
    let said = format!("{request}, {:?}, {body}", head.header("x-user"));
    write!(stream.get_mut(), "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{said}", said.len())
}

/// The process, once it listens at the port; what it has said if it does not.
pub(crate) fn listening(mut command: Command, folder: &Path, port: u16) -> Result<Process, String> {
    let path = folder.join("log");
    let log = File::create(&path).expect("the folder is writable");
    command.current_dir(folder).stderr(log.try_clone().expect("a file can be shared")).stdout(log);
    let mut process = Process::start(command, folder).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && process.runs() {
        if dial(1, port).is_ok() {
            return Ok(process);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err(fs::read_to_string(path).unwrap_or_default())
}

/// A connection to a port of 127.0.0.1, from the address 127.0.0.`from`.
fn dial(from: u8, port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, from], 0)).into())?;
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    Ok(socket.into())
}
