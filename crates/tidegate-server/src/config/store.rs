//! The store as a file describes it, and made ready for the library. Secrets are read from their files when it is made, not
//! before: a configuration can be checked where its secrets are not.

use std::{
    fs, io,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{OnStoreError, Redis, Snapshot, SnapshotError};

use super::{
    Problem,
    text::{StoreUrl, Text},
};

/// Where states are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct StoreTable {
    /// "memory", or the address of a Redis or Valkey server: `redis://user@host:port/database`, `rediss://` for TLS, `unix:///path`.
    pub url: Text<StoreUrl>,
    /// A file with the password for Redis.
    pub password_file: Option<PathBuf>,
    /// A file with the certificate (PEM) by which Redis is known, in the place of those that the machine trusts.
    pub ca_file: Option<PathBuf>,
    /// A file with a certificate (PEM) to show to Redis.
    pub cert_file: Option<PathBuf>,
    /// A file with that certificate's key (PEM).
    pub key_file: Option<PathBuf>,
    /// How long a decision may take on Redis.
    pub deadline: Text<Duration>,
    /// What policies do when Redis does not answer within the deadline, unless they say otherwise.
    pub on_error: OnError,
    /// How long a denial is believed without asking Redis again; "0s" is not at all.
    pub deny_cache: Text<Duration>,
    /// How many servers there are: each decides by its share of a quota when Redis does not answer.
    pub instances: NonZeroU64,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// Keys that each policy holds in memory at most.
    pub max_keys: NonZeroUsize,
    /// A file with a secret that goes into the digests of long keys, and that receipts are tagged by; the same for all servers.
    pub key_secret_file: Option<PathBuf>,
    /// A file that keeps what was counted in memory when the server is started again.
    pub snapshot: Option<PathBuf>,
    /// How often that is written, beside the end.
    pub snapshot_interval: Text<Duration>,
}

impl Default for StoreTable {
    fn default() -> Self {
        Self {
            url: Text::known("memory"),
            password_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            deadline: Text::known("15ms"),
            on_error: OnError::default(),
            deny_cache: Text::known("500ms"),
            instances: NonZeroU64::MIN,
            prefix: "rl".to_owned(),
            max_keys: NonZeroUsize::new(1 << 20).expect("not zero"),
            key_secret_file: None,
            snapshot: None,
            snapshot_interval: Text::known("10s"),
        }
    }
}

/// What a policy does when the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum OnError {
    /// It decides in this server's memory, by its share of the quota.
    #[default]
    Local,
    /// It allows.
    Allow,
    /// It denies.
    Deny,
    /// The caller gets the error.
    Error,
}

impl From<OnError> for OnStoreError {
    fn from(on_error: OnError) -> Self {
        match on_error {
            OnError::Local => Self::Local,
            OnError::Allow => Self::Allow,
            OnError::Deny => Self::Deny,
            OnError::Error => Self::Error,
        }
    }
}

/// A store for [`tidegate::Builder`].
pub enum Backend {
    /// Memory, and where to keep it.
    Memory(Option<Snapshot>),
    /// Redis or Valkey.
    Redis(Box<Redis>),
}

impl StoreTable {
    /// Makes the store ready. Nothing is connected yet.
    ///
    /// # Errors
    /// When a file that it names cannot be read or is empty.
    pub fn backend(&self) -> Result<Backend, Problem> {
        let StoreUrl::Redis(url) = &*self.url else {
            let snapshot = self.snapshot.as_ref().map(|path| Snapshot::new(path).every(*self.snapshot_interval));
            return Ok(Backend::Memory(snapshot));
        };
        let mut redis = Redis::new(url).map_err(|error| Problem::new(error.to_string()))?;
        redis = redis.deadline(*self.deadline).deny_cache(*self.deny_cache).prefix(&self.prefix).instances(self.instances.get());
        if let Some(path) = &self.password_file {
            redis = redis.password(secret("store.password_file", path)?);
        }
        if let Some(path) = &self.ca_file {
            redis = redis.root_certificate(secret("store.ca_file", path)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert_file, &self.key_file) {
            redis = redis.client_certificate(secret("store.cert_file", cert)?, secret("store.key_file", key)?);
        }
        Ok(Backend::Redis(Box::new(redis)))
    }

    /// Whether a snapshot can be written where it is to be: a server that only finds out later has counted for nothing by then.
    ///
    /// # Errors
    /// When it can not.
    pub(crate) fn check_snapshot(&self) -> Result<(), Problem> {
        let (StoreUrl::Memory, Some(path)) = (&*self.url, &self.snapshot) else { return Ok(()) };
        let wrong = |path: &Path, what: &str| Err(Problem::new(format!("store.snapshot: {} {what}", path.display())));
        if path.is_dir() {
            return wrong(path, "is a folder; name a file in it");
        }
        // A device or a pipe: a file would take its place.
        if path.exists() && !path.is_file() {
            return wrong(path, "is no file; name one, or one that is not there yet");
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return wrong(folder, "is not there; make this folder, or name a file in another");
        }
        // Tried and not asked: what is asked says little of who may do everything, and nothing of the file system.
        match Snapshot::new(path).try_place() {
            Ok(()) => Ok(()),
            Err(SnapshotError::Io(io::ErrorKind::NotFound)) if path.is_symlink() => {
                wrong(path, "leads to a folder that is not there")
            }
            Err(error) => wrong(folder, &format!("cannot be written in: {error}")),
        }
    }

    /// What may surprise who has set a snapshot, if it is never written.
    pub fn idle_snapshot(&self) -> Option<&'static str> {
        let is_idle = self.snapshot.is_some() && *self.url != StoreUrl::Memory;
        is_idle.then_some("store.snapshot is not written: it is for states in memory")
    }

