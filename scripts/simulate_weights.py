"""Weights by simulated judges against known true ones: every method, with noise, position bias and neutrality.

A judge knows the true weights and answers as a noisy rater would; the package's own code asks it, question by question.
Puts the tables of docs/simulation.md anew and draws docs/simulation.svg, in a minute or two:

    .venv/bin/python scripts/simulate_weights.py
"""

import argparse
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reward_plugin.engines import Request, ScriptedEngine
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.verifier import Verifier
from reward_plugin.weighting.icw import Icw
from reward_plugin.weighting.rivals import Direct, SingleQuery, WhitenedUniform
from reward_plugin.weighting.weigher import Method, Weigher

FloatArray = NDArray[np.float64]
DOCS = Path(__file__).resolve().parents[1] / "docs"
CRITERIA, PROMPTS = 8, 200


@dataclass(frozen=True)
class Judge:
    """How a simulated judge errs.

    An importance is the log of a true weight. Each question sees every importance with an error of its own (Gumbel, of
    standard deviation `noise`); an error that all questions share is `blur`. The winner is the larger one, or neither where they differ by less than `neutrality`; its probability is logistic in the difference. With
    probability `bias` a question is answered with whatever stands first. A review looks with half the noise. The same
    question has the same answer, as at temperature 0.
    """

    name: str
    noise: float = 0.0
    blur: float = 0.0
    neutrality: float = 0.15
    bias: float = 0.0


JUDGES = (
    Judge("exact"),
    Judge("noisy", noise=0.5),
    Judge("very noisy", noise=1.0),
    Judge("biased", noise=0.5, bias=0.3),
    Judge("reserved", noise=0.5, neutrality=0.7),
    Judge("mistaken", noise=0.5, blur=0.5),
)
ABOUT = {
    "exact": "no error; differences under 0.15 are neutral",
    "noisy": "error of 0.5 in every look",
    "very noisy": "error of 1.0 in every look",
    "biased": "as noisy, and 3 of 10 answers are whatever stands first",
    "reserved": "as noisy, and differences under 0.7 are neutral",
    "mistaken": "as noisy, and wrong about every importance by 0.5, always in the same way",
}
_SHARPNESS = 0.5
_REVIEW_CARE = 0.5


@dataclass
class World:
    """One prompt: what the judge believes, and the seed of its errors."""

    beliefs: dict[str, float]
    judge: Judge
    seed: str

    def answer(self, request: Request) -> object:
        """Return what the judge says to a question of the package."""
        chance = random.Random(f"{self.seed}/{request.messages[-1][1]}/{request.seed}")
        meta = request.meta
        if meta["kind"] in ("comparison", "review"):
            care = _REVIEW_CARE if meta["kind"] == "review" else 1.0
            return self._chances(meta["first"], meta["second"], chance, care)
        if meta["kind"] == "direct":
            # On a scale of ratios with the most important at 10
            seen = [self._seen(one, chance) for one in meta["ids"]]
            ratings = [max(1, min(10, round(10 * math.exp(one - max(seen))))) for one in seen]
            return json.dumps({"weights": ratings})
        if meta["kind"] == "all_pairs":
            number = {one: place for place, one in enumerate(meta["ids"], start=1)}
            winners = []
            for first, second in meta["pairs"]:
                chances = self._chances(first, second, chance)
                winners.append({"1": number[first], "2": number[second], "=": 0}[max(chances, key=chances.__getitem__)])
            return json.dumps({"winners": winners})
        if meta["kind"] == "response":
            return "".join(chance.choice("01") for _ in self.beliefs)
        # A verdict on a sampled response, whose text says which criteria it meets
        place = sorted(self.beliefs).index(meta["criterion"])
        return {"Yes" if meta["response"][place] == "1" else "No": 1.0}

    def _seen(self, criterion: str, chance: random.Random, care: float = 1.0) -> float:
        # Gumbel errors: that the one of two criteria looks larger has then the odds of Bradley and Terry's model
        scale = care * self.judge.noise * math.sqrt(6.0) / math.pi
        return self.beliefs[criterion] - scale * math.log(-math.log(1.0 - chance.random() * (1.0 - 1e-12)))

    def _chances(self, first: str, second: str, chance: random.Random, care: float = 1.0) -> dict[str, float]:
        if chance.random() < self.judge.bias:
            return {"1": 0.9, "2": 0.05, "=": 0.05}
        lead = self._seen(first, chance, care) - self._seen(second, chance, care)
        odds = {"1": lead, "2": -lead, "=": self.judge.neutrality}
        exponentials = {choice: math.exp(value / _SHARPNESS) for choice, value in odds.items()}
        return {choice: value / sum(exponentials.values()) for choice, value in exponentials.items()}


