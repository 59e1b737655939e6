use std::{sync::mpsc, time::SystemTime};

use tidegate::{Limiter, Quota};

use super::*;
use crate::serve::recorder::{Asked, FrontEnd};

/// Takes nothing until it is told to, and hands on what it gets.
struct Slow {
    go: mpsc::Receiver<()>,
    written: mpsc::Sender<Vec<u8>>,
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.go.recv();
        self.written.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

fn note() -> Note {
    let told = Ok(Limiter::in_memory(Quota::per_minute(1)).check("a"));
    let mut note = Note::new(FrontEnd::Http, Asked::Check, &told);
    note.time = SystemTime::UNIX_EPOCH;
    note
}

fn settings(record: Recorded) -> config::DecisionLog {
    config::DecisionLog { record, sample_rate: 0.25, ..config::DecisionLog::default() }
}

#[tokio::test]
async fn a_flood_into_a_slow_sink_is_dropped_and_counted_and_waits_for_nothing() {
    const FLOOD: u64 = 4 * QUEUE as u64;
    let dropped = Counter::default();
    let log = DecisionLog::new("", dropped.clone());
    let ((go, told), (written, blocks)) = (mpsc::channel(), mpsc::channel());
    log.go_on(Prepared::To(settings(Recorded::All), Box::new(Slow { go: told, written })));
    let one = note();
    // The sink stands still: if anything waited for it, this would not end.
    (0..FLOOD).for_each(|_| log.decided(false, || one.clone()));
    let lost = dropped.get();
    assert!(lost >= FLOOD - 2 * QUEUE as u64 && lost < FLOOD, "{lost}");
    // Let go, it writes all that was not dropped, whole lines.
    drop(go);
    log.close(PATIENCE).await;
    let text: Vec<u8> = blocks.try_iter().flatten().collect();
    let text = String::from_utf8(text).expect("text");
    assert_eq!(text.lines().count() as u64, FLOOD - lost);
    assert!(text.lines().all(|line| line.starts_with("{\"time\":\"1970-01-01T00:00:00.000Z\"") && line.ends_with('}')));
    assert_eq!(dropped.get(), lost);
}

#[tokio::test]
async fn lines_that_cannot_be_written_are_counted() {
    let dropped = Counter::default();
    let log = DecisionLog::new("", dropped.clone());
    let ((_, told), (written, blocks)) = (mpsc::channel(), mpsc::channel());
    drop(blocks);
    log.go_on(Prepared::To(settings(Recorded::All), Box::new(Slow { go: told, written })));
    (0..10).for_each(|_| log.decided(true, note));
    log.close(PATIENCE).await;
    assert_eq!(dropped.get(), 10);
}

/// Has room for so many bytes at first, and for all after so many failures.
struct Full {
    room: Option<usize>,
    failures: usize,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.room.unwrap_or(usize::MAX));
        if taken == 0 {
            self.failures -= 1;
            self.room = self.room.filter(|_| self.failures > 0);
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room = self.room.map(|room| room - taken);
        self.written.lock().expect("whole").extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_pipe_that_nobody_reads_yet_is_no_reason_to_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let settings = crate::config::parse(&format!("[decision_log]\nrecord = \"all\"\ndestination = {path:?}")).expect("right");
    let (open, opened) = mpsc::channel();
    thread::spawn(move || {
        let prepared = DecisionLog::new("", Counter::default()).prepare(&settings.decision_log);
        let Ok(Prepared::To(_, mut sink)) = prepared else { panic!("it can be opened") };
        sink.write_all(b"line\n").expect("there is room");
        let _ = open.send(sink);
    });
    let sink = opened.recv_timeout(Duration::from_secs(10)).expect("nothing is waited for");
    let mut reader = io::BufReader::new(std::fs::File::open(&path).expect("a pipe"));
    let mut line = String::new();
    io::BufRead::read_line(&mut reader, &mut line).expect("a line");
    assert_eq!(line, "line\n");
    drop(sink);
}

#[test]
fn a_line_that_was_cut_short_is_by_itself() {
    // More than are written at once.
    const NOTES: u64 = 1000;
    let line = harmless(&note().told(|key| key)).len() + 1;
    for (room, failures) in [0, 1, line, line + 1, 7 * line + 100].into_iter().flat_map(|room| [(room, 1), (room, 2)]) {
        let (dropped, written) = (Counter::default(), Arc::default());
        let (queue, notes) = sync_channel(QUEUE);
        (0..NOTES).for_each(|_| queue.send(note()).expect("room"));
        drop(queue);
        write(&notes, Full { room: Some(room), failures, written: Arc::clone(&written) }, None, &dropped);
        let text = String::from_utf8(written.lock().expect("whole").clone()).expect("text");
        let (whole, cut): (Vec<&str>, Vec<&str>) = text.lines().partition(|one| one.len() + 1 == line);
        assert!((1..NOTES).contains(&dropped.get()) && whole.len() as u64 == NOTES - dropped.get(), "{room}: {}", dropped.get());
        assert!(whole.iter().all(|line| line.starts_with('{') && line.ends_with('}')), "{room}");
        assert_eq!(cut.len(), usize::from(room % line > 0), "{room}: {cut:?}");
    }
}

#[tokio::test]
async fn a_sample_is_the_share_that_was_asked_for() {
    fastrand::seed(1);
    let log = DecisionLog::new("", Counter::default());
    log.go_on(Prepared::To(settings(Recorded::Sample), Box::new(io::sink())));
    let one = note();
    let mut taken = 0;
    for _ in 0..100_000 {
        log.decided(false, || {
            taken += 1;
            one.clone()
        });
    }
    assert!((24_000..26_000).contains(&taken), "{taken}");
    log.close(PATIENCE).await;
}

#[test]
fn digests_of_keys_depend_on_the_secret() {
    assert_eq!(Hasher::new("a").hash("key"), Hasher::new("a").hash("key"));
    assert_ne!(Hasher::new("a").hash("key"), Hasher::new("b").hash("key"));
    assert_ne!(Hasher::new("").hash("key"), Hasher::new("").hash("key"));
}
