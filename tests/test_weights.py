"""Weights that need no model, multiplied down sections, and written ahead; graded trees of a published benchmark."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from reward_plugin.errors import InvalidInput
from reward_plugin.graph import compile_rubric, run
from reward_plugin.rubric import Rubric
from reward_plugin.verdicts import Verdict
from reward_plugin.weighting.weights import Weights, given, multiply_down, uniform
from reward_plugin.weighting.written import read_weights, write_weights

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "paperbench"
GRADED = sorted(DATA.glob("judge_eval/*/0/grading/expected_result.json"))
RUBRIC = Rubric.parse(
    [
        {"section": "S", "weight": 3, "criteria": ["a", {"section": "T", "criteria": ["b", "c", "d"]}]},
        {"text": "e", "weight": -1},
        {"text": "g", "gate": "veto"},
    ]
)


def rubric_of(node: dict[str, Any]) -> Rubric:
    """A tree of tasks as a rubric of nested sections; a leaf alone as a rubric of one criterion."""

    def item(one: dict[str, Any]) -> dict[str, Any]:
        head = {"id": one["id"], "weight": one["weight"]}
        if not one["sub_tasks"]:
            return head | {"text": one["requirements"]}
        return head | {"section": one["requirements"], "criteria": [item(child) for child in one["sub_tasks"]]}

    return Rubric.parse([item(child) for child in node["sub_tasks"]] or [item(node)])


def nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield tree
    for child in tree["sub_tasks"]:
        yield from nodes(child)


@pytest.mark.skipif(not GRADED, reason=f"{DATA.name}: the graded trees are not on this machine")
def test_published_graded_trees_reproduce_at_every_node() -> None:
    """PaperBench: the score of a node from the verdicts of its leaves and the authors' weights, multiplied down."""
    checked = 0
    for path in GRADED:
        for node in nodes(json.loads(path.read_text())):
            rubric = rubric_of(node)
            leaves = {leaf["id"]: Verdict.of(leaf["score"]) for leaf in nodes(node) if not leaf["sub_tasks"]}
            result = run(compile_rubric(rubric, given(rubric)), [leaves])

            assert result.values[0] == pytest.approx(node["score"], abs=1e-9), node["id"]
            checked += 1
    assert checked >= 100


def test_declared_weights_by_hand() -> None:
    assert uniform(RUBRIC) == pytest.approx({"a": 1 / 4, "b": 1 / 12, "c": 1 / 12, "d": 1 / 12, "e": 1 / 2})
    assert given(RUBRIC) == pytest.approx({"a": 3 / 8, "b": 1 / 8, "c": 1 / 8, "d": 1 / 8, "e": 1 / 4})
    assert given(Rubric.parse([{"id": one, "text": one, "weight": 1.7e308} for one in "ab"])) == {"a": 0.5, "b": 0.5}


@settings(deadline=None, max_examples=40)
@for_all(st.lists(st.floats(0.01, 1), min_size=5, max_size=5), st.floats(0.01, 0.99))
def test_weights_of_sections_sum_to_one(raw: list[float], top: float) -> None:
    inner = sum(raw[2:])
    local = {
        "": {"s": top, "e": 1 - top},
        "s": {"a": raw[0] / (raw[0] + raw[1]), "t": raw[1] / (raw[0] + raw[1])},
        "t": dict(zip("bcd", (one / inner for one in raw[2:]), strict=True)),
    }
    weights = multiply_down(RUBRIC, local)

    assert sum(weights.values()) == pytest.approx(1)
    assert weights["b"] + weights["c"] + weights["d"] == pytest.approx(top * local["s"]["t"])


WEIGHTS = Weights(uniform(RUBRIC), 0.05, 5.1, False, {"queries": 8})


def test_written_weights_read_back() -> None:
    text = write_weights(WEIGHTS, RUBRIC, "icw")

    assert text is not None
    assert read_weights(text, RUBRIC, "icw", "row 0") == WEIGHTS
    assert read_weights(json.loads(text), RUBRIC, "icw", "row 0") == WEIGHTS
    # Weights travel by id: another order of declaration is the same rubric
    assert read_weights(text, Rubric(RUBRIC.members[::-1]), "icw", "row 0").weights == WEIGHTS.weights
    assert write_weights(Weights({}, why="timeout"), RUBRIC, "icw") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rubric_digest": "0"}, "row 7: the weights are those of another rubric; run reward-plugin weigh again"),
        ({"method": "direct"}, "row 7: the weights are by 'direct', the reward's weighting is 'icw'"),
        ({"weights": {"a": 1.0}}, "row 7: expected a weight from 0 to 1 for each of a, b, c, d, e"),
        ({"weights": dict.fromkeys("abcde", float("nan"))}, "a weight from 0 to 1"),
        ({"weights": dict.fromkeys("abcde", -0.2)}, "a weight from 0 to 1"),
        ({"weights": dict.fromkeys("abcde", 0.5)}, "weights sum to 1; got 2.5"),
        ({"more": 1}, "unknown fields more"),
    ],
)
def test_a_wrong_yardstick_is_refused(change: dict[str, Any], message: str) -> None:
    value = json.loads(write_weights(WEIGHTS, RUBRIC, "icw") or "") | change
    with pytest.raises(InvalidInput, match=message):
        read_weights(value, RUBRIC, "icw", "row 7")


@pytest.mark.parametrize("value", ["", "{", "[]", "3", 0.5, [0.5, 0.5], {"a": 0.5}, "[" * 100_000])
def test_what_is_no_weights_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="row 7: expected weights"):
        read_weights(value, RUBRIC, "icw", "row 7")
