"""Weights: what every way of weighing returns; and the ones that need no model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reward_plugin.criterion import Criterion
from reward_plugin.rubric import Rubric, Section


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one prompt's rubric by criterion id, positive and summing to 1, and how they came about.

    `consistency_ratio` and `lambda_max` are None where nothing was compared; with sections they are those of the least
    consistent set of siblings. `flagged` marks a ratio over tau. `record` has the judgments and the counts behind them.
    `why` says why there are none; `weights` is then empty.
    """

    weights: Mapping[str, float]
    consistency_ratio: float | None = None
    lambda_max: float | None = None
    flagged: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


def uniform(rubric: Rubric) -> dict[str, float]:
    """Return equal weights; in sections, equal among siblings.

    >>> uniform(Rubric.parse([{"section": "S", "criteria": ["a", "b"]}, "c"]))
    {'a': 0.25, 'b': 0.25, 'c': 0.5}
    """
    return _declared(rubric, lambda member: 1.0)


def given(rubric: Rubric) -> dict[str, float]:
    """Return the author's weights, normalised among siblings; a pitfall's without its sign.

    >>> given(Rubric.parse([{"id": "a", "text": "A", "weight": 3}, {"id": "b", "text": "B", "weight": -1}]))
    {'a': 0.75, 'b': 0.25}
    """
    return _declared(rubric, lambda member: abs(member.weight))


def multiply_down(rubric: Rubric, local: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the weight of each criterion: its share among its siblings times the weight of its section.

    `local` has, by id of each of the rubric's groups, the weights of its members, summing to 1 (Saaty 1977).
    """
    found: dict[str, float] = {}

    def descend(group: str, share: float) -> None:
        for member in members[group]:
            weight = share * local[group][member.id]
            if isinstance(member, Section):
                descend(member.id, weight)
            else:
                found[member.id] = weight

    members = {group.id: group.members for group in rubric.groups}
    descend(rubric.groups[0].id, 1.0)
    return {criterion.id: found[criterion.id] for criterion in rubric.contributing}


def _declared(rubric: Rubric, share: Callable[[Criterion | Section], float]) -> dict[str, float]:
    local = {}
    for group in rubric.groups:
        # Scaled first: the sum of two weights near the largest float is infinite
        largest = max(share(member) for member in group.members)
        shares = {member.id: share(member) / largest for member in group.members}
        total = sum(shares.values())
        local[group.id] = {one: value / total for one, value in shares.items()}
    return multiply_down(rubric, local)
