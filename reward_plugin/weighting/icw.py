"""Importance-aware criteria weighting: pairwise comparisons by a model, checked for consistency and revised.

arXiv 2610.19915. Siblings are compared with each other; in a rubric without sections that is all criteria.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from reward_plugin import prompts
from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.errors import InvalidInput
from reward_plugin.replies import Unusable, choice_probabilities, json_object
from reward_plugin.rubric import Group, Rubric
from reward_plugin.verifier import ReplyMode
from reward_plugin.weighting import questions
from reward_plugin.weighting.ahp import RANDOM_INDEX, Priorities, inconsistency, priorities
from reward_plugin.weighting.asking import Asking, Lost, add, ask, in_step
from reward_plugin.weighting.designs import PairsMode, design
from reward_plugin.weighting.judgments import Comparisons, Entries, Judgment, Pair, counts
from reward_plugin.weighting.weights import multiply_down

Revision = Literal["targeted", "round"]

MOST_FAILED = 0.1
"""A prompt with a larger share of failed comparisons has no weights."""

_LEAST_PART = 1e-9  # a pair that agrees with the weights, up to rounding
_HALF = 0.5  # a targeted round reviews the pairs that make up this share of the inconsistency


@dataclass(frozen=True, slots=True)
class Icw:
    """How criteria are compared.

    - `alpha` >= 1: the ratio that a preference stands for (1 gives equal weights).
    - `tau` >= 0: the consistency ratio over which judgments are revised, and the result flagged if it stays there.
    - `rounds`: most rounds of revision; 0 for none. `revision` "targeted" reviews the pairs that contradict the others
      most, and takes each new judgment that strictly lowers the ratio; "round" reviews all pairs, and takes all new
      judgments if together they do.
    - `pairs`: "all" in both display orders, or a "sparse" design (`reward_plugin.weighting.designs`).
    - `reply`: "json" asks for a reason and a winner, "token" reads the first token's probabilities.
    - `entries`: "winner" takes alpha, 1 or 1/alpha for a pair; "confidence", with token replies only, a ratio between
      them by the winner's probability.
    - `random_index`: the table of `reward_plugin.weighting.ahp.RANDOM_INDEX` behind the ratio.

    Raises `InvalidInput` for an argument out of its range.
    """

    alpha: float = 3.0
    tau: float = 0.1
    rounds: int = 3
    revision: Revision = "targeted"
    pairs: PairsMode = "all"
    reply: ReplyMode = "token"
    entries: Entries = "winner"
    random_index: str = "saaty1980"

    def __post_init__(self) -> None:
        if not _is_number(self.alpha) or not 1 <= self.alpha <= 1000:
            raise InvalidInput(f"alpha is the ratio that a preference stands for, from 1 to 1000; got {self.alpha!r}")
        if not _is_number(self.tau) or not 0 <= self.tau < math.inf:
            raise InvalidInput(
                f"tau is the consistency ratio over which weights are flagged, 0 or more; got {self.tau!r}"
            )
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 0:
            raise InvalidInput(f"rounds is the largest number of rounds of revision, 0 or more; got {self.rounds!r}")
        if self.entries == "confidence" and self.reply != "token":
            raise InvalidInput("entries='confidence' reads probabilities: set the reply to 'token'")
        if self.random_index not in RANDOM_INDEX:
            known = ", ".join(RANDOM_INDEX)
            raise InvalidInput(f"random_index is the name of a table, one of {known}; got {self.random_index!r}")

    @property
    def name(self) -> str:
        """What `weighting=` calls it."""
        return "icw" if self.rounds else "icw-no-revision"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the weights depend on beside the prompt, the rubric and the model."""
        found: dict[str, Any] = {"alpha": self.alpha, "tau": self.tau, "pairs": self.pairs, "reply": self.reply}
        found["entries"] = self.entries
        found |= {"random_index": self.random_index, "comparison_prompt": prompts.version("comparison")}
        if self.rounds:
            found |= {"rounds": self.rounds, "revision": self.revision, "review_prompt": prompts.version("review")}
        return found

    def queries(self, rubric: Rubric) -> int:
        """Return how many comparisons are asked before any revision."""
        return sum(len(asked) for _, asked in self._designs(rubric))

    def compute(
        self, items: Mapping[str, tuple[str, Rubric]], complete: questions.Complete
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the records of weights by key, and why others have none; all prompts are asked side by side."""
        return in_step({key: self._weigh(*item) for key, item in items.items()}, complete)

    def _weigh(self, prompt: str, rubric: Rubric) -> Asking[dict[str, Any]]:
        questionnaire = questions.Questionnaire(prompt, rubric, self.reply)
        compared: dict[str, Comparisons] = {}
        asked: list[Pair] = []
        for group, pairs in self._designs(rubric):
            compared[group.id] = Comparisons.of(group)
            asked += pairs
        judgments, usage = yield from _judged([questionnaire.comparison(*pair) for pair in asked], self.reply)
        failed = [one.failed for one in judgments if one.failed is not None]
        if len(failed) > MOST_FAILED * len(judgments):
            raise Lost(f"{len(failed)} of {len(judgments)} comparisons: {failed[0]}")
        groups = {}
        for one, known in compared.items():
            known.add(judgment for judgment in judgments if judgment.first in known.ids)
            groups[one] = _Siblings(known, self._priorities(known))
        queries = len(asked)
        for number in range(self.rounds):
            chosen = {one: self._to_review(siblings) for one, siblings in groups.items()}
            reviews = [
                questionnaire.review(first, second, groups[one].known.judged[pair])
                for one, pairs in chosen.items()
                for pair in pairs
                for first, second in (pair, pair[::-1])
            ]
            if not reviews:
                break
            revised, more = yield from _judged(reviews, self.reply)
            usage, queries = add(usage, more), queries + len(reviews)
            answers = iter(revised)
            for one, pairs in chosen.items():
                self._revise(groups[one], [(pair, (next(answers), next(answers))) for pair in pairs], number + 1)
        return self._record(rubric, groups, queries, usage)

    def _designs(self, rubric: Rubric) -> Iterator[tuple[Group, list[Pair]]]:
        for group in rubric.groups:
            known = Comparisons.of(group)
            yield group, design(known.ids, list(known.given), self.pairs, f"{rubric.digest}/{group.id}")

    def _priorities(self, known: Comparisons) -> Priorities:
        return priorities(known.matrix(self.alpha, self.entries), random_index=self.random_index)

    def _to_review(self, siblings: "_Siblings") -> list[Pair]:
        """Return the pairs to ask again, the least fitting first; those whose review was asked before are left out."""
        known, result = siblings.known, siblings.result
        if result.consistency_ratio <= self.tau:
            return []
        parts = inconsistency(known.matrix(self.alpha, self.entries), result.weights)
        place = {one: position for position, one in enumerate(known.ids)}
        by_part = sorted(known.judged, key=lambda pair: (-parts[place[pair[0]], place[pair[1]]], pair))
        if self.revision == "round":
            # The same question has the same answer: a round that was refused is not asked again
            return [] if siblings.settled else by_part
        open_parts = [(pair, float(parts[place[pair[0]], place[pair[1]]])) for pair in by_part]
        open_parts = [(pair, part) for pair, part in open_parts if pair not in siblings.settled and part > _LEAST_PART]
        total, covered, chosen = sum(part for _, part in open_parts), 0.0, []
        for pair, part in open_parts:
            if covered >= _HALF * total:
                break
            covered += part
            chosen.append(pair)
        return chosen

    def _revise(
        self, siblings: "_Siblings", reviewed: Sequence[tuple[Pair, tuple[Judgment, ...]]], number: int
    ) -> None:
        # A review that failed leaves what was judged before
        answered = [(pair, new) for pair, new in reviewed if all(judgment.failed is None for judgment in new)]
        siblings.failed += len(reviewed) - len(answered)
        steps = [[one] for one in answered] if self.revision == "targeted" else [answered]
        siblings.settled |= {pair for pair, _ in reviewed} - {pair for pair, _ in answered}
        for step in steps:
            before = {pair: siblings.known.judged[pair] for pair, _ in step}
            siblings.known.judged |= dict(step)
            result = self._priorities(siblings.known)
            lower = bool(result.consistency_ratio < siblings.result.consistency_ratio)
            for pair, new in step:
                siblings.revisions.append(
                    {
                        "round": number,
                        "pair": list(pair),
                        "before": [judgment.record() for judgment in before[pair]],
                        "after": [judgment.record() for judgment in new],
                        "consistency_ratio": float(result.consistency_ratio),
                        "accepted": lower,
                    }
                )
            if lower:
                siblings.result = result
            else:
                siblings.known.judged |= before
                siblings.settled |= set(before)

    def _record(self, rubric: Rubric, groups: Mapping[str, "_Siblings"], queries: int, usage: Usage) -> dict[str, Any]:
        worst = max(groups.values(), key=lambda one: float(one.result.consistency_ratio)).result
        local = {
            one: dict(zip(siblings.known.ids, siblings.result.weights.tolist(), strict=True))
            for one, siblings in groups.items()
        }
        revisions = [revision for siblings in groups.values() for revision in siblings.revisions]
        judged = [pair for siblings in groups.values() for pair in siblings.known.judged.values()]
        return {
            "weights": multiply_down(rubric, local),
            "consistency_ratio": float(worst.consistency_ratio),
            "lambda_max": float(worst.lambda_max),
            "flagged": bool(worst.consistency_ratio > self.tau),
            "record": {
                "queries": queries,
                "rounds": max((revision["round"] for revision in revisions), default=0),
                "revised": sum(revision["accepted"] for revision in revisions),
                "failed_reviews": sum(siblings.failed for siblings in groups.values()),
                **counts(judged),
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "generated_tokens": usage.generated_tokens,
                "groups": [
                    {
                        "section": one,
                        "weights": local[one],
                        "consistency_ratio": float(siblings.result.consistency_ratio),
                        "lambda_max": float(siblings.result.lambda_max),
                        "ratios": [
                            [*pair, ratio] for pair, ratio in siblings.known.outcomes(self.alpha, self.entries).items()
                        ],
                        "given": [list(pair) for pair in siblings.known.given],
                    }
                    for one, siblings in groups.items()
                ],
                "judgments": [judgment.record() for pair in judged for judgment in pair],
                "revisions": revisions,
            },
        }


@dataclass(slots=True)
class _Siblings:
    """What is known about one set of siblings, and the pairs whose judgment no review would change any more."""

    known: Comparisons
    result: Priorities
    settled: set[Pair] = field(default_factory=set)
    revisions: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0


def _judged(requests: list[Request], mode: ReplyMode) -> Asking[tuple[list[Judgment], Usage]]:
    if not requests:
        return [], Usage()
    answers = yield from ask(requests, partial(_judgment, mode))
    usage = Usage()
    judgments = []
    for request, (answer, tokens) in zip(requests, answers, strict=True):
        usage = add(usage, tokens)
        if isinstance(answer, Unusable):
            answer = Judgment(request.meta["first"], request.meta["second"], None, failed=str(answer))
        judgments.append(answer)
    return judgments, usage


def _judgment(mode: ReplyMode, request: Request, reply: Reply) -> Judgment:
    first, second = request.meta["first"], request.meta["second"]
    shown = {"1": first, "2": second}
    if mode == "token":
        chances = choice_probabilities(reply, ("1", "2", "="))
        winner = shown.get(max(chances, key=lambda choice: chances[choice]))
        return Judgment(first, second, winner, p={choice: round(p, 4) for choice, p in chances.items()})
    answer = json_object(reply, {"reason": str, "winner": str})
    if answer["winner"] not in ("1", "2", "neutral"):
        raise Unusable("malformed")
    return Judgment(first, second, shown.get(str(answer["winner"])), reason=str(answer["reason"]))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
