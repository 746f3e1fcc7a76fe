"""A rubric and its weights -> the default program: weighted mean, then caps, then vetoes. No model, no response."""

from collections.abc import Mapping

from reward_plugin.errors import InvalidInput
from reward_plugin.graph.program import Node, Program
from reward_plugin.rubric import Rubric


def compile_rubric(rubric: Rubric, weights: Mapping[str, float]) -> Program:
    """Return the program of a rubric; `weights` has one finite number of 0 or more for each criterion without a gate.

    A pitfall enters the mean inverted: its weight is earned by avoiding it. The gates act on the weighted mean of all the others: first every cap, then every veto, each kind in id order.
    Raises `InvalidInput` when the ids do not match, `InvalidProgram` for weights that cannot be normalised.

    >>> rubric = Rubric.parse([{"id": "a", "text": "A"}, {"id": "b", "text": "B", "gate": "veto"}])
    >>> [node.op for node in compile_rubric(rubric, {"a": 1.0}).order]
    ['condition', 'criterion', 'weighted_mean', 'veto']
    """
    contributing = sorted(criterion.id for criterion in rubric.contributing)
    if sorted(weights) != contributing:
        raise InvalidInput(f"weights name {sorted(weights)}; the criteria without a gate are {contributing}")
    nodes, scores = [], []
    for criterion in sorted(rubric.contributing, key=lambda one: one.id):
        node = Node(f"criterion:{criterion.id}", "criterion", {}, {"criterion": criterion.id})
        nodes.append(node)
        if criterion.pitfall:
            node = Node(f"invert:{criterion.id}", "invert", {"score": (node.id,)}, {})
            nodes.append(node)
        scores.append(node.id)
    mean = Node(
        "mean",
        "weighted_mean",
        {"scores": tuple(scores)},
        {"weights": tuple(float(weights[one]) for one in contributing)},
    )
    nodes.append(mean)
    sink = mean.id
    for kind in ("cap", "veto"):
        for criterion in sorted(rubric.criteria, key=lambda one: one.id):
            if criterion.gate is None or criterion.gate.kind != kind:
                continue
            flag = Node(f"condition:{criterion.id}", "condition", {}, {"criterion": criterion.id})
            inputs = {"score": (sink,), "flag": (flag.id,)}
            gate = Node(f"{kind}:{criterion.id}", kind, inputs, {"limit": criterion.gate.limit})
            nodes += [flag, gate]
            sink = gate.id
    return Program(tuple(nodes), sink)
