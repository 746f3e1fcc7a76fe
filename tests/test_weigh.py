"""`reward-plugin weigh`: weights ahead of a run, resumed after any kill, and looked at one by one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import xml.dom.minidom
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reward_plugin import RubricReward, jsonl, weigh
from reward_plugin.engines import Request, ScriptedEngine
from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.verifier import Verifier
from reward_plugin.weighting.rivals import WhitenedUniform
from reward_plugin.weighting.weigher import Weigher

from .stub import Handler, Stub
from .test_cli import Command, command, lines

__all__ = ["command"]
HOSTILE = "[red]a[/red] \u2028 '\"<svg>&\x07 \ud800"


def rubric(number: int, count: int = 4) -> list[object]:
    return [{"id": f"c{place}", "text": f"{place} of {number}"} for place in range(count)]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"q{number}", "prompt": f"Prompt {number}", "rubric": rubric(number), **more}


def judge(handler: Handler, body: dict[str, Any]) -> bool:
    """Ranks criteria by their first word, and turns one pair around until it is reviewed."""
    text = body["messages"][-1]["content"]
    first, second = (text.split(f"\n{label}: ")[1].split("\n")[0] for label in "12")
    wins = (first < second) != ({first[0], second[0]} == {"0", "3"} and "\nREVIEW\n" not in text)
    top = [{"token": "1" if wins else "2", "logprob": -0.1}]
    choice = {"message": {"content": ""}, "finish_reason": "length", "logprobs": {"content": [{"top_logprobs": top}]}}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    handler.answer(200, {"choices": [choice], "usage": usage})
    return True


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    stub.fault = judge
    yield stub
    stub.stop()


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_weights_are_written_beside_the_rows_and_read_by_a_run(
    command: Command, tmp_path: Path, stub: Stub, suffix: str
) -> None:
    data = lines(tmp_path / "d.jsonl", [row(0), row(1, level=3), row(0, id="again")])
    out = tmp_path / "deep" / f"w.{suffix}"
    code, stdout, _ = command("weigh", data, "-o", out, "--weigher", stub.url)

    assert code == 0, stdout
    assert "2 in 3 rows; 2 with weights" in stdout
    written = weigh.read_rows(out)
    assert [one["id"] for one in written] == ["q0", "q1", "again"]
    assert written[1]["level"] == 3
    assert written[0]["weights"] == written[2]["weights"]
    assert not list(out.parent.glob("*.journal"))
    # A run takes them from the column, and asks nothing
    reward = RubricReward(
        ScriptedEngine(lambda request: {"Yes": 1.0} if "0 of" in request.meta["criterion"] else {"No": 1.0}), store=None
    )
    columns = {name: [one[name] for one in written] for name in ("rubric", "weights")}
    values = reward([one["prompt"] for one in written], ["x"] * 3, **columns)
    weights = json.loads(written[0]["weights"])["weights"]

    assert values == pytest.approx([weights["c0"]] * 3)
    assert weights["c0"] > weights["c3"]
    assert {request.meta["kind"] for request in reward.verifier.engine.requests} == {"verdict"}  # type: ignore[attr-defined]
    # The same again: from the store
    count = len(stub.seen)
    code, stdout, _ = command("weigh", data, "-o", out, "--weigher", stub.url)
    assert (code, len(stub.seen)) == (0, count)
    assert "2 of them stored before" in stdout


def test_the_summary_counts_what_happened(command: Command, tmp_path: Path, stub: Stub) -> None:
    data = lines(tmp_path / "d.jsonl", [row(number) for number in range(3)])
    config = tmp_path / "reward.yaml"
    config.write_text("tau: 0.12\nstore: null\n")
    code, stdout, _ = command("weigh", data, "-o", tmp_path / "w.jsonl", "--weigher", stub.url, "--config", config)
    reviews = sum("\nREVIEW\n" in body["messages"][-1]["content"] for body in stub.seen)

    assert code == 0
    assert reviews > 0
    assert f"queries            {len(stub.seen)}; 0 failed, " in stdout
    assert f"{len(stub.seen)} asked, 0 from an interrupted pass" in stdout
    assert f"{10 * len(stub.seen)} read (80% from the prefix cache), {len(stub.seen)} generated" in stdout
    records = [json.loads(one["weights"])["record"] for one in weigh.read_rows(tmp_path / "w.jsonl")]
    assert sum(one["queries"] for one in records) == len(stub.seen)
    assert sum(one["prompt_tokens"] for one in records) == 10 * len(stub.seen)


def test_prompts_that_fail_are_counted_and_the_others_written(command: Command, tmp_path: Path, stub: Stub) -> None:
    def refuses(handler: Handler, body: dict[str, Any]) -> bool:
        if "Prompt 1\n" in body["messages"][-1]["content"]:
            handler.answer(400, {"error": "no"})
            return True
        return judge(handler, body)

    stub.fault = refuses
    data, out = lines(tmp_path / "d.jsonl", [row(0), row(1)]), tmp_path / "w.jsonl"
    code, stdout, _ = command("weigh", data, "-o", out, "--weigher", stub.url)

    assert code == 1
    assert "1: 12 of 12 comparisons: refused" in stdout
    assert [one["weights"] is None for one in weigh.read_rows(out)] == [False, True]
    stub.fault = judge
    count = len(stub.seen)
    code, _, _ = command("weigh", data, "-o", out, "--weigher", stub.url)
    assert code == 0
    assert {body["messages"][-1]["content"].split("\n")[2] for body in stub.seen[count:]} == {"Prompt 1"}


def test_explain_shows_one_row(command: Command, tmp_path: Path, stub: Stub) -> None:
    sectioned = {
        "criteria": [{"section": "S", "criteria": [HOSTILE, "b"]}, {"text": "c", "weight": -1}, "d"],
        "comparisons": [["c", "d", 5]],
    }
    data = lines(tmp_path / "d.jsonl", [row(0), {"prompt": HOSTILE, "rubric": sectioned}])
    out, svg = tmp_path / "w.jsonl", tmp_path / "x.svg"
    command("weigh", data, "-o", out, "--weigher", stub.url)
    code, stdout, _ = command("weigh", out, "--explain", "q0")

    assert code == 0
    assert "Prompt 0" in stdout
    assert "icw by m: consistency ratio" in stdout
    assert "(revised in round 1)" in stdout.replace("\n", " ") or "1 1.00" in stdout
    code, stdout, _ = command("weigh", out, "--explain", 2, "-o", svg)
    assert code == 0
    assert "given by a person" in stdout
    assert "(fault) c" in stdout
    parsed = xml.dom.minidom.parse(str(svg))
    assert len(parsed.getElementsByTagName("rect")) == 1 + (3 * 3 + 3) + (2 * 2 + 2)
    for wanted, message in (
        ("q7", "no row has the id 'q7'"),
        ("9", "no number from 1 to 2"),
        ("0", "no number from 1"),
    ):
        code, _, stderr = command("weigh", out, "--explain", wanted)
        assert (code, message in stderr) == (2, True), stderr
    code, _, stderr = command("weigh", data, "--explain", "q0")
    assert "no weights in column 'weights'; reward-plugin weigh writes them" in stderr


@pytest.mark.parametrize("weighting", ["direct", "icw-single-query", "rrd-wu"])
def test_explain_shows_rivals(command: Command, tmp_path: Path, weighting: str) -> None:
    def answer(request: Request) -> object:
        kinds = {
            "direct": '{"weights": [4, 3, 2, 1]}',
            "all_pairs": '{"winners": [1, 1, 1, 2, 2, 3]}',
            "response": "text",
        }
        return kinds.get(request.meta["kind"], {"Yes": 1.0})

    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    reward = RubricReward(engine, weighting=weighting, store=None)  # type: ignore[arg-type]
    assert reward.weigher is not None
    items = weigh.read_items([row(0)], None, tmp_path)
    written, summary = weigh.weigh_rows([row(0)], items, reward.weigher, tmp_path / "j")
    out = lines(tmp_path / "w.jsonl", [row(0, weights=written[0])])
    code, stdout, _ = command("weigh", out, "--explain", "q0", "-o", tmp_path / "x.svg")

    assert (code, summary.without) == (0, Counter())
    assert weighting in stdout
    xml.dom.minidom.parse(str(tmp_path / "x.svg"))


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        ([], [], "no rows"),
        (["text"], [], "line 1: expected an object with 'prompt'"),
        ([{"rubric": ["a"]}], [], "row 1: no 'prompt'; got the fields rubric"),
        ([{"prompt": "p"}], [], "row 1: no 'rubric'; add one or pass --rubric FILE"),
        ([row(0), {"prompt": "p", "rubric": [3]}], [], r"row 2: criteria[0]: expected a text"),
        ([row(0, weights="{}")], [], "has weights in its column 'weights' already"),
        ([row(0)], ["--weighting", "given"], "weighting 'given' needs no model"),
        ([row(0)], ["--weighting", "best"], "weighting is one of"),
        ([row(0)], ["-o", "."], "is a folder; name a file"),
    ],
)  # fmt: skip
def test_unusable_input_is_refused_before_a_model_is_asked(
    command: Command, tmp_path: Path, rows: list[object], arguments: list[str], message: str
) -> None:
    data = lines(tmp_path / "d.jsonl", rows)
    given = ["-o", tmp_path / "w.jsonl", "--weigher", "http://127.0.0.1:9/v1", *arguments]
    code, stdout, stderr = command("weigh", data, *given)

    assert (code, stdout) == (2, "")
    assert message in stderr


def test_weigh_without_an_output_or_a_model_says_so(command: Command, tmp_path: Path) -> None:
    data = lines(tmp_path / "d.jsonl", [row(0)])
    for arguments, message in (([], "name it with -o"), (["-o", tmp_path / "w.jsonl"], "weights need a model")):
        code, _, stderr = command("weigh", data, *arguments)
        assert (code, message in stderr) == (2, True), stderr


def test_rows_of_any_form_survive(tmp_path: Path) -> None:
    rows = [{"prompt": HOSTILE, "rubric": ["a"], "x": 1}, {"prompt": "p", "rubric": {"criteria": ["b"]}, "x": None}]
    weigh.write_rows(tmp_path / "r.jsonl", rows)
    assert weigh.read_rows(tmp_path / "r.jsonl") == rows
    weigh.write_rows(tmp_path / "r.parquet", [{**one, "prompt": "p"} for one in rows])
    read = weigh.read_rows(tmp_path / "r.parquet")
    assert [Rubric.parse(one["rubric"]) for one in read] == [Rubric.parse(one["rubric"]) for one in rows]
    with pytest.raises(InvalidInput, match=r"cannot be written: .*; a .jsonl file takes any rows"):
        weigh.write_rows(tmp_path / "s.parquet", [{"x": 1}, {"x": "a"}])
    with pytest.raises(InvalidInput, match="cannot be read"):
        weigh.read_rows(tmp_path / "none.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "r.parquet"]


def test_whitened_uniform_resumes_its_verdicts_too(tmp_path: Path) -> None:
    """Two models: the responses of one and the verdicts of the other are both written down."""
    writer = ScriptedEngine(lambda request: f"text {request.seed}", name="writer")
    verifier = ScriptedEngine(
        lambda request: {"Yes": 1.0} if int(request.meta["response"].split()[1]) % 2 else {"No": 1.0}
    )
    items = [("p", Rubric.parse(rubric(0)))]
    found = []
    for _ in range(2):
        weigher = Weigher(writer, Store(None), WhitenedUniform(Verifier(verifier)))
        found.append(weigh.weigh_rows([{}], items, weigher, tmp_path / "j"))

    assert found[0][0] == found[1][0] != [None]
    assert len(writer.requests) == 16
    assert len(verifier.requests) == 16 * 4
    assert found[1][1].replayed == 16 * 5


@pytest.mark.real
def test_killed_at_twenty_points_no_answer_is_asked_for_twice(tmp_path: Path, stub: Stub) -> None:
    """kill -9 of the command: all weights in the end, and the only questions put twice are those in flight at a kill."""
    answered: list[str] = []

    def slow(handler: Handler, body: dict[str, Any]) -> bool:
        time.sleep(0.02)
        judge(handler, body)
        with stub.lock:
            answered.append(json.dumps(body["messages"]))
        return True

    stub.fault = slow
    data, out = (
        lines(tmp_path / "d.jsonl", [row(number, rubric=rubric(number, 8)) for number in range(60)]),
        tmp_path / "w.jsonl",
    )
    journal = out.with_name("w.jsonl.journal")
    run = [sys.executable, "-m", "reward_plugin.cli", "weigh", str(data), "-o", str(out), "--weigher", stub.url]
    chance = random.Random(3)
    kills = 0
    while kills < 20:
        with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ) as process:
            size = journal.stat().st_size if journal.exists() else 0
            end = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < end:
                if (journal.stat().st_size if journal.exists() else 0) > size:
                    break  # it has gone on from where the last one was killed
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.05))
            assert process.poll() is None, process.stderr and process.stderr.read()
            os.kill(process.pid, signal.SIGKILL)
        kills += 1
    done = subprocess.run(run, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    written = [json.loads(one["weights"]) for _, one in jsonl.read(out)]  # type: ignore[index]
    assert len(written) == 60
    twice = sum(count - 1 for count in Counter(answered).values())
    lost = len(answered) - sum(one["record"]["queries"] for one in written)
    assert lost == twice
    assert twice <= kills * 64  # what the server answers after the one who asked is gone
