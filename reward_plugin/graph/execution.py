"""Run a program over B completions in interval arithmetic: an unknown verdict is everything that it could be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reward_plugin.errors import InvalidInput
from reward_plugin.graph.program import Node, Program
from reward_plugin.verdicts import Verdict

FloatArray = NDArray[np.float64]
Mode = Literal["hard", "expected"]


@dataclass(frozen=True, slots=True)
class Result:
    """Scores of B completions. `low` and `high` (B,) bound each score; `bound` names the gates that changed it (B,).

    `nodes` has the lower and upper value of every node, each (B,).
    """

    low: FloatArray
    high: FloatArray
    nodes: dict[str, tuple[FloatArray, FloatArray]]
    bound: tuple[tuple[str, ...], ...]

    @property
    def values(self) -> list[float | None]:
        """The score where its bounds meet, else None: a missing verdict that could not matter does not hide it."""
        return [float(low) if low == high else None for low, high in zip(self.low, self.high, strict=True)]


def run(program: Program, verdicts: Sequence[Mapping[str, Verdict]], *, mode: Mode = "hard") -> Result:
    """Return the scores of B completions from their verdicts by criterion id.

    `mode="hard"` takes a verdict as met at a probability of 0.5 or more; `"expected"` lets the probability flow through,
    gates taking the expectation of their two outcomes. Both agree on probabilities of 0 and 1. Raises `InvalidInput` when
    a completion lacks a verdict that the program reads (an unknown one is a verdict) or for an unknown mode.
    """
    if mode not in ("hard", "expected"):
        raise InvalidInput(f"mode is 'hard' or 'expected'; got {mode!r}")
    values: dict[str, tuple[FloatArray, FloatArray]] = {}
    for node in program.order:
        if "criterion" in node.parameters:
            values[node.id] = _bounds(str(node.parameters["criterion"]), verdicts, mode)
        elif node.op == "weighted_mean":
            values[node.id] = _weighted_mean(node, values)
        elif node.op == "invert":
            low, high = values[node.inputs["score"][0]]
            values[node.id] = (1.0 - high, 1.0 - low)
        else:
            values[node.id] = _gate(node, values)
    low, high = values[program.sink]
    return Result(low, high, values, _bound(program, values, len(verdicts)))


def replay(record: Mapping[str, object]) -> float | None:
    """Return the score of one trace record, recomputed from its program and verdicts without a model.

    Raises `InvalidInput` when the record lacks them or its program does not have the digest that the record states.
    """
    missing = [name for name in ("program", "program_digest", "verdicts", "mode") if name not in record]
    if missing:
        raise InvalidInput(f"a trace record needs {', '.join(missing)}")
    program = Program.from_record(record["program"])
    if program.digest != record["program_digest"]:
        raise InvalidInput(f"the trace's program has digest {program.digest}; it states {record['program_digest']}")
    recorded = record["verdicts"]
    if not isinstance(recorded, Mapping):
        raise InvalidInput(f"a trace record's verdicts are an object by criterion id; got {recorded!r}")
    verdicts = {one: Verdict(probability=fields.get("p"), why=fields.get("why")) for one, fields in recorded.items()}
    return run(program, [verdicts], mode=record["mode"]).values[0]  # type: ignore[arg-type]


def _bounds(criterion: str, verdicts: Sequence[Mapping[str, Verdict]], mode: Mode) -> tuple[FloatArray, FloatArray]:
    low, high = np.zeros(len(verdicts)), np.ones(len(verdicts))
    for row, given in enumerate(verdicts):
        if criterion not in given:
            raise InvalidInput(f"completion {row}: no verdict for criterion {criterion!r}, which the program reads")
        probability = given[criterion].probability
        if probability is not None:
            low[row] = high[row] = probability if mode == "expected" else float(probability >= 0.5)
    return low, high


def _weighted_mean(node: Node, values: Mapping[str, tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    weights = np.asarray(node.parameters["weights"], dtype=np.float64)
    weights = weights / weights.sum()
    ends = []
    for end in (0, 1):
        scores = [values[source][end] for source in node.inputs["scores"]]
        # Term by term: a matrix product rounds by the size of the batch, and one row must replay to the same bits
        total = sum((weight * score for weight, score in zip(weights, scores, strict=True)), np.zeros_like(scores[0]))
        # All met is 1 and not 0.9999999999999999; rounding must not leave the space
        full = np.all([(score == 1.0) | (weight == 0.0) for weight, score in zip(weights, scores, strict=True)], axis=0)
        ends.append(np.where(full, 1.0, np.minimum(total, 1.0)))
    return ends[0], np.maximum(ends[0], ends[1])


def _gate(node: Node, values: Mapping[str, tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    (score,), (flag,) = node.inputs["score"], node.inputs["flag"]
    # Linear in the flag and monotone in the score for a fixed flag: the extremes lie at the corners
    corners = np.stack([_gated(node, s, f) for s in values[score] for f in values[flag]])
    return corners.min(axis=0), corners.max(axis=0)


def _gated(node: Node, score: FloatArray, flag: FloatArray) -> FloatArray:
    limit = float(node.parameters["limit"])  # type: ignore[arg-type]
    off = np.minimum(score, limit) if node.op == "cap" else np.full_like(score, limit)
    # A gate that would change nothing changes nothing, to the bit
    return np.where(score == off, score, flag * score + (1.0 - flag) * off)


def _bound(
    program: Program, values: Mapping[str, tuple[FloatArray, FloatArray]], count: int
) -> tuple[tuple[str, ...], ...]:
    changed = []
    for gate in program.gates:
        before, after = values[gate.inputs["score"][0]], values[gate.id]
        fell = values[gate.inputs["flag"][0]][1] < 1.0
        changed.append(fell & ((before[0] != after[0]) | (before[1] != after[1])))
    return tuple(
        tuple(gate.id for gate, rows in zip(program.gates, changed, strict=True) if rows[row]) for row in range(count)
    )
