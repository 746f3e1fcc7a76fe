"""What weights cost: arithmetic on many matrices, and queries, tokens and seconds on a real engine.

    .venv/bin/python scripts/benchmark_weights.py [MODEL FOLDER]

Prints the tables of docs/benchmarks.md. Without a model folder, the arithmetic only.
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from reward_plugin.engines import open_engine
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.weighting.ahp import priorities
from reward_plugin.weighting.icw import Icw
from reward_plugin.weighting.rivals import Direct, SingleQuery
from reward_plugin.weighting.weigher import Method, Weigher

RUNS = 5
CRITERIA = [
    "The response answers the question that was asked.",
    "Every fact in the response is correct.",
    "The response has at most three sentences.",
    "The response uses words that a child of ten understands.",
    "The response gives one example from daily life.",
    "The response is polite.",
    "The response does not repeat the question.",
    "The response ends with a full sentence.",
]
QUESTIONS = [
    "Why is the sky blue?",
    "How does a bicycle stay upright when it moves?",
    "What makes bread rise in the oven?",
    "Why do we have leap years?",
    "How do vaccines protect people from diseases?",
    "Why does ice float on water?",
    "What causes the tides of the sea?",
    "How does soap remove fat from a plate?",
]


def saaty_matrices(number: int, size: int) -> NDArray[np.float64]:
    """Return random reciprocal matrices on Saaty's scale, (N, K, K)."""
    scale = np.array([1 / one for one in range(9, 1, -1)] + list(range(1, 10)), dtype=np.float64)
    upper = np.triu(np.random.default_rng(0).choice(scale, (number, size, size)), 1)
    lower = np.swapaxes(np.divide(1.0, upper, out=np.zeros_like(upper), where=upper > 0), 1, 2)
    return upper + lower + np.eye(size)


def seconds(step: Callable[[], object]) -> list[float]:
    """Return how long a step takes, several times over, sorted."""
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return sorted(taken)


def arithmetic() -> None:
    """Print how long weights and consistency of many matrices take."""
    print("| matrices | one by one, numpy.linalg.eig | at once | incomplete, at once |\n|---|---|---|---|")
    for number, size in ((10_000, 10), (100, 100), (1, 100), (1, 200)):
        stack = saaty_matrices(number, size)
        holes = stack.copy()
        ring = np.eye(size, dtype=bool) | np.roll(np.eye(size, dtype=bool), 1, axis=1)
        holes[:, ~(ring | ring.T | (np.add.outer(range(size), range(size)) % 3 == 0))] = np.nan
        rival = seconds(lambda stack=stack: [np.linalg.eig(matrix) for matrix in stack])
        ours, partial = (seconds(lambda one=one: priorities(one)) for one in (stack, holes))
        cells = [f"{1000 * statistics.median(one):.1f} ms" for one in (rival, ours, partial)]
        print(f"| {number} of K = {size} | {' | '.join(cells)} |")


def engine(model: str) -> None:
    """Print queries, tokens and seconds of every method on a real engine."""
    rubric = Rubric.parse([{"id": f"c{place}", "text": text} for place, text in enumerate(CRITERIA)])
    items = [(question, rubric) for question in QUESTIONS]
    methods: dict[str, Method] = {
        "icw, no revision": Icw(rounds=0),
        "icw, targeted revision": Icw(tau=0.0),
        "icw, revision by rounds": Icw(tau=0.0, revision="round"),
        "icw, sparse": Icw(pairs="sparse", rounds=0),
        "icw, json replies": Icw(reply="json", rounds=0),
        "icw-single-query": SingleQuery(3.0, 0.1, "saaty1980"),
        "direct": Direct(),
    }
    llm = open_engine(f"vllm:{model}")
    Weigher(llm, Store(None), Icw(rounds=0)).weigh([("Warm up.", rubric)])
    print(
        f"\n{len(items)} prompts, K = {len(CRITERIA)}, {RUNS} runs, medians; prefix cache empty at the start of each run"
    )
    print("| method | queries | tokens read | of them from the cache | generated | seconds | queries/s | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for name, method in methods.items():
        taken, lost, weigher = [], 0, None
        for _ in range(RUNS):
            llm._start().reset_prefix_cache()  # type: ignore[attr-defined]
            weigher = Weigher(llm, Store(None), method)
            start = time.perf_counter()
            weights = weigher.weigh(items)
            taken.append(time.perf_counter() - start)
            lost = sum(one.why is not None for one in weights)
        assert weigher is not None
        tally, middle = weigher.tally, statistics.median(taken)
        print(
            f"| {name} | {tally.requests} | {tally.prompt_tokens} | {tally.cached_tokens / tally.prompt_tokens:.0%} | "
            f"{tally.generated_tokens} | {middle:.1f} ({min(taken):.1f} to {max(taken):.1f}) | "
            f"{tally.requests / middle:.1f} | {lost} of {len(items)} prompts |",
            flush=True,
        )
    llm.close()


if __name__ == "__main__":
    arithmetic()
    if len(sys.argv) > 1:
        engine(sys.argv[1])
