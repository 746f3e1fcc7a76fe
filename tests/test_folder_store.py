"""A folder of results that machines share: one value a key, whatever else goes wrong."""

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from reward_plugin.errors import InvalidInput
from reward_plugin.folder_store import FolderStore
from reward_plugin.store import Store, open_store


@pytest.fixture(params=["path", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/deep [x]*/" if request.param == "path" else f"memory://{uuid.uuid4().hex}/"


def _race(place: str, keys: list[str], number: int, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    results.put(FolderStore(place).fetch(keys, lambda missing: dict.fromkeys(missing, [number] * 2000)))  # type: ignore[attr-defined]


def test_eight_processes_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(8), context.Queue()
    keys = [f"key{i}" for i in range(5)]
    workers = [
        context.Process(target=_race, args=(f"{tmp_path}/s/", keys, number, barrier, results)) for number in range(8)
    ]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()

    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert FolderStore(tmp_path / "s").fetch(keys, lambda _: pytest.fail("computed again")) == outcomes[0]


def test_values_are_shared_and_the_first_stays(place: str) -> None:
    first = FolderStore(place).fetch(["key"], lambda _: {"key": {"w": [0.1, 2.0], "é\ud800": None}})
    second = FolderStore(place)

    assert (
        second.fetch(["key"], lambda _: pytest.fail("computed again"))
        == first
        == {"key": {"w": [0.1, 2], "é\ud800": None}}
    )
    assert second.hits == 1

    def compute(keys: list[str]) -> dict[str, object]:
        # Meanwhile another machine is done
        FolderStore(place).fetch(["late"], lambda _: {"late": "first"})
        return {"late": "second"}

    assert second.fetch(["late"], compute) == {"late": "first"}


def test_a_failure_is_not_stored_and_passes_unchanged(place: str) -> None:
    store = FolderStore(place)
    assert store.fetch(["aaa", "bbb"], lambda _: {"aaa": 1}) == {"aaa": 1}
    for error in (OSError("x"), ValueError("x"), KeyboardInterrupt()):

        def compute(keys: list[str], error: BaseException = error) -> dict[str, object]:
            raise error

        with pytest.raises(type(error)):
            store.fetch(["bbb"], compute)
    assert FolderStore(place).fetch(["aaa", "bbb"], lambda keys: dict.fromkeys(keys, 2)) == {"aaa": 1, "bbb": 2}


def test_thousands_of_keys_at_once(place: str) -> None:
    keys = [f"{number:04}" for number in range(1500)]
    FolderStore(place).fetch(keys, lambda missing: {key: key for key in missing})

    assert FolderStore(place).fetch([*keys, "new"], lambda missing: {"new": len(missing)})["new"] == 1


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"key": "key", "sha256": "0", "value": 1}', '{"key": "other"}', "\xff"]
)
def test_a_damaged_file_costs_a_warning_and_no_value(tmp_path: Path, damage: str) -> None:
    place = f"{tmp_path}/s/"
    FolderStore(place).fetch(["key", "sound"], lambda _: {"key": 1, "sound": 1})
    [path] = (tmp_path / "s").glob("*/key.json")
    path.write_text(damage, encoding="latin-1")
    with pytest.warns(RuntimeWarning, match=r"key.json is damaged .* delete it"):
        found = FolderStore(place).fetch(["key", "sound"], lambda keys: dict.fromkeys(keys, 2))

    assert found == {"key": 2, "sound": 1}
    assert path.read_text(encoding="latin-1") == damage


def test_a_file_moved_to_another_key_is_no_value(tmp_path: Path) -> None:
    FolderStore(tmp_path).fetch(["key"], lambda _: {"key": 1})
    [path] = tmp_path.glob("*/key.json")
    path.rename(path.with_name("kez.json"))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert FolderStore(tmp_path).fetch(["kez"], lambda _: {"kez": 2}) == {"kez": 2}


def test_an_unusable_folder_costs_one_warning_and_no_value(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = FolderStore(f"{tmp_path}/file/")
    with pytest.warns(RuntimeWarning, match="cannot be used .* results are kept in this process only") as caught:
        assert store.fetch(["key"], lambda _: {"key": 1}) == {"key": 1}
    assert store.fetch(["key", "other"], lambda keys: dict.fromkeys(keys, 2)) == {"key": 1, "other": 2}
    assert len(caught) == 1


@pytest.mark.parametrize("key", ["../../etc", "a", "a b c", "", "x" * 129])
def test_a_key_is_a_file_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidInput, match="store key"):
        FolderStore(tmp_path).fetch([key], lambda keys: dict.fromkeys(keys, 1))


def test_addresses_that_cannot_be_opened_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="store nonsense://x/: cannot be opened"):
        FolderStore("nonsense://x/")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(InvalidInput, match=r"needs fsspec: pip install reward-plugin\[folder\]"):
        FolderStore("/tmp/x/")


def test_threads_and_copies(place: str) -> None:
    store = FolderStore(place)
    computed: list[int] = []
    found: list[object] = []

    def work(number: int) -> None:
        found.append(store.fetch(["key"], lambda _: (time.sleep(0.05), computed.append(number), {"key": number})[2]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(computed) == 1
    assert all(one == found[0] for one in found)
    assert pickle.loads(pickle.dumps(store)).fetch(["key"], lambda _: pytest.fail("computed again")) == found[0]


def test_the_kind_of_store_follows_from_the_place(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    folders = ["memory://x", f"{tmp_path}/new/", tmp_path / "there", "file:///x/y"]

    assert [type(open_store(place)) for place in folders] == [FolderStore] * 4
    assert [type(open_store(place)) for place in (None, tmp_path / "s.sqlite", "s")] == [Store] * 3


CHILD = """
import sys
from reward_plugin.store import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
for number in range(4000):
    key = f"key{number:04}"
    store.fetch([key], lambda keys: {key: [key] * 50})
    print(key, flush=True)
"""


@pytest.mark.parametrize("kind", ["folder/", "store.sqlite"])
def test_killed_at_twenty_points_it_loses_nothing(tmp_path: Path, kind: str) -> None:
    """kill -9: what was returned is there, what is there is whole, and the next process goes on."""
    place = f"{tmp_path}/{kind}"
    returned: list[str] = []
    chance = random.Random(7)
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", CHILD, place], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(chance.uniform(0.0, 0.12))
            os.kill(child.pid, signal.SIGKILL)
            lines = child.stdout.read().split("\n")
            returned += lines[:-1]  # the last may be cut off
    keys = sorted(set(returned))
    assert len(keys) > 50
    found = open_store(place).fetch(keys, lambda missing: pytest.fail(f"lost {missing}"))

    assert found == {key: [key] * 50 for key in keys}
    if kind.endswith("/"):
        whole = [json.loads(path.read_text())["key"] for path in Path(place).glob("*/*.json")]
        assert set(whole) >= set(keys)
