//! What the process says of itself, on standard error: how much and how it looks, which can change while it runs.

use std::{io, sync::Arc};

use tokio::sync::watch;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, Registry, filter::Targets, fmt, layer::SubscriberExt as _, registry, reload, util::SubscriberInitExt as _,
};

use crate::config::{self, Config, Format, Level};

/// The target of lines that say who has changed what.
pub(crate) const AUDIT: &str = "tidegate::audit";

/// The log of this process.
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

type Filtered = tracing_subscriber::layer::Layered<reload::Layer<Targets, Registry>, Registry>;
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

impl Log {
    /// Begins to write. Where somebody else does already, in the same process, that one goes on.
    pub fn start(log: &config::Log) -> Self {
        let (level, level_handle) = reload::Layer::new(level(log));
        let (lines, lines_handle) = reload::Layer::new(lines(log));
        let _ = registry().with(level).with(lines).try_init();
        Self { level: level_handle, lines: lines_handle }
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
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false);
    match log.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().boxed(),
    }
}
