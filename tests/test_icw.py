"""ICW: what is asked, what the answers become, what is stored."""

from pathlib import Path

import pytest

from reward_plugin.engines import Reply, Request, ScriptedEngine
from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.weighting.ahp import comparison_matrix, priorities
from reward_plugin.weighting.icw import Icw, Weights

RANKS = {"a": 3, "b": 2, "c": 2, "d": 1}
RUBRIC = Rubric.parse(
    [{"id": one, "text": f"Text {one}"} for one in "dbca"] + [{"id": "v", "text": "V", "gate": "veto"}]
)


def by_rank(request: Request) -> dict[str, float]:
    first, second = RANKS[request.meta["first"]], RANKS[request.meta["second"]]
    return {"=": 0.9, "1": 0.1} if first == second else {"1": 1.0} if first > second else {"2": 1.0}


def weigh(answer: object, rubric: Rubric = RUBRIC, **arguments: object) -> tuple[Weights, ScriptedEngine]:
    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    [weights] = Icw(engine, Store(None), **arguments).weigh([("prompt", rubric)])  # type: ignore[arg-type]
    return weights, engine


def test_every_pair_is_asked_in_both_orders_and_gates_in_none() -> None:
    _, engine = weigh(by_rank)
    asked = sorted((request.meta["first"], request.meta["second"]) for request in engine.requests)

    assert asked == sorted((x, y) for x in "abcd" for y in "abcd" if x != y)


@pytest.mark.parametrize("alpha", [1.5, 3.0, 9.0])
def test_weights_are_the_eigenvector_of_the_judgments(alpha: float) -> None:
    weights, _ = weigh(by_rank, alpha=alpha)
    ids = sorted(RANKS)
    outcomes = [(i, j, alpha) for i, x in enumerate(ids) for j, y in enumerate(ids) if RANKS[x] > RANKS[y]]
    expected = priorities(comparison_matrix(4, outcomes))

    assert list(weights.weights.values()) == pytest.approx(expected.weights)
    assert weights.consistency_ratio == pytest.approx(expected.consistency_ratio)
    assert weights.weights["b"] == pytest.approx(weights.weights["c"])


@pytest.mark.parametrize("answer", [{"1": 1.0}, {"2": 1.0}, {"=": 1.0}])
def test_answers_that_do_not_look_give_uniform_weights(answer: dict[str, float]) -> None:
    """H29: a judge that always takes the first names both as winner, which is none."""
    weights, _ = weigh(lambda _: answer)

    assert list(weights.weights.values()) == pytest.approx([0.25] * 4)
    assert weights.record["order_flip_rate"] == (0.0 if "=" in answer else 1.0)
    assert weights.record["neutral_share"] == (1.0 if "=" in answer else 0.0)


def test_one_order_neutral_counts_as_equal() -> None:
    weights, _ = weigh(lambda r: by_rank(r) if r.meta["first"] < r.meta["second"] else {"=": 1.0})

    assert list(weights.weights.values()) == pytest.approx([0.25] * 4)


def test_cycle_is_flagged() -> None:
    beats = {("a", "b"), ("b", "c"), ("c", "a")}
    rubric = Rubric.parse([{"id": one, "text": one} for one in "abc"])
    weights, _ = weigh(lambda r: {"1": 1.0} if (r.meta["first"], r.meta["second"]) in beats else {"2": 1.0}, rubric)

    assert list(weights.weights.values()) == pytest.approx([1 / 3] * 3)
    assert weights.flagged
    assert weights.consistency_ratio == pytest.approx(1.149, abs=1e-3)


def test_json_replies_carry_reasons() -> None:
    def answer(request: Request) -> str:
        winner = {"1": "1", "2": "2", "=": "neutral"}[max(by_rank(request), key=by_rank(request).__getitem__)]
        return f'{{"reason": "because", "winner": "{winner}"}}'

    weights, engine = weigh(answer, reply="json")
    token, _ = weigh(by_rank)

    assert weights.weights == token.weights
    assert engine.requests[0].schema is not None
    assert weights.record["judgments"][0]["reason"] == "because"


@pytest.mark.parametrize("bad", ['{"winner": "1"}', '{"reason": "", "winner": "3"}', "1", ""])
def test_malformed_reply_is_asked_once_more_then_there_are_no_weights(bad: str) -> None:
    weights, engine = weigh(lambda _: bad, reply="json")

    assert (weights.weights, weights.why) == ({}, "12 of 12 comparisons: malformed")
    assert len(engine.requests) == 24


def test_one_lost_answer_leaves_no_weights_and_nothing_stored(tmp_path: Path) -> None:
    lost = True

    def answer(request: Request) -> object:
        return Reply(error="timeout") if lost and request.meta["first"] == "a" else by_rank(request)

    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    icw = Icw(engine, Store(tmp_path / "s.sqlite"))
    other = Rubric.parse([{"id": "b", "text": "B"}, {"id": "c", "text": "C"}])
    [broken, whole] = icw.weigh([("p", RUBRIC), ("p", other)])

    assert (broken.why, whole.why) == ("3 of 12 comparisons: timeout", None)
    lost = False
    engine.requests.clear()
    assert [one.why for one in icw.weigh([("p", RUBRIC), ("p", other)])] == [None, None]
    assert len(engine.requests) == 12  # the whole one came from the store


def test_order_of_criteria_is_no_new_question(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_rank)
    icw = Icw(engine, Store(tmp_path / "s.sqlite"))
    [first] = icw.weigh([("p", RUBRIC)])
    count = len(engine.requests)
    [second] = Icw(engine, Store(tmp_path / "s.sqlite")).weigh([("p", Rubric(tuple(reversed(RUBRIC.criteria))))])

    assert (first.weights, len(engine.requests)) == (second.weights, count)


def test_what_changes_the_weights_changes_the_key() -> None:
    icw = Icw(ScriptedEngine(by_rank), Store(None))
    keys = {
        icw.key("p", RUBRIC),
        icw.key("q", RUBRIC),
        icw.key("p", Rubric(RUBRIC.criteria[:3])),
        Icw(ScriptedEngine(by_rank), Store(None), alpha=5).key("p", RUBRIC),
        Icw(ScriptedEngine(by_rank), Store(None), reply="json").key("p", RUBRIC),
        Icw(ScriptedEngine(by_rank, name="other"), Store(None)).key("p", RUBRIC),
    }

    assert len(keys) == 6


def test_one_criterion_needs_no_question() -> None:
    weights, engine = weigh(by_rank, Rubric.parse(["only"]))

    assert (dict(weights.weights), weights.consistency_ratio, engine.requests) == ({"only": 1.0}, 0.0, [])


def test_alpha_one_is_uniform_and_less_is_refused() -> None:
    weights, _ = weigh(by_rank, alpha=1)

    assert list(weights.weights.values()) == pytest.approx([0.25] * 4)
    with pytest.raises(InvalidInput, match="alpha is the ratio"):
        weigh(by_rank, alpha=0.9)
