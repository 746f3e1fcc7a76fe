"""Results by key in a folder that machines share, local or in object storage: one file a key, first writer wins."""

import contextlib
import json
import os
import re
import socket
import threading
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reward_plugin.canonical import canonical_json, digest
from reward_plugin.errors import InvalidInput

_READERS = 16  # requests to object storage under way
_KEY = re.compile(r"[A-Za-z0-9_-]{3,128}")


class FolderStore:
    """A folder of results by key, like `s3://bucket/weights/`, `memory://weights/` or a path; fsspec opens it.

    Machines that compute the same key at once all end with the value that was written first. A folder that cannot be
    used, or a damaged file in it, costs a warning and the sharing, never a wrong value. Safe over processes, threads,
    fork and pickle. Raises `InvalidInput` for an address that cannot be opened.

    >>> store = FolderStore("memory://doctest/")
    >>> store.fetch(["key"], lambda keys: {key: 1 for key in keys}), store.fetch(["key"], lambda keys: {})
    ({'key': 1}, {'key': 1})
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self.hits = 0
        self._memory: dict[str, object] = {}
        self._broken = False
        self._lock = threading.Lock()
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise InvalidInput(f"store {url}: a folder needs fsspec: pip install reward-plugin[folder]") from error
        try:
            self._files, self._root = url_to_fs(os.path.expanduser(self.url))
        except (ImportError, ValueError) as error:  # a known protocol without its package, an unknown one
            raise InvalidInput(f"store {url}: cannot be opened: {error}") from error

    def fetch(self, keys: Sequence[str], compute: Callable[[list[str]], dict[str, object]]) -> dict[str, object]:
        """Return the value of each key that has one, asking `compute` for the missing ones.

        Every machine gets the value that was stored first. A key that `compute` leaves out is not stored. Raises
        `InvalidInput` for a key that is no file name.
        """
        wanted = list(dict.fromkeys(keys))
        for key in wanted:
            if not _KEY.fullmatch(key):
                raise InvalidInput(f"store key {key!r}: expected 3 to 128 letters, digits, - and _")
        with self._lock:  # threads of one process compute once
            found = {key: self._memory[key] for key in wanted if key in self._memory}
            stored = self._usable(self._read, [key for key in wanted if key not in found])
            self.hits += len(stored)
            found |= stored
            missing = [key for key in wanted if key not in found]
            if missing:
                computed = {key: json.loads(canonical_json(value)) for key, value in compute(missing).items()}
                # Read back: another machine may have been first
                found |= computed | self._usable(self._write, computed)
            self._memory |= found
        return found

    def __getstate__(self) -> dict[str, object]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def _usable(self, step: Callable[[Any], dict[str, object]], argument: Any) -> dict[str, object]:
        if self._broken or not argument:
            return {}
        try:
            return step(argument)
        except Exception as error:  # each filesystem raises errors of its own
            self._broken = True
            warnings.warn(
                f"store {self.url}: cannot be used ({error!r}); results are kept in this process only. Other machines may "
                "compute others: see to its address and permissions",
                RuntimeWarning,
                stacklevel=4,
            )
            return {}

    def _read(self, keys: Sequence[str]) -> dict[str, object]:
        with ThreadPoolExecutor(min(_READERS, len(keys))) as pool:
            contents = pool.map(self._content, keys)
        found = {}
        for key, content in zip(keys, contents, strict=True):
            if content is None:
                continue
            try:
                record = json.loads(content)
                if record["key"] != key or record["sha256"] != digest(record["value"]):
                    raise ValueError("its content does not have the checksum that it states")
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                warnings.warn(
                    f"store {self.url}: {self._path(key)} is damaged ({error}) and is passed over; delete it",
                    RuntimeWarning,
                    stacklevel=5,
                )
            else:
                found[key] = record["value"]
        return found

    def _content(self, key: str) -> bytes | None:
        try:
            content: bytes = self._files.cat_file(self._path(key))
        except FileNotFoundError:
            return None
        return content

    def _write(self, values: dict[str, object]) -> dict[str, object]:
        for key, value in values.items():
            content = canonical_json({"key": key, "sha256": digest(value), "value": value}).encode("ascii")
            with contextlib.suppress(FileExistsError):
                if "file" in _protocols(self._files):
                    _create_local(Path(self._path(key)), content)
                else:
                    self._create(self._path(key), content)
        return self._read(list(values))

    def _create(self, path: str, content: bytes) -> None:
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            self._files.pipe_file(path, content, mode="create")
        except (NotImplementedError, TypeError):
            # This filesystem cannot create exclusively; looking first leaves a gap of one request
            if not self._files.exists(path):
                self._files.pipe_file(path, content)

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key[:2]}/{key}.json"


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)


def _create_local(path: Path, content: bytes) -> None:
    """Create `path` with its whole content, or raise `FileExistsError`: a link is there with all of it or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
