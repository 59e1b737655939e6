//! HTTP/1.1 on one connection: requests are read whole, answered in their order, and written in as few pieces as can be. It knows nothing
//! of what is asked.
//!
//! All of a connection is one task and three buffers that are used again. Nothing is set or taken for a request that is there when it is
//! looked for: timers are moved when they go off, and whether the client has closed its side is watched only while an answer takes time.

mod chunks;
mod head;
mod response;
#[cfg(test)]
mod tests;

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::watch,
    task::yield_now,
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};

pub(super) use self::head::{host_and_path, name_and_port};
use self::{
    chunks::Chunks,
    head::{After, Length},
    response::Body,
};
pub use self::{head::Head, response::Response};
use super::http::problem::Problem;

/// Answers the requests of one connection.
pub trait Service: Send + Sync + 'static {
    /// How many bytes the body of a request may have. Nothing where it is answered without: it will not be read then.
    fn max_body_bytes(&self, head: &Head<'_>) -> Option<usize>;

    /// Puts the answer into `response`.
    fn answer(&self, request: &Request<'_>, response: &mut Response) -> impl Future<Output = ()> + Send;

    /// Takes note of an answer that is about to be sent, also of one that nobody was asked for: to what is no request.
    fn answered(&self, _: StatusCode) {}
}

/// A request that is whole.
pub struct Request<'b> {
    pub head: Head<'b>,
    pub body: &'b [u8],
    is_closed: AtomicBool,
}

impl Request<'_> {
    /// Whether the client was seen to close its side while the answer took time: it may still read, or have gone.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }
}

/// The longest head of a request.
const HEAD_BYTES: usize = 65_536;

/// What a connection keeps between requests, of each of its buffers.
const KEPT_BYTES: usize = 4096;

/// More than this is sent before the next request is answered.
const OUTPUT_BYTES: usize = 65_536;

/// How long connections that are told to end are still listened to: a request may be on its way.
const LINGER: Duration = Duration::from_millis(500);

/// How much is let go of what a client sends who has had its last answer.
const LINGER_BYTES: usize = 1 << 18;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For each head, each body, and to take a part of an answer.
    pub request: Duration,
    /// To begin another request.
    pub idle: Duration,
}

impl From<Duration> for Patience {
    fn from(each: Duration) -> Self {
        Self { request: each, idle: each }
    }
}

/// Serves a connection until its end, or until `stop` changes and what is under way is answered.
pub async fn serve<V: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    patience: impl Into<Patience>,
    service: V,
    mut stop: watch::Receiver<()>,
) {
    let unseen = stop.clone();
    let stopped = pin!(async move {
        let _ = stop.changed().await;
        sleep(LINGER).await;
    });
    let Patience { request, idle } = patience.into();
    let mut connection = Connection { stream, patience: request, idle, is_kept: false, alarm: Alarm(None), output: Vec::new() };
    match requests(&mut connection, &mut Vec::new(), &service, &unseen, stopped).await {
        Err(Ended::Last) => connection.close().await,
        // TLS says that this is the end, and not somebody who cuts it off.
        _ => drop(timeout(LINGER, connection.stream.shutdown()).await),
    }
}

/// Why there are no more requests.
enum Ended {
    /// The client is not there, or not worth waiting for.
    Gone,
    /// What it is told is the last.
    Last,
}

/// What is needed to go on.
enum Needed {
    /// The end of a head.
    Head,
    /// So many bytes.
    Bytes(usize),
    /// All of these, up to so many bytes.
    Chunks(Chunks, usize),
}

/// What happens while an answer takes time.
enum Step {
    Answered,
    /// Others have not been sent yet.
    Unsent,
    /// More has come, or the last.
    Read(io::Result<usize>),
}

