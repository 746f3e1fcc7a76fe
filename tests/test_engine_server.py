import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from reward_plugin.engines import http, open_engine, server
from reward_plugin.engines.base import Request
from reward_plugin.engines.server import ServerEngine
from reward_plugin.errors import EngineError, InvalidInput

# Speaks like vLLM; its child stands for vLLM's workers; "die" in a question kills it, and it takes a while to come up
FAKE = """
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({"data": [{"id": "fake"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        if text == "die" or text == "die once" and not os.path.exists("died"):
            open("died", "w").close()
            os._exit(3)
        self.answer({"choices": [{"message": {"content": text}}]})

    def answer(self, body):
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(0.2)
with open("pids", "a") as pids:
    print(os.getpid(), child.pid, file=pids)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ServerEngine]]:
    """Return a maker of engines whose server is the script above; it and its files are in `tmp_path`."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    # Not a change of folder: the watching process must still find the package
    monkeypatch.setattr(server, "_command", lambda model, port: in_folder(tmp_path, script, port))
    monkeypatch.setattr(http, "_BACKOFF", 0.05)
    made: list[ServerEngine] = []

    def make(port: int | None = None) -> ServerEngine:
        made.append(ServerEngine("fake", port=port, log=tmp_path / "server.log", start_seconds=30))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def in_folder(folder: Path, script: Path, port: int) -> list[str]:
    run = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    return [sys.executable, "-c", run, str(folder), str(script), str(port)]


