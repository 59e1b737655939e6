//! A response's body that keeps what its request has at stake until it ends, or until who reads it has gone.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::{Memory, Store};

use crate::Stake;

pin_project! {
    /// The body of a response from behind a rate limit: the service's own, or a denial's.
    pub struct Body<B, S: Store = Memory> {
        #[pin]
        source: Source<B>,
        stake: Option<Stake<S>>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = Projected]
    enum Source<B> {
        Service { #[pin] body: B },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B, S: Store> Body<B, S> {
    pub(crate) fn skipped(body: B) -> Self {
        Self { source: Source::Service { body }, stake: None }
    }

    pub(crate) fn staked(body: B, stake: Stake<S>) -> Self {
        Self { source: Source::Service { body }, stake: stake.lasts().then_some(stake) }
    }

    pub(crate) fn refused(bytes: Bytes) -> Self {
        Self { source: Source::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) }, stake: None }
    }
}

impl<B: fmt::Debug, S: Store> fmt::Debug for Body<B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("source", &self.source).field("stake", &self.stake).finish()
    }
}

impl<B, S: Store> http_body::Body for Body<B, S>
where
    B: http_body::Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        if let Some(stake) = this.stake {
            stake.poll_keep(context);
        }
        let frame = match this.source.project() {
            Projected::Service { body } => ready!(body.poll_frame(context)),
            Projected::Refusal { bytes } => bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))),
        };
        if !matches!(frame, Some(Ok(_))) {
            *this.stake = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Service { body } => body.is_end_stream(),
            Source::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Service { body } => body.size_hint(),
            Source::Refusal { bytes } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
        }
    }
}
