//! From a text to a [`Config`], with the place of everything that is wrong in it.

use std::ops::Range;

use serde::Deserialize as _;
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer},
};

use super::{Config, Fault, Problem, Problems, words};

/// Reads and checks a configuration.
///
/// # Errors
/// All that is wrong with it, in words and with places.
pub fn parse(text: &str) -> Result<Config, Problems> {
    let document = Document::parse(text)?;
    let config = document.config()?;
    document.check(&config, |_| None)?;
    Ok(config)
}

/// A text that is TOML.
pub(super) struct Document<'a> {
    text: &'a str,
    tree: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Problems> {
        // A syntax error can make others of what follows: only the first is told.
        let tree = DeTable::parse(text).map_err(|error| problem(text, &error))?;
        Ok(Self { text, tree })
    }

    /// The settings, each by itself what it should be.
    pub(super) fn config(&self) -> Result<Config, Problems> {
        let read = |tree| Config::deserialize(Deserializer::from(tree));
        read(self.tree.clone()).map_err(|first| {
            // Read piece by piece, each stops at a mistake of its own.
            let each = self.pieces().into_iter().filter_map(|piece| read(piece).err());
            Problems::new([first].into_iter().chain(each).map(|error| problem(self.text, &error)).collect())
        })
    }

    /// Every policy alone, every key of other tables alone. None needs another to be read.
    fn pieces(&self) -> Vec<Spanned<DeTable<'a>>> {
        let alone = |key: &Spanned<_>, value| {
            let mut table = DeTable::new();
            table.insert(key.clone(), value);
            Spanned::new(self.tree.span(), table)
        };
        let mut pieces = Vec::new();
        for (key, value) in self.tree.get_ref() {
            match value.get_ref() {
                DeValue::Table(table) => pieces.extend(table.iter().map(|(inner, inner_value)| {
                    let table = alone(inner, inner_value.clone());
                    alone(key, Spanned::new(value.span(), DeValue::Table(table.into_inner())))
                })),
                DeValue::Array(array) => pieces.extend(array.iter().map(|element| {
                    let array = [element.clone()].into_iter().collect();
                    alone(key, Spanned::new(value.span(), DeValue::Array(array)))
                })),
                _ => pieces.push(alone(key, value.clone())),
            }
        }
        pieces
    }

    /// Whether settings go together. `elsewhere` names what has given a key that is not what the text says.
    pub(super) fn check(&self, config: &Config, elsewhere: impl Fn(&str) -> Option<&str>) -> Result<(), Problems> {
        let faults = config.faults();
        if faults.is_empty() {
            return Ok(());
        }
        let place = |Fault { key, message }| match (elsewhere(&key), self.find(&key)) {
            (Some(by), _) => Problem::new(format!("{by}: {message}")),
            (None, Some(span)) => Problem::at(self.text, span, message),
            (None, None) => Problem::new(format!("{key}: {message}")),
        };
        Err(Problems::new(faults.into_iter().map(place).collect()))
    }

    /// Whether a key such as `store.url` is written.
    pub(super) fn sets(&self, key: &str) -> bool {
        let Some((table, key)) = key.split_once('.') else { return self.tree.get_ref().contains_key(key) };
        self.tree.get_ref().get(table).is_some_and(|table| table.get_ref().get(key).is_some())
    }

    /// Where the value of a key such as `policy.2.quota` is, or of the last part of it that is written at all.
    fn find(&self, key: &str) -> Option<Range<usize>> {
        let mut steps = key.split('.');
        let mut value = self.tree.get_ref().get(steps.next()?)?;
        for step in steps {
            let next = match step.parse::<usize>() {
                Ok(index) => value.get_ref().get(index),
                Err(_) => value.get_ref().get(step),
            };
            let Some(next) = next else { break };
            value = next;
        }
        Some(value.span())
    }
}

fn problem(text: &str, error: &toml::de::Error) -> Problem {
    Problem::at(text, error.span().unwrap_or_default(), words::plain(error.message()))
}
