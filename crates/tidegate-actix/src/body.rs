//! A response's body that keeps what its request has at stake until it ends, or until who reads it has gone.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::{
    body::{BodySize, MessageBody},
    web::Bytes,
};
use pin_project_lite::pin_project;
use tidegate::{Memory, Store};
use tidegate_tower::Stake;

pin_project! {
    /// The body of a response from behind a rate limit.
    pub struct Body<B, S: Store = Memory> {
        #[pin]
        body: B,
        stake: Option<Box<Stake<S>>>,
    }
}

impl<B, S: Store> Body<B, S> {
    pub(crate) fn skipped(body: B) -> Self {
        Self { body, stake: None }
    }

    pub(crate) fn staked(body: B, stake: Stake<S>) -> Self {
        Self { body, stake: stake.lasts().then(|| Box::new(stake)) }
    }
}

impl<B: MessageBody, S: Store> MessageBody for Body<B, S> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, B::Error>>> {
        let this = self.project();
        if let Some(stake) = this.stake {
            stake.poll_keep(context);
        }
        let chunk = ready!(this.body.poll_next(context));
        if !matches!(chunk, Some(Ok(_))) {
            *this.stake = None;
        }
        Poll::Ready(chunk)
    }

    /// Only where nothing has to be kept until its end.
    fn try_into_bytes(self) -> Result<Bytes, Self> {
        match self {
            Self { body, stake: None } => body.try_into_bytes().map_err(Self::skipped),
            staked => Err(staked),
        }
    }
}

impl<B: fmt::Debug, S: Store> fmt::Debug for Body<B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("body", &self.body).field("stake", &self.stake).finish()
    }
}
