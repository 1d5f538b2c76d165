"""OpenAI's API over HTTP: routes, errors in its shape, limits, and a server that drains."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from time import monotonic, time
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linnet.diagnostics import LinnetError
from linnet.serve import page
from linnet.serve.engine import Engine
from linnet.serve.errors import ApiError, report
from linnet.serve.metrics import Metrics
from linnet.serve.objects import Model
from linnet.serve.openapi import document
from linnet.serve.prepare import Plan, Preparer
from linnet.serve.request import Completion, Sampling
from linnet.serve.schema import ChatBody, CompletionBody, header, parse, read
from linnet.serve.stream import usage, whole_chats, whole_texts
from linnet.serve.text import Text
from linnet.serve.worker import Answers, News, Worker

log = logging.getLogger("linnet.serve")
DROPPED = 16
"""Of too large a body, so many times the limit is read before the connection is given up."""
SLOW_READERS = 10
"""Seconds that a client has to read what is finished, once the server is ending."""
LEFT = 499
"""The status, in the counts, of who went away before the request was whole."""
POLLED = ("/health", "/metrics")
"""Asked for again and again: what goes well there is not logged."""
SAID = "linnet.said"
"""Of a request's scope: what its line in the log says beside status and time."""
OPEN = ("/health", "/")
"""Answered without a key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take: bytes of its body, seconds to send it, seconds until its end."""

    body: int = 4 << 20
    sending: float = 30.0
    seconds: float | None = None


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; raises LinnetError where the address cannot be had."""
    where = f"{host}:{port}"
    if not 0 <= port <= 65535:
        raise LinnetError(f"port {port}: ports are numbers from 0 (any free one) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # With its protocol named: only then does asyncio send each piece without waiting for more.
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LinnetError(f"cannot listen at {where}: {reason}") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        hint = "; --port chooses another" if "in use" in str(reason) else ""
        raise LinnetError(f"cannot listen at {where}: {reason}{hint}") from None
    listening.setblocking(False)
    return listening


class Server:
    """An engine and its text behind OpenAI's API.

    `serve_forever` returns once `shutdown` was called, from wherever, and what was running is done.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int = 8000,
        listening: socket.socket | None = None,
        api_key: str | None = None,
        max_queue: int = 256,
        limits: Limits | None = None,
        cors: tuple[str, ...] = (),
    ) -> None:
        self.socket = listening or bind(host, port)
        try:
            self.socket.listen(2048)
        except OSError as error:  # somebody else was faster
            raise LinnetError(f"cannot listen at {self.address}: {error.strerror}") from None
        self.name = name
        self.metrics = Metrics(engine)
        self.worker = Worker(engine, self.metrics, max_queue=max_queue)
        self.preparer = Preparer.of(text, name, engine.max_len)
        self.api = Api(self.worker, self.preparer, self.metrics, limits or Limits())
        app: ASGIApp = Front(self.api.routes(), self.metrics, api_key)
        if cors:
            app = CORSMiddleware(
                app,
                allow_origins=cors,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-linnet-ignored", "retry-after"],
            )
        config = uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=SLOW_READERS,
            ws="none",
        )
        self._uvicorn = _Uvicorn(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it listens: http://HOST:PORT."""
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve_forever(self, *, signals: bool = False) -> None:
        """Answers until it is shut down; with `signals`, SIGTERM and SIGINT do that."""
        try:
            asyncio.run(self._serve(signals))
        finally:
            self.worker.stop()
            self.socket.close()

    def shutdown(self) -> None:
        """No new requests; those that run are finished, then `serve_forever` returns."""
        self.worker.drain()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._draining.set)

    async def _serve(self, signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        if self.worker.draining:
            self._draining.set()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signalled, number)
        self.worker.start()
        threading.Thread(target=self._prepare, name="linnet-grammars", daemon=True).start()
        ending = asyncio.create_task(self._end())
        try:
            await self._uvicorn.serve(sockets=[self.socket])
        finally:
            ending.cancel()

    def _prepare(self) -> None:
        """The first answer of a given form takes no longer than others."""
        with contextlib.suppress(LinnetError):  # whoever asks for a form is told
            self.preparer.grammars.prepare()

    def _signalled(self, number: int) -> None:
        if self.worker.draining:
            os._exit(128 + number)
        waiting = self.worker.open
        answers = "1 answer" if waiting == 1 else f"{waiting} answers"
        log.warning("ending%s", f" after {answers}; a second signal ends now" if waiting else "")
        self.shutdown()

    async def _end(self) -> None:
        """Once nothing runs any more, the sockets are closed."""
        await self._draining.wait()
        while self.worker.open:
            await asyncio.sleep(0.02)
        self._uvicorn.should_exit = True
        self._uvicorn.ending.set()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us, and ends when it is told."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), 0.1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# --- around every request ---------------------------------------------------------------------


