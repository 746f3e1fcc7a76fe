"""An engine whose replies are written down as they come, so that a killed computation goes on where it was."""

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from reward_plugin.canonical import digest
from reward_plugin.engines.base import Engine, Reply, Request, Usage, checked
from reward_plugin.errors import InvalidInput

try:
    import fcntl
except ImportError:  # Windows: two processes on one journal are not told apart there
    fcntl = None  # type: ignore[assignment]

_ASKED = tuple(one.name for one in fields(Request) if one.name != "meta")
_CHUNK = 64
_STREAMED_CHUNK = 512  # eight times the requests that an HTTP engine has under way


class JournaledEngine:
    """`engine`, answering from the journal at `path` what was answered before, and writing down what is new.

    The n-th time that a question is put to this object gets the n-th answer that the journal has, so that a computation
    that asks some questions twice is repeated exactly. Replies with an error are not written down. An engine with
    `complete_each` loses nothing that was answered when the process is killed; any other is asked in small chunks, and
    loses what the last one had in flight. `on_progress` is told how many more requests have their reply.

    Raises `InvalidInput` when the file cannot be written or another process is writing it.
    """

    def __init__(self, engine: Engine, path: Path, on_progress: Callable[[int], None] | None = None) -> None:
        self.engine = engine
        self.path = path
        self.asked = self.replayed = 0
        self._on_progress = on_progress or (lambda count: None)
        self._times: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise InvalidInput(f"journal {path}: cannot be written: {error}; give an output where it can be") from error
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                raise InvalidInput(f"journal {path}: another process is writing it; wait for it or end it") from error
        self._written = _read(path)

    @property
    def name(self) -> str:
        """The engine's own name."""
        return self.engine.name

    @property
    def identity(self) -> str:
        """The engine's own identity."""
        return self.engine.identity

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, from the journal or else from the engine."""
        identity = self.engine.identity
        replies: dict[int, Reply] = {}
        missing: list[tuple[int, str]] = []
        for row, request in enumerate(requests):
            key = _key(request, identity)
            time = self._times[key] = self._times.get(key, -1) + 1
            if time < len(self._written.get(key, ())):
                replies[row] = self._written[key][time]
            else:
                missing.append((row, key))
        self.replayed += len(replies)
        self._on_progress(len(replies))
        each = getattr(self.engine, "complete_each", None)
        size = _CHUNK if each is None else _STREAMED_CHUNK
        for start in range(0, len(missing), size):
            part = missing[start : start + size]
            asked = [requests[row] for row, _ in part]
            done: set[int] = set()

            def on_reply(place: int, reply: Reply, part: list[tuple[int, str]] = part, done: set[int] = done) -> None:
                if place not in done and reply.error is None:
                    done.add(place)
                    self._write(part[place][1], reply)

            answers = self.engine.complete(asked) if each is None else each(asked, on_reply)
            for place, reply in enumerate(checked(answers, asked, self.engine.name)):
                on_reply(place, reply)
                replies[part[place][0]] = reply
            lost = len(part) - len(done)
            self._on_progress(lost)
            for place in set(range(len(part))) - done:
                # Was not an answer: the next asking is the same one again
                self._times[part[place][1]] -= 1
        return [replies[row] for row in range(len(requests))]

    def close(self) -> None:
        """Give back what the engine holds; the journal stays."""
        self.engine.close()

    def close_journal(self) -> None:
        """Let go of the file, for this or another process to go on with."""
        os.close(self._file)

    def _write(self, key: str, reply: Reply) -> None:
        record = {"key": key, **{name: value for name, value in asdict(reply).items() if name != "error"}}
        line = json.dumps(record).encode("ascii") + b"\n"
        while line:
            line = line[os.write(self._file, line) :]
        self._written.setdefault(key, []).append(reply)
        self.asked += 1
        self._on_progress(1)


def _key(request: Request, identity: str) -> str:
    return digest([identity, {name: getattr(request, name) for name in _ASKED}])


def _read(path: Path) -> dict[str, list[Reply]]:
    written: dict[str, list[Reply]] = {}
    damaged = 0
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        # The half line of a killed process: what it had for an answer is asked again
        content = content[: content.rfind(b"\n") + 1]
        os.truncate(path, len(content))
    for line in content.splitlines():
        try:
            record = json.loads(line)
            usage = Usage(**record.pop("usage"))
            key = record.pop("key")
            written.setdefault(key, []).append(Reply(**record, usage=usage))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged += 1
    if damaged:
        warnings.warn(
            f"journal {path}: {damaged} damaged lines are passed over; what they held is asked again",
            RuntimeWarning,
            stacklevel=3,
        )
    return written
