"""Criterion, Gate, Rubric: frozen, validated at construction, addressed by a digest of their content."""

import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

from reward_plugin.canonical import digest
from reward_plugin.checks import Check
from reward_plugin.errors import InvalidInput, InvalidRubric

GATE_KINDS = ("veto", "cap")
_ID_LENGTH = 40


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

    `weight` (finite, over 0, default 1) is the author's, used by `weighting="given"`; `gate` makes the criterion a
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
        if not _is_number(self.weight) or not 0 < self.weight <= sys.float_info.max:
            hint = "; say what a good response does instead, or use gate: veto" if _negative(self.weight) else ""
            raise InvalidRubric(
                f"criterion {self.id!r}: the weight is a finite number over 0; got {self.weight!r}{hint}"
            )
        if self.gate is not None and not isinstance(self.gate, Gate):
            raise InvalidRubric(f"criterion {self.id!r}: gate is a Gate; got {self.gate!r} (Gate.parse reads it)")
        if self.check is not None and not isinstance(self.check, Check):
            raise InvalidRubric(f"criterion {self.id!r}: check is a Check; got {self.check!r} (Check.parse reads it)")
        object.__setattr__(self, "weight", float(self.weight))

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


@dataclass(frozen=True)
class Rubric:
    """The criteria of one prompt: at least one, ids unique, at least one of them without a gate.

    Raises `InvalidRubric`.

    >>> rubric = Rubric.parse(["Names a colour", {"id": "polite", "text": "No insult", "gate": "veto"}])
    >>> [criterion.id for criterion in rubric.criteria]
    ['names-a-colour', 'polite']
    """

    criteria: tuple[Criterion, ...]
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "criteria", tuple(self.criteria))
        if not self.criteria:
            raise InvalidRubric("empty rubric: expected at least one criterion")
        for position, criterion in enumerate(self.criteria):
            if not isinstance(criterion, Criterion):
                raise InvalidRubric(f"criteria[{position}]: expected a Criterion; got {criterion!r} (use Rubric.parse)")
        ids = [criterion.id for criterion in self.criteria]
        doubled = sorted(one for one, times in Counter(ids).items() if times > 1)
        if doubled:
            raise InvalidRubric(f"duplicate criterion ids: {', '.join(doubled)}; every criterion needs its own id")
        if all(criterion.gate for criterion in self.criteria):
            raise InvalidRubric("every criterion is a gate: expected at least one without, for the gates to act on")

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the content, the same for every order of the criteria and whatever the name."""
        return digest([criterion.record() for criterion in sorted(self.criteria, key=lambda one: one.id)])

    @cached_property
    def contributing(self) -> tuple[Criterion, ...]:
        """The criteria without a gate: the ones that carry weight."""
        return tuple(criterion for criterion in self.criteria if criterion.gate is None)

    @classmethod
    def parse(cls, value: object) -> "Rubric":
        """Return the rubric written as a list of texts and mappings, as `{"criteria": [...]}`, or as JSON of either.

        A mapping has `text` and, if wanted, `id`, `weight`, `gate`, `check`; None fields are dropped (Arrow pads them in).
        Without an id, the text becomes one. Raises `InvalidRubric`, naming the criterion.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = _from_json(value)
        name = None
        if isinstance(value, Mapping):
            unknown = sorted(map(str, set(value) - {"criteria", "name"}))
            if "criteria" not in value or unknown:
                raise InvalidRubric(
                    f"expected a list of criteria, or a mapping with 'criteria' and perhaps 'name'; got the keys {sorted(map(str, value))}"
                )
            name = value.get("name")
            value = value["criteria"]
            if name is not None and not isinstance(name, str):
                raise InvalidRubric(f"the name of a rubric is a string; got {name!r}")
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            if hasattr(value, "tolist"):  # a numpy array, which is how Parquet lists arrive through pandas
                value = value.tolist()
            else:
                raise InvalidRubric(f"expected a list of criteria; got {type(value).__name__}")
        criteria: list[Criterion] = []
        taken: set[str] = set()
        items: list[object] = list(value)  # type: ignore[call-overload]
        for position, item in enumerate(items):
            criteria.append(_criterion(position, item, taken))
            taken.add(criteria[-1].id)
        return cls(tuple(criteria), name=name)

    @classmethod
    def load(cls, path: str | Path) -> "Rubric":
        """Return the rubric in a YAML or JSON file. Raises `InvalidInput` for an unreadable file, else `InvalidRubric`."""
        from reward_plugin import yaml_text

        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"rubric file {path}: cannot be read: {error}") from error
        try:
            value = _from_json(text) if path.suffix == ".json" else yaml_text.load(text)
            return cls.parse(value if value is not None else [])
        except ValueError as error:  # InvalidRubric is one
            raise InvalidRubric(f"rubric file {path}: {error}") from error

    def record(self) -> dict[str, object]:
        """Return the rubric as the mapping that `parse` takes."""
        criteria = [criterion.record() for criterion in self.criteria]
        return {"criteria": criteria} if self.name is None else {"name": self.name, "criteria": criteria}


_FIELDS = tuple(field.name for field in fields(Criterion))


def _criterion(position: int, item: object, taken: set[str]) -> Criterion:
    if isinstance(item, Criterion):
        return item
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, Mapping):
        raise InvalidRubric(f"criteria[{position}]: expected a text or a mapping; got {item!r}")
    given = {str(name): value for name, value in item.items() if value is not None}
    label = f"criteria[{position}]" if "id" not in given else f"criterion {given['id']!r}"
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        raise InvalidRubric(f"{label}: unknown fields {', '.join(unknown)}; known fields: {', '.join(_FIELDS)}")
    text = given.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InvalidRubric(f"{label}: expected a non-empty text; got {text!r}")
    try:
        return Criterion(
            id=given.get("id", _free_id(text, taken)),
            text=text,
            weight=given.get("weight", 1.0),
            gate=Gate.parse(given["gate"]) if "gate" in given else None,
            check=Check.parse(given["check"]) if "check" in given else None,
        )
    except InvalidRubric as error:
        raise InvalidRubric(str(error) if str(error).startswith("criterion") else f"{label}: {error}") from error


def _free_id(text: str, taken: set[str]) -> str:
    slug = re.sub(r"\W+", "-", text.casefold()).strip("-_")
    if len(slug) > _ID_LENGTH or not slug:
        # What was cut off still tells two long texts apart
        mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        slug = f"{slug[:_ID_LENGTH].rstrip('-_')}-{mark}".lstrip("-")
    one, count = slug, 1
    while one in taken:
        count += 1
        one = f"{slug}-{count}"
    return one


def _from_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidRubric(f"not JSON: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise InvalidRubric(f"a key stands twice in one object: {sorted({n for n in names if names.count(n) > 1})}")
    return dict(pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _negative(value: object) -> bool:
    return isinstance(value, int | float) and value < 0
