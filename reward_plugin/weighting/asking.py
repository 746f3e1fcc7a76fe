"""Askings: procedures that put questions to a model, written one by one and run many at once."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.replies import Unusable

T = TypeVar("T")
Asking = Generator[list[Request], list[Reply], T]
"""Yields a batch of requests, is sent their replies, and so on; returns its result."""

_AGAIN = ("malformed", "truncated", "no_answer", "unclosed_reasoning")


class Lost(Exception):
    """What was asked for cannot be had; the message says why."""


def in_step(
    askings: Mapping[str, Asking[T]], complete: Callable[[list[Request]], list[Reply]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Run askings side by side, one model call a round for all of them; return the results and why others are lost."""
    done: dict[str, T] = {}
    lost: dict[str, str] = {}
    waiting: dict[str, list[Request]] = {}

    def advance(key: str, replies: list[Reply] | None) -> None:
        try:
            # The first step of a generator takes no value
            waiting[key] = next(askings[key]) if replies is None else askings[key].send(replies)
        except StopIteration as stop:
            done[key] = stop.value
        except Lost as error:
            lost[key] = str(error)

    for key in askings:
        advance(key, None)
    while waiting:
        batch, waiting = waiting, {}
        replies = complete([request for requests in batch.values() for request in requests])
        place = 0
        for key, requests in batch.items():
            advance(key, replies[place : place + len(requests)])
            place += len(requests)
    return done, lost


def ask(requests: Sequence[Request], read: Callable[[Request, Reply], T]) -> Asking[list[tuple[T | Unusable, Usage]]]:
    """Ask, and read each reply with `read`; one that raises `Unusable` for what it says is asked once more.

    Returns what was read, or the `Unusable` that remained, with the tokens it took. Raises `Lost` where the model could
    not be reached: no answer is not an answer.
    """
    results = [_read(request, reply, read) for request, reply in zip(requests, (yield list(requests)), strict=True)]
    again = [row for row, (result, _) in enumerate(results) if isinstance(result, Unusable) and str(result) in _AGAIN]
    if again:
        replies = yield [requests[row] for row in again]
        for row, reply in zip(again, replies, strict=True):
            result, usage = _read(requests[row], reply, read)
            results[row] = (result, add(results[row][1], usage))
    unreached = [str(one) for one, _ in results if isinstance(one, Unusable) and str(one) not in _AGAIN]
    if unreached:
        raise Lost(f"{len(unreached)} of {len(requests)} {_plural(requests[0])}: {unreached[0]}")
    return results


def add(one: Usage, other: Usage) -> Usage:
    """Return the sum of two usages."""
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.cached_tokens + other.cached_tokens,
        one.generated_tokens + other.generated_tokens,
    )


def _read(request: Request, reply: Reply, read: Callable[[Request, Reply], T]) -> tuple[T | Unusable, Usage]:
    try:
        return read(request, reply), reply.usage
    except Unusable as error:
        return error, reply.usage


def _plural(request: Request) -> str:
    return {"comparison": "comparisons", "review": "reviews"}.get(str(request.meta.get("kind")), "questions")
