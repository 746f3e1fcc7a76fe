import pickle
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reward_plugin.engines import http, open_engine
from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.engines.http import HttpEngine
from reward_plugin.errors import EngineError, InvalidInput

from .stub import Fault, Handler, Stub


def times(count: int, fault: Fault) -> Fault:
    """Inject `fault` into the first `count` requests."""
    left = iter(range(count))
    return lambda handler, body: next(left, None) is not None and fault(handler, body)


def answers(status: int, body: Any, **headers: str) -> Fault:
    def fault(handler: Handler, _: dict[str, Any]) -> bool:
        handler.answer(status, body, **headers)
        return True

    return fault


def hangs(handler: Handler, _: dict[str, Any]) -> bool:
    handler.server.released.wait(10)
    return True


def drips(handler: Handler, _: dict[str, Any]) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b" ")
    return True


def resets(handler: Handler, _: dict[str, Any]) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True
    return True


def requests(count: int = 1, **options: Any) -> list[Request]:
    return [Request((("system", "Judge."), ("user", f"question {row}")), **options) for row in range(count)]


def texts(replies: list[Reply]) -> list[str | None]:
    return [reply.text for reply in replies]


def errors(replies: list[Reply]) -> set[str | None]:
    return {reply.error for reply in replies}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def new_stub() -> Iterator[Callable[..., Stub]]:
    stubs: list[Stub] = []

    def new(model: str = "m") -> Stub:
        stubs.append(Stub(model))
        return stubs[-1]

    yield new
    for one in stubs:
        one.stop()


@pytest.fixture
def stub(new_stub: Callable[..., Stub]) -> Stub:
    return new_stub()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BACKOFF", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_reply_has_text_logprobs_of_the_first_token_and_usage(stub: Stub) -> None:
    reply = HttpEngine(stub.url).complete(requests(top_logprobs=20))[0]

    expected = Reply("question 0", {"Yes": -0.1, "No": -2.5}, "length", Usage(7, 4, 2))
    assert expected == reply
    assert (stub.seen[0]["logprobs"], stub.seen[0]["top_logprobs"]) == (True, 20)


def test_body_has_what_was_asked_and_no_more(stub: Stub) -> None:
    schema = {"type": "object", "properties": {"met": {"type": "boolean"}}}
    HttpEngine(stub.url).complete(requests(max_tokens=9, temperature=0.5, schema=schema, meta={"kind": "verdict"}))

    assert stub.seen == [
        {
            "model": "m",
            "messages": [{"role": "system", "content": "Judge."}, {"role": "user", "content": "question 0"}],
            "max_tokens": 9,
            "temperature": 0.5,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "strict": True, "schema": schema},
            },
            "chat_template_kwargs": {"enable_thinking": False},
        }
    ]


def test_replies_keep_the_order_of_many_requests(stub: Stub) -> None:
    seen: set[str] = set()

    def first_time(handler: Handler, body: dict[str, Any]) -> bool:
        text = body["messages"][-1]["content"]
        new = text not in seen
        seen.add(text)
        return new and answers(500, {})(handler, body)

    stub.fault = first_time
    replies = HttpEngine(stub.url, concurrency=16).complete(requests(100))

    assert [f"question {row}" for row in range(100)] == texts(replies)


def test_no_requests_need_no_server() -> None:
    assert HttpEngine(f"http://127.0.0.1:{closed_port()}/v1").complete([]) == []


@pytest.mark.parametrize(
    "fault",
    [
        answers(500, {}),
        answers(502, b"<html>"),
        answers(503, {}),
        answers(429, {}),
        answers(200, b'{"choices": [{"mess'),
        answers(200, {"choices": []}),
        resets,
    ],
)
def test_passing_fault_is_outlived(stub: Stub, fault: Fault) -> None:
    stub.fault = times(2, fault)

    assert texts(HttpEngine(stub.url).complete(requests())) == ["question 0"]
    assert len(stub.seen) == 3


@pytest.mark.parametrize(
    ("fault", "error", "asked"),
    [
        (answers(503, {}), "server_error", 4),
        (answers(429, {}), "rate_limited", 4),
        (answers(200, b'{"choices": [{"mess'), "bad_reply", 4),
        (answers(200, {"choices": []}), "bad_reply", 4),
        (answers(200, ["not", "an", "object"]), "bad_reply", 4),
        (answers(200, {"choices": [{"message": {"content": 3}}]}), "bad_reply", 4),
        (resets, "unreachable", 4),
        (answers(418, {"error": "secret"}), "refused", 1),
        (answers(400, {"message": "This model's maximum context length is 4096 tokens."}), "overlong", 1),
        (answers(400, {"message": "The input is longer than the model's context length."}), "overlong", 1),
    ],
)
def test_lasting_fault_has_its_word(stub: Stub, fault: Fault, error: str, asked: int) -> None:
    stub.fault = fault

    assert HttpEngine(stub.url).complete(requests()) == [Reply(error=error)]
    assert asked == len(stub.seen)


def test_one_bad_row_leaves_the_others_unharmed(stub: Stub) -> None:
    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        return body["messages"][-1]["content"] == "question 3" and answers(500, {})(handler, body)

    stub.fault = fault
    replies = HttpEngine(stub.url).complete(requests(8))

    assert [None if row == 3 else f"question {row}" for row in range(8)] == texts(replies)
    assert replies[3].error == "server_error"


def test_retry_after_is_honoured(stub: Stub) -> None:
    stub.fault = times(1, answers(429, {}, Retry_After="1"))
    start = time.monotonic()

    assert texts(HttpEngine(stub.url).complete(requests())) == ["question 0"]
    assert time.monotonic() - start >= 1


