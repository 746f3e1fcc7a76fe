"""Weigher: the weights of prompts' rubrics, each computed once and kept in the store."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from reward_plugin.canonical import digest
from reward_plugin.engines.base import Engine, Reply, Request, checked
from reward_plugin.rubric import Rubric
from reward_plugin.store import Compute
from reward_plugin.verifier import Tally, Verifier
from reward_plugin.weighting.icw import Icw
from reward_plugin.weighting.questions import Complete
from reward_plugin.weighting.rivals import Direct, SingleQuery, WhitenedUniform
from reward_plugin.weighting.weights import Weights, uniform

Weighting = Literal["icw", "icw-no-revision", "icw-single-query", "direct", "rrd-wu", "given", "uniform"]
DECLARED = ("given", "uniform")
"""The weightings that need no model."""

Inconsistent = Literal["keep", "uniform"]


class Method(Protocol):
    """A way of weighing that asks a model. `name` and `parameters` are part of every stored key."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def parameters(self) -> dict[str, Any]: ...  # noqa: D102

    def queries(self, rubric: Rubric) -> int:
        """Return how many questions a rubric takes, before any is asked again."""
        ...

    def compute(
        self, items: Mapping[str, tuple[str, Rubric]], complete: Complete
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the JSON records of weights of (prompt text, rubric) by key, and why others have none."""
        ...


class Storage(Protocol):
    """What keeps results: `reward_plugin.store.Store`, or a folder that machines share."""

    hits: int

    def fetch(self, keys: Sequence[str], compute: Compute) -> dict[str, object]:
        """Return the value of each key that has one, asking `compute` for the missing ones."""
        ...


def method_of(weighting: Weighting, icw: Icw, verifier: Verifier) -> Method:
    """Return the method of a `weighting` that asks a model; `icw` has the parameters of those that compare.

    Raises `KeyError` for one that does not.
    """
    methods: dict[str, Method] = {
        "icw": icw,
        "icw-no-revision": replace(icw, rounds=0),
        "icw-single-query": SingleQuery(icw.alpha, icw.tau, icw.random_index),
        "direct": Direct(),
        "rrd-wu": WhitenedUniform(verifier),
    }
    return methods[weighting]


@dataclass
class Weigher:
    """Weighs rubrics with `method`, asking `engine`.

    `inconsistent` says what becomes of weights whose consistency ratio stays over the method's tau: "keep" them, flagged,
    or put "uniform" ones in their place.
    """

    engine: Engine
    store: Storage
    method: Method = field(default_factory=Icw)
    inconsistent: Inconsistent = "keep"
    tally: Tally = field(default_factory=Tally)

    def weigh(self, items: Sequence[tuple[str, Rubric]]) -> list[Weights]:
        """Return the weights of each (prompt text, rubric): stored ones, or all missing ones asked for together.

        What could not be had has no weights and a reason, and is not stored.
        """
        keys = self.keys(items)
        by_key = dict(zip(keys, items, strict=True))
        failed: dict[str, str] = {}

        def compute(missing: list[str]) -> dict[str, object]:
            computed, lost = self.method.compute({key: by_key[key] for key in missing}, self._complete)
            failed.update(lost)
            about = {"method": self.method.name, **self.method.parameters, "model": self.engine.identity}
            return {key: {**record, "record": about | record["record"]} for key, record in computed.items()}

        found: dict[str, Any] = self.store.fetch(keys, compute)
        return [
            self.settled(rubric, Weights(**found[key])) if key in found else Weights({}, why=failed.get(key, "lost"))
            for key, (_, rubric) in zip(keys, items, strict=True)
        ]

    def keys(self, items: Sequence[tuple[str, Rubric]]) -> list[str]:
        """Return the store's keys: of prompt, rubric, method with its parameters and prompt files, model."""
        method = {"name": self.method.name, **self.method.parameters}
        identity = self.engine.identity  # read once: it may be the digest of a model's files
        return [digest([prompt, rubric.digest, method, identity]) for prompt, rubric in items]

    def settled(self, rubric: Rubric, weights: Weights) -> Weights:
        """Return `weights`, or equal ones where these are too inconsistent to be kept."""
        if weights.flagged and self.inconsistent == "uniform":
            return replace(weights, weights=uniform(rubric), record={**weights.record, "fallback": "uniform"})
        return weights

    def _complete(self, requests: list[Request]) -> list[Reply]:
        if not requests:
            return []
        start = time.perf_counter()
        replies = checked(self.engine.complete(requests), requests, self.engine.name)
        self.tally.add(replies, time.perf_counter() - start)
        return replies
