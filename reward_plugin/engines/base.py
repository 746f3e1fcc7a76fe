"""The seam for models: what a request and a reply are, and an engine that a plain function scripts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from reward_plugin.errors import EngineError

Message = tuple[str, str]
"""A chat message: its role and its content."""


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion to ask for.

    `max_tokens` bounds the reply; `top_logprobs` > 0 also asks for that many most likely first tokens; `schema` is a JSON
    schema that the reply follows; `seed` lets a draw at a temperature over 0 be repeated. `meta` says what the request is
    for, to scripts and logs; it never reaches a model.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 1
    temperature: float = 0.0
    top_logprobs: int = 0
    schema: Mapping[str, Any] | None = None
    seed: int | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply: the prompt's, how many of them came from the prefix cache, and the generated ones."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: generated text, or `error`, one short phrase, when nothing did.

    `logprobs` has the log-probability of each likely first token by its text; `finish_reason` is "stop" or "length".
    """

    text: str | None = None
    logprobs: Mapping[str, float] = field(default_factory=dict)
    finish_reason: str = "stop"
    usage: Usage = Usage()
    error: str | None = None


class Engine(Protocol):
    """A model that answers a batch of requests.

    `name` says how it was opened; `identity` changes when the model does, and is part of every stored key. An engine may
    also have `complete_each(requests, on_reply)`, which calls `on_reply(row, reply)` as each reply comes.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def identity(self) -> str: ...  # noqa: D102

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order. A request that failed gets a reply with `error`; the others are unharmed.

        Raises `EngineError` when the model as a whole cannot be had.
        """
        ...

    def close(self) -> None:
        """Give back what the engine holds; it starts anew at the next `complete`."""
        ...


class ScriptedEngine:
    """An engine whose model is a function of the request, for tests and dry runs.

    `answer` returns a text, a mapping of first tokens to probabilities in [0, 1], or a whole `Reply`. `requests` collects
    what was asked. The function must be importable for the engine to be pickled.

    >>> engine = ScriptedEngine(lambda request: {"Yes": 0.75, "No": 0.25})
    >>> sorted(engine.complete([Request((("user", "Is it?"),), top_logprobs=2)])[0].logprobs)
    ['No', 'Yes']
    """

    def __init__(
        self, answer: Callable[[Request], "str | Mapping[str, float] | Reply"], name: str = "scripted"
    ) -> None:
        self.answer = answer
        self.name = name
        self.identity = name
        self.requests: list[Request] = []

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the function's answer to each request."""
        self.requests += requests
        return [self._reply(self.answer(request)) for request in requests]

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    @staticmethod
    def _reply(answer: "str | Mapping[str, float] | Reply") -> Reply:
        import math

        if isinstance(answer, Reply):
            return answer
        if isinstance(answer, str):
            return Reply(text=answer)
        if isinstance(answer, Mapping):
            logprobs = {token: math.log(p) for token, p in answer.items() if p > 0}
            return Reply(text=max(answer, key=lambda token: answer[token]), logprobs=logprobs)
        raise EngineError(
            f"a scripted answer is a text, a mapping of tokens to probabilities, or a Reply; got {answer!r}"
        )


def checked(replies: Sequence[Reply], requests: Sequence[Request], name: str) -> list[Reply]:
    """Return `replies` as a list. Raises `EngineError` when their number is not that of the requests."""
    if len(replies) != len(requests):
        raise EngineError(f"engine {name} returned {len(replies)} replies to {len(requests)} requests")
    return list(replies)
