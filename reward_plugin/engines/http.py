"""A model behind an OpenAI-compatible server (vLLM, SGLang), or behind several that serve the same one."""

import json
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx

from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.errors import EngineError, InvalidInput

_ROUNDS = 4
_BACKOFF = 1.0  # seconds, doubled each round: together the pauses outlast a server that is away for five seconds
_CONNECT_SECONDS = 5.0
_JITTER = random.Random()  # not the global generator: a training run may have seeded it
_OVERLONG = re.compile(r"context[ _]length|maximum (model|input) length|max_model_len|longer than the model", re.I)
_NO_THINKING = "chat_template_kwargs"


class _Fault(Exception):
    """What may come right when asked again: its word, and how long the server wants to be left alone."""

    def __init__(self, word: str, wait: float = 0.0) -> None:
        super().__init__(word)
        self.word = word
        self.wait = wait


@dataclass
class _Call:
    """What the threads of one `complete` share."""

    client: httpx.Client
    end: float
    down: set[str] = field(default_factory=set)
    hopeless: threading.Event = field(default_factory=threading.Event)


class HttpEngine:
    """The model that is served at `urls`, like `http://host:port/v1`; several are separated by commas.

    `model` is needed only where a server has more than one; `deadline` bounds a whole `complete`, in seconds, and
    `concurrency` the requests under way. Neighbours in a batch go to the same server, so that they find their shared
    prefix in its cache; what a server cannot answer goes to the next. The key is read from OPENAI_API_KEY.
    """

    def __init__(self, urls: str, *, model: str | None = None, deadline: float = 300.0, concurrency: int = 64) -> None:
        self.name = urls
        self.urls = tuple(_address(url) for url in urls.split(","))
        self.model = model
        self.deadline = deadline
        self.concurrency = concurrency
        self._plain: set[str] = set()  # servers that do not take the switch for thinking

    @property
    def identity(self) -> str:
        """The served model's id, read once. Raises `EngineError` when no server tells it, or two tell different ones."""
        with self._client() as client:
            try:
                return self._served(_Call(client, time.monotonic() + self.deadline))
            except _Fault as fault:
                raise EngineError(
                    f"engine {self.name}: expected a list of models from {self.urls[0]}/models, got none "
                    f"({fault.word}); start the server or mend the address"
                ) from fault

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order, inside the deadline.

        `error` is "unreachable", "timeout", "rate_limited", "server_error", "bad_reply", "overlong" or "refused". Raises
        `EngineError` when a server does not know the key or the model.
        """
        return self.complete_each(requests, lambda row, reply: None)

    def complete_each(self, requests: Sequence[Request], on_reply: Callable[[int, Reply], None]) -> list[Reply]:
        """Do as `complete`, and call `on_reply` with each row and its reply as soon as that is there."""
        if not requests:
            return []
        call = _Call(self._client(), time.monotonic() + self.deadline)
        pool = ThreadPoolExecutor(min(self.concurrency, len(requests)))
        futures: dict[int, Future[Reply]] = {}
        try:
            self._served(call)
            # Each server has one run of neighbours; the runs are walked side by side, so that no server waits
            run = -(-len(requests) // len(self.urls))
            for row in sorted(range(len(requests)), key=lambda row: row % run):
                futures[row] = pool.submit(self._one, call, requests[row], row // run)
            rows = {future: row for row, future in futures.items()}
            for future in as_completed(rows, max(0.0, call.end - time.monotonic())):
                if future.exception() is not None:
                    break
                on_reply(rows[future], future.result())
        except TimeoutError:
            pass
        except _Fault as fault:
            return [Reply(error=fault.word)] * len(requests)
        finally:
            call.end = time.monotonic()  # what still runs stops at its next step, and has the client until then
            pool.shutdown(wait=False, cancel_futures=True)
            if all(future.done() for future in futures.values()):
                call.client.close()
            else:
                threading.Thread(target=_close_after, args=(pool, call.client)).start()
        for future in futures.values():
            if future.done() and not future.cancelled():
                future.result()  # raises what one server's refusal of the key or the model raised
        return [_outcome(futures[row]) for row in range(len(requests))]

    def close(self) -> None:
        """Do nothing: connections last for one `complete`."""

    def _client(self) -> httpx.Client:
        key = os.environ.get("OPENAI_API_KEY")
        return httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
            verify=tls_context(),
            mounts={"all://127.0.0.1": None, "all://localhost": None},  # a proxy does not reach this machine's ports
        )

    def _served(self, call: _Call) -> str:
        if self.model is not None:
            return self.model
        served: dict[str, str] = {}
        for attempt in range(_ROUNDS):
            for url in self.urls:
                try:
                    served[url] = self._first_model(call, url)
                except _Fault as one:
                    fault = one
            if served:
                break
            if not _pause(attempt, fault.wait, call.end):
                raise fault
        if len(set(served.values())) > 1:
            told = ", ".join(f"{url} has {model}" for url, model in served.items())
            raise EngineError(
                f"engine {self.name}: expected one model on every server, but {told}; name servers of one"
            )
        self.model = next(iter(served.values()))
        return self.model

    def _first_model(self, call: _Call, url: str) -> str:
        status, content = self._send(call, "GET", url, "/models")
        try:
            if status != 200:
                raise ValueError
            return str(json.loads(content)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise _Fault("bad_reply") from None

    def _one(self, call: _Call, request: Request, home: int) -> Reply:
        order = self.urls[home:] + self.urls[:home]
        fault = _Fault("timeout")
        for attempt in range(_ROUNDS):
            for url in sorted(order, key=call.down.__contains__):
                try:
                    reply = self._ask(call, url, request)
                except _Fault as one:
                    fault = one
                    if fault.word == "unreachable":
                        call.down.add(url)
                else:
                    call.down.discard(url)
                    call.hopeless.clear()
                    return reply
            # Once a request has waited in vain for any server to come back, those behind it need not
            if call.hopeless.is_set() or not _pause(attempt, fault.wait, call.end):
                break
        if len(call.down) == len(self.urls):
            call.hopeless.set()
        return Reply(error=fault.word)

    def _ask(self, call: _Call, url: str, request: Request) -> Reply:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": role, "content": content} for role, content in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        if request.seed is not None:
            body["seed"] = request.seed
        if request.schema is not None:
            schema = {"name": "reply", "strict": True, "schema": dict(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if url not in self._plain:
            body[_NO_THINKING] = {"enable_thinking": False}
        status, content = self._send(call, "POST", url, "/chat/completions", body)
        if status == 200:
            return _reply(content, request)
        text = content.decode(errors="replace")
        if status in (400, 422) and _NO_THINKING in body and _NO_THINKING in text:
            self._plain.add(url)
            return self._ask(call, url, request)
        return Reply(error="overlong" if status in (400, 422) and _OVERLONG.search(text) else "refused")

    def _send(
        self, call: _Call, method: str, url: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes]:
        # Half of what is left: a hung server leaves time to ask again
        seconds = (call.end - time.monotonic()) / 2
        if seconds <= 0:
            raise _Fault("timeout")
        end = time.monotonic() + seconds
        content = b""
        try:
            with call.client.stream(
                method,
                url + path,
                # Not httpx's own encoder: this one also takes lone surrogates
                content=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                timeout=httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
            ) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if time.monotonic() > end:  # drop by drop, no single read takes long
                        raise _Fault("timeout")
        except httpx.ConnectTimeout as error:
            raise _Fault("unreachable") from error
        except httpx.TimeoutException as error:
            raise _Fault("timeout") from error
        except httpx.TransportError as error:
            raise _Fault("unreachable") from error
        except httpx.DecodingError as error:
            raise _Fault("bad_reply") from error
        status = response.status_code
        if status == 429 or status >= 500:
            raise _Fault("rate_limited" if status == 429 else "server_error", _retry_after(response))
        if status in (401, 403):
            raise EngineError(
                f"engine {url}: expected a server that takes our key, got {status}; set OPENAI_API_KEY to the server's key"
            )
        if status == 404:
            raise EngineError(
                f"engine {url}: expected model {self.model or 'list'} at {url}{path}, got 404 "
                f"({content[:200].decode(errors='replace')}); {url}/models lists what is served, and an address "
                "usually ends in /v1"
            )
        return status, content


@cache
def tls_context() -> ssl.SSLContext:
    """Return httpx's default context, made once: it takes longer to make than a verdict."""
    return httpx.create_ssl_context()