def methods(engine: ScriptedEngine) -> dict[str, Method]:
    """Return every method that asks a model, by the name in the table."""
    return {
        "direct": Direct(),
        "rrd-wu": WhitenedUniform(Verifier(engine)),
        "icw-single-query": SingleQuery(Icw().alpha, Icw().tau, Icw().random_index),
        "icw-no-revision": Icw(rounds=0),
        "icw": Icw(),
        "icw, revision=round": Icw(revision="round"),
        "icw, entries=confidence, alpha=5": Icw(entries="confidence", alpha=5.0),
        "icw, pairs=sparse": Icw(pairs="sparse"),
    }


def true_weights(count: int, chance: random.Random) -> dict[str, float]:
    """Return weights on three levels with some spread within, as the points of published rubrics have."""
    raw = {f"c{place:02}": chance.choice((1.0, 3.0, 7.0)) * math.exp(chance.gauss(0.0, 0.2)) for place in range(count)}
    total = sum(raw.values())
    return {one: value / total for one, value in raw.items()}


def preference_accuracy(weights: FloatArray, truth: FloatArray, chance: np.random.Generator) -> float:
    """Return how often two random responses, each meeting half of the criteria, are ranked as by the true weights."""
    verdicts = chance.integers(0, 2, (2, 400, len(truth))).astype(np.float64)
    right, found = (np.diff(verdicts @ one, axis=0)[0] for one in (truth, weights))
    found = np.where(np.abs(found) < 1e-9, 0.0, found)
    return float(np.mean(np.where(found == 0, 0.5, np.sign(found) == np.sign(right))[right != 0]))


def kendall(one: FloatArray, other: FloatArray) -> float:
    """Return Kendall's tau-b, 0 where one side ties everything."""
    i, j = np.triu_indices(len(one), 1)
    left, right = np.sign(np.round(one[i] - one[j], 9)), np.sign(np.round(other[i] - other[j], 9))
    scale = math.sqrt(np.count_nonzero(left) * np.count_nonzero(right))
    return float((left * right).sum() / scale) if scale else 0.0


@dataclass
class Outcome:
    """What a method reached with one judge, by prompt: weights (N, K), accuracies (N,), and means over the prompts."""

    judge: str
    method: str
    weights: FloatArray
    accuracy: FloatArray
    error: float
    tau: float
    ratio: float | None
    flagged: float
    queries: float


def simulate(
    judge: Judge, choose: Callable[[ScriptedEngine], dict[str, Method]], count: int, prompts: int
) -> list[Outcome]:
    """Return the outcome of uniform weights and of every method on the same prompts with the same judge."""
    chance = random.Random(f"{judge.name}/{count}")
    truths = [true_weights(count, chance) for _ in range(prompts)]
    ids = sorted(truths[0])
    rubric = Rubric.parse([{"id": one, "text": one} for one in ids])
    worlds = {}
    for row, truth in enumerate(truths):
        beliefs = {one: math.log(weight) + chance.gauss(0.0, judge.blur) for one, weight in truth.items()}
        worlds[f"prompt {row}"] = World(beliefs, judge, str(row))
    right = np.array([[truth[one] for one in ids] for truth in truths])
    outcomes = []
    for name in ["uniform", *choose(ScriptedEngine(str))]:
        engine = ScriptedEngine(lambda request: worlds[request.meta["prompt"]].answer(request))
        ratios: list[float] = []
        flagged = 0.0
        found = np.full_like(right, 1 / count)
        if name != "uniform":
            weighed = Weigher(engine, Store(None), choose(engine)[name]).weigh([(prompt, rubric) for prompt in worlds])
            found = np.array([[one.weights[criterion] for criterion in ids] for one in weighed])
            ratios = [one.consistency_ratio for one in weighed if one.consistency_ratio is not None]
            flagged = float(np.mean([one.flagged for one in weighed]))
        sampler = np.random.default_rng(0)
        outcomes.append(
            Outcome(
                judge.name,
                name,
                found,
                np.array([preference_accuracy(w, t, sampler) for w, t in zip(found, right, strict=True)]),
                float(np.abs(found - right).sum(axis=1).mean()),
                float(np.mean([kendall(w, t) for w, t in zip(found, right, strict=True)])),
                float(np.mean(ratios)) if ratios else None,
                flagged,
                sum(request.meta["kind"] != "verdict" for request in engine.requests) / prompts,
            )
        )
    return outcomes


def difference(one: Outcome, other: Outcome) -> tuple[float, float]:
    """Return the mean paired difference in accuracy and half the width of its 95% interval."""
    paired = one.accuracy - other.accuracy
    return float(paired.mean()), 1.96 * float(paired.std(ddof=1)) / math.sqrt(len(paired))