async fn requests<T: AsyncRead + AsyncWrite + Unpin, V: Service>(
    connection: &mut Connection<T>,
    input: &mut Vec<u8>,
    service: &V,
    stop: &watch::Receiver<()>,
    mut stopped: Pin<&mut impl Future<Output = ()>>,
) -> Result<(), Ended> {
    let mut response = Response::default();
    let mut ahead = Vec::new();
    // How much of the input is answered.
    let mut used = 0;
    // The length of the body whose chunks have been put together.
    let mut whole = None;
    // Of the head that is waited for.
    let mut deadline = None;
    'requests: loop {
        let mut shown = Body::Sent;
        let needed = 'request: {
            let bytes = &input[used..];
            if bytes.is_empty() {
                break 'request Ok(Needed::Head);
            }
            let mut head = Head::default();
            let read = head.read(bytes);
            if head.method == "HEAD" {
                shown = Body::Told;
            }
            let start = match read {
                Ok(Some(end)) => end,
                Ok(None) => break 'request Ok(Needed::Head),
                Err(problem) => break 'request Err(problem),
            };
            let mut is_last = head.after == After::Closed;
            let max_bytes = if head.length == Length::Bytes(0) { Some(0) } else { service.max_body_bytes(&head) };
            let length = match (head.length, max_bytes) {
                // What is there is in nobody's way.
                (Length::Bytes(length), None) if length <= (bytes.len() - start) as u64 => length as usize,
                (_, None) => {
                    is_last = true;
                    0
                }
                (Length::Bytes(length), Some(max_bytes)) => match usize::try_from(length) {
                    Ok(length) if length <= max_bytes => length,
                    _ => break 'request Err(Problem::too_large(max_bytes)),
                },
                (Length::Chunks, Some(max_bytes)) => match whole.take() {
                    Some(length) => length,
                    None => {
                        if head.expects {
                            connection.output.extend_from_slice(CONTINUE);
                        }
                        break 'request Ok(Needed::Chunks(Chunks::new(start), max_bytes));
                    }
                },
            };
            let end = start + length;
            let Some(body) = bytes.get(start..end) else {
                if head.expects {
                    connection.output.extend_from_slice(CONTINUE);
                }
                break 'request Ok(Needed::Bytes(end));
            };
            let after = head.after;
            let request = Request { head, body, is_closed: AtomicBool::new(false) };
            let is_all = bytes.len() == end;
            connection.wait(pin!(service.answer(&request, &mut response)), &request.is_closed, is_all, &mut ahead).await?;
            drop(request);
            service.answered(response.status);
            is_last |= stop.has_changed().unwrap_or(true);
            let more = match after {
                _ if is_last => "connection: close\r\n",
                After::KeptAsAsked => "connection: keep-alive\r\n",
                _ => "",
            };
            response.write(more, shown, &mut connection.output);
            if is_last {
                return Err(Ended::Last);
            }
            used += end;
            deadline = None;
            connection.is_kept = true;
            if used == input.len() {
                // Now: who sends ahead all the time is never waited for.
                input.clear();
                used = 0;
            }
            input.append(&mut ahead);
            if connection.output.len() > OUTPUT_BYTES {
                connection.flush().await?;
            }
            // Who sends much ahead is not alone: others on this thread come in between.
            if !input.is_empty() {
                yield_now().await;
            }
            continue 'requests;
        };
        let needed = match needed {
            Ok(needed) => needed,
            Err(problem) => return Err(connection.refuse(&problem, shown, &mut response, service)),
        };
        connection.flush().await?;
        input.drain(..used);
        used = 0;
        if input.is_empty() {
            input.shrink_to(KEPT_BYTES);
        }
        whole = match connection.receive(input, needed, &mut deadline, stopped.as_mut()).await {
            Ok(whole) => whole,
            Err(Some(problem)) => return Err(connection.refuse(&problem, shown, &mut response, service)),
            Err(None) => return Err(Ended::Gone),
        };
    }
}

/// What a client may wait for before it sends its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