def test_retry_after_beyond_the_deadline_is_not_waited_for(stub: Stub) -> None:
    stub.fault = answers(429, {}, Retry_After="600")
    start = time.monotonic()

    assert errors(HttpEngine(stub.url, deadline=9).complete(requests())) == {"rate_limited"}
    assert time.monotonic() - start < 4


@pytest.mark.parametrize("fault", [hangs, drips])
def test_deadline_bounds_the_whole_call(stub: Stub, fault: Fault) -> None:
    def some(handler: Handler, body: dict[str, Any]) -> bool:
        return body["messages"][-1]["content"] in ("question 1", "question 6") and fault(handler, body)

    stub.fault = some
    start = time.monotonic()
    replies = HttpEngine(stub.url, deadline=1).complete(requests(8))

    assert [None if row in (1, 6) else f"question {row}" for row in range(8)] == texts(replies)
    assert errors(replies) == {None, "timeout"}
    assert time.monotonic() - start < 3


def test_hang_is_asked_again_inside_the_deadline(stub: Stub) -> None:
    stub.fault = times(1, hangs)

    assert texts(HttpEngine(stub.url, deadline=2).complete(requests())) == ["question 0"]


def test_without_a_server_every_reply_is_unreachable() -> None:
    engine = HttpEngine(f"http://127.0.0.1:{closed_port()}/v1,http://127.0.0.1:{closed_port()}/v1")

    assert engine.complete(requests(50)) == [Reply(error="unreachable")] * 50
    with pytest.raises(EngineError, match="unreachable"):
        _ = engine.identity


def test_later_requests_do_not_wait_for_a_server_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BACKOFF", 0.1)
    engine = HttpEngine(f"http://127.0.0.1:{closed_port()}/v1", model="m", concurrency=2)
    start = time.monotonic()

    assert errors(engine.complete(requests(40))) == {"unreachable"}
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("dead_first", [True, False])
def test_live_replica_answers_for_a_dead_one(stub: Stub, dead_first: bool) -> None:
    urls = [f"http://127.0.0.1:{closed_port()}/v1", stub.url]
    replies = HttpEngine(",".join(urls if dead_first else urls[::-1])).complete(requests(30))

    assert [f"question {row}" for row in range(30)] == texts(replies)


def test_live_replica_answers_for_a_hung_one(stub: Stub, new_stub: Callable[..., Stub]) -> None:
    stub.fault = hangs

    replies = HttpEngine(f"{stub.url},{new_stub().url}", deadline=2).complete(requests(10))

    assert [f"question {row}" for row in range(10)] == texts(replies)


def test_neighbours_share_a_replica(stub: Stub, new_stub: Callable[..., Stub]) -> None:
    other = new_stub()
    HttpEngine(f"{stub.url}, {other.url}/").complete(requests(9))

    first, second = ({body["messages"][-1]["content"] for body in one.seen} for one in (stub, other))
    assert ({f"question {row}" for row in range(5)}, {f"question {row}" for row in range(5, 9)}) == (first, second)


def test_different_models_are_an_error_that_names_them(stub: Stub, new_stub: Callable[..., Stub]) -> None:
    engine = HttpEngine(f"{stub.url},{new_stub('other').url}")

    with pytest.raises(EngineError, match=r"has m, .* has other"):
        engine.complete(requests())


@pytest.mark.parametrize(
    ("status", "advice"), [(404, "/models lists"), (401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY")]
)
def test_wrong_model_or_key_is_an_error_that_says_what_to_do(stub: Stub, status: int, advice: str) -> None:
    stub.fault = answers(status, {"message": "no"})

    with pytest.raises(EngineError, match=advice) as caught:
        HttpEngine(stub.url, model="wrong").complete(requests(5))
    assert stub.url in str(caught.value)


def test_switch_for_thinking_is_dropped_where_it_is_not_taken(stub: Stub, new_stub: Callable[..., Stub]) -> None:
    def fault(handler: Handler, body: dict[str, Any]) -> bool:
        return "chat_template_kwargs" in body and answers(400, "unknown field chat_template_kwargs")(handler, body)

    stub.fault = fault
    other = new_stub()
    engine = HttpEngine(f"{stub.url},{other.url}")

    assert errors(engine.complete(requests(20))) == {None}
    asked = len(stub.seen)
    assert errors(engine.complete(requests(20))) == {None}
    assert len(stub.seen) == asked + 10
    assert all("chat_template_kwargs" in body for body in other.seen)


def test_key_comes_from_the_environment(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    HttpEngine(stub.url).complete(requests())

    assert stub.keys == ["Bearer k"]


def test_proxy_is_not_asked_for_this_machine(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")

    assert errors(HttpEngine(stub.url).complete(requests())) == {None}


def test_text_of_every_kind_reaches_the_server(stub: Stub) -> None:
    text = 'nul \0, lone surrogate \ud800, {braces}, "quotes", ü'

    assert HttpEngine(stub.url).complete([Request((("user", text),))])[0].text == text


def test_copy_by_pickle_answers(stub: Stub) -> None:
    engine = open_engine(stub.url)
    engine.complete(requests())
    copy = pickle.loads(pickle.dumps(engine))
    engine.close()

    assert (stub.url, "m") == (copy.name, copy.identity)
    assert texts(copy.complete(requests())) == ["question 0"]


@pytest.mark.parametrize("urls", ["localhost:8000", "http://", "ftp://host/v1", "http://a/v1,", "http://a:port/v1"])
def test_bad_address_is_refused(urls: str) -> None:
    with pytest.raises(InvalidInput, match="expected http://host:port/v1"):
        HttpEngine(urls)
