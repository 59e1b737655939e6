//! The memory store in a file, so that what was counted outlives the process: when the file is written and read. What is in it is
//! packed by those it belongs to, in this order:
//!
//! `tidegate`, version, time · for each policy: what it was and its eras, its keys and their states, the state that keys share ·
//! the ledger · a BLAKE3 checksum of all that.
//!
//! A restored limiter is one whose policies of before are replaced by those of now, as `configure` does it.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use super::{
    Ledger, Memory,
    draft::{self, Draft},
};
use crate::{
    Builder, Limiter, SnapshotError,
    limiter::Inner,
    packed::{Packer, Unpacker, checked},
    set::{PolicySet, Prepared},
};

const MAGIC: &[u8; 8] = b"tidegate";
/// Changes with the form of anything that is packed.
const VERSION: u32 = 1;

/// A hit reads the clock before it is counted, so one that came before a snapshot may not be in it. Receipts that are younger
/// than this are void in a limiter that is restored from it.
const UNDER_WAY_US: u64 = 1_000_000;

/// A file that keeps what a limiter in memory has counted: [`Builder::snapshot`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    path: PathBuf,
    every: Option<Duration>,
}

impl Snapshot {
    /// Read when the limiter is built, written when its last handle is dropped.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), every: None }
    }

    /// Whether a file can be written where it is to be: a new one is made there, and removed.
    ///
    /// # Errors
    /// When it cannot.
    pub fn try_place(&self) -> Result<(), SnapshotError> {
        Ok(Draft::beside(&self.path).map(drop)?)
    }

    /// Written at intervals too, by a thread that ends with the limiter: a process that dies loses what it has counted since.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        // Not without a rest.
        Self { every: Some(interval.max(Duration::from_millis(1))), ..self }
    }
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// When it was made, by the limiter's clock.
    pub at: SystemTime,
    /// Keys of all policies, those that had not expired when it was written or read.
    pub keys: usize,
    /// The length of the file.
    pub bytes: u64,
}

/// How the snapshots of a limiter have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotStatus {
    /// What the limiter began with: nothing where there was no file. A file that was refused is kept beside its place, under its
    /// name and `.refused`.
    pub restored: Result<Option<Saved>, SnapshotError>,
    /// What was last written at an interval, or why it was not.
    pub saved: Option<Result<Saved, SnapshotError>>,
    /// The newest that there is: what was last written, or else what the limiter began with.
    pub newest: Option<Saved>,
    /// How often one was not written.
    pub failures: u64,
}

impl Builder {
    /// Goes on from what a limiter of the same policies had counted, and keeps it for the next.
    ///
    /// A policy whose quotas have changed goes on as after [`configure`](Limiter::configure); one that has another algorithm or
    /// other key attributes starts afresh. Used receipts stay used. A file that cannot be read is set aside and does not keep the
    /// limiter from starting: [`Memory::snapshot_status`] tells. The file holds keys of up to 21 bytes as they are; nobody but
    /// its owner can read it. Longer ones are found again only under the same [`key_secret`](Self::key_secret).
    ///
    /// Of several limiters with the same file the last one to write wins: give each its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Policy, Quota, Snapshot};
    ///
    /// # let path = std::env::temp_dir().join(format!("tidegate-doc-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let build = || {
    ///     Limiter::builder()
    ///         .policy(Policy::new("per-user", Quota::per_day(5000)))
    ///         .snapshot(Snapshot::new(&path).every(Duration::from_secs(10)))
    ///         .build()
    /// };
    /// let limiter = build()?;
    /// let _ = limiter.check_n("user:42", 10);
    /// drop(limiter); // the process ends, and another begins
    ///
    /// let limiter = build()?;
    /// assert_eq!(limiter.remaining("user:42"), Some(4990));
    /// # drop(limiter);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn snapshot(mut self, snapshot: Snapshot) -> Self {
        self.store.snapshots.wanted = Some(snapshot);
        self
    }
}

impl Limiter {
    /// Writes what has been counted to a file, which it replaces whole or not at all, and from which [`Builder::snapshot`]
    /// restores it. A hit that comes meanwhile waits for a part of the keys at most and never for the disk. Receipts of the second
    /// before are not good in a limiter that is restored from it: whether what they prove is in the file is not known.
    ///
    /// # Errors
    /// When the file cannot be written; the one that was there is still there then, unless it was only its folder that could not be
    /// synced.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved, SnapshotError> {
        self.inner.save(path.as_ref(), UNDER_WAY_US)
    }
}

