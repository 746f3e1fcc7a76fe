"""A server for tests that speaks as vLLM's does, and can be told to fail."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Handler", dict[str, Any]], bool]


class Handler(BaseHTTPRequestHandler):
    """Answers with the last message's content, unless the stub's fault took the request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Stub"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": self.server.model}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append(body)
            self.server.keys.append(self.headers["Authorization"])
        if not self.server.fault(self, body):
            self.answer(200, completion(body))

    def answer(self, status: int, body: Any, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)


class Stub(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: str = "m") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.fault: Fault = lambda handler, body: False
        self.lock = threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        pass  # a client that gave up

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


def completion(body: dict[str, Any]) -> dict[str, Any]:
    top = [{"token": token, "logprob": logprob} for token, logprob in [("Yes", -0.1), ("No", -2.5), ("Yes", -9.0)]]
    choice: dict[str, Any] = {"message": {"content": body["messages"][-1]["content"]}, "finish_reason": "length"}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": "Yes", "top_logprobs": top}, {"token": "x", "top_logprobs": []}]}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"choices": [choice], "usage": usage}
