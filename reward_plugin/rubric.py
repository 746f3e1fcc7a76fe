"""Section, Rubric: criteria and how they are grouped and compared; frozen, validated, addressed by a digest."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from reward_plugin.canonical import digest
from reward_plugin.criterion import Criterion, Gate
from reward_plugin.errors import InvalidInput, InvalidRubric

__all__ = ["Comparison", "Criterion", "Gate", "Rubric", "Section"]

Comparison = tuple[str, str, float]
"""A person's judgment (i, j, ratio): i is `ratio` times as important as j."""

_LARGEST_RATIO = 1000.0
_RATIO_TOLERANCE = 1e-6
_ROOT = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Criteria and sections under one heading: they share the importance that the section has among its siblings.

    `weight` (finite, over 0, default 1) is the author's. Raises `InvalidRubric`.

    >>> Section("style", "Style", (Criterion("brief", "At most 40 words"),)).weight
    1.0
    """

    id: str
    text: str
    members: tuple["Criterion | Section", ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        if not isinstance(self.id, str) or not self.id.strip():
            raise InvalidRubric(f"section {self.id!r}: the id is a non-empty string")
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidRubric(f"section {self.id!r}: expected a non-empty heading; got {self.text!r}")
        if (
            isinstance(self.weight, bool)
            or not isinstance(self.weight, int | float)
            or not 0 < self.weight <= sys.float_info.max
        ):
            raise InvalidRubric(f"section {self.id!r}: the weight is a finite number over 0; got {self.weight!r}")
        if not self.members:
            raise InvalidRubric(f"section {self.id!r}: expected at least one criterion in it")
        for member in self.members:
            if not isinstance(member, Criterion | Section):
                raise InvalidRubric(f"section {self.id!r}: expected criteria and sections in it; got {member!r}")
            if isinstance(member, Criterion) and member.gate is not None:
                raise InvalidRubric(
                    f"criterion {member.id!r}: a gate acts on the whole score; move it out of section {self.id!r}"
                )
        object.__setattr__(self, "weight", float(self.weight))

    def record(self) -> dict[str, object]:
        """Return the section as the mapping that `Rubric.parse` takes, without defaults."""
        record: dict[str, object] = {"section": self.text, "id": self.id}
        if self.weight != 1.0:
            record["weight"] = self.weight
        return record | {"criteria": [member.record() for member in self.members]}


@dataclass(frozen=True, slots=True)
class Group:
    """Siblings whose importance is compared with each other: a rubric's own members, or those of one section.

    `id` is the section's, empty for the rubric's; `members` are in id order, gates left out; `comparisons` are a person's
    on them.
    """

    id: str
    members: tuple[Criterion | Section, ...]
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Rubric:
    """The criteria of one prompt, perhaps in sections: ids unique, at least one criterion without a gate.

    `comparisons` are importance judgments by a person, each between two siblings (see `Group`). Raises `InvalidRubric`.

    >>> rubric = Rubric.parse(["Names a colour", {"id": "polite", "text": "No insult", "gate": "veto"}])
    >>> [criterion.id for criterion in rubric.criteria]
    ['names-a-colour', 'polite']
    """

    members: tuple[Criterion | Section, ...]
    name: str | None = field(default=None, compare=False)
    comparisons: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        if not self.members:
            raise InvalidRubric("empty rubric: expected at least one criterion")
        for position, member in enumerate(self.members):
            if not isinstance(member, Criterion | Section):
                raise InvalidRubric(f"criteria[{position}]: expected a Criterion; got {member!r} (use Rubric.parse)")
        ids = [member.id for member in _walk(self.members)]
        doubled = sorted(one for one, times in Counter(ids).items() if times > 1)
        if doubled:
            raise InvalidRubric(f"duplicate criterion ids: {', '.join(doubled)}; every criterion needs its own id")
        if all(criterion.gate for criterion in self.criteria):
            raise InvalidRubric("every criterion is a gate: expected at least one without, for the gates to act on")
        object.__setattr__(self, "comparisons", _comparisons(self.comparisons, self.members))

    @cached_property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria of all sections, in the order in which they are written."""
        return tuple(member for member in _walk(self.members) if isinstance(member, Criterion))

    @cached_property
    def contributing(self) -> tuple[Criterion, ...]:
        """The criteria without a gate: the ones that carry weight."""
        return tuple(criterion for criterion in self.criteria if criterion.gate is None)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The sets of siblings, the rubric's own first, then each section's as they are written."""
        sections = [(member.id, member.members) for member in _walk(self.members) if isinstance(member, Section)]
        return tuple(self._group(one, members) for one, members in [(_ROOT, self.members), *sections])

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the content, the same for every order of the criteria and whatever the name."""
        members = [_sorted_record(member) for member in sorted(self.members, key=lambda one: one.id)]
        return digest([members, list(map(list, self.comparisons))] if self.comparisons else members)

    @classmethod
    def parse(cls, value: object) -> "Rubric":
        """Return the rubric written as a list of texts and mappings, as `{"criteria": [...]}`, or as JSON of either.

        A mapping has `text` and, if wanted, `id`, `weight`, `gate`, `check`; None fields are dropped (Arrow pads them in).
        Without an id, the text becomes one. A section is a mapping of its heading `section` and its `criteria`, and may
        have `id` and `weight`. `comparisons` beside the outermost `criteria` are triples [i, j, ratio] of ids. Raises
        `InvalidRubric`, naming the item.
        """
        from reward_plugin.rubric_parsing import parse_rubric

        return value if isinstance(value, cls) else parse_rubric(value)

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
            if path.suffix == ".json":
                return cls.parse(text)
            value = yaml_text.load(text)
            return cls.parse(value if value is not None else [])
        except ValueError as error:  # InvalidRubric is one
            raise InvalidRubric(f"rubric file {path}: {error}") from error

    def record(self) -> dict[str, object]:
        """Return the rubric as the mapping that `parse` takes."""
        record: dict[str, object] = {} if self.name is None else {"name": self.name}
        record["criteria"] = [member.record() for member in self.members]
        if self.comparisons:
            record["comparisons"] = [list(one) for one in self.comparisons]
        return record

    def _group(self, one: str, members: tuple[Criterion | Section, ...]) -> Group:
        weighed = sorted((m for m in members if isinstance(m, Section) or m.gate is None), key=lambda m: m.id)
        ids = {member.id for member in weighed}
        return Group(one, tuple(weighed), tuple(found for found in self.comparisons if found[0] in ids))