def ask(engine: ServerEngine, *questions: str) -> list[str | None]:
    return [reply.text for reply in engine.complete([Request((("user", one),)) for one in questions])]


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(processes: list[int], seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_starts_at_first_use_and_closes_leaving_no_process(fake: Callable[..., ServerEngine], tmp_path: Path) -> None:
    engine = fake()
    assert not (tmp_path / "pids").exists()

    assert ask(engine, "a", "b") == ["a", "b"]
    assert ask(engine, "c") == ["c"]
    started = pids(tmp_path)
    assert len(started) == 2
    engine.close()
    assert gone(started, seconds=1)


def test_closed_engine_starts_anew(fake: Callable[..., ServerEngine], tmp_path: Path) -> None:
    engine = fake()
    ask(engine, "a")
    engine.close()

    assert ask(engine, "b") == ["b"]
    assert len(pids(tmp_path)) == 4


def test_dropped_engine_stops_its_server(fake: Callable[..., ServerEngine], tmp_path: Path) -> None:
    engine = ServerEngine("fake", log=tmp_path / "dropped.log")
    ask(engine, "a")
    del engine

    assert gone(pids(tmp_path))


def test_killed_server_is_restarted_and_its_children_are_gone(
    fake: Callable[..., ServerEngine], tmp_path: Path
) -> None:
    engine = fake()
    ask(engine, "a")
    first = pids(tmp_path)
    os.kill(first[0], signal.SIGKILL)

    assert ask(engine, "b") == ["b"]
    assert gone(first)
    assert len(pids(tmp_path)) == 4


def test_requests_lost_to_a_death_are_asked_again(fake: Callable[..., ServerEngine], tmp_path: Path) -> None:
    questions = [f"question {row}" for row in range(20)]
    questions[7] = "die once"

    assert ask(fake(), *questions) == questions
    assert len(pids(tmp_path)) == 4


def test_server_that_dies_again_and_again_is_given_up(
    fake: Callable[..., ServerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_RESTARTS", 1)
    engine = fake()

    replies = engine.complete([Request((("user", "die"),))])
    assert [reply.error for reply in replies] == ["unreachable"]
    with pytest.raises(EngineError, match=r"died 2 times(.|\n)*ended with code 3"):
        ask(engine, "a")


def test_failed_start_shows_the_end_of_the_log(
    fake: Callable[..., ServerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "print('too little memory'); raise SystemExit(7)"
    monkeypatch.setattr(server, "_command", lambda model, port: [sys.executable, "-c", code])
    engine = fake()

    with pytest.raises(EngineError, match=r"(?s)ended during its start.*too little memory.*code 7") as caught:
        ask(engine, "a")
    assert str(engine.log) in str(caught.value)


def test_slow_start_is_bounded(
    fake: Callable[..., ServerEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import os, time; open({str(tmp_path / 'pids')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(server, "_command", lambda model, port: [sys.executable, "-c", code])
    engine = fake()
    engine.start_seconds = 2

    with pytest.raises(EngineError, match="within 2 s"):
        ask(engine, "a")
    assert gone(pids(tmp_path), seconds=1)


def test_port_in_use_is_an_error_that_names_it(fake: Callable[..., ServerEngine]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(EngineError, match=rf"expected port {port} to be free.*give another port"):
            ask(fake(port), "a")


def test_given_port_is_used(fake: Callable[..., ServerEngine]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = fake(port)

    assert ask(engine, "a") == ["a"]
    assert httpx.get(f"http://127.0.0.1:{port}/health").is_success


def test_missing_model_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not there"):
        ask(ServerEngine(str(tmp_path / "nothing")), "a")


def test_missing_vllm_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(EngineError, match=r"install reward-plugin\[vllm\]"):
        ask(ServerEngine("owner/name"), "a")


def test_name_and_identity_need_no_server() -> None:
    engine = open_engine("server:owner/name")

    assert (engine.name, engine.identity) == ("server:owner/name", "owner/name")
    engine.close()


def test_copy_shares_the_server_while_it_lives_and_starts_its_own_after(
    fake: Callable[..., ServerEngine], tmp_path: Path
) -> None:
    engine = fake()
    ask(engine, "a")
    copy: ServerEngine = pickle.loads(pickle.dumps(engine))

    assert ask(copy, "b") == ["b"]
    copy.close()
    assert len(pids(tmp_path)) == 2
    assert ask(engine, "c") == ["c"]
    copy = pickle.loads(pickle.dumps(engine))
    engine.close()
    assert ask(copy, "d") == ["d"]
    assert len(pids(tmp_path)) == 4
    copy.close()
    assert gone(pids(tmp_path), seconds=1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_dies_with_its_parent(fake: Callable[..., ServerEngine], tmp_path: Path, how: signal.Signals) -> None:
    # Started from a thread that ends at once: only the process counts
    program = f"""
import sys, threading, time
from pathlib import Path
from reward_plugin.engines import server
from reward_plugin.engines.base import Request
server._command = lambda model, port: {in_folder(tmp_path, tmp_path / "fake.py", 0)[:-1]!r} + [str(port)]
engine = server.ServerEngine("fake", log=Path({str(tmp_path / "log")!r}))
thread = threading.Thread(target=engine.complete, args=([Request((("user", "a"),))],))
thread.start()
thread.join()
time.sleep(0.5)
print("up", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        started = pids(tmp_path)
        assert all(alive(pid) for pid in started)
        os.kill(parent.pid, how)
    assert gone(started)


def test_server_ends_with_a_program_that_forgot_it(fake: Callable[..., ServerEngine], tmp_path: Path) -> None:
    # A fork that ends in between leaves it alone
    program = f"""
import os
from pathlib import Path
from reward_plugin.engines import server
from reward_plugin.engines.base import Request
server._command = lambda model, port: {in_folder(tmp_path, tmp_path / "fake.py", 0)[:-1]!r} + [str(port)]
engine = server.ServerEngine("fake", log=Path({str(tmp_path / "log")!r}))
ask = lambda: engine.complete([Request((("user", "a"),))])[0].text
ask()
if os.fork() == 0:
    raise SystemExit
os.wait()
print(ask())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "a\n"
    assert len(pids(tmp_path)) == 2
    assert gone(pids(tmp_path), seconds=1)


@pytest.mark.real
def test_real_server_gives_a_verdict(embedded: Path) -> None:
    engine = ServerEngine(str(embedded))
    question = "Is Paris the capital of France? Answer with one word, Yes or No."
    try:
        replies = engine.complete([Request((("user", question),), top_logprobs=20)] * 2)
    finally:
        engine.close()

    for reply in replies:
        assert reply.error is None
        assert {"Yes", "No"} <= set(reply.logprobs)
        assert (reply.usage.generated_tokens, len(reply.logprobs)) == (1, 20)