impl Memory {
    /// How snapshots have gone. A limiter that has none began with nothing and has saved nothing.
    pub fn snapshot_status(&self) -> SnapshotStatus {
        *self.snapshots.status.lock()
    }

    /// Reads the snapshot, if there is to be one.
    pub(super) fn restore_snapshot(&mut self, max_keys: usize, now: u64) -> Option<PolicySet> {
        let path = draft::linked(&self.snapshots.wanted.as_ref()?.path);
        draft::clear_away(&path);
        let read = match File::open(&path) {
            Ok(mut file) => self.read(&mut file, max_keys, now).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = &read {
            let mut aside = path.clone().into_os_string();
            aside.push(".refused");
            let kept = path.is_file() && fs::rename(&path, aside).is_ok();
            warn("a snapshot was refused, the limiter starts with nothing counted", &path, *error, Some(kept));
        }
        // What was charged before is not known; nothing is given back for it.
        if let (Ok(None) | Err(_), Some(before)) = (&read, now.checked_sub(1)) {
            self.ledger.void_all(before);
        }
        let bytes = || fs::metadata(&path).map_or(0, |file| file.len());
        let (set, restored) = match read {
            Ok(Some((set, at, keys))) => (Some(set), Ok(Some(Saved { at: time(at), keys, bytes: bytes() }))),
            Ok(None) => (None, Ok(None)),
            Err(error) => (None, Err(error)),
        };
        let status = self.snapshots.status.get_mut();
        (status.restored, status.newest) = (restored, restored.ok().flatten());
        set
    }

    /// The set that a snapshot holds, when it was made, and how many keys it has yet.
    fn read(
        &mut self,
        file: &mut (impl Read + Seek),
        max_keys: usize,
        now: u64,
    ) -> Result<(PolicySet, u64, usize), SnapshotError> {
        let (mut magic, mut version) = ([0; MAGIC.len()], [0; 4]);
        file.read_exact(&mut magic).and_then(|()| file.read_exact(&mut version)).map_err(cut_short)?;
        match u32::from_le_bytes(version) {
            _ if &magic != MAGIC => return Err(SnapshotError::Foreign),
            VERSION => {}
            version => return Err(SnapshotError::Version(version)),
        }
        let head = (magic.len() + version.len()) as u64;
        let body = checked(file).map_err(cut_short)?.and_then(|length| length.checked_sub(head)).ok_or(SnapshotError::Damaged)?;
        file.seek(SeekFrom::Start(head))?;
        let mut body = file.take(body);
        let mut from = Unpacker::new(&mut body);
        let (set, keys, ledger) = self.read_body(&mut from, max_keys, now).ok_or(match from.failed {
            Some(kind) => SnapshotError::Io(kind),
            None => SnapshotError::Damaged,
        })?;
        self.ledger = ledger;
        Ok((set, from.base, keys))
    }

    fn read_body(&self, from: &mut Unpacker<'_>, max_keys: usize, now: u64) -> Option<(PolicySet, usize, Ledger)> {
        from.base = from.up_to(1 << 53)?;
        let lost_from = from.time()?;
        // Of a clock that has been set back what was saved may be ahead; whether that counts is for the algorithms to say.
        let latest = now.max(from.base);
        let mut keys = 0;
        let policies = from.list(|from| {
            let prepared = Prepared::load(from, max_keys)?;
            keys += prepared.table.load(&self.seed, &prepared, latest, from)?;
            Some(prepared)
        })?;
        let ledger = Ledger::load(from, &made(&policies), max_keys)?;
        ledger.lose(lost_from, latest);
        from.is_done().then(|| (PolicySet::saved(policies), keys, ledger))
    }
}

/// What a store knows of its snapshots.
pub(super) struct Snapshots {
    wanted: Option<Snapshot>,
    status: Mutex<SnapshotStatus>,
    /// Held while one is written, so that no older one comes in the place of a newer.
    saving: Mutex<()>,
}

impl Default for Snapshots {
    fn default() -> Self {
        let status = SnapshotStatus { restored: Ok(None), saved: None, newest: None, failures: 0 };
        Self { wanted: None, status: Mutex::new(status), saving: Mutex::new(()) }
    }
}

impl Inner<Memory> {
    /// `under_way`: how long hits may have been, in microseconds.
    fn save(&self, path: &Path, under_way: u64) -> Result<Saved, SnapshotError> {
        let _saving = self.store.snapshots.saving.lock();
        let mut new = Draft::beside(path)?;
        // No configuration comes between its parts.
        let replacing = self.replacing.lock();
        let (set, now) = (self.set.load(), self.clock.now());
        let mut to = Packer::new(&mut new.file, now);
        to.raw(MAGIC);
        to.raw(&VERSION.to_le_bytes());
        to.number(now);
        to.time((now + 1).saturating_sub(under_way));
        to.number(set.policies.len() as u64);
        let mut keys = 0;
        for prepared in &set.policies {
            prepared.save(&mut to);
            keys += prepared.table.save(prepared, now, &mut to)?;
        }
        // After the states: a refund or reset that is seen in those is known to be one.
        self.store.ledger.save(&made(&set.policies), &mut to);
        drop(replacing);
        let bytes = to.finish()?;
        new.replace()?;
        Ok(Saved { at: time(now), keys, bytes })
    }
}

/// Saves at intervals, and when it is dropped, which the last handle of a limiter does.
pub(crate) struct Keeper {
    inner: Arc<Inner<Memory>>,
    path: PathBuf,
    /// A thread that ends when it can no longer be told anything.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Keeper {
    pub(super) fn start(inner: &Arc<Inner<Memory>>) -> Option<Arc<Self>> {
        let Snapshot { path, every } = inner.store.snapshots.wanted.clone()?;
        let thread = every.and_then(|every| {
            let (end, ended) = mpsc::channel();
            let (of_thread, to) = (Arc::clone(inner), path.clone());
            let keep = move || {
                while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    of_thread.save_and_tell(&to, UNDER_WAY_US);
                }
            };
            let started = thread::Builder::new().name("tidegate-snapshot".to_owned()).spawn(keep);
            started.map_err(|error| inner.tell(&path, Err(error.into()))).ok().map(|thread| (end, thread))
        });
        Some(Arc::new(Self { inner: Arc::clone(inner), path, thread }))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // Whether it has panicked or not: the last word is the one that follows.
            let _ = thread.join();
        }
        // Nobody is left who could have a hit under way.
        self.inner.save_and_tell(&self.path, 0);
    }
}

