"""Results computed once per key over processes: one SQLite file, first writer wins, everyone re-reads."""

import json
import os
import socket
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reward_plugin.canonical import canonical_json

if TYPE_CHECKING:
    from reward_plugin.folder_store import FolderStore

_BUSY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_SCHEMA = """
CREATE TABLE IF NOT EXISTS result (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS claim (key TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
"""

Compute = Callable[[list[str]], dict[str, object]]
"""Takes the missing keys, returns the JSON value of each one that could be had. A failure is a key left out."""


def open_store(place: "str | Path | None") -> "Store | FolderStore":
    """Return the store at `place`: a file, a folder (its address has `://`, ends in a slash or is there), None for memory.

    >>> type(open_store("memory://weights")).__name__, type(open_store("weights.sqlite")).__name__
    ('FolderStore', 'Store')
    """
    text = "" if place is None else str(place)
    if "://" in text or text.endswith("/") or (text and Path(text).expanduser().is_dir()):
        from reward_plugin.folder_store import FolderStore

        return FolderStore(text)
    return Store(place)


class Store:
    """A file of results by key. `lease` is how long, in seconds, another process's unfinished computation is waited for.

    A file that is damaged, locked for too long or not writable costs a warning and the sharing, never a wrong value:
    results then live in this process alone. Safe over processes, threads, fork and pickle.

    >>> store = Store(None)
    >>> store.fetch(["a"], lambda keys: {key: 1 for key in keys}), store.fetch(["a"], lambda keys: {})
    ({'a': 1}, {'a': 1})
    """

    def __init__(self, path: str | Path | None, *, lease: float = 600.0) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self.lease = lease
        self.hits = 0
        self._memory: dict[str, object] = {}
        self._broken = self.path is None
        self._local = threading.local()

    def fetch(self, keys: Sequence[str], compute: Compute) -> dict[str, object]:
        """Return the value of each key that has one, asking `compute` for those that no process has computed yet.

        Every process gets the value that was stored first. A key that `compute` leaves out is not stored.
        """
        wanted = list(dict.fromkeys(keys))
        found = {key: self._memory[key] for key in wanted if key in self._memory}
        missing = [key for key in wanted if key not in found]
        if missing and not self._broken:
            try:
                stored = self._read(missing)
                self.hits += len(stored)
                found |= stored
                missing = [key for key in missing if key not in found]
                if missing:
                    found |= self._compute_once(missing, compute)
                missing = []
            except _ComputeFailed as error:
                assert error.__cause__ is not None
                raise error.__cause__ from None
            except (sqlite3.Error, OSError, ValueError) as error:
                self._broken = True
                warnings.warn(
                    f"store {self.path}: cannot be used ({error}); results are kept in this process only. Other "
                    "processes may compute others: delete the file if it is damaged, or give a writable path",
                    RuntimeWarning,
                    stacklevel=2,
                )
                missing = [key for key in missing if key not in found]
        if missing:
            found |= _plain(compute(missing))
        self._memory |= found
        return found

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "lease": self.lease}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["path"], lease=state["lease"])  # type: ignore[misc]

    def _compute_once(self, keys: list[str], compute: Compute) -> dict[str, object]:
        found: dict[str, object] = {}
        owner = _owner()
        missing = keys
        while missing:
            mine = self._claim(missing, owner)
            if mine:
                try:
                    computed = compute(mine)
                except BaseException as error:
                    self._release(mine, owner)
                    raise _ComputeFailed from error
                found |= self._write(_plain(computed), mine, owner)
            missing = [key for key in missing if key not in mine]
            if missing:
                time.sleep(_POLL_SECONDS)
                found |= self._read(missing)
                missing = [key for key in missing if key not in found]
        return found

    def _claim(self, keys: list[str], owner: str) -> list[str]:
        """Take the keys that nobody has a result for or is computing; claims of the dead are free to take."""
        now = time.time()
        mine = []
        connection = self._connection()
        with _Immediate(connection):
            for key in keys:
                if connection.execute("SELECT 1 FROM result WHERE key = ?", (key,)).fetchone():
                    continue
                row = connection.execute("SELECT owner, until FROM claim WHERE key = ?", (key,)).fetchone()
                if row is None or row[1] < now or _dead(row[0]):
                    connection.execute("INSERT OR REPLACE INTO claim VALUES (?, ?, ?)", (key, owner, now + self.lease))
                    mine.append(key)
        return mine

    def _write(self, values: dict[str, object], claimed: list[str], owner: str) -> dict[str, object]:
        connection = self._connection()
        with _Immediate(connection):
            rows = [(key, canonical_json(value)) for key, value in values.items()]
            connection.executemany("INSERT OR IGNORE INTO result VALUES (?, ?)", rows)
            connection.executemany("DELETE FROM claim WHERE key = ? AND owner = ?", [(key, owner) for key in claimed])
        return self._read(list(values))

    def _release(self, keys: list[str], owner: str) -> None:
        connection = self._connection()
        with _Immediate(connection):
            connection.executemany("DELETE FROM claim WHERE key = ? AND owner = ?", [(key, owner) for key in keys])

    def _read(self, keys: list[str]) -> dict[str, object]:
        connection = self._connection()
        found = {}
        for key in keys:
            row = connection.execute("SELECT value FROM result WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found[key] = json.loads(row[0])
        return found

    def _connection(self) -> sqlite3.Connection:
        # A connection must not cross a fork or a thread
        if getattr(self._local, "pid", None) != os.getpid():
            assert self.path is not None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            _prepare(connection)
            self._local.connection, self._local.pid = connection, os.getpid()
        connection = self._local.connection
        assert isinstance(connection, sqlite3.Connection)
        return connection


def _prepare(connection: sqlite3.Connection) -> None:
    # Changing the journal's mode does not wait for other processes as statements do
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


class _ComputeFailed(Exception):
    """Carries what `compute` raised past the handling of the file's own faults."""


class _Immediate:
    """A write transaction from its first statement on, so that what it read still holds when it writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __enter__(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self.connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _plain(values: dict[str, object]) -> dict[str, object]:
    # As they would come back from the file
    return {key: json.loads(canonical_json(value)) for key, value in values.items()}


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _dead(owner: str) -> bool:
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
