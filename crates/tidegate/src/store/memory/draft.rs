//! A file that replaces another whole or not at all, whoever dies in between. It knows nothing of what is in it.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    hash::{BuildHasher, RandomState},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// A new file beside the one that it is to replace; removed if it does not.
pub(super) struct Draft {
    path: PathBuf,
    place: PathBuf,
    pub(super) file: File,
}

impl Draft {
    /// Links are followed, and stay.
    pub(super) fn beside(path: &Path) -> io::Result<Self> {
        let place = linked(path);
        let name = place.file_name().ok_or(ErrorKind::InvalidInput)?;
        loop {
            // A name that no other process has, nor another thread.
            let random = RandomState::new().hash_one(name);
            let mut own = OsStr::new(".").to_owned();
            own.push(name);
            own.push(format!(".{random:016x}.tmp"));
            let path = place.with_file_name(own);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let file = options.open(&path)?;
            // Locked, it is not cleared away. Where there are no locks, nothing is.
            let _ = file.lock();
            let draft = Self { path, place: place.clone(), file };
            // Unless it was cleared away before it was locked.
            if draft.path.exists() {
                return Ok(draft);
            }
        }
    }

    /// On the disk first, then in its place.
    pub(super) fn replace(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.place)?;
        #[cfg(unix)]
        File::open(folder(&self.place))?.sync_all()?;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It is not there if it has replaced the other.
        let _ = fs::remove_file(&self.path);
    }
}

/// What a path is a link to, be it there or not; itself if it is none.
pub(super) fn linked(path: &Path) -> PathBuf {
    /// As many as the system follows.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(to) = fs::read_link(&path) else { break };
        path = folder(&path).join(to);
    }
    path
}

/// Removes the drafts for `path` of those who died over them.
pub(super) fn clear_away(path: &Path) {
    let (Ok(entries), Some(name)) = (fs::read_dir(folder(path)), path.file_name().and_then(OsStr::to_str)) else { return };
    for entry in entries.flatten() {
        let is_draft = entry.file_name().to_str().is_some_and(|draft| is_draft(draft, name));
        // Who is alive holds the lock.
        // Nor is anything but a file a draft: to open a pipe would be to wait.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_draft && is_file && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_draft(draft: &str, of: &str) -> bool {
    let random = draft.strip_prefix('.').and_then(|draft| draft.strip_prefix(of)?.strip_prefix('.')?.strip_suffix(".tmp"));
    random.is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_link_stays_one_and_what_it_is_to_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let [link, disk] = ["link", "disk"].map(|name| folder.path().join(name));
        fs::create_dir(&disk).expect("a folder to write to");
        std::os::unix::fs::symlink("disk/place", &link).expect("a folder to write to");
        for text in ["one", "two"] {
            let mut draft = Draft::beside(&link).expect("a folder to write to");
            io::Write::write_all(&mut draft.file, text.as_bytes()).expect("written");
            draft.replace().expect("replaced");
            assert_eq!(fs::read_to_string(disk.join("place")).expect("it is there"), text);
            assert!(link.is_symlink());
        }
        assert_eq!(fs::read_dir(disk).expect("a folder").count(), 1);
    }

    #[test]
    fn what_is_being_written_is_not_cleared_away_nor_what_is_not_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("place");
        let others = [".other.0123456789abcdef.tmp", ".place.x.0123456789abcdef.tmp", ".place.tmp", "place.0123456789abcdef.tmp"];
        others.iter().for_each(|other| fs::write(folder.path().join(other), "").expect("a folder to write to"));
        let dead = folder.path().join(".place.0123456789abcdef.tmp");
        fs::write(&dead, "").expect("a folder to write to");
        let draft = Draft::beside(&path).expect("a folder to write to");
        clear_away(&path);
        assert!(draft.path.exists() && !dead.exists());
        assert!(others.iter().all(|other| folder.path().join(other).exists()));
        let left = draft.path.clone();
        drop(draft);
        assert!(!left.exists());
    }
}
