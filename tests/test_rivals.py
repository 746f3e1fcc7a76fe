"""The rivals of ICW: one query for numbers, one for all pairs, whitened verdicts."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.engines import Reply, Request, ScriptedEngine
from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.verifier import Verifier
from reward_plugin.weighting.ahp import comparison_matrix, priorities
from reward_plugin.weighting.rivals import Direct, SingleQuery, WhitenedUniform, whitened
from reward_plugin.weighting.weigher import Method, Weigher
from reward_plugin.weighting.weights import Weights

RUBRIC = Rubric.parse(
    [{"id": one, "text": f"Text {one}"} for one in "dbca"] + [{"id": "v", "text": "V", "gate": "veto"}]
)
SECTIONS = Rubric.parse([{"section": "S", "criteria": ["a", "b"]}, {"section": "T", "criteria": ["c"]}])
SINGLE = SingleQuery(3.0, 0.1, "saaty1980")


def weigh(method: Method, answer: object, rubric: Rubric = RUBRIC) -> tuple[Weights, ScriptedEngine]:
    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    [weights] = Weigher(engine, Store(None), method).weigh([("prompt", rubric)])
    return weights, engine


def test_direct_is_one_query_normalised() -> None:
    weights, engine = weigh(Direct(), lambda request: json.dumps({"weights": [10, 5, 4, 1]}))

    assert dict(weights.weights) == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.2, "d": 0.05})
    assert (weights.consistency_ratio, weights.record["queries"], len(engine.requests)) == (None, 1, 1)
    assert "RATE\n1: Text a\n2: Text b\n3: Text c\n4: Text d\n" in engine.requests[0].messages[1][1]


def test_direct_asks_for_each_set_of_siblings() -> None:
    weights, engine = weigh(Direct(), lambda request: json.dumps({"weights": [6, 2]}), SECTIONS)

    assert [request.meta["ids"] for request in engine.requests] == [("s", "t"), ("a", "b")]
    assert dict(weights.weights) == pytest.approx({"a": 9 / 16, "b": 3 / 16, "c": 1 / 4})


@pytest.mark.parametrize(
    "bad",
    [
        '{"weights": [1, 2, 3]}',
        '{"weights": [0, 1, 2, 3]}',
        '{"weights": [11, 1, 2, 3]}',
        '{"weights": [1.5, 1, 2, 3]}',
        '{"weights": [true, 1, 2, 3]}',
        '{"weights": ["1", 1, 2, 3]}',
        '{"weights": 4}',
        '{"a": 1}',
        "10, 5, 4, 1",
    ],
)
def test_a_malformed_rating_is_asked_once_more_then_there_are_no_weights(bad: str) -> None:
    weights, engine = weigh(Direct(), lambda _: bad)

    assert (dict(weights.weights), weights.why, len(engine.requests)) == ({}, "1 of 1 questions: malformed", 2)
    answers = iter([bad, '{"weights": [10, 5, 4, 1]}'])
    weights, _ = weigh(Direct(), lambda _: next(answers))
    assert weights.weights["a"] == 0.5


def test_single_query_is_the_matrix_of_its_winners() -> None:
    def answer(request: Request) -> str:
        assert "Pairs: 1 or 2, 1 or 3, 1 or 4, 2 or 3, 2 or 4, 3 or 4." in request.messages[1][1]
        return json.dumps({"winners": [1, 1, 4, 0, 2, 3]})

    weights, engine = weigh(SINGLE, answer)
    expected = priorities(comparison_matrix(4, [(0, 1, 3), (0, 2, 3), (3, 0, 3), (1, 3, 3), (2, 3, 3)]))

    assert list(weights.weights.values()) == pytest.approx(expected.weights)
    assert weights.consistency_ratio == pytest.approx(expected.consistency_ratio)
    assert weights.flagged
    assert (weights.record["queries"], len(engine.requests)) == (1, 1)


@pytest.mark.parametrize(
    "bad", ['{"winners": [1, 1, 4, 0, 2]}', '{"winners": [2, 3, 4, 1, 2, 3]}', '{"winners": [1, 1, 5, 0, 2, 3]}', "{}"]
)
def test_a_wrong_name_in_a_single_query_is_no_answer(bad: str) -> None:
    weights, engine = weigh(SINGLE, lambda _: bad)

    assert (weights.why, len(engine.requests)) == ("1 of 1 questions: malformed", 2)


def test_single_query_leaves_experts_alone_and_works_in_sections() -> None:
    rubric = Rubric.parse(
        {"criteria": [{"id": one, "text": one} for one in "abc"], "comparisons": [["a", "b", 3], ["a", "c", 9]]}
    )
    weights, engine = weigh(SINGLE, lambda _: '{"winners": [2]}', rubric)

    assert [request.meta["pairs"] for request in engine.requests] == [(("b", "c"),)]
    assert dict(weights.weights) == pytest.approx({"a": 9 / 13, "b": 3 / 13, "c": 1 / 13})
    weights, engine = weigh(SINGLE, lambda _: '{"winners": [1]}', SECTIONS)
    assert dict(weights.weights) == pytest.approx({"a": 9 / 16, "b": 3 / 16, "c": 1 / 4})


@pytest.mark.parametrize("method", [Direct(), SINGLE])
def test_a_lost_model_leaves_no_weights(method: Method) -> None:
    weights, engine = weigh(method, lambda _: Reply(error="unreachable"))

    assert (weights.why, len(engine.requests)) == ("1 of 1 questions: unreachable", 1)


def test_one_criterion_needs_no_question() -> None:
    for method in (Direct(), SINGLE):
        weights, engine = weigh(method, lambda _: pytest.fail("asked"), Rubric.parse(["only"]))

        assert (dict(weights.weights), engine.requests) == ({"only": 1.0}, [])


def test_whitened_weights_by_hand() -> None:
    """Two columns alike and one independent: S = v [[1, .9], [.9, 1]] and v, whose roots are known."""
    table = [[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]]
    raw = np.array([1 / np.sqrt(1.9), 1 / np.sqrt(1.9), 1.0])

    assert whitened(table) == pytest.approx(raw / raw.sum())
    assert whitened(np.ones((5, 3))) == pytest.approx([1 / 3] * 3)  # constant columns
    assert whitened([[0], [1]]) == pytest.approx([1.0])
    with pytest.raises(InvalidInput, match=r"at least two responses, \(R, K\); got shape \(1, 2\)"):
        whitened([[0, 1]])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 12).flatmap(
        lambda k: st.lists(st.lists(st.integers(0, 1), min_size=k, max_size=k), min_size=2, max_size=20)
    )
)
def test_whitened_weights_are_weights_for_any_verdicts(table: list[list[int]]) -> None:
    weights = whitened(table)

    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


def test_whitened_uniform_samples_and_judges() -> None:
    """Responses 0 to 15 meet `a` and its copy where even, `c` where divisible by 4 or 4 plus 1, and `trap` likewise."""
    rubric = Rubric.parse(
        [{"id": "a", "text": "even"}, {"id": "b", "text": "even!"}, {"id": "c", "text": "low"}, {"id": "v", "text": "V", "gate": "veto"}]
    )  # fmt: skip

    def answer(request: Request) -> object:
        if request.meta["kind"] == "response":
            assert request.temperature == 1.0
            return f"number {request.seed}"
        number = int(request.meta["response"].split()[1])
        return {"Yes" if (number % 2 if request.meta["criterion"] == "low" else number // 2 % 2) == 0 else "No": 1.0}

    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    [weights] = Weigher(engine, Store(None), WhitenedUniform(Verifier(engine))).weigh([("prompt", rubric)])
    raw = np.array([1 / np.sqrt(1.9), 1 / np.sqrt(1.9), 1.0])

    assert list(weights.weights.values()) == pytest.approx(raw / raw.sum())
    assert weights.record["responses"] == 16
    assert not [one for one in engine.requests if one.meta.get("criterion") == "V"]


def test_whitened_uniform_without_enough_verdicts_has_no_weights() -> None:
    def answer(request: Request) -> object:
        if request.meta["kind"] == "response":
            return "text" if request.seed < 7 else Reply(error="timeout")  # type: ignore[operator]
        return {"Yes": 1.0}

    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    [weights] = Weigher(engine, Store(None), WhitenedUniform(Verifier(engine))).weigh([("prompt", RUBRIC)])

    assert weights.why == "7 of 16 sampled responses could be judged; at least 8 are needed"


def test_methods_have_keys_of_their_own() -> None:
    engine = ScriptedEngine(lambda _: "")
    methods: list[Method] = [Direct(), SINGLE, SingleQuery(2.0, 0.1, "saaty1980"), WhitenedUniform(Verifier(engine))]
    methods.append(WhitenedUniform(Verifier(engine, reply="json")))

    assert len({Weigher(engine, Store(None), method).keys([("p", RUBRIC)])[0] for method in methods}) == 5
