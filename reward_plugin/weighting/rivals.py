"""What importance-aware weights are compared with: one query for numbers, one query for all pairs, whitened verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from reward_plugin import prompts
from reward_plugin.engines.base import Reply, Request, Usage
from reward_plugin.errors import InvalidInput
from reward_plugin.replies import Unusable, json_object
from reward_plugin.rubric import Group, Rubric
from reward_plugin.verdicts import Verdict
from reward_plugin.verifier import Job, Verifier
from reward_plugin.weighting.ahp import FloatArray, priorities
from reward_plugin.weighting.asking import Asking, Lost, add, ask, in_step
from reward_plugin.weighting.judgments import Comparisons, Judgment, counts
from reward_plugin.weighting.questions import Complete, Questionnaire
from reward_plugin.weighting.weights import multiply_down

T = TypeVar("T")
Items = Mapping[str, tuple[str, Rubric]]
Computed = tuple[dict[str, dict[str, Any]], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Direct:
    """One query for each set of siblings: the model writes a number from 1 to 10 for each, normalised."""

    name = "direct"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the weights depend on beside the prompt, the rubric and the model."""
        return {"direct_prompt": prompts.version("direct")}

    def queries(self, rubric: Rubric) -> int:
        """Return how many questions are asked."""
        return sum(len(group.members) > 1 for group in rubric.groups)

    def compute(self, items: Items, complete: Complete) -> Computed:
        """Return the records of weights by key, and why others have none."""
        return in_step({key: self._weigh(*item) for key, item in items.items()}, complete)

    def _weigh(self, prompt: str, rubric: Rubric) -> Asking[dict[str, Any]]:
        questionnaire = Questionnaire(prompt, rubric)
        asked = {group.id: _ids(group) for group in rubric.groups if len(group.members) > 1}
        answers, usage = yield from _answers([questionnaire.direct(ids) for ids in asked.values()], _ratings)
        shares = dict(zip(asked, answers, strict=True))
        local = {
            group.id: dict(zip(_ids(group), (np.array(shares[group.id]) / sum(shares[group.id])).tolist(), strict=True))
            if group.id in shares
            else {group.members[0].id: 1.0}
            for group in rubric.groups
        }
        record = {"queries": len(asked), "ratings": {one: list(ratings) for one, ratings in shares.items()}}
        return {"weights": multiply_down(rubric, local), "record": record | _tokens(usage)}


@dataclass(frozen=True, slots=True)
class SingleQuery:
    """All pairs of each set of siblings in one query; encoded and weighed as by `reward_plugin.weighting.icw.Icw`."""

    alpha: float
    tau: float
    random_index: str

    name = "icw-single-query"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the weights depend on beside the prompt, the rubric and the model."""
        found = {"alpha": self.alpha, "tau": self.tau, "random_index": self.random_index}
        return found | {"all_pairs_prompt": prompts.version("all_pairs")}

    def queries(self, rubric: Rubric) -> int:
        """Return how many questions are asked."""
        return sum(len(group.members) > 1 for group in rubric.groups)

    def compute(self, items: Items, complete: Complete) -> Computed:
        """Return the records of weights by key, and why others have none."""
        return in_step({key: self._weigh(*item) for key, item in items.items()}, complete)

    def _weigh(self, prompt: str, rubric: Rubric) -> Asking[dict[str, Any]]:
        questionnaire = Questionnaire(prompt, rubric)
        groups = {}
        for group in rubric.groups:
            known = Comparisons.of(group)
            groups[group.id] = known, [pair for pair in combinations(known.ids, 2) if pair not in known.given]
        asked = [questionnaire.all_pairs(known.ids, pairs) for known, pairs in groups.values() if pairs]
        answers, usage = yield from _answers(asked, _winners)
        for known, _ in groups.values():
            known.add(judgment for judgments in answers for judgment in judgments if judgment.first in known.ids)
        results = {
            one: priorities(known.matrix(self.alpha), random_index=self.random_index)
            for one, (known, _) in groups.items()
        }
        local = {
            one: dict(zip(groups[one][0].ids, result.weights.tolist(), strict=True)) for one, result in results.items()
        }
        worst = max(results.values(), key=lambda result: float(result.consistency_ratio))
        judged = [pair for known, _ in groups.values() for pair in known.judged.values()]
        return {
            "weights": multiply_down(rubric, local),
            "consistency_ratio": float(worst.consistency_ratio),
            "lambda_max": float(worst.lambda_max),
            "flagged": bool(worst.consistency_ratio > self.tau),
            "record": {
                "queries": len(asked),
                **counts(judged),
                **_tokens(usage),
                "judgments": [judgment.record() for pair in judged for judgment in pair],
            },
        }


@dataclass(frozen=True, slots=True)
class WhitenedUniform:
    """Equal weights on decorrelated verdicts (RRD-WU, arXiv 2602.05125): w proportional to S^(-1/2) 1.

    S is the covariance of the verdicts by `verifier` on responses that the weighing model writes itself.
    """

    verifier: Verifier

    name = "rrd-wu"

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the weights depend on beside the prompt, the rubric and the model."""
        verifier = {"reply": self.verifier.reply, "identity": self.verifier.engine.identity}
        return {"responses": _RESPONSES, "verifier": verifier, "verdict_prompt": prompts.version("verdict")}

    def queries(self, rubric: Rubric) -> int:
        """Return how many responses are sampled."""
        return _RESPONSES

    def compute(self, items: Items, complete: Complete) -> Computed:
        """Return the records of weights by key, and why others have none."""
        computed: dict[str, dict[str, Any]] = {}
        lost: dict[str, str] = {}
        requests = [request for prompt, _ in items.values() for request in _responses(prompt)]
        replies = iter(complete(requests))
        jobs = []
        for prompt, rubric in items.values():
            texts = [next(replies) for _ in range(_RESPONSES)]
            # What was cut off at the token limit is a response too
            jobs.append([Job(prompt, one.text, rubric.contributing) for one in texts if one.error is None and one.text])
        verdicts = iter(self.verifier.judge([job for group in jobs for job in group]))
        for (key, (_, rubric)), group in zip(items.items(), jobs, strict=True):
            judged = [next(verdicts) for _ in group]
            table = [row for row in (_signs(rubric, one) for one in judged) if row is not None]
            if len(table) < _FEWEST:
                lost[key] = (
                    f"{len(table)} of {_RESPONSES} sampled responses could be judged; at least {_FEWEST} are needed"
                )
                continue
            weights = whitened(table)
            ids = [criterion.id for criterion in rubric.contributing]
            record = {"queries": _RESPONSES, "responses": len(table), "met": np.mean(table, axis=0).tolist()}
            computed[key] = {"weights": dict(zip(ids, weights.tolist(), strict=True)), "record": record}
        return computed, lost