class Front:
    """Asks for the key, counts responses, and turns what goes wrong into errors of the API."""

    def __init__(self, app: ASGIApp, metrics: Metrics, api_key: str | None) -> None:
        self.app = app
        self.metrics = metrics
        self.key = None if api_key is None else api_key.strip().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        status, started = 0, monotonic()
        scope[SAID] = said = list[str]()

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.metrics.responses.labels(str(status)).inc()
            await send(message)

        try:
            if self.key is not None and scope["path"] not in OPEN:
                self._check(scope)
            await self.app(scope, receive, counting)
        except ApiError as error:
            await failure(error)(scope, receive, counting)
        except Exception as error:  # the client has been told
            report(f"{scope['method']} {scope['path']}", error)
        finally:
            if status != 200 or scope["path"] not in POLLED:
                what = ", ".join([*said, f"{monotonic() - started:.2f} s"])
                where = quote(scope["path"].encode("utf-8", "replace"))[:80]
                log.info("%s %s: %s, %s", scope["method"], where, status or "no answer", what)

    def _check(self, scope: Scope) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        assert self.key is not None
        if kind.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self.key):
            raise ApiError(
                401,
                "the key is missing or wrong: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )


def encoded(value: Any) -> bytes:
    """A document as JSON; what is no character becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def document_of(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with a JSON document."""
    return Response(encoded(value), status, headers, "application/json")


def failure(error: ApiError) -> Response:
    """A response that is an error."""
    return document_of(error.body, error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            told = ApiError(404, f"there is no {where}", code="not_found")
        case 405:
            told = ApiError(
                405,
                f"{where}: this route has other methods",
                code="method_not_allowed",
                headers=dict(error.headers or {}),
            )
        case status:
            told = ApiError(status, str(error.detail))
    return failure(told)


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads it; it is counted as what it is."""
    return Response(status_code=LEFT)


async def _bug(request: Request, error: Exception) -> Response:
    return failure(ApiError(500, f"a bug of the server: {type(error).__name__}"))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return failure(error)


# --- routes -----------------------------------------------------------------------------------


class Api:
    """What each route does."""

    def __init__(
        self, worker: Worker, preparer: Preparer, metrics: Metrics, limits: Limits
    ) -> None:
        self.worker = worker
        self.preparer = preparer
        self.metrics = metrics
        self.limits = limits
        self.described = encoded(document())
        self.shown = page.body()
        self.started = int(time())

    def routes(self) -> ASGIApp:
        """All of them."""
        return Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/embeddings", self.embeddings, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/models/{id:path}", self.model),
                Route("/health", self.health),
                Route("/metrics", self.measured),
                Route("/openapi.json", self.openapi),
                Route("/", self.page),
            ],
            exception_handlers={
                HTTPException: _http_error,
                ApiError: _api_error,
                ClientDisconnect: _gone,
                Exception: _bug,
            },
        )

    async def completions(self, request: Request) -> Response:
        body, ignored = read(CompletionBody, await self._body(request))
        plan = await asyncio.to_thread(self.preparer.completion, body)
        return Answering(self, plan, ignored)

    async def chat(self, request: Request) -> Response:
        body, ignored = read(ChatBody, await self._body(request))
        plan = await asyncio.to_thread(self.preparer.chat, body)
        return Answering(self, plan, ignored)

    async def embeddings(self, request: Request) -> Response:
        raise ApiError(
            404,
            f"{self.preparer.name} generates text and has no embeddings; models that have them are "
            "run by `linnet embed`",
            code="not_found",
        )

    async def models(self, request: Request) -> Response:
        return document_of({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        if request.path_params["id"] != self.preparer.name:
            raise ApiError(
                404,
                f"there is no model {request.path_params['id']!r:.100}; this server has "
                f"{self.preparer.name!r}",
                "model",
                "model_not_found",
            )
        return document_of(self._model())

    def _model(self) -> Model:
        return {
            "id": self.preparer.name,
            "object": "model",
            "created": self.started,
            "owned_by": "linnet",
            "max_model_len": self.preparer.max_len,
        }

    async def health(self, request: Request) -> Response:
        refusal = self.worker.refusal()
        if refusal is not None:
            raise refusal
        return document_of({"status": "ok"})

    async def measured(self, request: Request) -> Response:
        text = await asyncio.to_thread(self.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return Response(self.described, media_type="application/json")

    async def page(self, request: Request) -> Response:
        return Response(self.shown, headers=page.headers(self.shown))

    async def _body(self, request: Request) -> dict[str, Any]:
        """The JSON object that was sent, within the limits."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(
                415,
                f"the body is {kind or 'of no stated type'}; send JSON with the header "
                "content-type: application/json",
                code="unsupported_media_type",
            )
        raw, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.limits.sending):
                async for part in request.stream():
                    size += len(part)
                    # What is too much is read all the same, and dropped: who is still sending
                    # would hear of a broken connection instead of why.
                    if size <= self.limits.body:
                        raw += part
                    elif size > DROPPED * self.limits.body:
                        break
        except TimeoutError:
            raise ApiError(
                408, f"the body did not come within {self.limits.sending:g} seconds", code="timeout"
            ) from None
        if size > self.limits.body:
            raise ApiError(
                413, f"the body has more than {self.limits.body} bytes", code="body_too_large"
            )
        return parse(bytes(raw))


