"""Importance-aware criteria weighting: pairwise comparisons by a model, in both display orders, once per prompt.

arXiv 2610.19915, steps 1 to 4: compare, encode, weigh, check the consistency.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from reward_plugin import prompts
from reward_plugin.canonical import digest
from reward_plugin.engines.base import Engine, Reply, Request, checked
from reward_plugin.errors import InvalidInput
from reward_plugin.replies import Unusable, choice_probabilities, json_object
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.verifier import ReplyMode, Tally
from reward_plugin.weighting.ahp import comparison_matrix, priorities

_JSON_TOKENS = 96
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 200},
        "winner": {"type": "string", "enum": ["1", "2", "neutral"]},
    },
    "required": ["reason", "winner"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one prompt's rubric by criterion id, summing to 1, and how they came about.

    `consistency_ratio` and `lambda_max` are None where nothing was compared. `flagged` marks a ratio over tau. `record`
    has the judgments and the counts behind them. `why` says why there are none; `weights` is then empty.
    """

    weights: Mapping[str, float]
    consistency_ratio: float | None = None
    lambda_max: float | None = None
    flagged: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None


@dataclass
class Icw:
    """Weights from comparisons by `engine`.

    `alpha` >= 1 is the ratio that a preference stands for (1 gives uniform weights); `tau` the consistency ratio over
    which a result is flagged; `reply` "json" asks for a reason and a winner, "token" reads the first token's
    probabilities. Raises `InvalidInput` for an alpha under 1.
    """

    engine: Engine
    store: Store
    alpha: float = 3.0
    tau: float = 0.1
    reply: ReplyMode = "token"
    random_index: str = "saaty1980"
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        if not _is_number(self.alpha) or not 1 <= self.alpha < math.inf:
            raise InvalidInput(f"alpha is the ratio that a preference stands for, 1 or more; got {self.alpha!r}")
        if not _is_number(self.tau) or not self.tau >= 0:
            raise InvalidInput(
                f"tau is the consistency ratio over which weights are flagged, 0 or more; got {self.tau!r}"
            )

    def weigh(self, items: Sequence[tuple[str, Rubric]]) -> list[Weights]:
        """Return the weights of each (prompt text, rubric): stored ones, or all missing comparisons in one batch."""
        keys = [self.key(prompt, rubric) for prompt, rubric in items]
        by_key = dict(zip(keys, items, strict=True))
        failed: dict[str, str] = {}

        def compute(missing: list[str]) -> dict[str, object]:
            return self._compute({key: by_key[key] for key in missing}, failed)

        found = self.store.fetch(keys, compute)
        return [_weights(found.get(key), failed.get(key)) for key in keys]

    def key(self, prompt: str, rubric: Rubric) -> str:
        """Return the store's key: prompt, rubric, method with its parameters, model, and prompt file."""
        method = {"name": "icw", "alpha": self.alpha, "tau": self.tau, "reply": self.reply, "ri": self.random_index}
        return digest([prompt, rubric.digest, method, self.engine.identity, prompts.version("comparison")])

    def requests(self, prompt: str, rubric: Rubric) -> list[Request]:
        """Return the K(K-1) comparisons of a rubric's K weighted criteria: every pair in both display orders."""
        criteria = sorted(rubric.contributing, key=lambda one: one.id)
        text = prompts.inert(prompt)
        # Shown in id order, so that the question does not depend on the order of declaration
        rubric_texts = [prompts.inert(one.text) for one in sorted(rubric.criteria, key=lambda one: one.id)]
        built = []
        for first, second in permutations(criteria, 2):
            messages = prompts.render(
                "comparison",
                fence=prompts.fence(text),
                prompt=text,
                rubric=rubric_texts,
                first=prompts.inert(first.text),
                second=prompts.inert(second.text),
                reply=self.reply,
            )
            meta = {"kind": "comparison", "first": first.id, "second": second.id, "prompt": prompt}
            if self.reply == "json":
                built.append(Request(messages, max_tokens=_JSON_TOKENS, schema=_SCHEMA, meta=meta))
            else:
                built.append(Request(messages, max_tokens=1, top_logprobs=20, meta=meta))
        return built

    def _compute(self, items: Mapping[str, tuple[str, Rubric]], failed: dict[str, str]) -> dict[str, object]:
        batches = {key: self.requests(*item) for key, item in items.items()}
        requests = [request for batch in batches.values() for request in batch]
        answers = iter(self._answers(requests))
        computed: dict[str, object] = {}
        for key, batch in batches.items():
            judgments = [next(answers) for _ in batch]
            unusable = [judgment["error"] for judgment in judgments if "error" in judgment]
            if unusable:
                failed[key] = f"{len(unusable)} of {len(batch)} comparisons: {unusable[0]}"
            else:
                computed[key] = self._record(items[key][1], judgments)
        return computed

    def _answers(self, requests: list[Request]) -> list[dict[str, Any]]:
        answers = [_answer(request, reply, self.reply) for request, reply in self._complete(requests)]
        again = [i for i, one in enumerate(answers) if one.get("error") in ("malformed", "truncated")]
        for i, (request, reply) in zip(again, self._complete([requests[i] for i in again]), strict=True):
            answers[i] = _answer(request, reply, self.reply)
        return answers

    def _complete(self, requests: list[Request]) -> list[tuple[Request, Reply]]:
        if not requests:
            return []
        start = time.perf_counter()
        replies = checked(self.engine.complete(requests), requests, self.engine.name)
        self.tally.add(replies, time.perf_counter() - start)
        return list(zip(requests, replies, strict=True))

    def _record(self, rubric: Rubric, judgments: list[dict[str, Any]]) -> dict[str, object]:
        ids = sorted(criterion.id for criterion in rubric.contributing)
        winners = {(one["first"], one["second"]): one["winner"] for one in judgments}
        outcomes, flips = [], 0
        for i, first in enumerate(ids):
            for j in range(i + 1, len(ids)):
                pair = {winners[first, ids[j]], winners[ids[j], first]}
                flips += pair == {first, ids[j]}
                if pair == {first}:
                    outcomes.append((i, j, self.alpha))
                elif pair == {ids[j]}:
                    outcomes.append((j, i, self.alpha))
        result = priorities(comparison_matrix(len(ids), outcomes), random_index=self.random_index)
        pairs = len(ids) * (len(ids) - 1) // 2
        return {
            "weights": dict(zip(ids, result.weights.tolist(), strict=True)),
            "consistency_ratio": result.consistency_ratio,
            "lambda_max": result.lambda_max,
            "flagged": result.consistency_ratio > self.tau,
            "record": {
                "judgments": judgments,
                "queries": len(judgments),
                "neutral_share": sum(one["winner"] is None for one in judgments) / max(1, len(judgments)),
                "order_flip_rate": flips / max(1, pairs),
                "model": self.engine.identity,
                "prompt_version": prompts.version("comparison"),
                "random_index": self.random_index,
                "alpha": self.alpha,
                "tau": self.tau,
            },
        }


def _answer(request: Request, reply: Reply, mode: ReplyMode) -> dict[str, Any]:
    shown = {"1": request.meta["first"], "2": request.meta["second"]}
    judgment: dict[str, Any] = {"first": shown["1"], "second": shown["2"]}
    try:
        if mode == "token":
            chances = choice_probabilities(reply, ("1", "2", "="))
            winner = max(chances, key=lambda choice: chances[choice])
            return judgment | {"winner": shown.get(winner), "p": {c: round(p, 4) for c, p in chances.items()}}
        answer = json_object(reply, {"reason": str, "winner": str})
        if answer["winner"] not in ("1", "2", "neutral"):
            raise Unusable("malformed")
        return judgment | {"winner": shown.get(str(answer["winner"])), "reason": answer["reason"]}
    except Unusable as error:
        return judgment | {"error": str(error)}


def _weights(stored: object, why: str | None) -> Weights:
    if not isinstance(stored, dict):
        return Weights({}, why=why or "weights_unavailable")
    return Weights(
        weights=stored["weights"],
        consistency_ratio=float(stored["consistency_ratio"]),
        lambda_max=float(stored["lambda_max"]),
        flagged=bool(stored["flagged"]),
        record=stored["record"],
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