impl Inner<Memory> {
    fn save_and_tell(&self, path: &Path, under_way: u64) {
        self.tell(path, self.save(path, under_way));
    }

    fn tell(&self, path: &Path, saved: Result<Saved, SnapshotError>) {
        if let Err(error) = saved {
            warn("a snapshot was not written", path, error, None);
        }
        let mut status = self.store.snapshots.status.lock();
        status.saved = Some(saved);
        match saved {
            Ok(saved) => status.newest = Some(saved),
            Err(_) => status.failures += 1,
        }
    }
}

/// By which numbers the ledger knows the tables of policies.
fn made(policies: &[Prepared]) -> Vec<u64> {
    policies.iter().map(|prepared| prepared.table.made()).collect()
}

fn cut_short(error: io::Error) -> SnapshotError {
    if error.kind() == ErrorKind::UnexpectedEof { SnapshotError::Damaged } else { error.into() }
}

fn time(epoch_us: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(epoch_us)
}

#[cfg(feature = "tracing")]
fn warn(what: &str, path: &Path, error: SnapshotError, kept: Option<bool>) {
    tracing::warn!(path = %path.display(), %error, kept, "{what}");
}

#[cfg(not(feature = "tracing"))]
fn warn(_what: &str, _path: &Path, _error: SnapshotError, _kept: Option<bool>) {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Algorithm, Clock, Hit, ManualClock, Override, Policy, Quota};

    fn policies() -> impl Iterator<Item = Policy> {
        let policy = |algorithm: &Algorithm| {
            let gold = Override::Quota(Quota::per_day(8));
            Policy::new(algorithm.name(), Quota::per_day(5)).algorithm(*algorithm).override_key(["gold"], gold)
        };
        Algorithm::ALL.iter().map(policy)
    }

    fn builder() -> Builder {
        Limiter::builder().policies(policies()).clock(ManualClock::default()).max_keys(16)
    }

    /// A small snapshot with something of everything in it, and a receipt that is used in it.
    fn small(folder: &Path) -> (Vec<u8>, String) {
        let clock = ManualClock::default();
        let limiter = builder().clock(clock.clone()).build().expect("policies");
        let receipt = limiter.check_n("a", 2).take_receipt().expect("allowed").to_string();
        clock.advance(Duration::from_hours(1));
        let _ = limiter.check_n("gold", 3);
        let _ = limiter.check_n("a", 1);
        let _ = limiter.refund(receipt.parse().expect("a receipt"));
        let _ = limiter.reset("b");
        limiter.set_quota("gcra", Quota::per_day(6)).expect("a quota");
        limiter.save(folder.join("small")).expect("a folder to write to");
        (fs::read(folder.join("small")).expect("just written"), receipt)
    }

    fn read(bytes: &[u8]) -> Result<usize, SnapshotError> {
        let now = ManualClock::default().epoch_micros();
        Memory::default().read(&mut io::Cursor::new(bytes), 16, now).map(|(_, _, keys)| keys)
    }

    /// With the checksum that it should have.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    #[test]
    fn a_number_as_large_as_numbers_are_takes_no_time_or_memory_wherever_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let (whole, _) = small(folder.path());
        let body = &whole[..whole.len() - blake3::OUT_LEN];
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        for index in 12..body.len() {
            // Read as a length, and there is nothing of such a length, or as part of a key.
            let _ = read(&sealed([&body[..index], &most, &body[index..]].concat()));
            assert!(read(&sealed([&body[..index], &most].concat())).is_err(), "at {index}");
        }
    }

    #[test]
    fn every_changed_byte_every_cut_and_every_addition_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (whole, _) = small(folder.path());
        assert_eq!(read(&whole), Ok(2 * Algorithm::ALL.len()));
        for index in 0..whole.len() {
            let mut changed = whole.clone();
            for change in 1..=u8::MAX {
                changed[index] = whole[index] ^ change;
                assert!(read(&changed).is_err(), "byte {index} changed by {change}");
            }
            assert_eq!(read(&whole[..index]), Err(SnapshotError::Damaged), "cut at {index}");
        }
        for added in 0..=u8::MAX {
            assert_eq!(read(&[whole.as_slice(), &[added]].concat()), Err(SnapshotError::Damaged));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whoever can write the file can give a limiter wrong counts, and nothing worse.
        #[test]
        fn a_forged_snapshot_with_a_true_checksum_harms_nobody(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            years in 0..80u64,
        ) {
            let folder = tempfile::tempdir().expect("a folder");
            let (mut bytes, receipt) = small(folder.path());
            bytes.truncate(bytes.len() - blake3::OUT_LEN);
            for (index, value) in changes {
                let index = 12 + index.index(bytes.len() - 12);
                bytes[index] = value;
            }
            fs::write(folder.path().join("forged"), sealed(bytes)).expect("a folder to write to");
            let clock = ManualClock::default();
            let forged = Snapshot::new(folder.path().join("forged"));
            let limiter = builder().clock(clock.clone()).snapshot(forged).build().expect("policies");
            for wait in [0, 1, 3_600_000_000, years * 365 * 86_400_000_000] {
                clock.advance(Duration::from_micros(wait));
                for key in ["a", "gold", "b"] {
                    let _ = limiter.check(key);
                    let _ = limiter.peek(Hit::from(key).cost(5));
                    let _ = limiter.charge(Hit::from(key).cost(7));
                    let _ = limiter.refund(receipt.parse().expect("a receipt"));
                }
            }
            limiter.configure(policies().map(|policy| Policy { quota: Quota::per_second(9), ..policy })).expect("policies");
            let _ = limiter.check("a");
            for usage in limiter.usage() {
                prop_assert!(usage.keys <= 16);
            }
        }
    }

    #[test]
    fn a_writer_that_dies_at_any_byte_leaves_the_old_snapshot() {
        let folder = tempfile::tempdir().expect("a folder");
        let (whole, _) = small(folder.path());
        let path = folder.path().join("place");
        let dead = folder.path().join(".place.0123456789abcdef.tmp");
        for length in 0..=whole.len() {
            fs::write(&path, &whole).expect("a folder to write to");
            fs::write(&dead, &whole[..length]).expect("a folder to write to");
            let limiter = builder().snapshot(Snapshot::new(&path)).build().expect("policies");
            assert_eq!(
                limiter.store().snapshot_status().restored.map(|saved| saved.map(|saved| saved.keys)),
                Ok(Some(2 * Algorithm::ALL.len()))
            );
            assert!(!dead.exists());
        }
    }
}
