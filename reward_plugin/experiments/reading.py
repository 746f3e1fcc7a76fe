"""The traces of a run, read in one pass: what is counted over all of them, and where the shown ones stand."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Criterion, Rubric
from reward_plugin.verdicts import Verdict

SHOWN = 200
"""Most completions on one page; a longer run is sampled, the same way every time."""

_SAMPLE_STEP = 16  # most completions of one step in a sample
_LAST_STEP = 2**53
HELD_OUT = ("before", "after")
PROMPTS = 4
"""Prompts whose weights are shown."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One line of a trace file, checked. `low` and `high` bound the value; a completion without a rubric has no criteria."""

    prompt: str
    completion: str
    phase: str
    step: int | None
    value: float | None
    low: float
    high: float
    why: str | None
    criteria: tuple[Criterion, ...]
    rubric_digest: str
    verdicts: Mapping[str, Verdict]
    weights: Mapping[str, float]
    weighting: str | None
    consistency_ratio: float | None
    flagged: bool
    nodes: Mapping[str, Sequence[float]]
    bound: tuple[str, ...]
    mode: str
    program: object

    @classmethod
    def parse(cls, record: Any) -> "Trace":
        """Return the trace of a JSON object. Raises `InvalidInput`, `KeyError`, `TypeError` or `ValueError`."""
        rubric = record.get("rubric")
        step = record.get("step")
        low, high = (_unit(end) for end in record.get("bounds", (0.0, 1.0)))
        ratio = record.get("consistency_ratio")
        return cls(
            prompt=_text(record["prompt"]),
            completion=_text(record["completion"]),
            phase=_text(record.get("phase") or "scored")[:40],
            step=None if step is None else _step(step),
            value=None if record["value"] is None else _unit(record["value"]),
            low=low,
            high=high,
            why=None if record.get("why") is None else _text(record["why"]),
            criteria=() if rubric is None else Rubric.parse(rubric).criteria,
            rubric_digest=str(record.get("rubric_digest")),
            verdicts={one: _verdict(fields) for one, fields in record.get("verdicts", {}).items()},
            weights={one: _unit(weight) for one, weight in record.get("weights", {}).items()},
            weighting=None if record.get("weighting") is None else _text(record["weighting"])[:40],
            consistency_ratio=None if ratio is None else finite(ratio),
            flagged=bool(record.get("flagged", False)),
            nodes={one: [_unit(low), _unit(high)] for one, (low, high) in record.get("nodes", {}).items()},
            bound=tuple(map(str, record.get("bound", ()))),
            mode=str(record.get("mode", "hard")),
            program=record.get("program"),
        )

    @property
    def held_out(self) -> bool:
        """True when the completion answers a held-out prompt."""
        return self.phase in HELD_OUT


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string; got {type(value).__name__}")
    return value


