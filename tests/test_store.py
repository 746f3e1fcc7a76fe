"""One value a key, over processes, threads and faults."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reward_plugin.store import Store


def _race(path: Path, keys: list[str], number: int, barrier: object, results: object) -> None:
    computed: list[str] = []

    def compute(missing: list[str]) -> dict[str, object]:
        computed.extend(missing)
        time.sleep(0.2)
        return dict.fromkeys(missing, number)

    barrier.wait()  # type: ignore[attr-defined]
    found = Store(path).fetch(keys, compute)
    results.put((number, found, computed))  # type: ignore[attr-defined]


def test_eight_processes_agree_and_compute_once(tmp_path: Path) -> None:
    """H13: all start together on an empty file, each would answer otherwise."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(8), context.Queue()
    keys = [f"k{i}" for i in range(5)]
    workers = [
        context.Process(target=_race, args=(tmp_path / "s.sqlite", keys, number, barrier, results))
        for number in range(8)
    ]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()

    assert all(found == outcomes[0][1] for _, found, _ in outcomes)
    assert sorted(key for _, _, computed in outcomes for key in computed) == keys


def test_a_killed_process_does_not_block_the_others(tmp_path: Path) -> None:
    """kill -9 while it computes: its claim is free to take at once."""
    code = (
        "import sys, time; from reward_plugin.store import Store\n"
        "def compute(keys):\n    print('claimed', flush=True); time.sleep(600)\n"
        "Store(sys.argv[1]).fetch(['k'], compute)"
    )
    path = tmp_path / "s.sqlite"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait()
    start = time.monotonic()

    assert Store(path).fetch(["k"], lambda keys: {"k": 1}) == {"k": 1}
    assert time.monotonic() - start < 60  # not the lease of ten minutes


def test_values_outlive_the_process(tmp_path: Path) -> None:
    first = Store(tmp_path / "deep" / "s.sqlite").fetch(["k"], lambda _: {"k": {"w": [0.1, 2.0]}})
    second = Store(tmp_path / "deep" / "s.sqlite")

    assert first == second.fetch(["k"], lambda _: pytest.fail("asked again")) == {"k": {"w": [0.1, 2]}}
    assert second.hits == 1


def test_a_failure_is_not_stored(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")

    assert store.fetch(["a", "b"], lambda keys: {"a": 1}) == {"a": 1}
    assert store.fetch(["a", "b"], lambda keys: dict.fromkeys(keys, 2)) == {"a": 1, "b": 2}


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), KeyboardInterrupt()])
def test_what_compute_raises_passes_and_frees_the_key(tmp_path: Path, error: BaseException) -> None:
    """Not taken for a fault of the file, even where it is of the same kind."""
    store = Store(tmp_path / "s.sqlite")

    def compute(keys: list[str]) -> dict[str, object]:
        raise error

    with pytest.raises(type(error)):
        store.fetch(["k"], compute)
    assert Store(tmp_path / "s.sqlite").fetch(["k"], lambda _: {"k": 1}) == {"k": 1}


def test_damaged_file_costs_a_warning_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"this is no database" * 1000)
    store = Store(path)
    with pytest.warns(RuntimeWarning, match="cannot be used.*delete the file") as caught:
        assert store.fetch(["k"], lambda _: {"k": 1}) == {"k": 1}
    assert store.fetch(["k", "l"], lambda keys: dict.fromkeys(keys, 2)) == {"k": 1, "l": 2}
    assert len(caught) == 1


def test_unwritable_place_costs_a_warning_and_no_value(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.warns(RuntimeWarning, match="results are kept in this process only"):
        assert Store(tmp_path / "file" / "s.sqlite").fetch(["k"], lambda _: {"k": 1}) == {"k": 1}


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    found: list[dict[str, object]] = []

    def work(number: int) -> None:
        found.append(store.fetch(["k"], lambda _: {"k": number}))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({str(one) for one in found}) == 1


def test_fork_and_pickle_open_their_own_connection(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    store.fetch(["k"], lambda _: {"k": 1})
    copy = pickle.loads(pickle.dumps(store))

    assert copy.fetch(["k"], lambda _: {"k": 2}) == {"k": 1}
    child = os.fork()
    if child == 0:
        fresh = Store(tmp_path / "s.sqlite")
        os._exit(0 if store.fetch(["m"], lambda _: {"m": 3}) == fresh.fetch(["m"], lambda _: {}) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.fetch(["m"], lambda _: {}) == {"m": 3}
