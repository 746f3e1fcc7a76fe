"""Weights ahead of a run: a data set in, the same with a column of weights out, resumable, with a summary."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reward_plugin import jsonl
from reward_plugin.engines.journal import JournaledEngine
from reward_plugin.errors import InvalidInput
from reward_plugin.messages import prompt_text
from reward_plugin.rubric import Rubric
from reward_plugin.verifier import Tally
from reward_plugin.weighting.rivals import WhitenedUniform
from reward_plugin.weighting.weigher import Weigher
from reward_plugin.weighting.weights import Weights
from reward_plugin.weighting.written import read_weights, write_weights

_SLICE = 20_000  # queries that are in memory at once

Progress = Callable[[int, int], None]
"""Is told how many queries are done, and how many there will be as far as known."""


@dataclass(slots=True)
class Summary:
    """What a pass over a data set did. Tokens and queries are those of the whole computation, resumed parts included."""

    rows: int = 0
    prompts: int = 0
    without: Counter[str] = field(default_factory=Counter)
    weights: list[Weights] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    stored: int = 0
    asked: int = 0
    replayed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0


def weigh_rows(
    rows: Sequence[Mapping[str, Any]],
    items: Sequence[tuple[str, Rubric]],
    weigher: Weigher,
    journal: Path,
    on_progress: Progress | None = None,
) -> tuple[list[str | None], Summary]:
    """Return the written weights of each row, None where there are none, and what it took.

    Replies go to `journal` as they come: a pass that was killed goes on from there, with the same results, and asks
    nothing twice. The caller removes the journal once the results are safe.
    """
    summary = Summary(rows=len(rows))
    start = time.perf_counter()
    by_key: dict[str, tuple[str, Rubric]] = {}
    keys = weigher.keys(items)
    for key, row, item in zip(keys, rows, items, strict=True):
        if key not in by_key:
            by_key[key] = item
            summary.labels.append(label(row, len(summary.labels)))
    done, expected = 0, sum(weigher.method.queries(rubric) for _, rubric in by_key.values())

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, max(done, expected))

    engine = JournaledEngine(weigher.engine, journal, advance)
    journaled = replace(weigher, engine=engine, tally=Tally())
    engines = [engine]
    if isinstance(weigher.method, WhitenedUniform):
        judge = weigher.method.verifier
        if judge.engine is not weigher.engine:
            engines.append(JournaledEngine(judge.engine, verdict_journal(journal)))
        journaled.method = WhitenedUniform(replace(judge, engine=engines[-1]))
    hits = weigher.store.hits
    found: dict[str, Weights] = {}
    try:
        for part in _slices(by_key, weigher):
            found |= dict(zip(part, journaled.weigh([by_key[key] for key in part]), strict=True))
    finally:
        for one in engines:
            one.close_journal()
    if on_progress is not None:
        on_progress(done, done)  # what was stored or went another way is not waited for
    summary.prompts = len(found)
    summary.weights = list(found.values())
    summary.without = Counter(one.why for one in found.values() if one.why is not None)
    summary.stored = weigher.store.hits - hits
    summary.asked, summary.replayed = (sum(getattr(e, n) for e in engines) for n in ("asked", "replayed"))
    tally = journaled.tally
    summary.prompt_tokens, summary.cached_tokens = tally.prompt_tokens, tally.cached_tokens
    summary.generated_tokens = tally.generated_tokens
    summary.seconds = time.perf_counter() - start
    written = [
        write_weights(found[key], rubric, weigher.method.name) for key, (_, rubric) in zip(keys, items, strict=True)
    ]
    return written, summary


def verdict_journal(journal: Path) -> Path:
    """Return where the replies of a verifier go that is another model than the weigher."""
    return journal.with_name(f"{journal.name}.verdicts")


def read_items(rows: Sequence[Mapping[str, Any]], shared: Rubric | None, data: Path) -> list[tuple[str, Rubric]]:
    """Return the (prompt text, rubric) of each row. Raises `InvalidInput`, naming the row."""
    items = []
    for number, row in enumerate(rows, start=1):
        where = f"{data}, row {number}"
        if "prompt" not in row:
            raise InvalidInput(f"{where}: no 'prompt'; got the fields {', '.join(row) or 'none'}")
        try:
            rubric = shared if row.get("rubric") is None else Rubric.parse(row["rubric"])
            prompt = prompt_text(row["prompt"])
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
        if rubric is None:
            raise InvalidInput(f"{where}: no 'rubric'; add one or pass --rubric FILE")
        items.append((prompt, rubric))
    return items


def read_rows(data: Path) -> list[dict[str, Any]]:
    """Return the rows of a .parquet file, or of any other as JSON lines. Raises `InvalidInput`."""
    if data.suffix == ".parquet":
        parquet = _parquet()
        try:
            rows: list[dict[str, Any]] = parquet.read_table(data).to_pylist()
        except Exception as error:  # pyarrow raises errors of its own beside OSError
            raise InvalidInput(f"{data}: cannot be read: {error}") from error
    else:
        rows = []
        for number, value in jsonl.read(data):
            if not isinstance(value, dict):
                raise InvalidInput(f"{data}, line {number}: expected an object with 'prompt'")
            rows.append(value)
    if not rows:
        raise InvalidInput(f"{data}: no rows; expected one prompt each")
    return rows


def write_rows(out: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a .parquet file, or to any other as JSON lines: whole or not at all. Raises `InvalidInput`."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".parquet":
            import pyarrow

            # One type a column: rubrics of different forms become text, which is read back as well
            names = dict.fromkeys(name for row in rows for name in row)  # pyarrow would take those of the first row
            flat = [
                {name: _json_text(row.get(name)) if name == "rubric" else row.get(name) for name in names}
                for row in rows
            ]
            _parquet().write_table(pyarrow.Table.from_pylist(flat), partial)
        else:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
        partial.replace(out)
    except (OSError, ValueError, TypeError) as error:  # pyarrow's errors are ValueErrors and TypeErrors
        raise InvalidInput(f"{out}: cannot be written: {error}; a .jsonl file takes any rows") from error
    finally:
        partial.unlink(missing_ok=True)


def find_weights(data: Path, wanted: str, shared: Rubric | None, column: str) -> tuple[str, Rubric, Weights]:
    """Return the prompt, rubric and weights of the row with the id, or else the number, `wanted`.

    Raises `InvalidInput` when there is no such row, or no weights in its `column`.
    """
    rows = read_rows(data)
    by_id = [row for row in rows if row.get("id") is not None and str(row["id"]) == wanted]
    if not by_id and wanted.isdecimal() and 1 <= int(wanted) <= len(rows):
        by_id = [rows[int(wanted) - 1]]
    if not by_id:
        raise InvalidInput(f"{data}: no row has the id {wanted!r}, and it is no number from 1 to {len(rows)}")
    [(prompt, rubric)] = read_items(by_id[:1], shared, data)
    value = by_id[0].get(column)
    if value is None:
        raise InvalidInput(f"{data}, row {wanted}: no weights in column {column!r}; reward-plugin weigh writes them")
    return prompt, rubric, read_weights(value, rubric, None, f"{data}, row {wanted}")


def check_writable(out: Path) -> None:
    """Raise `InvalidInput` now, before any model is asked, where `out` could not be written later."""
    if out.is_dir() or not out.name:
        raise InvalidInput(f"{out}: is a folder; name a file, like {out / 'weighed.parquet'}")
    if out.suffix == ".parquet":
        _parquet()


def label(row: Mapping[str, Any], position: int) -> str:
    """Return what a row is called: its `id`, or its number from 1."""
    return str(row["id"]) if row.get("id") is not None else str(position + 1)


def _slices(items: Mapping[str, tuple[str, Rubric]], weigher: Weigher) -> list[list[str]]:
    slices: list[list[str]] = [[]]
    room = _SLICE
    for key, (_, rubric) in items.items():
        queries = weigher.method.queries(rubric)
        if slices[-1] and queries > room:
            slices.append([])
            room = _SLICE
        slices[-1].append(key)
        room -= queries
    return slices


def _json_text(value: object) -> object:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidInput("Parquet needs pyarrow: pip install pyarrow, or use a .jsonl file") from error
    return pyarrow.parquet
