"""The journal: what was answered is not asked again, whatever happens to the process or the file."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_plugin.engines import Reply, Request, ScriptedEngine, Usage
from reward_plugin.engines.http import HttpEngine
from reward_plugin.engines.journal import JournaledEngine
from reward_plugin.errors import InvalidInput

from .strategies import anything_written
from .stub import Stub


def asking(text: str, **more: object) -> Request:
    return Request((("user", text),), **more)  # type: ignore[arg-type]


def numbered() -> ScriptedEngine:
    """Answers 0, 1, 2, ... whatever is asked."""
    numbers = iter(range(10_000))
    return ScriptedEngine(lambda request: str(next(numbers)))


def texts(engine: JournaledEngine, *questions: str) -> list[str | None]:
    return [reply.text for reply in engine.complete([asking(one) for one in questions])]


def reopened(engine: JournaledEngine, inner: ScriptedEngine | None = None) -> JournaledEngine:
    engine.close_journal()
    return JournaledEngine(inner or numbered(), engine.path)


def test_the_nth_asking_gets_the_nth_answer(tmp_path: Path) -> None:
    engine = JournaledEngine(numbered(), tmp_path / "deep" / "j")

    assert texts(engine, "a", "b", "a") == ["0", "1", "2"]
    assert texts(engine, "a") == ["3"]
    again = reopened(engine, ScriptedEngine(lambda _: "new"))
    assert texts(again, "a", "a", "a", "b", "c") == ["0", "2", "3", "1", "new"]
    assert (again.replayed, again.asked) == (4, 1)
    assert texts(again, "a", "c") == ["new", "new"]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(anything_written, st.dictionaries(anything_written, st.floats(-50, 0), max_size=4), st.integers(0, 9))
def test_replies_come_back_as_they_were(tmp_path: Path, text: str, logprobs: dict[str, float], count: int) -> None:
    reply = Reply(text, logprobs, "length", Usage(count, 2, 3))
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    engine = JournaledEngine(ScriptedEngine(lambda _: reply), path)
    question = asking(text, max_tokens=count + 1)
    engine.complete([question])
    again = reopened(engine, ScriptedEngine(lambda _: pytest.fail("asked again")))

    assert again.complete([question]) == [reply]
    again.close_journal()


def test_what_reaches_the_model_is_the_key(tmp_path: Path) -> None:
    inner = numbered()
    engine = JournaledEngine(inner, tmp_path / "j")
    schema = {"type": "object"}
    others = [asking("a", max_tokens=2), asking("a", temperature=1.0), asking("a", seed=1), asking("a", schema=schema)]
    others += [asking("a", top_logprobs=3), Request((("system", "a"),)), Request((("user", "a"), ("user", "a")))]
    engine.complete([asking("a"), *others])
    engine = reopened(engine, inner)
    engine.complete([asking("a", meta={"kind": "x"}), *others])
    assert engine.asked == 0
    engine = reopened(engine, ScriptedEngine(lambda _: "other", name="another model"))
    assert [one.text for one in engine.complete(others)] == ["other"] * 7


def test_a_lost_reply_is_asked_again(tmp_path: Path) -> None:
    lost = True
    inner = ScriptedEngine(
        lambda r: Reply(error="timeout") if lost and r.messages[0][1] == "b" else r.messages[0][1] * 2
    )
    engine = JournaledEngine(inner, tmp_path / "j")

    assert [one.error for one in engine.complete([asking("a"), asking("b")])] == [None, "timeout"]
    lost = False
    assert texts(engine, "b") == ["bb"]
    assert texts(reopened(engine), "a", "b") == ["aa", "bb"]


def test_a_torn_line_is_what_a_kill_leaves(tmp_path: Path) -> None:
    engine = JournaledEngine(numbered(), tmp_path / "j")
    texts(engine, "a", "b")
    content = engine.path.read_bytes()
    for cut in (1, 10, 40, len(content) // 2 - 1):
        engine.close_journal()
        engine.path.write_bytes(content[:-cut])
        engine = JournaledEngine(ScriptedEngine(lambda _: "new"), engine.path)

        assert texts(engine, "a", "b") == ["0", "new"]
    assert texts(reopened(engine), "a", "b") == ["0", "new"]


@pytest.mark.parametrize(
    "line", [b"\x00\x00\n", b"[]\n", b'{"key": "k"}\n', b'{"key": "k", "usage": 3}\n', b"\xff\n", b"\n"]
)
def test_a_damaged_line_costs_a_warning_and_its_reply(tmp_path: Path, line: bytes) -> None:
    engine = JournaledEngine(numbered(), tmp_path / "j")
    texts(engine, "a", "b")
    engine.close_journal()
    first, second = engine.path.read_bytes().splitlines(keepends=True)
    engine.path.write_bytes(first + line + second)
    with pytest.warns(RuntimeWarning, match="1 damaged lines are passed over"):
        again = JournaledEngine(ScriptedEngine(lambda _: "new"), engine.path)

    assert texts(again, "a", "b") == ["0", "1"]


def test_two_processes_do_not_share_a_journal(tmp_path: Path) -> None:
    engine = JournaledEngine(numbered(), tmp_path / "j")
    with pytest.raises(InvalidInput, match=r"journal .*j: another process is writing it"):
        JournaledEngine(numbered(), tmp_path / "j")
    texts(reopened(engine), "a")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="cannot be written"):
        JournaledEngine(numbered(), tmp_path / "file" / "j")


def test_progress_counts_every_request_once(tmp_path: Path) -> None:
    counted: list[int] = []
    inner = ScriptedEngine(lambda r: Reply(error="timeout") if r.messages[0][1] == "7" else "x")
    engine = JournaledEngine(inner, tmp_path / "j", counted.append)
    engine.complete([asking(str(number)) for number in range(200)])
    assert sum(counted) == 200
    engine.complete([asking(str(number)) for number in range(100)])
    assert sum(counted) == 300


class Dies(Exception):
    pass


class Streaming:
    """Answers one by one, and breaks down after a while, as a killed process does."""

    name = identity = "streaming"

    def __init__(self, last: int) -> None:
        self.left = last
        self.seen: list[str] = []

    def complete_each(self, requests: Sequence[Request], on_reply: Callable[[int, Reply], None]) -> list[Reply]:
        replies = []
        for row, request in enumerate(requests):
            if self.left == 0:
                raise Dies
            self.left -= 1
            self.seen.append(request.messages[0][1])
            replies.append(Reply(request.messages[0][1] * 2))
            on_reply(row, replies[-1])
        return replies

    def complete(self, requests: Sequence[Request]) -> list[Reply]:
        return self.complete_each(requests, lambda row, reply: None)

    def close(self) -> None:
        pass


def test_an_engine_that_streams_loses_nothing(tmp_path: Path) -> None:
    questions = [asking(str(number)) for number in range(100)]
    seen: list[str] = []
    for last in (3, 40, 1, 0, 1000):
        inner = Streaming(last)
        engine = JournaledEngine(inner, tmp_path / "j")
        if last < 1000:
            with pytest.raises(Dies):
                engine.complete(questions)
        else:
            assert [reply.text for reply in engine.complete(questions)] == [str(number) * 2 for number in range(100)]
        engine.close_journal()
        seen += inner.seen

    assert sorted(seen, key=int) == [str(number) for number in range(100)]


def test_over_http(tmp_path: Path) -> None:
    stub = Stub()
    try:
        engine = JournaledEngine(HttpEngine(stub.url), tmp_path / "j")
        questions = [asking(f"question {number}", seed=number) for number in range(700)]

        assert [reply.text for reply in engine.complete(questions)] == [f"question {number}" for number in range(700)]
        assert {body["seed"] for body in stub.seen} == set(range(700))
        count = len(stub.seen)
        engine.close_journal()
        engine = JournaledEngine(HttpEngine(stub.url), tmp_path / "j")
        assert [reply.usage.cached_tokens for reply in engine.complete(questions)] == [4] * 700
        assert len(stub.seen) == count
        engine.close()
    finally:
        stub.stop()
