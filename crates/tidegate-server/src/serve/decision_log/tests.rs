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
    let decision = Limiter::in_memory(Quota::per_minute(1)).check("a");
    Note { time: SystemTime::UNIX_EPOCH, front_end: FrontEnd::Http, asked: Asked::Check, decision: Some(decision) }
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