def table(outcomes: list[Outcome]) -> list[str]:
    """Return the lines of a table of methods, and of what ICW is better and worse than."""
    by_name = {one.method: one for one in outcomes}
    lines = [
        "| weighting | accuracy | against uniform | weight error | Kendall tau | consistency ratio | flagged | queries |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        gain, half = difference(one, by_name["uniform"])
        ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
        flagged = "" if one.ratio is None else f"{one.flagged:.0%}"
        against = "" if one.method == "uniform" else f"{gain:+.3f} ± {half:.3f}"
        lines.append(
            f"| {one.method} | {one.accuracy.mean():.3f} | {against} | {one.error:.3f} | {one.tau:.3f} | {ratio} | "
            f"{flagged} | {one.queries:.1f} |"
        )
    verdicts = []
    for rival in ("uniform", "direct", "icw-single-query", "icw-no-revision"):
        gain, half = difference(by_name["icw"], by_name[rival])
        word = "better than" if gain > half else "**worse than**" if gain < -half else "not told apart from"
        verdicts.append(f"{word} {rival} ({gain:+.3f} ± {half:.3f})")
    return [*lines, "", f"`icw` is {', '.join(verdicts)}.", ""]


def sparse_table(prompts: int) -> list[str]:
    """Return the lines on sparse designs: how far from the full design on the same answers, and from the truth."""
    lines = [
        "| judge | queries | share | L1 to full | tau to full | L1 to truth, sparse | full | accuracy, sparse | full |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    choose = lambda engine: {"full": Icw(rounds=0), "sparse": Icw(rounds=0, pairs="sparse")}  # noqa: E731
    for count in (8, 12, 20):
        for judge in (Judge("exact"), Judge("10% wrong", noise=0.4), Judge("biased", noise=0.4, bias=0.3)):
            _, full, sparse = simulate(judge, choose, count, prompts)
            apart = float(np.abs(full.weights - sparse.weights).sum(axis=1).mean())
            tau = float(np.mean([kendall(w, f) for w, f in zip(sparse.weights, full.weights, strict=True)]))
            lines.append(
                f"| K = {count}, {judge.name} | {sparse.queries:.0f} of {full.queries:.0f} | "
                f"{sparse.queries / full.queries:.0%} | {apart:.3f} | {tau:.3f} | {sparse.error:.3f} | {full.error:.3f} | "
                f"{sparse.accuracy.mean():.3f} | {full.accuracy.mean():.3f} |"
            )
    return lines


def strict_order_table() -> list[str]:
    """Return the lines on the consistency ratio of a faultless strict order, which alpha alone decides."""
    from reward_plugin.weighting.ahp import comparison_matrix, priorities

    sizes, alphas = (3, 5, 8, 12, 20), (1.5, 2.0, 2.5, 3.0, 5.0, 9.0)
    lines = [f"| alpha | {' | '.join(f'K = {size}' for size in sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for alpha in alphas:
        ratios = []
        for size in sizes:
            order = [(i, j, alpha) for i in range(size) for j in range(i + 1, size)]
            ratios.append(float(priorities(comparison_matrix(size, order)).consistency_ratio))
        lines.append(f"| {alpha:g} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |")
    return lines


def plot(results: list[list[Outcome]], path: Path) -> None:
    """Draw accuracy by judge and method, with 95% intervals."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "weights", "font.size": 9})
    from matplotlib import pyplot

    names = [one.method for one in results[0]]
    figure, axes = pyplot.subplots(1, len(results), figsize=(13, 3.6), sharey=True, sharex=True)
    for axis, outcomes in zip(axes, results, strict=True):
        for place, one in enumerate(outcomes):
            half = 1.96 * one.accuracy.std(ddof=1) / math.sqrt(len(one.accuracy))
            colour = "#2f6fde" if one.method.startswith("icw") else "#8a8a99"
            axis.errorbar(one.accuracy.mean(), -place, xerr=half, fmt="o", color=colour, capsize=2, markersize=4)
        axis.set_title(outcomes[0].judge, fontsize=10)
        axis.set_yticks([-place for place in range(len(names))], names)
        axis.grid(axis="x", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        "share of pairs of responses ranked as by the true weights (95% interval over prompts)", fontsize=9
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def fill(page: str, name: str, lines: list[str]) -> str:
    """Return `page` with what stands between the marks of `name` put anew."""
    begin, end = f"<!-- {name}: written by scripts/simulate_weights.py -->\n", f"<!-- end of {name} -->"
    head, _, rest = page.partition(begin)
    return head + begin + "\n" + "\n".join(lines).strip() + "\n\n" + end + rest.partition(end)[2]


def main() -> None:
    """Put the tables of the page anew, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    prompts = parser.parse_args().prompts
    results = [simulate(judge, methods, CRITERIA, prompts) for judge in JUDGES]
    plot(results, DOCS / "simulation.svg")
    lines = []
    for judge, outcomes in zip(JUDGES, results, strict=True):
        lines += [f"### {judge.name.capitalize()}: {ABOUT[judge.name]}", "", *table(outcomes)]
    page = (DOCS / "simulation.md").read_text(encoding="utf-8")
    for name, part in (("judges", lines), ("sparse", sparse_table(prompts)), ("orders", strict_order_table())):
        page = fill(page, name, part)
    (DOCS / "simulation.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
