"""JSON lines: appended whole, read back past a line that a killed process left half written."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reward_plugin.errors import InvalidInput


def append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append one line a record, all of them in one write, so that processes sharing the file do not cut into each other."""
    lines = b"".join(json.dumps(record, allow_nan=False).encode("ascii") + b"\n" for record in records)
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines  # a killed writer's half line must not swallow ours
        view = memoryview(lines)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def read(path: Path) -> Iterator[tuple[int, object]]:
    """Yield (line number, value) of each line that is not blank. Raises `InvalidInput` naming the file and line.

    Lines end at a newline only: other separators may stand inside a string.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise InvalidInput(f"{path}, line {number}: not JSON: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
