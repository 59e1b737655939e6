//! Requests that a proxy asks about before it passes them on: what they are becomes a hit. Caddy and Traefik tell it by
//! `X-Forwarded-Method`, `-Uri`, `-Host` and `-For`; nginx is configured to.

use std::{borrow::Cow, sync::Arc};

use http::StatusCode;
use tidegate::{Hit, Store};
use tidegate_tower::subscriber;

use super::{Http, answer, problem::Problem};
use crate::{
    config::Origin,
    serve::{
        http1::{Head, Response, host_and_path, name_and_port},
        recorder::FrontEnd,
        settings::Settings,
    },
};

/// What a request says of each attribute in the settings.
type Facts<'h> = Vec<Option<Cow<'h, [u8]>>>;

impl<S: Store> Http<S> {
    pub(super) async fn forward_auth(&self, head: &Head<'_>, response: &mut Response) -> Result<(), Problem> {
        let (settings, facts, asked) = self.settings.ask(|settings| {
            let facts = self.facts(head, settings)?;
            let asked = self.gate.ask(&hit(settings, &facts));
            Ok::<_, Problem>((Arc::clone(settings), facts, asked))
        })?;
        let decision = self.gate.checked(FrontEnd::ForwardAuth, &hit(&settings, &facts), asked).await?;
        if decision.is_allowed() {
            answer::tell(&decision, settings.dialect, response);
        } else if settings.denial_status == StatusCode::FORBIDDEN {
            // For nginx, which drops the body; that tells of a 429.
            response.status = StatusCode::FORBIDDEN;
            answer::tell(&decision, settings.dialect, response);
        } else {
            // Proxies hand it to the client: nobody's keys are in it.
            answer::refused(decision, settings.dialect, response);
        }
        Ok(())
    }

    fn facts<'h>(&self, head: &Head<'h>, settings: &Settings) -> Result<Facts<'h>, Problem> {
        settings.attributes.iter().map(|(_, origin)| self.fact(origin, head, settings)).collect()
    }

    /// What of the request an attribute is; nothing where it is not told.
    fn fact<'h>(&self, origin: &Origin, head: &Head<'h>, settings: &Settings) -> Result<Option<Cow<'h, [u8]>>, Problem> {
        let told = |name: &str| once(head, name);
        Ok(match origin {
            Origin::Address => {
                let lines: Vec<&[u8]> = settings.proxies.header().iter().flat_map(|name| head.all(name)).collect();
                let client = settings.proxies.client(Some(self.peer.ip()), lines.into_iter());
                client.map(|client| Cow::Owned(subscriber(client).to_string().into_bytes()))
            }
            Origin::Method => Some(Cow::Borrowed(told("x-forwarded-method")?.unwrap_or(head.method.as_bytes()))),
            Origin::Path => told("x-forwarded-uri")?.map(path),
            Origin::Host => match told("x-forwarded-host")? {
                Some(told) => Some(host(told).ok_or_else(|| Problem::of("x-forwarded-host", "this is no host"))?),
                None => head.get("host").and_then(host),
            },
            Origin::Header(name) => told(name)?.map(Cow::Borrowed),
        })
    }
}

fn hit<'f>(settings: &'f Settings, facts: &'f Facts<'_>) -> Hit<'f> {
    let told = settings.attributes.iter().zip(facts).filter_map(|((name, _), fact)| Some((name, fact.as_ref()?)));
    told.fold(Hit::new(), |hit, (name, fact)| hit.attribute(name, fact))
}

/// The value of a header. Where it is there twice, it is not known here which of them whoever is behind the proxy goes by.
fn once<'h>(head: &Head<'h>, name: &str) -> Result<Option<&'h [u8]>, Problem> {
    let mut values = head.all(name);
    let first = values.next();
    match values.next() {
        Some(_) => Err(Problem::of(name, "the header is there more than once; send it once")),
        None => Ok(first),
    }
}

/// The name of a host, as it is however it is written: in small letters, without the dot at its end, and without a port, which is the
/// client's to make up and which nobody is found by.
fn host(told: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (name, _port) = name_and_port(told)?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    Some(match name.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

/// The path of a request's target, without the query and a host that there may be before it. Escapes are what they stand for: `/%6cogin`
/// is `/login` to whoever is behind the proxy, and so to a policy.
fn path(target: &[u8]) -> Cow<'_, [u8]> {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let (_, start) = host_and_path(&target[..end]);
    let mut rest = if start == end { b"/" } else { &target[start..end] };
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
