"""ICW: what is asked, what the answers become, what a revision may change, what is stored."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.engines import Reply, Request, ScriptedEngine
from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Rubric
from reward_plugin.store import Store
from reward_plugin.weighting.ahp import comparison_matrix, priorities
from reward_plugin.weighting.icw import Icw
from reward_plugin.weighting.weigher import Weigher
from reward_plugin.weighting.weights import Weights

from .strategies import rankings

RANKS = {"a": 3, "b": 2, "c": 2, "d": 1}
RUBRIC = Rubric.parse(
    [{"id": one, "text": f"Text {one}"} for one in "dbca"] + [{"id": "v", "text": "V", "gate": "veto"}]
)


def by_rank(request: Request) -> dict[str, float]:
    first, second = RANKS[request.meta["first"]], RANKS[request.meta["second"]]
    return {"=": 0.9, "1": 0.1} if first == second else {"1": 1.0} if first > second else {"2": 1.0}


def weigh(answer: object, rubric: Rubric = RUBRIC, **arguments: object) -> tuple[Weights, ScriptedEngine]:
    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    [weights] = Weigher(engine, Store(None), Icw(**arguments)).weigh([("prompt", rubric)])  # type: ignore[arg-type]
    return weights, engine


def comparisons(engine: ScriptedEngine, kind: str = "comparison") -> list[tuple[str, str]]:
    return [(one.meta["first"], one.meta["second"]) for one in engine.requests if one.meta["kind"] == kind]


def letters(count: int) -> Rubric:
    return Rubric.parse([{"id": one, "text": f"Text {one}"} for one in "abcdefghijklmnopqrst"[:count]])


def test_every_pair_is_asked_in_both_orders_and_gates_in_none() -> None:
    _, engine = weigh(by_rank)
    asked = comparisons(engine)

    assert sorted(asked) == sorted((x, y) for x in "abcd" for y in "abcd" if x != y)


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
    weights, engine = weigh(lambda _: answer)

    assert len(engine.requests) == 12  # consistent in their way: nothing to revise
    assert weights.record["first_share"] == (None if "=" in answer else 1.0 if "1" in answer else 0.0)

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

    assert [revision["accepted"] for revision in weights.record["revisions"]] == [False] * 3
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
    icw = Weigher(engine, Store(tmp_path / "s.sqlite"))
    other = Rubric.parse([{"id": "b", "text": "B"}, {"id": "c", "text": "C"}])
    [broken, whole] = icw.weigh([("p", RUBRIC), ("p", other)])

    assert (broken.why, whole.why) == ("3 of 12 comparisons: timeout", None)
    lost = False
    engine.requests.clear()
    assert [one.why for one in icw.weigh([("p", RUBRIC), ("p", other)])] == [None, None]
    assert len(engine.requests) == 12  # the whole one came from the store


def test_order_of_criteria_is_no_new_question(tmp_path: Path) -> None:
    engine = ScriptedEngine(by_rank)
    icw = Weigher(engine, Store(tmp_path / "s.sqlite"))
    [first] = icw.weigh([("p", RUBRIC)])
    count = len(engine.requests)
    turned = Rubric(tuple(reversed(RUBRIC.criteria)))
    [second] = Weigher(engine, Store(tmp_path / "s.sqlite")).weigh([("p", turned)])

    assert (first.weights, len(engine.requests)) == (second.weights, count)


def test_what_changes_the_weights_changes_the_key() -> None:
    engine = ScriptedEngine(by_rank)

    def key(prompt: str = "p", rubric: Rubric = RUBRIC, engine: ScriptedEngine = engine, **arguments: object) -> str:
        return Weigher(engine, Store(None), Icw(**arguments)).keys([(prompt, rubric)])[0]  # type: ignore[arg-type]

    arguments: list[dict[str, object]] = [
        *({"alpha": 5}, {"tau": 0.2}, {"rounds": 0}, {"rounds": 2}, {"revision": "round"}),
        *({"pairs": "sparse"}, {"reply": "json"}, {"random_index": "mcm"}, {"entries": "confidence"}),
    ]
    keys = [key(), key("q"), key(rubric=letters(4)), key(engine=ScriptedEngine(by_rank, name="other"))]
    keys += [key(**one) for one in arguments]

    assert len(set(keys)) == 13
    assert key() == keys[0]


def test_one_criterion_needs_no_question() -> None:
    weights, engine = weigh(by_rank, Rubric.parse(["only"]))

    assert (dict(weights.weights), weights.consistency_ratio, engine.requests) == ({"only": 1.0}, 0.0, [])


def test_alpha_one_is_uniform() -> None:
    weights, _ = weigh(by_rank, alpha=1)

    assert list(weights.weights.values()) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0.9}, "alpha is the ratio that a preference stands for, from 1 to 1000; got 0.9"),
        ({"alpha": float("nan")}, "got nan"),
        ({"alpha": "3"}, "got '3'"),
        ({"tau": -0.1}, "tau is the consistency ratio"),
        ({"rounds": -1}, "rounds is the largest number"),
        ({"rounds": 1.5}, "got 1.5"),
        ({"entries": "confidence", "reply": "json"}, "set the reply to 'token'"),
        ({"random_index": "x"}, "one of saaty1980, .*; got 'x'"),
    ],
)
def test_unusable_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Icw(**arguments)  # type: ignore[arg-type]


def test_two_criteria_are_one_pair() -> None:
    weights, engine = weigh(by_rank, Rubric.parse([{"id": "a", "text": "A"}, {"id": "d", "text": "D"}]))

    assert dict(weights.weights) == pytest.approx({"a": 0.75, "d": 0.25})
    assert (weights.consistency_ratio, len(engine.requests)) == (0.0, 2)


def test_all_prompts_are_asked_in_one_batch() -> None:
    batches: list[int] = []
    engine = ScriptedEngine(by_rank)
    complete = engine.complete
    engine.complete = lambda requests: (batches.append(len(requests)), complete(requests))[1]  # type: ignore[method-assign]
    Weigher(engine, Store(None)).weigh([("p", RUBRIC), ("q", RUBRIC), ("r", letters(3))])

    assert batches == [12 + 12 + 6]


FLAWED = {("a", "d"), ("b", "e")}


def flawed(request: Request) -> dict[str, float]:
    """Ranks a before b before c and so on, but turns two pairs around, until a review points to them."""
    first, second = request.meta["first"], request.meta["second"]
    wins = (first < second) != (request.meta["kind"] == "comparison" and {first, second} in [set(p) for p in FLAWED])
    return {"1": 0.9, "2": 0.1} if wins else {"1": 0.1, "2": 0.9}


@pytest.mark.parametrize("revision", ["targeted", "round"])
def test_revision_mends_what_a_review_mends(revision: str) -> None:
    # A strict order of five at alpha 3 has a ratio of 0.111 itself
    weights, engine = weigh(flawed, letters(5), revision=revision, tau=0.1114)
    plain, _ = weigh(flawed, letters(5), rounds=0, tau=0.1114)
    ordered = priorities(comparison_matrix(5, [(i, j, 3.0) for i in range(5) for j in range(i + 1, 5)]))

    assert plain.flagged
    assert not weights.flagged
    assert list(weights.weights.values()) == pytest.approx(ordered.weights)
    mended = {
        tuple(one["pair"]) for one in weights.record["revisions"] if one["accepted"] and one["before"] != one["after"]
    }
    assert mended >= FLAWED
    assert weights.record["queries"] == len(engine.requests) == 20 + len(comparisons(engine, "review"))
    # What is reviewed: a few pairs, or every one
    assert (len(comparisons(engine, "review")) < 20) == (revision == "targeted")


def test_a_revision_that_does_not_lower_the_ratio_changes_nothing() -> None:
    """Once tau is not met, reviews contradict themselves more: each is refused, the first answers stand."""

    def worse(request: Request) -> dict[str, float]:
        if request.meta["kind"] == "review":
            return {"2": 1.0} if request.meta["first"] < request.meta["second"] else {"1": 1.0}
        return flawed(request)

    plain, _ = weigh(flawed, letters(5), rounds=0)
    weights, _ = weigh(worse, letters(5), rounds=8)

    assert weights.consistency_ratio is not None
    assert plain.consistency_ratio is not None
    assert weights.consistency_ratio <= plain.consistency_ratio
    ratios = [one["consistency_ratio"] for one in weights.record["revisions"] if one["accepted"]]
    assert ratios == sorted(set(ratios), reverse=True)


@settings(deadline=None, max_examples=60)
@given(rankings, st.randoms(use_true_random=False), st.sampled_from(["targeted", "round"]), st.sampled_from([0.0, 0.1]))
def test_the_ratio_only_falls(ranks: list[int], random: object, revision: str, tau: float) -> None:
    """Whatever a model says, at first or in a review."""
    ids = "abcdefg"[: len(ranks)]
    judge = lambda request: {random.choice("12="): 1.0}  # type: ignore[attr-defined]  # noqa: E731
    weights, engine = weigh(judge, letters(len(ids)), revision=revision, tau=tau, rounds=4)
    first = {
        (one.meta["first"], one.meta["second"]): None for one in engine.requests if one.meta["kind"] == "comparison"
    }
    ratios = [one["consistency_ratio"] for one in weights.record["revisions"] if one["accepted"]]

    assert len(first) == len(ids) * (len(ids) - 1)
    assert sum(weights.weights.values()) == pytest.approx(1)
    assert all(weight > 0 for weight in weights.weights.values())
    if revision == "targeted":
        assert all(one > other for one, other in itertools.pairwise(ratios))
        assert not ratios or weights.consistency_ratio == ratios[-1]
    assert weights.flagged == (weights.consistency_ratio > tau)  # type: ignore[operator]
    # The record has what the weights are made of
    group = weights.record["groups"][0]
    place = {one: position for position, one in enumerate(sorted(ids))}
    again = priorities(comparison_matrix(len(ids), [(place[i], place[j], ratio) for i, j, ratio in group["ratios"]]))
    assert list(weights.weights.values()) == pytest.approx(again.weights)


@pytest.mark.parametrize(
    ("forward", "backward", "case"),
    [
        ("1", "2", "Both orders named the same criterion."),
        ("=", "=", "Neither order named a criterion."),
        ("1", "=", "Only one order named a criterion."),
        ("1", "1", "The two orders named different criteria"),
    ],
)
def test_a_review_says_how_the_earlier_judgments_stand(forward: str, backward: str, case: str) -> None:
    def judge(request: Request) -> dict[str, float]:
        pair = request.meta["first"], request.meta["second"]
        return {{("a", "b"): forward, ("b", "a"): backward}.get(pair, by_cycle(request)): 1.0}

    def by_cycle(request: Request) -> str:
        return "1" if (request.meta["first"], request.meta["second"]) in {("b", "c"), ("c", "a")} else "2"

    # Every pair is reviewed, whatever it contributes
    _, engine = weigh(judge, letters(3), revision="round", tau=0.0)
    [review] = [
        one for one in engine.requests
        if one.meta["kind"] == "review" and (one.meta["first"], one.meta["second"]) == ("b", "a")
    ]  # fmt: skip
    text = review.messages[1][1]

    assert case in text
    assert "REVIEW\n1: Text b\n2: Text a\n" in text
    # Told in the labels of this question: a was shown first, then b
    winners = {"1": "2 matters more", "2": "1 matters more", "=": "neither matters more"}
    assert f"- 2 shown first: {winners[forward]}\n- 1 shown first: " in text


def test_a_review_shows_the_reasons() -> None:
    def judge(request: Request) -> str:
        winner = "1" if flawed(request)["1"] > 0.5 else "2"
        return f'{{"reason": "It is\\n{request.meta["first"]}<|im_end|>.", "winner": "{winner}"}}'

    _, engine = weigh(judge, letters(5), reply="json")
    review = next(one for one in engine.requests if one.meta["kind"] == "review")

    assert f"(It is {min(review.meta['first'], review.meta['second'])}< |im_end|>.)" in review.messages[1][1]


def test_few_failed_comparisons_count_as_neutral_and_many_as_no_weights() -> None:
    def judge(request: Request) -> object:
        broken = request.meta["first"] == "a" and request.meta["second"] in lost
        return (
            ""
            if broken
            else f'{{"reason": "", "winner": "{"1" if request.meta["first"] < request.meta["second"] else "2"}"}}'
        )

    lost = "bc"
    weights, engine = weigh(judge, letters(5), reply="json", rounds=0)
    assert weights.record["failed"] == 2
    assert len(engine.requests) == 22
    assert weights.record["groups"][0]["ratios"][:2] == [["a", "b", 1.0], ["a", "c", 1.0]]
    lost = "bcd"
    weights, _ = weigh(judge, letters(5), reply="json", rounds=0)
    assert (dict(weights.weights), weights.why) == ({}, "3 of 20 comparisons: malformed")


def test_a_failed_review_leaves_the_judgment() -> None:
    def judge(request: Request) -> object:
        if request.meta["kind"] == "review":
            return "no JSON"
        return f'{{"reason": "", "winner": "{"1" if flawed(request)["1"] > 0.5 else "2"}"}}'

    plain, _ = weigh(judge, letters(5), reply="json", rounds=0)
    weights, _ = weigh(judge, letters(5), reply="json")

    assert weights.weights == plain.weights
    assert weights.record["failed_reviews"] > 0
    assert weights.flagged


def test_experts_are_not_asked_and_not_revised() -> None:
    rubric = Rubric.parse(
        {"criteria": [{"id": one, "text": one} for one in "abcd"], "comparisons": [["a", "b", 5], ["d", "c", 2]]}
    )
    weights, engine = weigh(
        lambda request: {"1": 1.0} if request.meta["first"] > request.meta["second"] else {"2": 1.0}, rubric, rounds=5
    )

    assert not {frozenset(pair) for pair in comparisons(engine)} & {frozenset("ab"), frozenset("cd")}
    assert not {frozenset(pair) for pair in comparisons(engine, "review")} & {frozenset("ab"), frozenset("cd")}
    group = weights.record["groups"][0]
    assert ["a", "b", 5.0] in group["ratios"]
    assert ["c", "d", 0.5] in group["ratios"]
    assert group["given"] == [["a", "b"], ["c", "d"]]
    # Where a person compared everything, nothing is asked
    whole = Rubric.parse({"criteria": [{"id": one, "text": one} for one in "ab"], "comparisons": [["a", "b", 4]]})
    weights, engine = weigh(by_rank, whole)
    assert (dict(weights.weights), engine.requests) == (pytest.approx({"a": 0.8, "b": 0.2}), [])


def test_sections_are_compared_among_siblings_and_multiplied_down() -> None:
    rubric = Rubric.parse(
        [
            {
                "section": "First",
                "id": "a",
                "criteria": [{"id": "p", "text": "P"}, {"id": "q", "text": "Q", "weight": -1}],
            },
            {"section": "Second", "id": "b", "criteria": [{"id": "r", "text": "R"}]},
            {"id": "g", "text": "G", "gate": "veto"},
        ]
    )
    weights, engine = weigh(
        lambda request: {"1": 1.0} if request.meta["first"] < request.meta["second"] else {"2": 1.0}, rubric
    )

    assert sorted(comparisons(engine)) == [("a", "b"), ("b", "a"), ("p", "q"), ("q", "p")]
    assert dict(weights.weights) == pytest.approx({"p": 0.75**2, "q": 0.75 * 0.25, "r": 0.25})
    text = engine.requests[0].messages[1][1]
    assert "RUBRIC\n- First\n  - P\n  - (fault) Q\n- Second\n  - R\n- G\nCOMPARE\n1: First\n2: Second\n" in text
    assert [group["section"] for group in weights.record["groups"]] == ["", "a", "b"]


@pytest.mark.parametrize("count", [5, 6, 7, 12])
def test_sparse_asks_fewer_and_keeps_the_order(count: int) -> None:
    def judge(request: Request) -> dict[str, float]:
        return {"1": 1.0} if request.meta["first"] < request.meta["second"] else {"2": 1.0}

    weights, engine = weigh(judge, letters(count), pairs="sparse", rounds=0)
    asked = comparisons(engine)

    assert len(asked) == len({frozenset(pair) for pair in asked}) * (2 if count == 5 else 1)
    assert len(asked) <= (0.4 if count > 5 else 1.0) * count * (count - 1)
    if count > 5:
        # Each is shown first as often as second, so a judge that always takes the first favours none
        assert all([p[0] for p in asked].count(one) == [p[1] for p in asked].count(one) for one in "abcdef"[:count])
        blind, _ = weigh(lambda _: {"1": 1.0}, letters(count), pairs="sparse", rounds=0)
        assert list(blind.weights.values()) == pytest.approx([1 / count] * count)
        assert blind.flagged
        assert blind.record["order_flip_rate"] is None
    values = list(weights.weights.values())
    assert np.corrcoef(values, range(count))[0, 1] < -0.8


def test_sparse_is_drawn_by_the_rubric_and_revised_in_both_orders() -> None:
    _, first = weigh(flawed, letters(9), pairs="sparse", rounds=0)
    _, second = weigh(flawed, Rubric(letters(9).members[::-1]), pairs="sparse", rounds=0)
    _, other = weigh(flawed, Rubric.parse([{"id": one, "text": "x"} for one in "abcdefghi"]), pairs="sparse", rounds=0)
    weights, revised = weigh(flawed, letters(9), pairs="sparse", tau=0.0)

    assert comparisons(first) == comparisons(second) != comparisons(other)
    reviewed = comparisons(revised, "review")
    assert {(second, first) for first, second in reviewed} == set(reviewed)
    assert "Only one order was asked." in next(r for r in revised.requests if r.meta["kind"] == "review").messages[1][1]
    assert weights.consistency_ratio is not None


def test_inconsistent_weights_can_be_replaced_by_equal_ones(tmp_path: Path) -> None:
    beats = {("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("b", "d"), ("c", "d")}
    engine = ScriptedEngine(lambda r: {"1": 1.0} if (r.meta["first"], r.meta["second"]) in beats else {"2": 1.0})
    keep, replaced = (
        Weigher(engine, Store(tmp_path / "s.sqlite"), inconsistent=choice).weigh([("p", letters(4))])[0]  # type: ignore[arg-type]
        for choice in ("keep", "uniform")
    )

    assert keep.flagged
    assert replaced.flagged
    assert keep.weights["d"] < 0.2
    assert dict(replaced.weights) == dict.fromkeys("abcd", 0.25)
    assert replaced.record["fallback"] == "uniform"


def test_all_questions_about_a_rubric_begin_alike() -> None:
    """The engine's prefix cache: instructions, prompt and rubric come first in comparisons and reviews alike."""
    _, engine = weigh(flawed, letters(5))
    texts = [one.messages[1][1] for one in engine.requests]
    heads = {text[: max(text.find("COMPARE"), text.find("REVIEW"))] for text in texts}

    assert len(heads) == 1
    assert len({one.messages[0] for one in engine.requests}) == 1
    assert {one.meta["kind"] for one in engine.requests} == {"comparison", "review"}


def test_confidence_is_the_lead_of_the_winner_over_both_orders() -> None:
    """By hand: the judge gives the one shown first 0.2 more of the probability; over both orders that cancels."""

    def judge(request: Request) -> dict[str, float]:
        return {"1": 0.7, "2": 0.2, "=": 0.1} if request.meta["first"] == "a" else {"1": 0.4, "2": 0.5, "=": 0.1}

    weights, _ = weigh(judge, letters(2), entries="confidence", alpha=9)
    ratio = 9 ** ((0.5 + 0.1) / 2)

    assert weights.weights["a"] / weights.weights["b"] == pytest.approx(ratio)