# --- answers ----------------------------------------------------------------------------------


class Answering(Response):
    """A plan carried out: the client hears of it chunk by chunk or at the end.

    When the client goes, or its time is over, what it asked for is given up.
    """

    def __init__(self, api: Api, plan: Plan, ignored: list[str]) -> None:
        self.api = api
        self.plan = plan
        self.extra = {"x-linnet-ignored": header(ignored)} if ignored else {}
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        worker, plan = self.api.worker, self.plan
        answers = worker.submit(plan.requests) if plan.requests else None
        sending = asyncio.create_task(self._send(answers, scope, receive, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            done, _ = await asyncio.wait(
                (sending, leaving),
                timeout=self.api.limits.seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if sending in done:
                sending.result()
            elif not done:
                await self._late(sending, send, scope, receive)
        finally:
            if answers is not None:
                scope.get(SAID, []).append(_told(plan, answers.completions))
                if not answers.closed:
                    worker.cancel(answers)
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _late(
        self, sending: asyncio.Task[None], send: Send, scope: Scope, receive: Receive
    ) -> None:
        """The time is over before the answer is whole."""
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        error = ApiError(
            504, f"the answer took more than {self.api.limits.seconds:g} seconds", code="timeout"
        )
        if not self.started:
            raise error
        await _more(send, b"data: " + encoded(error.body) + b"\n\n", last=True)

    started = False

    async def _send(
        self, answers: Answers | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if answers is not None:
            await answers.accepted()
            completions, news = answers.completions, aiter(answers)
        else:
            completions, news = _nothing(self.plan)
        if self.plan.stream:
            await self._stream(completions, news, send)
        else:
            await self._whole(completions, news, scope, receive, send)

    async def _whole(
        self,
        completions: list[Completion],
        news: AsyncIterator[list[News]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        writers = self.plan.writers
        chunks = [chunk for writer in writers for chunk in writer.start()]
        async for batch in news:
            _refuse_failed(batch, completions)
            for one in batch:
                chunks += writers[one.choice].push(one, completions[one.choice])
        used = usage(self.plan.prompts, completions)
        whole: Callable[..., Any] = whole_chats if self._chat else whole_texts
        await document_of(whole(self.plan.frame, chunks, used), headers=self.extra)(
            scope, receive, send
        )

    @property
    def _chat(self) -> bool:
        return self.plan.frame.prefix == "chatcmpl"

    async def _stream(
        self, completions: list[Completion], news: AsyncIterator[list[News]], send: Send
    ) -> None:
        plan = self.plan
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        more = {"usage": None} if plan.include_usage else {}

        def event(choices: list[Any], **more: Any) -> bytes:
            return b"data: " + encoded(plan.frame.around(kind, choices, **more)) + b"\n\n"

        try:
            async for batch in news:
                _refuse_failed(batch, completions)
                events: list[bytes] = []
                if not self.started:
                    await self._begin(send)
                    events += [event([c], **more) for w in plan.writers for c in w.start()]
                for one in batch:
                    made = plan.writers[one.choice].push(one, completions[one.choice])
                    events += [event([choice], **more) for choice in made]
                if events:
                    await _more(send, b"".join(events))
        except ApiError as error:
            if not self.started:
                raise
            await _more(send, b"data: " + encoded(error.body) + b"\n\n", last=True)
            return
        end = b"data: [DONE]\n\n"
        if plan.include_usage:
            end = event([], usage=usage(plan.prompts, completions)) + end
        await _more(send, end, last=True)

    async def _begin(self, send: Send) -> None:
        self.started = True
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **self.extra,
        }
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _more(send: Send, body: bytes, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


def _told(plan: Plan, completions: list[Completion]) -> str:
    """What the log says of answers: tokens in and out, and why they ended."""
    count = sum(len(ids) for ids in plan.prompts)
    made = sum(len(one.tokens) for one in completions)
    ended = dict.fromkeys(one.reason or "given up" for one in completions)
    return f"{count} + {made} tokens ({', '.join(ended) or 'given up'})"


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _refuse_failed(batch: list[News], completions: list[Completion]) -> None:
    """Raises ApiError where an answer ended since no token was left to choose."""
    for one in batch:
        completion = completions[one.choice]
        if one.token is None and completion.reason == "error":
            request = completion.request
            bound = request.grammar is not None or request.logit_bias
            raise ApiError(400 if bound else 500, completion.error or "", code="no_token_left")


def _nothing(plan: Plan) -> tuple[list[Completion], AsyncIterator[list[News]]]:
    """Answers of no tokens."""
    n = len(plan.writers) // len(plan.prompts)

    async def ended() -> AsyncIterator[list[News]]:
        yield [News(writer, None, "") for writer in range(len(plan.writers))]

    empty = [
        Completion(None, Sampling(), choice % n, reason="length")  # type: ignore[arg-type]
        for choice in range(len(plan.writers))
    ]
    return empty, ended()
