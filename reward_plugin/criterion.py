"""Criterion, Gate: one thing that a response must do, and what follows when it does not."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from reward_plugin.checks import Check
from reward_plugin.errors import InvalidRubric

GATE_KINDS = ("veto", "cap")


@dataclass(frozen=True, slots=True)
class Gate:
    """What an unmet criterion does to the score of all the others.

    `veto` sets the score to `limit` (default 0.0); `cap` lets it be at most `limit`, which must be given. `limit` lies in
    [0, 1]. A criterion with a gate carries no weight.

    >>> Gate.parse({"cap": 0.4})
    Gate(kind='cap', limit=0.4)
    """

    kind: str
    limit: float

    def __post_init__(self) -> None:
        if self.kind not in GATE_KINDS:
            raise InvalidRubric(f"gate: unknown gate {self.kind!r}; known gates: veto, {{veto: 0.1}}, {{cap: 0.4}}")
        if not _is_number(self.limit) or not 0.0 <= self.limit <= 1.0:
            raise InvalidRubric(f"gate: the limit of a {self.kind} lies in [0, 1]; got {self.limit!r}")
        object.__setattr__(self, "limit", float(self.limit))

    @classmethod
    def parse(cls, value: object) -> "Gate":
        """Return the gate written as `"veto"`, `{"veto": floor}` or `{"cap": limit}`. Raises `InvalidRubric`."""
        if isinstance(value, cls):
            return value
        if value == "veto":
            return cls("veto", 0.0)
        if value == "cap":
            raise InvalidRubric("gate: a cap needs its limit, like {cap: 0.4}")
        if isinstance(value, str):
            return cls(value, 0.0)
        if isinstance(value, Mapping):
            given = {str(kind): limit for kind, limit in value.items() if limit is not None}
            if len(given) == 1:
                [(kind, limit)] = given.items()
                return cls(kind, limit)
        raise InvalidRubric(f"gate: expected veto, {{veto: 0.1}} or {{cap: 0.4}}; got {value!r}")

    def record(self) -> dict[str, object]:
        """Return the gate as the mapping that `parse` takes."""
        return {self.kind: self.limit}


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a response must do, judged on its own.

    `weight` (finite, not 0, default 1) is the author's: its size is used by `weighting="given"`, and a negative one marks
    a pitfall, which is met when the fault is there and counts against the response. `gate` makes the criterion a
    condition on the whole score; `check` has a program decide it. Raises `InvalidRubric`.

    >>> Criterion(id="brief", text="At most 40 words", check=Check.parse({"max_words": 40})).gate is None
    True
    """

    id: str
    text: str
    weight: float = 1.0
    gate: Gate | None = None
    check: Check | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise InvalidRubric(f"criterion {self.id!r}: the id is a non-empty string")
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidRubric(f"criterion {self.id!r}: expected a non-empty text; got {self.text!r}")
        if not _is_number(self.weight) or not 0 < abs(self.weight) <= sys.float_info.max:
            raise InvalidRubric(
                f"criterion {self.id!r}: the weight is a finite number, over 0 or, for a pitfall, under 0; got {self.weight!r}"
            )
        if self.gate is not None and self.weight < 0:
            raise InvalidRubric(
                f"criterion {self.id!r}: a gate carries no weight, so it cannot be a pitfall; say what a good response does"
            )
        if self.gate is not None and not isinstance(self.gate, Gate):
            raise InvalidRubric(f"criterion {self.id!r}: gate is a Gate; got {self.gate!r} (Gate.parse reads it)")
        if self.check is not None and not isinstance(self.check, Check):
            raise InvalidRubric(f"criterion {self.id!r}: check is a Check; got {self.check!r} (Check.parse reads it)")
        object.__setattr__(self, "weight", float(self.weight))

    @property
    def pitfall(self) -> bool:
        """True when meeting the criterion is a fault."""
        return self.weight < 0

    def record(self) -> dict[str, object]:
        """Return the criterion as the mapping that `Rubric.parse` takes, without defaults."""
        record: dict[str, object] = {"id": self.id, "text": self.text}
        if self.weight != 1.0:
            record["weight"] = self.weight
        if self.gate is not None:
            record["gate"] = self.gate.record()
        if self.check is not None:
            record["check"] = self.check.record()
        return record


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
