//! Where settings come from, and who wins: a flag over the environment, the environment over the file, the file over the defaults.
//! This is the one place that knows.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use serde::de::{
    DeserializeOwned,
    value::{Error, StrDeserializer},
};

use super::{Config, Problem, Problems, STARTER, document::Document, words};

/// A setting that the environment, and perhaps a flag, can give.
pub struct Setting {
    /// The variable. Empty, it is as if it were not there.
    pub variable: &'static str,
    /// The flag, if there is one.
    pub flag: Option<&'static str>,
    /// The key in a file.
    pub key: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
}

/// What the names of all variables begin with.
const PREFIX: &str = "TIDEGATE_";

/// The variable that names the file (`--config`).
const FILE: &str = "TIDEGATE_CONFIG";

/// Variables of those who ask a server; to the server itself they say nothing.
const OF_CLIENTS: &[&str] = &["TIDEGATE_SERVER_URL", "TIDEGATE_ADMIN_URL", "TIDEGATE_TOKEN_FILE", "TIDEGATE_CA_FILE"];

/// Every setting that the environment can give. `TIDEGATE_CONFIG`, the file (`--config`), is the only other variable.
pub const SETTINGS: &[Setting] = &[
    flag("TIDEGATE_HTTP", "--http", "listen.http", |config, text| put(&mut config.listen.http, text)),
    flag("TIDEGATE_GRPC", "--grpc", "listen.grpc", |config, text| put(&mut config.listen.grpc, text)),
    flag("TIDEGATE_RESP", "--resp", "listen.resp", |config, text| put(&mut config.listen.resp, text)),
    flag("TIDEGATE_ADMIN", "--admin", "listen.admin", |config, text| put(&mut config.listen.admin, text)),
    flag("TIDEGATE_STORE", "--store", "store.url", |config, text| put(&mut config.store.url, text)),
    variable("TIDEGATE_STORE_PASSWORD_FILE", "store.password_file", |config, text| {
        put_some(&mut config.store.password_file, text)
    }),
    variable("TIDEGATE_STORE_INSTANCES", "store.instances", |config, text| {
        let wrong = || format!("`{}` is not a number of servers; write a whole number above 0", text.escape_debug());
        config.store.instances = text.parse().map_err(|_| wrong())?;
        Ok(())
    }),
    variable("TIDEGATE_STORE_SNAPSHOT", "store.snapshot", |config, text| put_some(&mut config.store.snapshot, text)),
    variable("TIDEGATE_HEADERS", "headers.dialect", |config, text| put(&mut config.headers.dialect, text)),
    variable("TIDEGATE_ADMIN_READ_TOKEN_FILE", "admin.read_token_file", |config, text| {
        put_some(&mut config.admin.read_token_file, text)
    }),
    variable("TIDEGATE_ADMIN_WRITE_TOKEN_FILE", "admin.write_token_file", |config, text| {
        put_some(&mut config.admin.write_token_file, text)
    }),
    variable("TIDEGATE_LOG", "log.level", |config, text| put(&mut config.log.level, text)),
    variable("TIDEGATE_LOG_FORMAT", "log.format", |config, text| put(&mut config.log.format, text)),
    variable("TIDEGATE_OTLP_ENDPOINT", "telemetry.otlp_endpoint", |config, text| {
        put_some(&mut config.telemetry.otlp_endpoint, text)
    }),
];

type Set = fn(&mut Config, &str) -> Result<(), String>;

const fn flag(variable: &'static str, flag: &'static str, key: &'static str, set: Set) -> Setting {
    Setting { variable, flag: Some(flag), key, set }
}

const fn variable(variable: &'static str, key: &'static str, set: Set) -> Setting {
    Setting { variable, flag: None, key, set }
}

/// Reads a text as a file's would be read.
fn put<T: DeserializeOwned>(place: &mut T, text: &str) -> Result<(), String> {
    *place = T::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| words::plain(&error.to_string()))?;
    Ok(())
}

fn put_some<T: DeserializeOwned>(place: &mut Option<T>, text: &str) -> Result<(), String> {
    *place = Some(T::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| words::plain(&error.to_string()))?);
    Ok(())
}

/// Where a server's configuration comes from. It can be loaded again and again: the file may have changed.
#[derive(Clone, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    given: Vec<Given>,
    /// Variables that nobody knows.
    strangers: Vec<String>,
}

/// What was given for a setting, and by whom.
#[derive(Clone)]
struct Given {
    by: &'static str,
    key: &'static str,
    set: Set,
    text: String,
}