def _address(url: str) -> str:
    url = url.strip().rstrip("/")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(f"server address {url!r}: expected http://host:port/v1, several separated by commas")
    return url


def _outcome(future: "Future[Reply]") -> Reply:
    return future.result() if future.done() and not future.cancelled() else Reply(error="timeout")


def _close_after(pool: ThreadPoolExecutor, client: httpx.Client) -> None:
    pool.shutdown()
    client.close()


def _pause(attempt: int, wanted: float, end: float) -> bool:
    """Sleep before the next round; return False, at once, when there is none or it would come too late."""
    seconds = max(wanted, _BACKOFF * 2**attempt * _JITTER.uniform(0.75, 1.25))
    if attempt + 1 == _ROUNDS or time.monotonic() + seconds >= end:
        return False
    time.sleep(seconds)
    return True


def _retry_after(response: httpx.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _reply(content: bytes, request: Request) -> Reply:
    try:
        body = json.loads(content)
        choice = body["choices"][0]
        text = choice["message"]["content"] or ""
        logprobs: dict[str, float] = {}
        if request.top_logprobs and (first := ((choice.get("logprobs") or {}).get("content") or [])[:1]):
            for entry in first[0]["top_logprobs"]:
                # Two tokens can share a text; the likelier one comes first
                logprobs.setdefault(entry["token"], float(entry["logprob"]))
        usage = body.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        counts = Usage(int(usage.get("prompt_tokens", 0)), int(cached), int(usage.get("completion_tokens", 0)))
        if not isinstance(text, str):
            raise TypeError
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise _Fault("bad_reply") from None
    return Reply(text=text, logprobs=logprobs, finish_reason=choice.get("finish_reason") or "stop", usage=counts)