_RESPONSES = 16
_FEWEST = 8
_RESPONSE_TOKENS = 256
_SHRINKAGE = 0.1


def whitened(verdicts: ArrayLike) -> FloatArray:
    """Return the weights (K,) of verdicts (R, K) in [0, 1]: S^(-1/2) 1, negatives clipped at 0, normalised.

    The covariance S is shrunk a tenth of the way towards its diagonal; a constant column keeps unit variance. Raises
    `InvalidInput` for fewer than two responses.

    >>> whitened([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]]).round(2).tolist()
    [0.3, 0.3, 0.41]
    """
    table = np.asarray(verdicts, dtype=np.float64)
    if table.ndim != 2 or len(table) < 2:
        raise InvalidInput(f"expected the verdicts of at least two responses, (R, K); got shape {table.shape}")
    covariance = np.atleast_2d(np.cov(table, rowvar=False))
    covariance = covariance * np.where(np.eye(len(covariance), dtype=bool), 1.0, 1.0 - _SHRINKAGE)
    constant = np.diag(covariance) == 0
    covariance[constant, constant] = 1.0
    values, vectors = np.linalg.eigh(covariance)
    raw = np.maximum(0.0, vectors @ ((vectors.T @ np.ones(len(values))) / np.sqrt(values)))
    weights: FloatArray = raw / raw.sum()
    return weights


def _responses(prompt: str) -> list[Request]:
    messages = (("user", prompts.inert(prompt)),)
    meta = {"kind": "response", "prompt": prompt}
    return [
        Request(messages, max_tokens=_RESPONSE_TOKENS, temperature=1.0, seed=number, meta=meta)
        for number in range(_RESPONSES)
    ]


def _signs(rubric: Rubric, verdicts: Mapping[str, Verdict]) -> list[float] | None:
    """Return what each criterion earned, None where a verdict is unknown."""
    row = []
    for criterion in rubric.contributing:
        met = verdicts[criterion.id].met
        if met is None:
            return None
        row.append(float(met != criterion.pitfall))
    return row


def _answers(requests: list[Request], read: "Any") -> Asking[tuple[list[Any], Usage]]:
    if not requests:
        return [], Usage()
    results = yield from ask(requests, read)
    unusable = [str(one) for one, _ in results if isinstance(one, Unusable)]
    if unusable:
        raise Lost(f"{len(unusable)} of {len(requests)} questions: {unusable[0]}")
    usage = Usage()
    for _, tokens in results:
        usage = add(usage, tokens)
    return [one for one, _ in results], usage


def _ratings(request: Request, reply: Reply) -> list[float]:
    ratings = json_object(reply, {"weights": list})["weights"]
    return [float(one) for one in _numbers(ratings, len(request.meta["ids"]), 1, 10)]


def _winners(request: Request, reply: Reply) -> list[Judgment]:
    winners = json_object(reply, {"winners": list})["winners"]
    ids, pairs = request.meta["ids"], request.meta["pairs"]
    judgments = []
    for (first, second), winner in zip(pairs, _numbers(winners, len(pairs), 0, len(ids)), strict=True):
        named = None if winner == 0 else ids[winner - 1]
        if named not in (first, second, None):
            raise Unusable("malformed")
        judgments.append(Judgment(first, second, named))
    return judgments


def _numbers(values: Any, count: int, low: int, high: int) -> Sequence[int]:
    if len(values) != count or not all(type(one) is int and low <= one <= high for one in values):
        raise Unusable("malformed")
    numbers: Sequence[int] = values
    return numbers


def _ids(group: Group) -> tuple[str, ...]:
    return tuple(member.id for member in group.members)


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
    }