struct Connection<T> {
    stream: T,
    patience: Duration,
    /// For a request that has not begun to come, on a connection that had one.
    idle: Duration,
    is_kept: bool,
    alarm: Alarm,
    output: Vec<u8>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Reads what is needed; the length of a body that has come in chunks. Fails with what is wrong, or with nothing where nobody is there
    /// to be told.
    async fn receive(
        &mut self,
        input: &mut Vec<u8>,
        mut needed: Needed,
        head_deadline: &mut Option<Instant>,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Option<usize>, Option<Problem>> {
        let Self { stream, patience, idle, is_kept, alarm, .. } = self;
        let mut deadline = if let Needed::Head = needed { *head_deadline } else { None };
        loop {
            if let Needed::Chunks(chunks, max_bytes) = &mut needed
                && let Some(length) = chunks.read(input, *max_bytes)?
            {
                return Ok(Some(length));
            }
            let known = input.len();
            // Not what may come, but what does come is made room for.
            if known == input.capacity() {
                input.reserve(known.max(KEPT_BYTES));
            }
            let read = async {
                tokio::select! {
                    biased;
                    read = stream.read_buf(input) => read.unwrap_or(0),
                    // As if the client had gone.
                    () = &mut stopped, if known == 0 => 0,
                }
            };
            match in_time(alarm, &mut deadline, if known == 0 && *is_kept { *idle } else { *patience }, read).await {
                Some(1..) => {}
                None if known > 0 => {
                    return Err(Some(Problem::new(StatusCode::REQUEST_TIMEOUT, "The request has not come in time.")));
                }
                _ => return Err(None),
            }
            let is_enough = match needed {
                // What has begun to come has its own time.
                Needed::Head if known == 0 => return Ok(None),
                // Not read again and again, as it comes.
                Needed::Head => input.len() >= HEAD_BYTES || has_end(&input[known.saturating_sub(2)..]),
                Needed::Bytes(bytes) => input.len() >= bytes,
                Needed::Chunks(..) => false,
            };
            if is_enough {
                *head_deadline = deadline;
                return Ok(None);
            }
            // Requests come in one piece, mostly. Who sends one without end has its turn after all others.
            yield_now().await;
        }
    }

    /// Sends what is written.
    async fn flush(&mut self) -> Result<(), Ended> {
        let Self { stream, patience, alarm, output, .. } = self;
        let mut sent = 0;
        while sent < output.len() {
            match in_time(alarm, &mut None, *patience, stream.write(&output[sent..])).await {
                Some(Ok(bytes @ 1..)) => sent += bytes,
                _ => return Err(Ended::Gone),
            }
        }
        output.clear();
        output.shrink_to(KEPT_BYTES);
        match in_time(alarm, &mut None, *patience, stream.flush()).await {
            Some(Ok(())) => Ok(()),
            _ => Err(Ended::Gone),
        }
    }

    /// Waits for an answer, whoever is there to have it: what is asked may be charged already, and is to be counted. Where nothing else has
    /// come (`is_all`), what comes meanwhile is put into `ahead`: it is not asked for, but tells whether the client has closed its side.
    async fn wait(
        &mut self,
        mut answer: Pin<&mut impl Future<Output = ()>>,
        is_closed: &AtomicBool,
        is_all: bool,
        ahead: &mut Vec<u8>,
    ) -> Result<(), Ended> {
        let mut there = Ok(());
        loop {
            let watches = is_all && ahead.is_empty() && !is_closed.load(Relaxed);
            let mut coming = pin!(self.stream.read_buf(ahead));
            let step = poll_fn(|context| match answer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Step::Answered),
                Poll::Pending if !self.output.is_empty() => Poll::Ready(Step::Unsent),
                Poll::Pending if watches => coming.as_mut().poll(context).map(Step::Read),
                Poll::Pending => Poll::Pending,
            });
            there = match step.await {
                Step::Answered => return there,
                // What was asked before has not to wait for it.
                Step::Unsent => self.flush().await,
                Step::Read(Ok(1..)) => continue,
                // Who has closed its side may read on.
                Step::Read(read) => {
                    is_closed.store(true, Relaxed);
                    read.map(drop).map_err(|_| Ended::Gone)
                }
            };
            if there.is_err() {
                is_closed.store(true, Relaxed);
                self.output.clear();
            }
        }
    }

    /// Says what is wrong, for the last time: where the next request begins is not known.
    #[cold]
    fn refuse(&mut self, problem: &Problem, shown: Body, response: &mut Response, service: &impl Service) -> Ended {
        problem.put(response);
        service.answered(response.status);
        response.write("connection: close\r\n", shown, &mut self.output);
        Ended::Last
    }

    /// Ends, after what is written. What the client still sends is let go for a while: who is cut off while it sends may lose its answer.
    async fn close(&mut self) {
        if self.flush().await.is_err() || !matches!(timeout(self.patience, self.stream.shutdown()).await, Ok(Ok(()))) {
            return;
        }
        let ended = async {
            let (mut rest, mut bytes) = (Vec::with_capacity(KEPT_BYTES), 0);
            while bytes < LINGER_BYTES {
                rest.clear();
                match self.stream.read_buf(&mut rest).await {
                    Ok(read @ 1..) => bytes += read,
                    _ => return,
                }
                yield_now().await;
            }
        };
        let _ = timeout(LINGER, ended).await;
    }
}

/// Whether a head ends in these bytes.
fn has_end(bytes: &[u8]) -> bool {
    // No line ends in most of what does not end: a look that takes little, however long it is.
    bytes.contains(&b'\n') && (bytes.windows(2).any(|two| two == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n"))
}

/// Waits for `future` until the deadline, which is set when there is something to wait for.
async fn in_time<O>(
    alarm: &mut Alarm,
    deadline: &mut Option<Instant>,
    patience: Duration,
    future: impl Future<Output = O>,
) -> Option<O> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => alarm.poll(*deadline.get_or_insert_with(|| Instant::now() + patience), context).map(|()| None),
    })
    .await
}

/// A timer that is set anew when it goes off, not when the deadline changes: most waits end long before.
struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    fn poll(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(context));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}
