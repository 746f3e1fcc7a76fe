"""Judgments of one set of siblings: what each pair's answers amount to, as a matrix and as counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from reward_plugin.rubric import Group
from reward_plugin.weighting.ahp import FloatArray, comparison_matrix

Pair = tuple[str, str]
"""Two ids in sorted order."""

Entries = Literal["winner", "confidence"]

Case = Literal["agree", "both_neutral", "one_neutral", "opposite", "single"]
"""How a pair's judgments stand to each other; `single` where one display order was asked."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """One answer: shown `first` and `second`, the more important one is `winner`, None for neither.

    `reason` is the model's sentence; `p` the probabilities of "1", "2" and "=", where it answered with one token.
    `failed` says why a winner could not be had: it then counts as neutral.
    """

    first: str
    second: str
    winner: str | None
    reason: str | None = None
    p: Mapping[str, float] | None = None
    failed: str | None = None

    @property
    def pair(self) -> Pair:
        """The pair, whatever the order in which it was shown."""
        return (self.first, self.second) if self.first < self.second else (self.second, self.first)

    def record(self) -> dict[str, Any]:
        """Return the judgment as a JSON object without its empty fields, `winner` always there."""
        fields = {"reason": self.reason, "p": self.p, "failed": self.failed}
        record: dict[str, Any] = {"first": self.first, "second": self.second, "winner": self.winner}
        return record | {name: value for name, value in fields.items() if value is not None}


def case_of(judgments: Sequence[Judgment]) -> Case:
    """Return which of the cases a pair's one or two judgments are."""
    winners = [judgment.winner for judgment in judgments]
    if len(winners) == 1:
        return "single"
    if winners[0] == winners[1]:
        return "both_neutral" if winners[0] is None else "agree"
    return "one_neutral" if None in winners else "opposite"


@dataclass(slots=True)
class Comparisons:
    """What is known about the pairs of K siblings `ids`: ratios that a person gave, and judgments by pair."""

    ids: tuple[str, ...]
    given: Mapping[Pair, float]
    judged: dict[Pair, tuple[Judgment, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, group: Group) -> "Comparisons":
        """Return what is known about a group before anything was asked."""
        ids = tuple(member.id for member in group.members)
        return cls(ids, {(i, j): ratio for i, j, ratio in group.comparisons})

    def add(self, judgments: Iterable[Judgment]) -> None:
        """Take in judgments; those of one pair are kept together."""
        for judgment in judgments:
            self.judged[judgment.pair] = (*self.judged.get(judgment.pair, ()), judgment)

    def outcomes(self, alpha: float, entries: Entries = "winner") -> dict[Pair, float]:
        """Return the ratio of each pair.

        "winner": alpha where all its judgments name one winner, else 1. "confidence": alpha to the power of how much more
        probable one was as the winner than the other, on average over the display orders, in which a liking for one
        position cancels.
        """
        ratio = _confidence if entries == "confidence" else _winner
        return {pair: ratio(pair, judgments, alpha) for pair, judgments in self.judged.items()} | dict(self.given)

    def matrix(self, alpha: float, entries: Entries = "winner") -> FloatArray:
        """Return the reciprocal matrix (K, K) of the outcomes, NaN where a pair has none."""
        place = {one: position for position, one in enumerate(self.ids)}
        triples = [(place[i], place[j], ratio) for (i, j), ratio in self.outcomes(alpha, entries).items()]
        return comparison_matrix(len(self.ids), triples, unasked=np.nan)


def counts(judged: Iterable[tuple[Judgment, ...]]) -> dict[str, Any]:
    """Return what the judgments of pairs say about the judge: shares in [0, 1], None where nothing can show them.

    `order_flip_rate` is the share of the pairs asked in both orders with opposite winners; `first_share` that of the
    winners that were shown first, 0.5 for a judge without position bias; `failed` is a number.
    """
    pairs = list(judged)
    every = [judgment for judgments in pairs for judgment in judgments]
    twice = [judgments for judgments in pairs if len(judgments) == 2]
    winners = [judgment for judgment in every if judgment.winner is not None]
    return {
        "neutral_share": _share([one.winner is None for one in every]),
        "order_flip_rate": _share([case_of(one) == "opposite" for one in twice]),
        "first_share": _share([one.winner == one.first for one in winners]),
        "failed": sum(one.failed is not None for one in every),
    }


def _winner(pair: Pair, judgments: Sequence[Judgment], alpha: float) -> float:
    winners = {judgment.winner for judgment in judgments}
    if winners == {pair[0]}:
        return alpha
    return 1.0 / alpha if winners == {pair[1]} else 1.0


def _confidence(pair: Pair, judgments: Sequence[Judgment], alpha: float) -> float:
    leads = []
    for judgment in judgments:
        lead = 0.0 if judgment.p is None else judgment.p["1"] - judgment.p["2"]
        leads.append(lead if judgment.first == pair[0] else -lead)
    return float(alpha ** (sum(leads) / len(leads)))


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