def finite(value: Any) -> float:
    """Return a finite number. Raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number; got {value!r}")
    return float(value)


def _step(value: Any) -> int:
    if not 0 <= finite(value) <= _LAST_STEP:
        raise ValueError(f"expected a step of 0 or more; got {value!r}")
    return int(value)


def _unit(value: Any) -> float:
    if not 0.0 <= finite(value) <= 1.0:
        raise ValueError(f"expected a number in [0, 1]; got {value!r}")
    return float(value)


def _verdict(fields: Mapping[str, Any]) -> Verdict:
    reason = fields.get("reason")
    return Verdict(fields.get("p"), fields.get("why"), str(fields.get("by", "model")), reason and str(reason))


@dataclass(slots=True)
class Tally:
    """Counts over the completions of one step, or of one phase."""

    count: int = 0
    values: list[float] = field(default_factory=list)
    vetoed: int = 0
    capped: int = 0
    met: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)

    def add(self, trace: Trace) -> None:
        """Count one completion."""
        self.count += 1
        if trace.value is not None:
            self.values.append(trace.value)
        self.vetoed += any(gate.startswith("veto:") for gate in trace.bound)
        self.capped += any(gate.startswith("cap:") for gate in trace.bound)
        for one, verdict in trace.verdicts.items():
            if verdict.met is not None:
                self.judged[one] += 1
                self.met[one] += verdict.met

    def merge(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.count += other.count
        self.values += other.values
        self.vetoed += other.vetoed
        self.capped += other.capped
        self.met += other.met
        self.judged += other.judged

    @property
    def unknown(self) -> int:
        """Completions whose value could not be known."""
        return self.count - len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean of the known values."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    def rate(self, criterion: str) -> float | None:
        """Return the share of the known verdicts on a criterion that are met."""
        return self.met[criterion] / self.judged[criterion] if self.judged[criterion] else None


@dataclass(slots=True)
class Reading:
    """What one pass over a trace file found, and the completions to show."""

    traces: int = 0
    damaged: int = 0
    steps: dict[int, Tally] = field(default_factory=lambda: defaultdict(Tally))
    held_out: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    criteria: dict[str, Criterion] = field(default_factory=dict)
    varied: set[str] = field(default_factory=set)
    common: Counter[str] = field(default_factory=Counter)
    prompts: set[int] = field(default_factory=set)
    weighed: list[Trace] = field(default_factory=list)
    shown: list[Trace] = field(default_factory=list)


def read_traces(path: Path) -> Reading:
    """Return what a trace file says; a line that is no trace is counted as damaged. Raises `OSError`."""
    reading = Reading()
    places: list[tuple[int, str, int | None]] = []
    with path.open("rb") as file:
        for offset, value in lines(file):
            try:
                trace = Trace.parse(value)
            except (InvalidInput, AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
                reading.damaged += 1
                continue
            places.append((offset, trace.phase, trace.step))
            _count(reading, trace)
        for position in sample(places):
            file.seek(places[position][0])
            reading.shown.append(Trace.parse(json.loads(file.readline())))
    return reading


def lines(file: Any) -> Iterator[tuple[int, object]]:
    """Yield (byte offset, value) of each line of an open binary file; None for one that is not JSON."""
    offset = 0
    for line in file:
        if line.strip():
            try:
                yield offset, json.loads(line)
            except (ValueError, RecursionError):
                yield offset, None
        offset += len(line)


def _count(reading: Reading, trace: Trace) -> None:
    reading.traces += 1
    if trace.held_out:
        reading.held_out[trace.phase].add(trace)
    elif trace.step is not None:
        reading.steps[trace.step].add(trace)
    reading.common.update(trace.verdicts.keys())
    for criterion in trace.criteria:
        if reading.criteria.setdefault(criterion.id, criterion).text != criterion.text:
            reading.varied.add(criterion.id)
    key = hash((trace.prompt, trace.rubric_digest))
    if trace.weights and key not in reading.prompts:
        reading.prompts.add(key)
        reading.weighed.append(trace)
        if len(reading.weighed) > PROMPTS:
            # The first few, and of all the others the one whose comparisons agree least
            kept = max(reading.weighed[PROMPTS - 1 :], key=lambda one: one.consistency_ratio or 0.0)
            reading.weighed[PROMPTS - 1 :] = [kept]


def sample(places: Sequence[tuple[int, str, int | None]], most: int = SHOWN) -> list[int]:
    """Return which completions to show, as positions in (offset, phase, step) `places`, in their order.

    All of them where that is at most `most`. Else a fifth of the room for each held-out phase, evenly spread; the rest
    for the first step, the last, and steps evenly between, of each the completions that come first.
    """
    if len(places) <= most:
        return list(range(len(places)))
    chosen: list[int] = []
    groups: dict[int, list[int]] = defaultdict(list)
    for position, (_, phase, step) in enumerate(places):
        if phase not in HELD_OUT:
            groups[-1 if step is None else step].append(position)
    for phase in HELD_OUT:
        rows = [position for position, place in enumerate(places) if place[1] == phase]
        chosen += spread(rows, most // 5 if groups else most // 2)
    room = most - len(chosen)
    if groups:
        largest = min(max(map(len, groups.values())), _SAMPLE_STEP)
        steps = spread(sorted(groups), max(1, room // largest))
        each = max(1, room // len(steps))
        chosen += [position for step in steps for position in groups[step][:each]]
    return sorted(chosen)


def spread(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of `items`, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[round(one * (len(items) - 1) / (most - 1))] for one in range(most)]
