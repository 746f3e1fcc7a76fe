"""One self-contained HTML page about a run: how the reward moved, what it is made of, why each completion got its own."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from reward_plugin.errors import InvalidInput
from reward_plugin.experiments import charts
from reward_plugin.experiments.reading import (
    HELD_OUT,
    Reading,
    Tally,
    Trace,
    finite,
    lines,
    read_traces,
)
from reward_plugin.graph import Program
from reward_plugin.rubric import Criterion
from reward_plugin.verdicts import Verdict

TEXT = 2_000
"""Most characters of one text on the page; the rest is cut, and the page says so."""

_POINTS = 120  # most points of one line: more steps than that are averaged
_CRITERIA = 12  # most criteria with a chart of their own
_DRAWN = 80  # most nodes of a program that is drawn
# Not text in HTML: controls, lone surrogates, non-characters
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_PARTS = ("generate", "verify", "weigh", "update")


def write_report(run: Path) -> Path:
    """Write `report.html` into the folder of a run from its `traces.jsonl`, and return its path.

    `metrics.jsonl` and `summary.json` beside it are used if they are there. Lines that cannot be read, like the half line
    of a killed process, are skipped and counted on the page. Raises `InvalidInput` without a readable trace file.
    """
    run = Path(run)
    traces = run / "traces.jsonl"
    if not traces.is_file():
        raise InvalidInput(
            f"{traces}: no such file; a run writes it when its reward has traces: RubricReward(..., traces=FILE), "
            "as train/grpo.py and ./scripts/demo do"
        )
    try:
        page = _template().render(_context(run, read_traces(traces)))
        target = run / "report.html"
        partial = run / "report.html.partial"
        partial.write_bytes(_NOT_TEXT.sub("\ufffd", page).encode("utf-8"))
        partial.replace(target)
    except OSError as error:
        raise InvalidInput(f"{run}: the report cannot be made: {error}") from error
    return target


def _context(run: Path, reading: Reading) -> dict[str, Any]:
    metrics, damaged = _metrics(run / "metrics.jsonl")
    summary, summary_fault = _summary(run / "summary.json")
    points = _points(reading.steps)
    held_out = _held_out(summary, reading)
    return {
        "name": run.resolve().name,
        "reading": reading,
        "damaged": reading.damaged + damaged,
        "summary": summary,
        "summary_fault": summary_fault,
        "sentence": sentence(held_out),
        "held_out": held_out,
        "points": points,
        "curve": _curve(points),
        "multiples": _multiples(points, reading, metrics),
        "criteria_left": max(0, len(reading.common) - _CRITERIA),
        "weighed": [_weights(trace) for trace in reading.weighed],
        "program": _program(reading.weighed[0]) if reading.weighed else None,
        "times": [one for one in (_step_seconds(metrics), _run_seconds(summary)) if one["rows"]],
        "groups": _groups(reading.shown),
        "phases": list(dict.fromkeys(trace.phase for trace in reading.shown)),
        "text_limit": TEXT,
    }


def _metrics(path: Path) -> tuple[list[dict[str, Any]], int]:
    if not path.is_file():
        return [], 0
    with path.open("rb") as file:
        values = [value for _, value in lines(file)]
    good = [value for value in values if isinstance(value, dict) and _number(value.get("step")) is not None]
    return good, len(values) - len(good)


def _summary(path: Path) -> tuple[dict[str, Any], str | None]:
    if not path.is_file():
        return {}, None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    return (value, None) if isinstance(value, dict) else ({}, "summary.json is not a JSON object and was left out")


def _number(value: object) -> float | None:
    try:
        return finite(value)
    except (ValueError, OverflowError):
        return None


def _at(value: object, *names: str) -> float | None:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return _number(value)


def _held_out(summary: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Return the held-out comparison: the summary's numbers, else what the traces alone give."""
    stated = summary.get("criteria")
    rates: dict[str, tuple[float | None, float | None]] = {}
    if isinstance(stated, Mapping):
        rates = {str(one): (_at(ends, "before"), _at(ends, "after")) for one, ends in stated.items()}
    elif reading.held_out:
        tallies = [reading.held_out.get(phase, Tally()) for phase in HELD_OUT]
        ids = sorted({one for tally in tallies for one in tally.judged}, key=lambda one: -reading.common[one])
        rates = {one: (tallies[0].rate(one), tallies[1].rate(one)) for one in ids[:40]}
    means = [_at(summary, phase, "mean") for phase in HELD_OUT]
    counts = [_at(summary, phase, "n") for phase in HELD_OUT]
    if None in means:
        means = [reading.held_out[phase].mean if phase in reading.held_out else None for phase in HELD_OUT]
        counts = [float(reading.held_out[phase].count) if phase in reading.held_out else None for phase in HELD_OUT]
    interval = summary.get("interval")
    ends = [_number(end) for end in interval] if isinstance(interval, list) and len(interval) == 2 else [None, None]
    difference = _at(summary, "difference")
    if difference is None and means[0] is not None and means[1] is not None:
        difference = means[1] - means[0]
    return {
        "before": means[0],
        "after": means[1],
        "counts": counts,
        "difference": difference,
        "interval": None if None in ends else ends,
        "confidence": _at(summary, "confidence") or 0.95,
        "criteria": [
            {
                "id": one,
                "criterion": reading.criteria.get(one),
                "text": _meaning(one, reading),
                "before": before,
                "after": after,
                "change": None if before is None or after is None else after - before,
            }
            for one, (before, after) in rates.items()
        ],
    }