    /// The secret for [`tidegate::Builder::key_secret`]; empty where there is none.
    ///
    /// # Errors
    /// When its file cannot be read or is empty.
    pub fn key_secret(&self) -> Result<String, Problem> {
        self.key_secret_file.as_ref().map_or(Ok(String::new()), |path| secret("store.key_secret_file", path))
    }
}

/// What is in a file that a key of the configuration names, without the newline that editors leave at its end.
///
/// # Errors
/// When it cannot be read or is empty: an empty secret is an accident.
pub fn secret(key: &str, path: &Path) -> Result<String, Problem> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| Problem::new(format!("{key}: {shown} cannot be read: {error}")))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(Problem::new(format!("{key}: {shown} is empty"))),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(text: &str) -> StoreTable {
        crate::config::parse(&format!("[store]\n{text}")).expect("right").store
    }

    #[test]
    fn a_secret_is_what_is_in_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let read = |text: &str| {
            fs::write(&path, text).expect("a file");
            secret("store.password_file", &path).map_err(|problem| problem.message)
        };
        assert_eq!(read("hunter2\n").as_deref(), Ok("hunter2"));
        assert_eq!(read(" two\nlines\r\n").as_deref(), Ok(" two\nlines"));
        assert_eq!(read("\n"), Err(format!("store.password_file: {} is empty", path.display())));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let keys = ["password_file", "ca_file", "cert_file = \"none\"\nkey_file"];
        for key in keys {
            let backend = store(&format!("url = \"rediss://host/\"\n{key} = \"none\"")).backend();
            let message = backend.err().expect("it is not there").message;
            assert!(message.starts_with("store.") && message.contains("none cannot be read"), "{message}");
        }
        assert!(store("key_secret_file = \"none\"").key_secret().is_err());
    }

    #[test]
    fn a_snapshot_needs_a_folder_that_can_be_written_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let shown = folder.path().display();
        let checked = |path: &str| store(&format!("snapshot = {path:?}")).check_snapshot().map_err(|problem| problem.message);
        assert_eq!(checked(&format!("{shown}/limits")), Ok(()));
        assert_eq!(checked("limits"), Ok(()));
        let none = format!("store.snapshot: {shown}/none is not there; make this folder, or name a file in another");
        assert_eq!(checked(&format!("{shown}/none/limits")), Err(none));
        assert_eq!(checked(&shown.to_string()), Err(format!("store.snapshot: {shown} is a folder; name a file in it")));
        // It would be replaced by a file.
        assert_eq!(
            checked("/dev/null"),
            Err("store.snapshot: /dev/null is no file; name one, or one that is not there yet".to_owned())
        );
        // Even root cannot.
        assert!(
            checked("/proc/limits").is_err_and(|message| message.starts_with("store.snapshot: /proc cannot be written in: "))
        );
        // What counts is where a link leads.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("disk/limits", &link).expect("a folder to write to");
        let lost = format!("store.snapshot: {} leads to a folder that is not there", link.display());
        assert_eq!(checked(&link.display().to_string()), Err(lost));
        fs::create_dir(folder.path().join("disk")).expect("a folder to write to");
        assert_eq!(checked(&link.display().to_string()), Ok(()));
        assert!(store("url = \"redis://host/\"\nsnapshot = \"/none/limits\"").check_snapshot().is_ok());
    }

    #[test]
    fn memory_is_kept_where_the_file_says() {
        assert!(matches!(store("").backend(), Ok(Backend::Memory(None))));
        assert!(matches!(store("snapshot = \"limits\"").backend(), Ok(Backend::Memory(Some(_)))));
        assert!(matches!(store("url = \"redis://host/\"").backend(), Ok(Backend::Redis(_))));
    }
}
