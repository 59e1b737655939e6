//! What the process says of itself, on standard error: how much and how it looks, which can change while it runs. Lines are handed to a
//! thread that writes them; one that finds its queue full is lost, and how many were is said later. So nobody who serves waits for whoever
//! reads them.

use std::{
    cell::Cell,
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tracing::{error, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, layer::SubscriberExt as _, registry, reload, util::SubscriberInitExt as _,
};

use crate::config::{self, Config, Format, Level};

/// The target of lines that say who has changed what.
pub(crate) const AUDIT: &str = "tidegate::audit";

/// Lines that may wait to be written.
const QUEUE: usize = 1024;

/// The log of this process.
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<Targets, Registry>, Registry>;
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

impl Log {
    /// Begins to write. Where somebody else does already, in the same process, that one goes on. Whoever ends the process has the rest
    /// written first ([`flush`]).
    ///
    /// # Errors
    /// When the system gives no thread for it.
    pub fn start(log: &config::Log) -> io::Result<Self> {
        if WRITER.get().is_none() {
            let (queue, entries) = sync_channel(QUEUE);
            let writer = Writer { queue, lost: Arc::default() };
            let lost = Arc::clone(&writer.lost);
            thread::Builder::new().name("log".to_owned()).spawn(move || write(&entries, &lost))?;
            let _ = WRITER.set(writer);
        }
        let (level, level_handle) = reload::Layer::new(level(log));
        let (lines, lines_handle) = reload::Layer::new(lines(log));
        let _ = registry().with(level).with(lines).try_init();
        Ok(Self { level: level_handle, lines: lines_handle })
    }

    /// Does as each later configuration says.
    pub async fn follow(self, mut config: watch::Receiver<Arc<Config>>) {
        while config.changed().await.is_ok() {
            let log = config.borrow_and_update().log;
            // There is nobody to tell if the log itself has gone.
            let _ = self.level.reload(level(&log));
            let _ = self.lines.reload(lines(&log));
        }
    }
}

fn level(log: &config::Log) -> Targets {
    let level = match log.level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // Who has changed what is told wherever anything is.
    let audit = if log.level == Level::Off { level } else { level.max(LevelFilter::INFO) };
    Targets::new().with_default(level).with_target(AUDIT, audit)
}

fn lines(log: &config::Log) -> Lines {
    let writer = || WRITER.get().expect("there is one before there are lines").clone();
    let lines = fmt::layer().with_writer(writer).with_ansi(false);
    match log.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().boxed(),
    }
}

/// A log is the process's.
static WRITER: OnceLock<Writer> = OnceLock::new();

/// Hands lines on, each of which is written whole.
#[derive(Clone)]
struct Writer {
    queue: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// Is told when all before it has been written.
    Mark(Sender<()>),
}

thread_local! {
    /// Whether this is the thread that writes: its own lines need no queue.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if WRITES.get() {
            io::stderr().write_all(line)?;
        } else if self.queue.try_send(Entry::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(entries: &Receiver<Entry>, lost: &AtomicU64) {
    WRITES.set(true);
    for entry in entries {
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => error!(lost, "lines of the log are missing here: standard error took too long"),
        }
        // There is nowhere to say that a line cannot be written, and who waits for a mark may have gone.
        let _ = match entry {
            Entry::Line(line) => io::stderr().write_all(&line).is_ok(),
            Entry::Mark(mark) => mark.send(()).is_ok(),
        };
    }
}

/// Has all written that was logged; for so long at most, as nobody may read it.
pub fn flush(patience: Duration) {
    const GLANCE: Duration = Duration::from_millis(5);
    let Some(writer) = WRITER.get() else { return };
    let deadline = Instant::now() + patience;
    let (mark, passed) = channel();
    while writer.queue.try_send(Entry::Mark(mark.clone())).is_err() {
        if Instant::now() > deadline {
            return;
        }
        thread::sleep(GLANCE);
    }
    let _ = passed.recv_timeout(deadline.saturating_duration_since(Instant::now()));
}
