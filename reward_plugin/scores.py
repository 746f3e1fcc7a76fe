"""A score: its value or why there is none, and everything that it was made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_plugin.graph.program import Program
from reward_plugin.rubric import Rubric
from reward_plugin.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Score:
    """What one completion got.

    `value` lies in [0, 1], or is None when it could not be known; `why` then says so. `bounds` are the lowest and highest
    value that the verdicts allow. `weights` sum to 1; `bound` names the gates that changed the score. `trace` replays to
    the same value without a model (`reward_plugin.graph.replay`).

    >>> Score(0.6, weights={"a": 0.6, "b": 0.4}, verdicts={"a": Verdict.of(True), "b": Verdict.of(False)}).explanation
    '0.600: met a (0.60); missed b (0.40)'
    """

    value: float | None
    bounds: tuple[float, float] = (0.0, 1.0)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    bound: tuple[str, ...] = ()
    why: str | None = None
    trace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def explanation(self) -> str:
        """One line: the value, what was met and missed with its weight, which gate bound, what is unknown."""
        if not self.verdicts:
            return f"no score: {self.why}"
        groups: dict[str, list[str]] = {"met": [], "missed": [], "unknown": []}
        for one, verdict in self.verdicts.items():
            kind = "unknown" if verdict.met is None else "met" if verdict.met else "missed"
            carries = f"{self.weights[one]:.2f}" if one in self.weights else "gate"
            groups[kind].append(f"{one} ({carries}{f', {verdict.why}' if verdict.why else ''})")
        parts = [f"{kind} {', '.join(names)}" for kind, names in groups.items() if names]
        if self.bound:
            parts.append(f"bound by {', '.join(self.bound)}")
        head = "no score" if self.value is None else f"{self.value:.3f}"
        return f"{head}: {'; '.join(parts)}"


def unscored(why: str) -> Score:
    """Return the score of a completion that could not even be judged."""
    return Score(None, why=why, trace={"value": None, "bounds": [0.0, 1.0], "why": why})


def unknown_reason(verdicts: Mapping[str, Verdict]) -> str:
    """Return which verdicts are missing and why, as one phrase."""
    return ", ".join(f"{one}: {verdict.why}" for one, verdict in verdicts.items() if verdict.why is not None)


def trace_record(rubric: Rubric, program: Program, verdicts: Mapping[str, Verdict], mode: str) -> dict[str, Any]:
    """Return the part of a trace that replays: rubric, program, verdicts and mode."""
    return {
        "rubric": rubric.record(),
        "rubric_digest": rubric.digest,
        "program": program.record(),
        "program_digest": program.digest,
        "mode": mode,
        "verdicts": {one: verdict.record() for one, verdict in verdicts.items()},
    }
