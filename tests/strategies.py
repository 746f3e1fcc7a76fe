"""Hypothesis strategies that several test files share."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from reward_plugin.graph import Node, Program
from reward_plugin.verdicts import Verdict

anything_written = st.text(st.characters(exclude_categories=()), max_size=60)
"""Any string that Python can hold: every plane, control characters, lone surrogates."""

probabilities = st.floats(0, 1)
alphas = st.floats(1.01, 9)
rankings = st.lists(st.integers(0, 6), min_size=2, max_size=7)
"""Ranks of K criteria, ties included: the higher one wins a comparison."""

saaty_ratios = st.sampled_from([1 / 9, 1 / 7, 1 / 5, 1 / 3, 1 / 2, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0])


@st.composite
def reciprocal_matrices(draw: st.DrawFn, largest: int = 7) -> NDArray[np.float64]:
    """A reciprocal matrix (K, K) of judgments on Saaty's scale, mostly inconsistent."""
    count = draw(st.integers(1, largest))
    matrix = np.ones((count, count))
    for i in range(count):
        for j in range(i + 1, count):
            matrix[i, j] = draw(saaty_ratios)
            matrix[j, i] = 1.0 / matrix[i, j]
    return matrix


@st.composite
def incomplete_matrices(draw: st.DrawFn, largest: int = 7) -> NDArray[np.float64]:
    """A reciprocal matrix (K, K) with NaN for some pairs, the others connecting all criteria."""
    matrix = draw(reciprocal_matrices(largest))
    count = len(matrix)
    spanning = {(draw(st.integers(0, j - 1)), j) for j in range(1, count)}
    for i in range(count):
        for j in range(i + 1, count):
            if (i, j) not in spanning and draw(st.booleans()):
                matrix[i, j] = matrix[j, i] = np.nan
    return matrix


@st.composite
def programs(draw: st.DrawFn, largest: int = 6) -> Program:
    """A program in the form of a tree, means and gates nested anyhow, each criterion read once."""
    nodes: list[Node] = []

    def add(op: str, inputs: dict[str, tuple[str, ...]], parameters: dict[str, object]) -> str:
        nodes.append(Node(f"n{len(nodes)}", op, inputs, parameters))
        return nodes[-1].id

    def grow(criteria: list[str]) -> str:
        if len(criteria) == 1:
            return add("criterion", {}, {"criterion": criteria[0]})
        op = draw(st.sampled_from(["weighted_mean", "cap", "veto", "invert"]))
        if op == "invert":
            return add(op, {"score": (grow(criteria),)}, {})
        if op == "weighted_mean":
            cut = draw(st.integers(1, len(criteria) - 1))
            scores = (grow(criteria[:cut]), grow(criteria[cut:]))
            weights = (draw(st.sampled_from([0.1, 1 / 3, 1.0, 3.0])), draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])))
            return add(op, {"scores": scores}, {"weights": weights})
        flag = add("condition", {}, {"criterion": criteria[0]})
        limit = draw(st.sampled_from([0.0, 0.1, 0.4, 0.5, 1.0]))
        return add(op, {"score": (grow(criteria[1:]),), "flag": (flag,)}, {"limit": limit})

    sink = grow([f"c{i}" for i in range(draw(st.integers(1, largest)))])
    return Program(tuple(nodes), sink)


@st.composite
def verdicts_for(draw: st.DrawFn, program: Program, *, known: bool = False) -> dict[str, Verdict]:
    """A verdict for each criterion of `program`: met, unmet or, unless `known`, unknown."""
    choices = st.sampled_from([True, False] if known else [True, False, None])
    drawn = {one: draw(choices) for one in program.criteria}
    return {one: Verdict.unknown("lost") if met is None else Verdict.of(met) for one, met in drawn.items()}