impl Sources {
    /// `flags` are those that were given, as in `("--http", "0.0.0.0:8080")`, and `--config`; `variable` looks into the environment.
    ///
    /// ```
    /// use tidegate_server::config::Sources;
    ///
    /// let flags = [("--http", "127.0.0.1:1".to_owned())];
    /// let environment = |name: &str| name.starts_with("TIDEGATE_HT").then(|| "127.0.0.1:2".to_owned());
    /// let config = Sources::new(flags, environment).load()?;
    /// assert_eq!(config.listen.http.to_string(), "127.0.0.1:1");
    /// # Ok::<(), tidegate_server::config::Problems>(())
    /// ```
    pub fn new<'a>(flags: impl IntoIterator<Item = (&'a str, String)>, variable: impl Fn(&str) -> Option<String>) -> Self {
        let flags: Vec<(&str, String)> = flags.into_iter().collect();
        let flagged = |name: &str| flags.iter().find(|(flag, _)| *flag == name).map(|(_, text)| text.clone());
        let variable = |name| variable(name).filter(|text| !text.is_empty());
        let file = flagged("--config").or_else(|| variable(FILE)).map(PathBuf::from);
        let given = SETTINGS.iter().filter_map(|setting| {
            let by_flag = setting.flag.and_then(|flag| Some((flag, flagged(flag)?)));
            let (by, text) = by_flag.or_else(|| Some((setting.variable, variable(setting.variable)?)))?;
            Some(Given { by, key: setting.key, set: setting.set, text })
        });
        Self { file, given: given.collect(), strangers: Vec::new() }
    }

    /// As [`new`](Self::new), by the environment of this process.
    ///
    /// # Errors
    /// When what a variable says is no text: a setting that is given is never passed over.
    pub fn of_process<'a>(flags: impl IntoIterator<Item = (&'a str, String)>) -> Result<Self, Problems> {
        Self::by_environment(flags, env::vars_os())
    }

    fn by_environment<'a>(
        flags: impl IntoIterator<Item = (&'a str, String)>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Problems> {
        let ours = environment.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let ours: BTreeMap<String, OsString> = ours.filter(|(name, _)| name.starts_with(PREFIX)).collect();
        let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.variable).chain([FILE]).collect();
        let is_wrong = |name: &&&str| ours.get(**name).is_some_and(|value| value.to_str().is_none());
        let wrong = known.iter().filter(is_wrong).map(|name| Problem::new(format!("{name}: this is not UTF-8; write a text")));
        let wrong: Vec<Problem> = wrong.collect();
        if !wrong.is_empty() {
            return Err(Problems::new(wrong));
        }
        let all: Vec<&str> = known.into_iter().chain(OF_CLIENTS.iter().copied()).collect();
        let is_stranger =
            |name: &&String| !all.contains(&name.as_str()) && !is_of_kubernetes(name, |name| ours.contains_key(name));
        let strangers = ours.keys().filter(is_stranger).map(|name| words::unknown("variable", name, &all)).collect();
        Ok(Self { strangers, ..Self::new(flags, |name| ours.get(name)?.to_str().map(str::to_owned)) })
    }

    /// What is to be said of variables that look as if they were meant for this program, and that it does not know.
    pub(crate) fn strangers(&self) -> &[String] {
        &self.strangers
    }

    /// Keys that the file sets, if this is what is in it, and that somebody else has given: who that was, and the key.
    pub(crate) fn overridden(&self, text: &str) -> Vec<(&'static str, &'static str)> {
        let Ok(document) = Document::parse(text) else { return Vec::new() };
        self.given.iter().filter(|given| document.sets(given.key)).map(|given| (given.by, given.key)).collect()
    }

    /// A file, and nothing else.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { file: Some(path.into()), ..Self::default() }
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.file.as_deref()
    }

    /// Reads everything. Without a file the starter applies.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn load(&self) -> Result<Config, Problems> {
        self.load_text(&self.text()?)
    }

    /// What is in the file now.
    pub(crate) fn text(&self) -> Result<String, Problems> {
        let Some(path) = &self.file else { return Ok(STARTER.to_owned()) };
        let problem = |error| Problem::new(format!("{} cannot be read: {error}", path.display()));
        fs::read_to_string(path).map_err(|error| problem(error).into())
    }

    /// The same, where it can be read as often as somebody likes, and nobody is waited for.
    pub(crate) fn text_again(&self) -> Result<String, Problems> {
        match &self.file {
            Some(path) if self.is_read_once() => {
                Err(Problem::new(format!("{} is no file, so it is not read again", path.display())).into())
            }
            _ => self.text(),
        }
    }

    /// Whether it is a pipe or a device: what was in it is gone when it is read.
    pub(crate) fn is_read_once(&self) -> bool {
        self.file.as_ref().is_some_and(|path| fs::metadata(path).is_ok_and(|file| !file.is_file()))
    }

    /// As [`load`](Self::load), for who serves: a file that is empty is refused. Somebody has begun to write it, or the disk is full; nobody
    /// means to have no limits this way.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn load_to_serve(&self) -> Result<Config, Problems> {
        self.load_text_to_serve(&self.text()?)
    }

    /// The same, if this is what is in the file.
    pub(crate) fn load_text_to_serve(&self, text: &str) -> Result<Config, Problems> {
        if text.trim().is_empty() {
            let shown = self.file.as_deref().unwrap_or(Path::new("")).display();
            let message = format!("{shown} is empty; `tidegate config init` prints a file to start from");
            return Err(Problem::new(message).into());
        }
        self.load_text(text)
    }

    /// As [`load`](Self::load), if this is what is in the file.
    pub(crate) fn load_text(&self, text: &str) -> Result<Config, Problems> {
        self.read(text).map_err(|problems| match &self.file {
            Some(path) => problems.of(path.display()),
            None => problems,
        })
    }

    fn read(&self, text: &str) -> Result<Config, Problems> {
        let document = Document::parse(text)?;
        let mut config = document.config()?;
        let wrong = self.given.iter().filter_map(|Given { by, set, text, .. }| {
            set(&mut config, text).err().map(|message| Problem::new(format!("{by}: {message}")))
        });
        let wrong: Vec<Problem> = wrong.collect();
        if !wrong.is_empty() {
            return Err(Problems::new(wrong));
        }
        document.check(&config, |key| self.place(key))?;
        Ok(config)
    }

    /// Where to look for a key, if that is not the text: nobody has seen the one of the starter.
    fn place<'k>(&self, key: &'k str) -> Option<&'k str> {
        let given = self.given.iter().find(|given| given.key == key).map(|given| given.by);
        given.or_else(|| self.file.is_none().then_some(key))
    }
}

