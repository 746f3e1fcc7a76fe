"""Make a training data set with a rubric column from a JSONL file of prompts.

    python train/prepare.py prompts.jsonl --rubric rubric.yaml -o data.jsonl
    python train/prepare.py prompts.jsonl -o data.jsonl          (every line has its own rubric already)
    python train/prepare.py prompts.jsonl -o data.jsonl --where split=train

Each line has `prompt`: a text, or a list of messages. The result holds the prompt as messages (what a chat model is
trained on), the rubric as a JSON string (Arrow would pad its fields), and every other field as it came.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reward_plugin import Rubric, jsonl
from reward_plugin.errors import InvalidInput, RewardPluginError
from reward_plugin.messages import prompt_text


def prepare(
    rows: list[tuple[str, Any]], shared: Rubric | None = None, system: str | None = None
) -> list[dict[str, Any]]:
    """Return the rows with `prompt` as messages and `rubric` as JSON. `rows` pairs each value with where it stands.

    `system` becomes the first message of every prompt. Raises `InvalidInput` naming the row.
    """
    prepared = []
    for where, value in rows:
        if not isinstance(value, dict) or "prompt" not in value:
            raise InvalidInput(f"{where}: expected an object with 'prompt'")
        try:
            rubric = Rubric.parse(value["rubric"]) if value.get("rubric") is not None else shared
            prompt_text(value["prompt"])
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        if rubric is None:
            raise InvalidInput(f"{where}: no 'rubric'; add one or pass --rubric FILE")
        prompt = value["prompt"]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        prepared.append({**value, "prompt": messages, "rubric": json.dumps(rubric.record())})
    return prepared


def main(
    source: Annotated[Path, typer.Argument(help="JSONL with `prompt`, and perhaps `rubric`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The data set to write.")],
    rubric: Annotated[Path | None, typer.Option(help="Rubric for every line without its own.")] = None,
    system: Annotated[str | None, typer.Option(help="System message for every prompt.")] = None,
    where: Annotated[str | None, typer.Option(help="Only lines whose field has this value: field=value.")] = None,
) -> None:
    """Write the data set."""
    shared = None if rubric is None else Rubric.load(rubric)
    rows = [(f"{source}, line {number}", value) for number, value in jsonl.read(source)]
    if where is not None:
        name, _, wanted = where.partition("=")
        rows = [(place, row) for place, row in rows if isinstance(row, dict) and str(row.get(name)) == wanted]
    if not rows:
        raise InvalidInput(f"{source}: no lines{f' with {where}' if where else ''}; expected one JSON object a prompt")
    lines = "".join(json.dumps(row) + "\n" for row in prepare(rows, shared, system))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(lines, encoding="ascii")
    partial.replace(out)
    print(f"{out}: {len(rows)} prompts")


if __name__ == "__main__":
    try:
        typer.run(main)
    except RewardPluginError as error:
        print(f"train/prepare.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