def sentence(held_out: Mapping[str, Any]) -> str:
    """Return the held-out result in one plain sentence, which claims no change that the interval does not show.

    >>> sentence({"before": 0.41, "after": 0.58, "difference": 0.17, "interval": [0.09, 0.25], "confidence": 0.95})
    'The held-out reward rises from 0.41 to 0.58: +0.17, with a 95% confidence interval of [+0.09, +0.25].'
    """
    before, after, difference = held_out["before"], held_out["after"], held_out["difference"]
    if before is None or after is None:
        return "No held-out comparison: the run has no scores from before and after training."
    interval = held_out["interval"]
    if interval is None:
        return (
            f"The held-out reward goes from {before:.2f} to {after:.2f} ({difference:+.2f}); "
            "no confidence interval was computed, so this may be chance."
        )
    low, high = interval
    # An end that rounds to zero needs another digit to say on which side it lies
    digits = 3 if any(end and abs(end) < 0.01 for end in interval) else 2
    range_ = f"{held_out['confidence']:.0%} confidence interval of [{low:+.{digits}f}, {high:+.{digits}f}]"
    if low <= 0.0 <= high:
        return (
            f"The held-out reward goes from {before:.2f} to {after:.2f} ({difference:+.{digits}f}), but the {range_} "
            "includes 0: this run alone does not show a change."
        )
    verb = "rises" if difference > 0 else "falls"
    return f"The held-out reward {verb} from {before:.2f} to {after:.2f}: {difference:+.{digits}f}, with a {range_}."


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line: a step, or several in a row averaged."""

    first: int
    last: int
    tally: Tally

    @property
    def label(self) -> str:
        """The step or steps."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def _points(steps: Mapping[int, Tally]) -> list[Point]:
    ordered = sorted(steps)
    count = -(-len(ordered) // (-(-len(ordered) // _POINTS) or 1))
    points = []
    for place in range(count):
        chunk = ordered[place * len(ordered) // count : (place + 1) * len(ordered) // count]
        tally = Tally()
        for step in chunk:
            tally.merge(steps[step])
        points.append(Point(chunk[0], chunk[-1], tally))
    return points


def _curve(points: Sequence[Point]) -> charts.Line | None:
    pairs = [((point.first + point.last) / 2, point.tally.mean) for point in points]
    return charts.line(pairs, width=880, height=310, margins=(76, 16, 16, 68)) if pairs else None


def _multiples(points: Sequence[Point], reading: Reading, metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the small charts: criteria that most completions share, gates, length."""
    steps = [(point.first + point.last) / 2 for point in points]
    found = []
    for one, _ in sorted(reading.common.items(), key=lambda item: (-item[1], item[0]))[:_CRITERIA]:
        values = [point.tally.rate(one) for point in points]
        found.append(_multiple(one, _meaning(one, reading), steps, values, criterion=reading.criteria.get(one)))
    for kind, gate in (("vetoed", "veto"), ("capped", "cap")):
        if any(criterion.gate and criterion.gate.kind == gate for criterion in reading.criteria.values()):
            shares: list[float | None] = [getattr(point.tally, kind) / point.tally.count for point in points]
            found.append(_multiple(kind, f"Share of completions that a {gate} changed", steps, shares, kind="gate"))
    lengths = [(_number(row["step"]) or 0.0, _number(row.get("length"))) for row in metrics]
    if any(length is not None for _, length in lengths):
        top = max(length for _, length in lengths if length is not None) or 1.0
        lengths = lengths[:: -(-len(lengths) // _POINTS)]
        places, sizes = [place for place, _ in lengths], [size for _, size in lengths]
        text = f"Mean tokens of a completion, on an axis from 0 to {top:.0f}"
        found.append(_multiple("length", text, places, sizes, kind="length", top=top))
    return [one for one in found if one["line"] is not None]


def _meaning(one: str, reading: Reading) -> str:
    if one in reading.varied:
        return "Worded differently for each prompt"
    return reading.criteria[one].text if one in reading.criteria else ""


def _multiple(
    name: str,
    text: str,
    steps: Sequence[float],
    values: Sequence[float | None],
    kind: str = "criterion",
    top: float = 1.0,
    criterion: Criterion | None = None,
) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    pairs = list(zip(steps, values, strict=True))
    drawn = charts.line(pairs, width=240, height=72, margins=(4, 6, 6, 6), top=top, y_ticks=3) if known else None
    ends = (known[0], known[-1]) if known else None
    return {"name": name, "text": text, "criterion": criterion, "kind": kind, "line": drawn, "ends": ends, "top": top}


def _weights(trace: Trace) -> dict[str, Any]:
    texts = {criterion.id: criterion for criterion in trace.criteria}
    ordered = sorted(trace.weights.items(), key=lambda item: (-item[1], item[0]))
    bars = [{"id": one, "criterion": texts.get(one), "weight": weight} for one, weight in ordered[:20]]
    return {"trace": trace, "bars": bars, "left": max(0, len(ordered) - 20)}


def _program(trace: Trace) -> dict[str, Any]:
    try:
        program = Program.from_record(trace.program)
    except (InvalidInput, KeyError, TypeError, ValueError, RecursionError):
        return {"fault": "The trace has no valid program to draw."}
    if len(program.nodes) > _DRAWN:
        return {"fault": f"The program has {len(program.nodes)} nodes, too many to draw; more than {_DRAWN}."}
    texts = {criterion.id: criterion.text for criterion in trace.criteria}
    return {"diagram": charts.diagram(program, texts), "prompt": trace.prompt, "words": _in_words(program)}


def _in_words(program: Program) -> str:
    parts = []
    for node in program.order:
        if node.op == "weighted_mean":
            parts.append(f"a weighted mean of {len(node.inputs['scores'])} inputs")
        elif node.op in ("cap", "veto"):
            limit = float(node.parameters["limit"])  # type: ignore[arg-type]
            flag = next(one for one in program.nodes if one.id == node.inputs["flag"][0]).parameters["criterion"]
            parts.append(f"{'at most' if node.op == 'cap' else 'set to'} {limit:.2f} unless {str(flag)[:60]} is met")
    return "The reward is " + ", then ".join(parts or ["one verdict"]) + "."


def _step_seconds(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    measured = [row["seconds"] for row in metrics if isinstance(row.get("seconds"), Mapping)]
    names = [name for name in dict.fromkeys(str(name) for row in measured for name in row) if name != "total"]
    names.sort(key=lambda name: _PARTS.index(name) if name in _PARTS else len(_PARTS))
    parts = {name: math.fsum(_at(row, name) or 0.0 for row in measured) for name in names}
    total = math.fsum(_at(row, "total") or 0.0 for row in measured)
    return _seconds("Training steps", parts, total, len(measured))


def _run_seconds(summary: Mapping[str, Any]) -> dict[str, Any]:
    stated = summary.get("seconds")
    numbers = {str(name): _number(value) for name, value in stated.items()} if isinstance(stated, Mapping) else {}
    parts = {name: value for name, value in numbers.items() if value is not None and name != "total"}
    return _seconds("The whole run", parts, numbers.get("total") or 0.0, 1)


def _seconds(title: str, parts: Mapping[str, float], total: float, steps: int) -> dict[str, Any]:
    parts = {name: max(0.0, value) for name, value in list(parts.items())[:8]}
    rest = total - math.fsum(parts.values())
    if rest > 0.005 * total:
        parts["other"] = rest
    whole = math.fsum(parts.values())
    rows, start = [], 0.0
    for place, (name, value) in enumerate(parts.items()):
        share = value / whole if whole else 0.0
        rows.append({"name": name, "seconds": value, "share": share, "start": start, "place": place})
        start += share
    return {"title": title, "rows": rows, "total": whole, "steps": steps}


def _groups(shown: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return the completions by prompt, in order of first appearance, and within by phase and step."""
    by_prompt: dict[str, list[Trace]] = defaultdict(list)
    for trace in shown:
        by_prompt[trace.prompt].append(trace)
    order = {"before": 0, "after": 2}
    groups = []
    for prompt, traces in by_prompt.items():
        traces.sort(key=lambda one: (order.get(one.phase, 1), one.phase, -1 if one.step is None else one.step))
        groups.append({"prompt": prompt, "rows": [_row(trace) for trace in traces]})
    return groups


def _row(trace: Trace) -> dict[str, Any]:
    criteria = {criterion.id: criterion for criterion in trace.criteria}
    marks = []
    for one, verdict in trace.verdicts.items():
        said = "unknown" if verdict.met is None else "met" if verdict.met else "not met"
        criterion = criteria.get(one)
        marks.append({"id": one, "said": said, "verdict": verdict, "criterion": criterion, "key": said.split()[0]})
    return {
        "trace": trace,
        "marks": marks,
        "gates": [_gate(one, criteria, trace.mode) for one in trace.bound],
        "why": why(trace),
    }


def _gate(node: str, criteria: Mapping[str, Criterion], mode: str) -> str:
    kind, _, one = node.partition(":")
    gate = criteria[one].gate if one in criteria else None
    if gate is None:
        return f"changed by {node}"
    if mode == "expected":
        return f"drawn to {gate.limit:.2f} by {kind} {one}"
    return f"capped at {gate.limit:.2f} by {one}" if kind == "cap" else f"vetoed to {gate.limit:.2f} by {one}"


def why(trace: Trace) -> str:
    """Return why a completion got its reward, in one line: what carried it, what was missed, which gate acted."""
    if not trace.verdicts:
        return f"no reward: {trace.why or 'no verdicts'}"
    carried, missed, unknown = [], [], []
    for one, verdict in trace.verdicts.items():
        if verdict.met is None:
            unknown.append(f"{one} ({verdict.why})")
        if one not in trace.weights:
            if verdict.met is False and not any(gate.endswith(f":{one}") for gate in trace.bound):
                missed.append(f"{one} (a gate, no effect)")
            continue
        share = trace.weights[one] * _credit(verdict, trace.mode)
        if share > 0:
            carried.append(f"{one} {share:.2f}")
        if verdict.met is False:
            missed.append(f"{one} {trace.weights[one]:.2f}")
    low, high = trace.nodes.get("mean", (trace.low, trace.high))
    mean = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
    summed = " + ".join(carried) if carried else "nothing met"
    if trace.value is None:
        head = f"unknown, between {trace.low:.2f} and {trace.high:.2f}: {summed}"
    elif trace.bound:
        head = f"{trace.value:.2f}, from a mean of {mean} = {summed}"
    else:
        head = f"{trace.value:.2f} = {summed}"
    parts = [head]
    if missed:
        parts.append("not met: " + ", ".join(missed))
    if unknown:
        parts.append("unknown: " + ", ".join(unknown))
    criteria = {criterion.id: criterion for criterion in trace.criteria}
    return "; ".join([*parts, *(_gate(gate, criteria, trace.mode) for gate in trace.bound)])


def _credit(verdict: Verdict, mode: str) -> float:
    if verdict.probability is None:
        return 0.0
    return verdict.probability if mode == "expected" else float(verdict.probability >= 0.5)


def _cut(text: object, most: int) -> str:
    string = str(text)
    return string if len(string) <= most else string[: most - 1] + "…"


def _decimal(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{value:{form}}"


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(cut=_cut, fit=charts.fit, decimal=_decimal)
    return environment.from_string((files(__package__) / "report.html.jinja").read_text(encoding="utf-8"))