def _walk(members: Sequence[Criterion | Section]) -> Iterator[Criterion | Section]:
    for member in members:
        yield member
        if isinstance(member, Section):
            yield from _walk(member.members)


def _sorted_record(member: Criterion | Section) -> dict[str, object]:
    record = member.record()
    if isinstance(member, Section):
        record["criteria"] = [_sorted_record(one) for one in sorted(member.members, key=lambda one: one.id)]
    return record


def _comparisons(given: Sequence[object], members: tuple[Criterion | Section, ...]) -> tuple[Comparison, ...]:
    """Return comparisons in a canonical form: ids in order, each pair once."""
    homes = {member.id: _ROOT for member in members}
    for section in _walk(members):
        if isinstance(section, Section):
            homes |= {member.id: section.id for member in section.members}
    gates = {member.id for member in members if isinstance(member, Criterion) and member.gate is not None}
    found: dict[tuple[str, str], float] = {}
    for position, item in enumerate(given):
        first, second, ratio = _comparison(position, item)
        label = f"comparisons[{position}] ({first!r}, {second!r})"
        for one in (first, second):
            if one not in homes:
                raise InvalidRubric(f"{label}: no criterion has the id {one!r}; known ids: {', '.join(sorted(homes))}")
            if one in gates:
                raise InvalidRubric(f"{label}: {one!r} is a gate, which carries no weight")
        if first == second:
            raise InvalidRubric(f"{label}: a criterion is not compared with itself")
        if homes[first] != homes[second]:
            raise InvalidRubric(f"{label}: only siblings are compared, and these stand in different sections")
        pair, value = ((first, second), ratio) if first < second else ((second, first), 1.0 / ratio)
        if pair in found and abs(found[pair] / value - 1.0) > _RATIO_TOLERANCE:
            raise InvalidRubric(
                f"{label}: contradicts an earlier comparison of the pair: {pair[0]!r} is {found[pair]:g} times as "
                f"important as {pair[1]!r} there, {value:g} times here"
            )
        found.setdefault(pair, value)
    _refuse_cycles(found)
    return tuple((*pair, found[pair]) for pair in sorted(found))


def _comparison(position: int, item: object) -> Comparison:
    triple = list(item) if isinstance(item, Sequence) and not isinstance(item, str | bytes) else item
    if not isinstance(triple, list) or len(triple) != 3 or not all(isinstance(one, str) for one in triple[:2]):
        raise InvalidRubric(f"comparisons[{position}]: expected [id, id, ratio]; got {item!r}")
    first, second, ratio = triple
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not number or not 1.0 / _LARGEST_RATIO <= ratio <= _LARGEST_RATIO:
        raise InvalidRubric(
            f"comparisons[{position}] ({first!r}, {second!r}): the ratio is a number from {1 / _LARGEST_RATIO:g} to "
            f"{_LARGEST_RATIO:g}; got {ratio!r}"
        )
    return first, second, float(ratio)


def _refuse_cycles(found: Mapping[tuple[str, str], float]) -> None:
    # Equal criteria share a place, so that a > b, b = c, c > a is seen as well
    place: dict[str, str] = {one: one for pair in found for one in pair}

    def seat(one: str) -> str:
        while place[one] != one:
            one = place[one]
        return one

    for (first, second), ratio in found.items():
        if ratio == 1.0:
            place[seat(first)] = seat(second)
    below: dict[str, set[str]] = {}
    for (first, second), ratio in found.items():
        if ratio != 1.0:
            upper, lower = (first, second) if ratio > 1.0 else (second, first)
            below.setdefault(seat(lower), set()).add(seat(upper))
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        chain = " over ".join(map(repr, error.args[1]))
        raise InvalidRubric(f"comparisons: they contradict each other: {chain}") from None
