//! A response's body that keeps what its request has at stake until it ends, or until who reads it has gone; and which type responses have
//! therefore: that of the service's own, where it can hold such a body.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::{Memory, Store};

use crate::Stake;

pin_project! {
    /// The body of a response from behind a rate limit: the service's own, or a denial's.
    pub struct Body<B, S: Store = Memory> {
        #[pin]
        source: Source<B>,
        stake: Option<Box<Stake<S>>>,
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
    fn staked(body: B, stake: Option<Box<Stake<S>>>) -> Self {
        Self { source: Source::Service { body }, stake }
    }

    fn refused(bytes: Bytes) -> Self {
        Self { source: Source::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) }, stake: None }
    }
}

/// A type of body that can be any body, as axum's and tonic's are: services that answer with such a one do so behind a
/// [`RateLimitLayer`](crate::RateLimitLayer) too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a body of another type",
    note = "`RateLimitLayer::any_body` is for services that answer with any type of body"
)]
pub trait HoldsAny: http_body::Body<Data = Bytes> + Send + Sized + 'static {
    /// That body as one of this type.
    fn holding(body: impl http_body::Body<Data = Bytes, Error = Self::Error> + Send + 'static) -> Self;
}

#[cfg(feature = "axum")]
impl HoldsAny for axum::body::Body {
    fn holding(body: impl http_body::Body<Data = Bytes, Error = Self::Error> + Send + 'static) -> Self {
        Self::new(body)
    }
}

#[cfg(feature = "grpc")]
impl HoldsAny for tonic::body::Body {
    fn holding(body: impl http_body::Body<Data = Bytes, Error = Self::Error> + Send + 'static) -> Self {
        Self::new(body)
    }
}

/// What becomes of the bodies of a service: [`Same`] or [`Wrapped`].
pub trait Bodies<B, S: Store>: 'static {
    /// Their type.
    type Body: http_body::Body;

    /// A service's response, whose body keeps that if there is something to be kept.
    #[doc(hidden)]
    fn own(response: Response<B>, stake: Option<Box<Stake<S>>>) -> Response<Self::Body>;

    /// What a service has answered so far, where there is nothing to be kept.
    #[doc(hidden)]
    fn pass<E>(answer: Poll<Result<Response<B>, E>>) -> Poll<Result<Response<Self::Body>, E>>;

    /// A denial's.
    #[doc(hidden)]
    fn refusal(bytes: Bytes) -> Self::Body;
}

/// Responses have the type of body that the service's have, and bodies are wrapped only if they hold something.
#[derive(Debug)]
pub enum Same {}

impl<B: HoldsAny, S: Store> Bodies<B, S> for Same {
    type Body = B;

    #[inline]
    fn own(response: Response<B>, stake: Option<Box<Stake<S>>>) -> Response<B> {
        match stake {
            None => response,
            Some(_) => response.map(|body| B::holding(Body::staked(body, stake))),
        }
    }

    #[inline]
    fn pass<E>(answer: Poll<Result<Response<B>, E>>) -> Poll<Result<Response<B>, E>> {
        answer
    }

    fn refusal(bytes: Bytes) -> B {
        B::holding(Body::<B, S>::refused(bytes))
    }
}

/// Responses have a [`Body`] of whatever the service's have.
#[derive(Debug)]
pub enum Wrapped {}

impl<B: http_body::Body<Data: From<Bytes>>, S: Store> Bodies<B, S> for Wrapped {
    type Body = Body<B, S>;

    fn own(response: Response<B>, stake: Option<Box<Stake<S>>>) -> Response<Body<B, S>> {
        response.map(|body| Body::staked(body, stake))
    }

    fn pass<E>(answer: Poll<Result<Response<B>, E>>) -> Poll<Result<Response<Body<B, S>>, E>> {
        answer.map_ok(|response| Self::own(response, None))
    }

    fn refusal(bytes: Bytes) -> Body<B, S> {
        Body::refused(bytes)
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
