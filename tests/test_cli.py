"""The command line and the training scripts, as a user calls them."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reward_plugin.cli import main

ROOT = Path(__file__).resolve().parents[1]
Command = Callable[..., tuple[int, str, str]]
CHECKED = [{"id": "brief", "text": "At most 3 words", "check": {"max_words": 3}}]


def script(path: str, *arguments: object) -> tuple[int, str, str]:
    run = [sys.executable, str(ROOT / path), *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reward-plugin", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def lines(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_score_prints_a_table_and_writes_traces(command: Command, tmp_path: Path) -> None:
    data = lines(
        tmp_path / "d.jsonl",
        [
            {"prompt": "p", "completion": "one two", "rubric": CHECKED},
            {"prompt": "p", "completion": [{"content": "one two three four [red]"}], "rubric": json.dumps(CHECKED)},
        ],
    )
    out = tmp_path / "deep" / "o.jsonl"
    code, stdout, stderr = command("score", data, "--weighting", "uniform", "-o", out)

    assert (code, stderr) == (0, "")
    assert "mean 0.500 over 2 of 2 completions scored" in stdout
    assert [json.loads(line)["value"] for line in out.read_text().splitlines()] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rubric", "message"),
    [
        ("[]", "empty rubric"),
        ("- {id: a, text: x}\n- {id: a, text: y}", "duplicate criterion ids: a"),
        ("- {text: x, gate: vetoed}", "unknown gate 'vetoed'"),
        ("- {text: x, gate: {cap: 1.5}}", "lies in [0, 1]; got 1.5"),
        ("- [", "not YAML"),
        ("- {text: 3}", "criteria[0]: expected a non-empty text; got 3"),
        (None, "cannot be read"),
    ],
)
def test_score_refuses_a_bad_rubric_in_one_line(
    command: Command, tmp_path: Path, rubric: str | None, message: str
) -> None:
    data = lines(tmp_path / "d.jsonl", [{"prompt": "p", "completion": "c"}])
    path = tmp_path / "r.yaml"
    if rubric is not None:
        path.write_text(rubric)
    code, stdout, stderr = command("score", data, "--rubric", path)

    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert message in stderr
    assert str(path) in stderr


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p"}, "expected an object with 'prompt' and 'completion'"),
        ({"prompt": "p", "completion": 3, "rubric": CHECKED}, "expected a string or a list of messages; got int"),
        ({"prompt": None, "completion": "c", "rubric": CHECKED}, "expected a string or a list of messages"),
        ({"prompt": "p", "completion": "c"}, "no 'rubric'; add one or pass --rubric FILE"),
        ([1], "expected an object"),
    ],
)
def test_score_refuses_a_bad_line_by_number(command: Command, tmp_path: Path, row: object, message: str) -> None:
    good = {"prompt": "p", "completion": "c", "rubric": CHECKED}
    code, stdout, stderr = command("score", lines(tmp_path / "d.jsonl", [good, row]), "--weighting", "uniform")

    assert (code, stdout, stderr.count("\n")) == (2, "", 1)
    assert "d.jsonl, line 2" in stderr
    assert message in stderr


def test_score_refuses_missing_files_and_models(command: Command, tmp_path: Path) -> None:
    data = lines(tmp_path / "d.jsonl", [{"prompt": "p", "completion": "c", "rubric": ["Is kind", "Is short"]}])
    cases = [
        (["score", tmp_path / "none.jsonl"], "none.jsonl: cannot be read"),
        (["score", data, "--verifier", "gpt-4"], "unknown engine 'gpt-4'; expected vllm:<model>"),
        (["score", data, "--verifier", "hf:./nowhere"], "model folder ./nowhere: not there"),
        (["score", data, "--verifier", "vllm:./nowhere"], "model folder ./nowhere: not there"),
        (["score", data], "weights need a model: pass verifier="),
        (["score", data, "--config", tmp_path / "none.yaml"], "none.yaml: cannot be read"),
        (["report", tmp_path], "traces.jsonl"),
        (["embedded-model", tmp_path], "not empty, and not a folder that this command made"),
    ]
    for arguments, message in cases:
        code, stdout, stderr = command(*arguments)

        assert (code, stdout, stderr.count("\n")) == (2, "", 1), (arguments, stderr)
        assert message in stderr


def test_missing_vllm_is_one_line(tmp_path: Path) -> None:
    """Platforms without vLLM exist: say so, and name what works there."""
    (tmp_path / "vllm.py").write_text("raise ImportError('no vllm here')")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['reward-plugin', 'score', {str(tmp_path / 'd')!r},"
        f" '--verifier', 'vllm:' + {str(tmp_path / 'm')!r}, '--weighting', 'uniform'];"
        "from reward_plugin.cli import main; main()"
    )
    lines(tmp_path / "d", [{"prompt": "p", "completion": "c", "rubric": ["Is kind"]}])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "vLLM cannot be imported (no vllm here); install reward-plugin[vllm]" in done.stderr


def test_prepare_writes_messages_and_a_rubric_column(tmp_path: Path) -> None:
    source = lines(
        tmp_path / "p.jsonl",
        [
            {"prompt": "a", "split": "train", "answer": 1, "rubric": CHECKED},
            {"prompt": "b", "split": "other", "rubric": CHECKED},
        ],
    )
    code, _, stderr = script("train/prepare.py", source, "-o", tmp_path / "o.jsonl", "--where", "split=train")

    assert (code, stderr) == (0, "")
    [row] = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert row["prompt"] == [{"role": "user", "content": "a"}]
    assert json.loads(row["rubric"]) == {"criteria": CHECKED}
    assert row["answer"] == 1


def test_prepare_refuses_a_prompt_without_a_rubric(tmp_path: Path) -> None:
    source = lines(tmp_path / "p.jsonl", [{"prompt": "a"}])
    code, _, stderr = script("train/prepare.py", source, "-o", tmp_path / "o.jsonl")

    assert (code, stderr.count("\n")) == (2, 1)
    assert "p.jsonl, line 1: no 'rubric'" in stderr
    assert not (tmp_path / "o.jsonl").exists()


def test_jsonl_appends_past_a_half_written_line(tmp_path: Path) -> None:
    from reward_plugin import jsonl

    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n{"a"')
    jsonl.append(path, [{"a": 3}])

    assert path.read_text().splitlines() == ['{"a": 1}', '{"a"', '{"a": 3}']


def test_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    """Prompt files and templates are in it, and the base needs nothing heavy."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import reward_plugin; assert reward_plugin.__file__.startswith(sys.path[0]), reward_plugin.__file__\n"
        "from reward_plugin import RubricReward, ScriptedEngine\n"
        "r = RubricReward(ScriptedEngine(lambda q: {'1': 1.0, 'Yes': 1.0}), rubric=['a', 'b'], store=None)\n"
        "print(r(prompts=['p'], completions=['c']))\n"
        "import reward_plugin.experiments.report as m; assert any(m.__file__.replace('report.py', '') in str(p)"
        " for p in __import__('pathlib').Path(m.__file__).parent.glob('*.jinja'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("[1.0]\n", 0), done.stderr


def test_server_port_in_use_is_one_line(tmp_path: Path) -> None:
    from reward_plugin.engines import Request
    from reward_plugin.engines.server import ServerEngine
    from reward_plugin.errors import EngineError

    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = ServerEngine(str(tmp_path), port=taken.getsockname()[1])
        with pytest.raises(EngineError, match="port"):
            engine.complete([Request((("user", "x"),))])
