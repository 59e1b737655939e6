//! Requests that a proxy asks about before it passes them on: what they are becomes a hit. Caddy and Traefik tell it by
//! `X-Forwarded-Method`, `-Uri`, `-Host` and `-For`; nginx is configured to.

use std::borrow::Cow;

use hyper::{Response, StatusCode, header, http::request::Parts};
use tidegate::{Hit, Store};
use tidegate_tower::subscriber;

use super::{Body, Http, answer, problem::Problem};
use crate::{
    config::Origin,
    serve::{recorder::FrontEnd, settings::Settings},
};

impl<S: Store> Http<S> {
    pub(super) async fn forward_auth(&self, head: &Parts) -> Response<Body> {
        let settings = self.settings.load_full();
        let mut facts: Vec<(&str, Cow<'_, [u8]>)> = Vec::with_capacity(settings.attributes.len());
        for (name, origin) in &settings.attributes {
            if let Origin::Header(header) = origin
                && head.headers.get_all(header).iter().nth(1).is_some()
            {
                // Which of them whoever is behind the proxy goes by is not known here.
                return Problem::of(header, "the header is there more than once; send it once").response();
            }
            facts.extend(self.fact(origin, head, &settings).map(|fact| (name.as_str(), fact)));
        }
        let hit = facts.iter().fold(Hit::new(), |hit, (name, value)| hit.attribute(name, value));
        let decision = match self.gate.check(FrontEnd::ForwardAuth, &hit).await {
            Ok(decision) => decision,
            Err(error) => return Problem::from(error).response(),
        };
        if !decision.is_allowed() {
            let mut response = answer::denied(decision, settings.dialect);
            if settings.denial_status == StatusCode::FORBIDDEN {
                // For nginx, which drops the body; that tells of a 429.
                *response.status_mut() = StatusCode::FORBIDDEN;
                *response.body_mut() = Body::default();
                response.headers_mut().remove(header::CONTENT_TYPE);
            }
            return response;
        }
        let mut response = Response::new(Body::default());
        answer::tell(&decision, settings.dialect, response.headers_mut());
        response
    }

    /// What of the request an attribute is; nothing where it is not told.
    fn fact<'h>(&self, origin: &Origin, head: &'h Parts, settings: &Settings) -> Option<Cow<'h, [u8]>> {
        let told = |name: &str| head.headers.get(name).map(|value| value.as_bytes());
        let fact = match origin {
            Origin::Address => {
                let lines = settings.proxies.header().map(|name| head.headers.get_all(name));
                let lines = lines.iter().flat_map(|lines| lines.iter()).map(|line| line.as_bytes());
                let lines: Vec<&[u8]> = lines.collect();
                let client = settings.proxies.client(Some(self.peer.ip()), lines.into_iter())?;
                return Some(Cow::Owned(subscriber(client).to_string().into_bytes()));
            }
            Origin::Method => told("x-forwarded-method").unwrap_or(head.method.as_str().as_bytes()),
            Origin::Path => return Some(path(told("x-forwarded-uri")?)),
            Origin::Host => told("x-forwarded-host").or_else(|| told(header::HOST.as_str()))?,
            Origin::Header(name) => told(name)?,
        };
        Some(Cow::Borrowed(fact))
    }
}

/// The path of a request's target, without the query. Escapes are what they stand for: `/%6cogin` is `/login` to whoever is behind the
/// proxy, and so to a policy.
fn path(target: &[u8]) -> Cow<'_, [u8]> {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let mut rest = &target[..end];
    if !rest.contains(&b'%') {
        return Cow::Borrowed(rest);
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut path = Vec::with_capacity(rest.len());
    while let [first, others @ ..] = rest {
        rest = others;
        let escaped = match others {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                path.push(high << 4 | low);
                rest = &others[2..];
            }
            // What is no escape stands for itself.
            None => path.push(*first),
        }
    }
    Cow::Owned(path)
}
