//! The decision log: a line of JSON for each decision that is to be recorded. Decisions are handed to a thread that writes them; one that
//! finds its queue full is dropped and counted, so that no decision waits for a disk.

use std::{
    fs::{self, OpenOptions},
    hash::{BuildHasher as _, RandomState},
    io::{self, Write},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::note::{Note, harmless};
use crate::config::{self, Destination, Problem, Recorded};

/// Decisions that may wait to be written.
const QUEUE: usize = 4096;
/// What is written at once, roughly.
const BLOCK_BYTES: usize = 65_536;

pub(crate) struct DecisionLog {
    open: ArcSwapOption<Open>,
    hasher: Hasher,
    dropped: Counter,
    /// The last that was started.
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A log that is written.
struct Open {
    settings: config::DecisionLog,
    queue: SyncSender<Note>,
}

/// What comes of a configuration that is not yet in force.
pub(crate) enum Prepared {
    /// As it is.
    Same,
    Off,
    To(config::DecisionLog, Box<dyn Write + Send>),
}

impl DecisionLog {
    /// A log that is off, which hashes keys with this secret; with one of its own where it is empty.
    pub(crate) fn new(secret: &str, dropped: Counter) -> Self {
        Self { open: ArcSwapOption::empty(), hasher: Hasher::new(secret), dropped, writer: Mutex::new(None) }
    }

    /// Does all that can fail.
    pub(crate) fn prepare(&self, settings: &config::DecisionLog) -> Result<Prepared, Problem> {
        if settings.record == Recorded::Off {
            return Ok(Prepared::Off);
        }
        // A file is opened again, as somebody may have put it away to begin another.
        let stays = *settings.destination == Destination::Stderr;
        if stays && self.open.load().as_ref().is_some_and(|open| open.settings == *settings) {
            return Ok(Prepared::Same);
        }
        let sink: Box<dyn Write + Send> = match &*settings.destination {
            Destination::Stderr => Box::new(io::stderr()),
            Destination::File(path) => {
                // A pipe that is opened to be read as well has a reader, and does not wait for another.
                let is_pipe = fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo());
                // Keys are in it: for who runs the server, and nobody else.
                let file = OpenOptions::new().read(is_pipe).append(true).create(true).mode(0o600).open(path);
                let shown = path.display();
                Box::new(
                    file.map_err(|error| Problem::new(format!("decision_log.destination: {shown} cannot be written: {error}")))?,
                )
            }
        };
        Ok(Prepared::To(settings.clone(), sink))
    }

    /// Goes on with what was prepared. The thread of the log before writes what it has, and ends.
    pub(crate) fn go_on(&self, prepared: Prepared) {
        match prepared {
            Prepared::Same => {}
            Prepared::Off => self.open.store(None),
            Prepared::To(settings, sink) => {
                let (queue, notes) = sync_channel(QUEUE);
                let hasher = settings.hash_keys.then(|| self.hasher.clone());
                let dropped = self.dropped.clone();
                let write = move || write(&notes, sink, hasher.as_ref(), &dropped);
                match thread::Builder::new().name("decision-log".to_owned()).spawn(write) {
                    Ok(writer) => {
                        *self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(writer);
                        self.open.store(Some(Arc::new(Open { settings, queue })));
                    }
                    Err(error) => warn!("the decision log has no thread to write it: {error}"),
                }
            }
        }
    }

    #[inline]
    pub(crate) fn decided(&self, is_refused: bool, note: impl FnOnce() -> Note) {
        let open = self.open.load();
        let Some(Open { settings, queue }) = open.as_deref() else { return };
        let is_recorded = match settings.record {
            Recorded::Off => false,
            Recorded::Denials => is_refused,
            Recorded::Sample => fastrand::f64() < settings.sample_rate,
            Recorded::All => true,
        };
        if is_recorded && queue.try_send(note()).is_err() {
            self.dropped.inc();
        }
    }

    /// Has all written that waits to be; for so long at most, as nobody may read it.
    pub(crate) async fn close(&self, patience: Duration) {
        const GLANCE: Duration = Duration::from_millis(5);
        self.open.store(None);
        let writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(writer) = writer else { return };
        let written = async {
            while !writer.is_finished() {
                sleep(GLANCE).await;
            }
        };
        if timeout(patience, written).await.is_err() {
            warn!("the end of the decision log is not written: its destination takes too long");
        }
    }
}

fn write(notes: &Receiver<Note>, mut sink: impl Write, hasher: Option<&Hasher>, dropped: &Counter) {
    let mut block = Vec::new();
    let mut is_broken = false;
    // A line was cut short: what is there of it is no part of the next.
    let mut is_cut = false;
    while let Ok(first) = notes.recv() {
        block.extend(is_cut.then_some(b'\n'));
        let mut next = Some(first);
        while let Some(note) = next {
            let told = note.told(|key| hasher.map_or_else(|| key.clone(), |hasher| hasher.hash(&key)));
            block.extend_from_slice(&harmless(&told));
            block.push(b'\n');
            next = if block.len() < BLOCK_BYTES { notes.try_recv().ok() } else { None };
        }
        let (written, result) = write_some(&mut sink, &block);
        if let Err(error) = &result {
            let lost = &block[written.max(usize::from(is_cut))..];
            dropped.inc_by(lost.iter().filter(|byte| **byte == b'\n').count() as u64);
            // Said once.
            if !is_broken {
                warn!("the decision log cannot be written: {error}");
            }
        }
        is_broken = result.is_err();
        is_cut = block[..written].last().map_or(is_cut, |last| *last != b'\n');
        block.clear();
    }
}

/// Writes what can be written, and says how much that is.
fn write_some(sink: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, sink.flush())
}

/// Stands for keys by digests that nobody can find a key by without the secret.
#[derive(Clone)]
struct Hasher([u8; 32]);

impl Hasher {
    fn new(secret: &str) -> Self {
        const CONTEXT: &str = "tidegate 2026 decision log v1";
        if !secret.is_empty() {
            return Self(blake3::derive_key(CONTEXT, secret.as_bytes()));
        }
        let mut random = [0; 32];
        random.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes()));
        Self(blake3::derive_key(CONTEXT, &random))
    }

    fn hash(&self, key: &str) -> String {
        let digest = blake3::keyed_hash(&self.0, key.as_bytes());
        format!("#{}", &digest.to_hex()[..32])
    }
}

#[cfg(test)]
mod tests;