/// Whether Kubernetes has set it for a service, as it does for each that is there: `TIDEGATE_SERVICE_HOST`, `TIDEGATE_PORT_8080_TCP`...
fn is_of_kubernetes(name: &str, is_set: impl Fn(&str) -> bool) -> bool {
    let services = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].into_iter().flat_map(|part| name.match_indices(part));
    services.into_iter().any(|(end, _)| is_set(&format!("{}_SERVICE_HOST", &name[..end])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(flag: Option<&str>, variable: Option<&str>, file: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.toml");
        fs::write(&path, file).expect("a file");
        let flags = flag.map(|text| ("--http", text.to_owned()));
        let flags = flags.into_iter().chain([("--config", path.display().to_string())]);
        let environment = |name: &str| variable.filter(|_| name == "TIDEGATE_HTTP").map(str::to_owned);
        Sources::new(flags, environment)
            .load()
            .map_or_else(|problems| problems.to_string(), |config| config.listen.http.to_string())
    }

    #[test]
    fn a_flag_wins_over_the_environment_which_wins_over_the_file() {
        let file = "listen.http = \"127.0.0.1:3\"";
        assert_eq!(http(Some("127.0.0.1:1"), Some("127.0.0.1:2"), file), "127.0.0.1:1");
        assert_eq!(http(None, Some("127.0.0.1:2"), file), "127.0.0.1:2");
        assert_eq!(http(None, Some(""), file), "127.0.0.1:3");
        assert_eq!(http(None, None, file), "127.0.0.1:3");
        assert_eq!(http(None, None, ""), "127.0.0.1:8080");
    }

    #[test]
    fn who_gave_a_wrong_text_is_named() {
        let wrong =
            "`8080` is not an address to listen at; write an IP address and a port, such as \"127.0.0.1:8080\", or \"off\"";
        assert_eq!(http(Some("8080"), None, ""), format!("--http: {wrong}"));
        assert_eq!(http(None, Some("8080"), ""), format!("TIDEGATE_HTTP: {wrong}"));
    }

    #[test]
    fn who_gave_what_does_not_go_with_the_rest_is_named() {
        let said = |flags: &[(&str, &str)]| {
            let flags = flags.iter().map(|(flag, text)| (*flag, (*text).to_owned()));
            Sources::new(flags, |_| None).load().expect_err("wrong").to_string()
        };
        let open = "who can reach this can change the server; ";
        assert!(said(&[("--admin", "0.0.0.0:9999")]).starts_with(&format!("--admin: {open}")));
        assert_eq!(said(&[("--http", "127.0.0.1:9090")]), "listen.admin: 127.0.0.1:9090 is taken by `http`; write another port");
        let given = |name: &str| (name == "TIDEGATE_ADMIN").then(|| "0.0.0.0:9999".to_owned());
        let problems = Sources::new([], given).load().expect_err("wrong").to_string();
        assert!(problems.starts_with(&format!("TIDEGATE_ADMIN: {open}")), "{problems}");
        // What is in a file is found there.
        let said = http(None, Some("127.0.0.1:3"), "[listen]\nadmin = \"127.0.0.1:3\"");
        assert!(said.contains("tidegate.toml:2:9: 127.0.0.1:3 is taken by `http`"), "{said}");
        // Of what is not served, only what was asked for is in the way.
        for (flags, is_right) in [
            (&[("--http", "127.0.0.1:8081")][..], true),
            (&[("--admin", "127.0.0.1:6380")], true),
            (&[("--http", "127.0.0.1:1"), ("--grpc", "127.0.0.1:1")], false),
        ] {
            let flags = flags.iter().map(|(flag, text)| (*flag, (*text).to_owned()));
            assert_eq!(Sources::new(flags, |_| None).load().is_ok(), is_right);
        }
    }

    fn by(environment: &[(&str, &[u8])]) -> Result<Sources, Problems> {
        use std::os::unix::ffi::OsStringExt as _;
        let pair = |(name, value): &(&str, &[u8])| (OsString::from(name), OsString::from_vec(value.to_vec()));
        Sources::by_environment([], environment.iter().map(pair))
    }

    #[test]
    fn variables_that_nobody_knows_are_told_of_and_those_of_others_are_not() {
        let strangers = |names: &[&str]| {
            let environment: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b"redis://:hunter2@host/"[..])).collect();
            by(&environment).expect("text").strangers().join("\n")
        };
        assert_eq!(strangers(&["TIDEGATE_STORE_URL"]), "unknown variable `TIDEGATE_STORE_URL`; did you mean `TIDEGATE_STORE`?");
        assert_eq!(strangers(&["TIDEGATE_HTPP"]), "unknown variable `TIDEGATE_HTPP`; did you mean `TIDEGATE_HTTP`?");
        assert!(strangers(&["TIDEGATE_PORT"]).starts_with("unknown variable `TIDEGATE_PORT`"));
        assert_eq!(strangers(&["TIDEGATE_CONFIG", "TIDEGATE_STORE", "TIDEGATE_TOKEN_FILE", "HOME", "TIDEGATE"]), "");
        let of_services = [
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_SERVICE_PORT",
            "TIDEGATE_SERVICE_PORT_HTTP",
            "TIDEGATE_PORT",
            "TIDEGATE_PORT_8080_TCP",
            "TIDEGATE_PORT_8080_TCP_ADDR",
            "TIDEGATE_ADMIN_SERVICE_HOST",
            "TIDEGATE_ADMIN_PORT_9090_TCP_PROTO",
        ];
        assert_eq!(strangers(&of_services), "");
    }

    #[test]
    fn a_variable_that_is_no_text_is_refused() {
        let said = |name| by(&[(name, b"/etc/\xff")]).map(|_| ()).map_err(|problems| problems.to_string());
        assert_eq!(said("TIDEGATE_CONFIG"), Err("TIDEGATE_CONFIG: this is not UTF-8; write a text".to_owned()));
        assert_eq!(said("TIDEGATE_LOG"), Err("TIDEGATE_LOG: this is not UTF-8; write a text".to_owned()));
        assert_eq!(said("TIDEGATE_OF_OTHERS"), Ok(()));
    }

    #[test]
    fn keys_of_the_file_that_somebody_else_has_given_are_known() {
        let environment = |name: &str| (name == "TIDEGATE_STORE").then(|| "memory".to_owned());
        let sources = Sources::new([("--http", "127.0.0.1:1".to_owned())], environment);
        assert_eq!(sources.overridden(STARTER), []);
        assert_eq!(sources.overridden("listen.http = \"127.0.0.1:2\"\n[log]\nlevel = \"warn\""), [("--http", "listen.http")]);
        let both = "[listen]\nhttp = \"127.0.0.1:2\"\n[store]\nurl = \"memory\"";
        assert_eq!(sources.overridden(both), [("--http", "listen.http"), ("TIDEGATE_STORE", "store.url")]);
    }

    #[test]
    fn every_setting_sets_its_key() {
        for setting in SETTINGS {
            let text = match setting.key {
                "store.url" => "redis://127.0.0.1:1/",
                "store.instances" => "7",
                "headers.dialect" => "none",
                "log.level" => "trace",
                "log.format" => "json",
                "telemetry.otlp_endpoint" => "http://127.0.0.1:1",
                _ => "127.0.0.1:1",
            };
            let given = |name: &str| (name == setting.variable).then(|| text.to_owned());
            let config = Sources::new([], given).load().expect("right");
            let (table, key) = setting.key.split_once('.').expect("a table");
            let set = &serde_json::to_value(&config).expect("JSON")[table][key];
            assert_eq!(set.as_str().map_or(set.to_string(), str::to_owned), text, "{}", setting.variable);
        }
    }

    #[test]
    fn a_variable_does_not_show_a_password() {
        let given = |name: &str| (name == "TIDEGATE_STORE").then(|| "redsi://:hunter2@host/".to_owned());
        let problems = Sources::new([], given).load().expect_err("wrong");
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
}
