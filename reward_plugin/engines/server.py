"""A vLLM server of our own: started at the first request, restarted when it dies, gone when this process is."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from reward_plugin.engines.base import Reply, Request
from reward_plugin.engines.http import HttpEngine, tls_context
from reward_plugin.engines.models import model_identity, model_source
from reward_plugin.engines.vllm import cpu_environment, engine_arguments
from reward_plugin.errors import EngineError

_RESTARTS = 3
_GRACE_SECONDS = 10.0  # from being asked to stop to being stopped
_HOST = "127.0.0.1"
_LOST = ("unreachable", "timeout", "server_error", "bad_reply")  # what a dying server makes of a request


class ServerEngine:
    """A model in a vLLM server that this engine starts and watches. `model` is a local folder or a hub name.

    The server listens on `port` of this machine, else on a free one, and writes to the file `log`, else to one in the
    temporary folder. It ends with `close`, with this engine or with this process, however that ends. A pickled copy
    speaks to the same server while that lives, and starts its own after. Raises `EngineError` at first use when the
    server is not up within `start_seconds`, and when it dies more than three times.
    """

    def __init__(
        self, model: str, *, port: int | None = None, log: Path | None = None, start_seconds: float = 600
    ) -> None:
        self.model = model
        self.port = port
        self.log = log or Path(tempfile.gettempdir()) / f"reward-plugin-server-{uuid.uuid4().hex}.log"
        self.start_seconds = start_seconds
        self.name = f"server:{model}"
        self._address: str | None = None
        self._starts = 0
        self._finalizer: weakref.finalize[Any, ServerEngine] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_finalizer": None, "_starts": 0}

    @property
    def identity(self) -> str:
        """Changes when the model does."""
        return model_identity(self.model)

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request. Those that were lost because the server died are asked once more of a new one."""
        return self.complete_each(requests, lambda row, reply: None)

    def complete_each(self, requests: Sequence[Request], on_reply: Callable[[int, Reply], None]) -> list[Reply]:
        """Do as `complete`, and call `on_reply` with each row and its reply as soon as that is there."""
        if not requests:
            return []
        replies = self._server().complete_each(requests, on_reply)
        lost = [row for row, reply in enumerate(replies) if reply.error in _LOST]
        if lost and not self._healthy():
            asked = [requests[row] for row in lost]
            again = self._server().complete_each(asked, lambda place, reply: on_reply(lost[place], reply))
            for row, reply in zip(lost, again, strict=True):
                replies[row] = reply
        return replies

    def close(self) -> None:
        """Stop the server, its children too; the next `complete` starts it anew."""
        self._end()
        self._address, self._starts = None, 0

    def _server(self) -> HttpEngine:
        if not self._healthy():
            self._end()
            self._start()
        return HttpEngine(f"{self._address}/v1", model=self.model)

    def _healthy(self) -> bool:
        if self._address is None:
            return False
        try:
            # No proxy stands between this machine and itself
            with httpx.Client(base_url=self._address, timeout=10, trust_env=False, verify=tls_context()) as client:
                served = client.get("/v1/models").json()["data"]
                return client.get("/health").is_success and self.model in [one["id"] for one in served]
        except (httpx.RequestError, ValueError, KeyError, TypeError):
            return False

    def _start(self) -> None:
        if self._starts > _RESTARTS:
            raise EngineError(f"engine {self.name}: the server died {self._starts} times; {self._log_tail()}")
        port = _free_port(self.port, self.name)
        command = _command(self.model, port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "reward_plugin.engines.server", str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that it can be stopped with its children
                env=os.environ | cpu_environment(),
            )
        self._starts += 1
        self._finalizer = weakref.finalize(self, _stop, process, os.getpid())
        self._address = f"http://{_HOST}:{port}"
        end = time.monotonic() + self.start_seconds
        while not self._healthy():
            if process.poll() is not None:
                fault = "expected a vLLM server, but it ended during its start"
            elif time.monotonic() > end:
                fault = f"expected a vLLM server within {self.start_seconds:g} s (start_seconds); it was not up by then"
            else:
                time.sleep(0.25)
                continue
            self._end()
            raise EngineError(f"engine {self.name}: {fault}; {self._log_tail()}")

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def _log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return "\n".join([f"its log is {self.log} and ends:", *lines])


def _command(model: str, port: int) -> list[str]:
    source = model_source(model)
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            f"engine server:{model}: vLLM is not installed; install reward-plugin[vllm] for a GPU or "
            f"reward-plugin[cpu], or use hf:{model}"
        )
    arguments = engine_arguments() | {
        "model": source,
        "served_model_name": model,
        "host": _HOST,
        "port": port,
        # As in process: no sampling defaults from the model's folder, compact JSON, cached tokens counted
        "generation_config": "vllm",
        "structured_outputs_config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
        "enable_prompt_tokens_details": True,
        "uvicorn_log_level": "warning",
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in arguments.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return command


def _free_port(wanted: int | None, name: str) -> int:
    with socket.socket() as probe:
        # As the server does: a port whose last connections are still closing is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted or 0))
        except OSError as error:
            raise EngineError(
                f"engine {name}: expected port {wanted} to be free, but {error.strerror}; give another port, or none "
                f"for a free one, or speak to the server that has it with http://{_HOST}:{wanted}/v1"
            ) from error
        return int(probe.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # a fork does not own the server
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS + 5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _watch(parent: int, command: list[str]) -> None:
    """Run `command` until it ends or `parent` is gone, then end this whole process group.

    This stands between the two because a killed parent can stop nothing, and Linux's own notice of a parent's death
    means the thread that started the child, which may end long before its process.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)  # sent to the group; this process outlasts the others
    child = subprocess.Popen(command)
    while child.poll() is None and os.getppid() == parent:
        time.sleep(0.2)
    if child.returncode is None:
        os.killpg(0, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_SECONDS)
    else:
        sys.stdout.write(f"the server ended with code {child.returncode}\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2:])
