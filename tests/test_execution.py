"""Programs: what is refused, and what unknown verdicts do to a score."""

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.errors import InvalidInput, InvalidProgram
from reward_plugin.graph import Node, Program, compile_rubric, replay, run
from reward_plugin.rubric import Rubric
from reward_plugin.verdicts import Verdict

from .strategies import probabilities, programs, verdicts_for

SLOW = settings(deadline=None, max_examples=80)
MET, UNMET, LOST = Verdict.of(True), Verdict.of(False), Verdict.unknown("lost")
RUBRIC = Rubric.parse(
    [
        {"id": "a", "text": "A"},
        {"id": "b", "text": "B"},
        {"id": "cap", "text": "C", "gate": {"cap": 0.4}},
        {"id": "veto", "text": "D", "gate": "veto"},
    ]
)
PROGRAM = compile_rubric(RUBRIC, {"a": 0.75, "b": 0.25})


def score(a: Verdict, b: Verdict, cap: Verdict, veto: Verdict) -> tuple[float | None, float, float]:
    result = run(PROGRAM, [{"a": a, "b": b, "cap": cap, "veto": veto}])
    return result.values[0], float(result.low[0]), float(result.high[0])


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((MET, MET, MET, MET), (1.0, 1.0, 1.0)),
        ((MET, UNMET, MET, MET), (0.75, 0.75, 0.75)),
        ((MET, UNMET, UNMET, MET), (0.4, 0.4, 0.4)),
        ((UNMET, MET, UNMET, MET), (0.25, 0.25, 0.25)),  # a cap never lifts
        ((MET, MET, MET, UNMET), (0.0, 0.0, 0.0)),
        ((LOST, MET, MET, MET), (None, 0.25, 1.0)),
        ((LOST, LOST, LOST, UNMET), (0.0, 0.0, 0.0)),  # a fallen veto settles it
        ((UNMET, MET, LOST, MET), (0.25, 0.25, 0.25)),  # a cap that would not bind
        ((MET, LOST, UNMET, MET), (0.4, 0.4, 0.4)),  # capped either way
        ((MET, MET, MET, LOST), (None, 0.0, 1.0)),  # a veto that is unknown never passes
        ((UNMET, UNMET, MET, LOST), (0.0, 0.0, 0.0)),
    ],
)
def test_unknown_is_all_that_it_could_be(verdicts: tuple[Verdict, ...], expected: tuple[object, ...]) -> None:
    assert score(*verdicts) == expected


def test_a_pitfall_earns_its_weight_by_being_avoided() -> None:
    rubric = Rubric.parse([{"id": "good", "text": "G", "weight": 3}, {"id": "trap", "text": "T", "weight": -1}])
    program = compile_rubric(rubric, {"good": 0.75, "trap": 0.25})
    rows = [(MET, UNMET), (MET, MET), (UNMET, UNMET), (UNMET, MET), (MET, LOST)]
    result = run(program, [dict(zip(("good", "trap"), row, strict=True)) for row in rows])

    assert result.values == [1.0, 0.75, 0.25, 0.0, None]
    assert (result.low[4], result.high[4]) == (0.75, 1.0)
    # The signed sum of points, moved and scaled: the advantages of a group are the same
    signed = [3 * good.met - 1 * trap.met for good, trap in rows[:4]]  # type: ignore[operator]
    assert [(one + 1) / 4 for one in signed] == result.values[:4]


def test_gates_that_changed_the_score_are_named() -> None:
    rows = [(MET, UNMET, UNMET, MET), (UNMET, MET, UNMET, MET), (MET, MET, UNMET, UNMET), (UNMET, UNMET, MET, UNMET)]
    result = run(PROGRAM, [dict(zip(("a", "b", "cap", "veto"), row, strict=True)) for row in rows])

    assert result.bound == (("cap:cap",), (), ("cap:cap", "veto:veto"), ())


@SLOW
@given(st.data())
def test_interval_is_the_range_over_all_completions_of_the_unknown(data: st.DataObject) -> None:
    """Brute force over what the lost verdicts could have been; each is read once, so the interval is exact."""
    program = data.draw(programs())
    verdicts = data.draw(verdicts_for(program))
    lost = [one for one, verdict in verdicts.items() if verdict.probability is None]
    values = []
    for filled in product([MET, UNMET], repeat=len(lost)):
        value = run(program, [verdicts | dict(zip(lost, filled, strict=True))]).values[0]
        assert value is not None
        values.append(value)
    result = run(program, [verdicts])

    assert (result.low[0], result.high[0]) == (
        pytest.approx(min(values), abs=1e-12),
        pytest.approx(max(values), abs=1e-12),
    )
    assert 0.0 <= result.low[0] <= result.high[0] <= 1.0


@SLOW
@given(st.data())
def test_both_modes_agree_on_certain_verdicts(data: st.DataObject) -> None:
    program = data.draw(programs())
    rows = [data.draw(verdicts_for(program)) for _ in range(3)]

    assert run(program, rows, mode="hard").values == run(program, rows, mode="expected").values


@SLOW
@given(st.data(), st.randoms(use_true_random=False))
def test_order_of_declaration_does_not_matter(data: st.DataObject, random: object) -> None:
    program = data.draw(programs())
    nodes = list(program.nodes)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    shuffled = Program(tuple(nodes), program.sink)
    again = Program.from_record(json.loads(json.dumps(shuffled.record())))
    row = data.draw(verdicts_for(program))

    assert program.digest == shuffled.digest == again.digest
    assert run(program, [row]).values == run(shuffled, [row]).values == run(again, [row]).values


@SLOW
@given(probabilities, probabilities, probabilities, probabilities)
def test_expected_mode_takes_the_expectation_at_each_gate(a: float, b: float, cap: float, veto: float) -> None:
    mean = 0.75 * a + 0.25 * b
    capped = cap * mean + (1 - cap) * min(mean, 0.4)
    row = {"a": a, "b": b, "cap": cap, "veto": veto}
    [value] = run(PROGRAM, [{one: Verdict.of(p) for one, p in row.items()}], mode="expected").values

    assert value == pytest.approx(veto * capped, abs=1e-12)


@pytest.mark.parametrize("weights", [{"a": 0.1, "b": 0.7}, {"a": 1 / 3, "b": 2 / 3}, {"a": 1e-300, "b": 1e300}])
def test_all_met_is_exactly_one(weights: dict[str, float]) -> None:
    program = compile_rubric(RUBRIC, weights)

    assert run(program, [dict.fromkeys(("a", "b", "cap", "veto"), MET)]).values == [1.0]


def test_every_fault_is_named_at_once() -> None:
    nodes = (
        Node("c", "criterion", {}, {"criterion": ""}),
        Node("f", "condition", {}, {"criterion": "x"}),
        Node("m", "weighted_mean", {"scores": ("c", "f", "gone")}, {"weights": (1.0, -1.0)}),
        Node("v", "veto", {"score": ("m", "c"), "extra": ("c",)}, {"limit": 2.0}),
        Node("n", "nothing", {}, {}),
    )
    with pytest.raises(InvalidProgram) as caught:
        Program(nodes, "lost")

    for fault in (
        "node 'c': criterion is a non-empty id",
        "node 'm': port 'scores' takes a unit; 'f' gives a flag",
        "node 'm': port 'scores' is fed by 'gone', which is not a node",
        "node 'm': expected 3 weights, one an input",
        "node 'v': port 'extra' is unknown",
        "node 'v': port 'flag' is not fed",
        "node 'v': port 'score' takes exactly one input; got 2",
        "node 'v': limit lies in [0, 1]; got 2.0",
        "node 'n': unknown operator 'nothing'",
        "sink 'lost' is not a node",
    ):
        assert any(fault in one for one in caught.value.faults), (fault, caught.value.faults)


def test_cycles_doubles_and_loose_ends_are_refused() -> None:
    a, b = Node("a", "criterion", {}, {"criterion": "a"}), Node("b", "criterion", {}, {"criterion": "b"})
    mean = Node("m", "weighted_mean", {"scores": ("a", "n")}, {"weights": (1.0, 1.0)})
    back = Node("n", "weighted_mean", {"scores": ("m",)}, {"weights": (1.0,)})

    with pytest.raises(InvalidProgram, match="cycle: "):
        Program((a, mean, back), "m")
    with pytest.raises(InvalidProgram, match="node id 'a' stands twice"):
        Program((a, a), "a")
    with pytest.raises(InvalidProgram, match="node 'b' does not reach the sink"):
        Program((a, b), "a")
    for weights in ((0.0,), (float("nan"),), (float("inf"),), (True,)):
        with pytest.raises(InvalidProgram, match="weights are finite"):
            Program((a, Node("m", "weighted_mean", {"scores": ("a",)}, {"weights": weights})), "m")


@pytest.mark.parametrize(
    "record",
    [None, [], {}, {"sink": "a", "nodes": {}}, {"sink": "a", "nodes": [1]}, {"sink": "a", "nodes": [{"id": "a"}]}],
)
def test_records_that_are_no_program_are_refused(record: object) -> None:
    with pytest.raises(InvalidProgram):
        Program.from_record(record)


def test_weights_must_name_the_criteria() -> None:
    with pytest.raises(InvalidInput, match=r"weights name \['a'\]; the criteria without a gate are \['a', 'b'\]"):
        compile_rubric(RUBRIC, {"a": 1.0})


def test_replay_refuses_another_program() -> None:
    record = {"program": PROGRAM.record(), "program_digest": PROGRAM.digest, "mode": "hard"}
    record["verdicts"] = {one: {"p": 1.0} for one in ("a", "b", "cap", "veto")}

    assert replay(json.loads(json.dumps(record))) == 1.0
    other = compile_rubric(RUBRIC, {"a": 0.5, "b": 0.5})
    with pytest.raises(InvalidInput, match="has digest"):
        replay(record | {"program": other.record()})
    with pytest.raises(InvalidInput, match="no verdict for criterion 'b'"):
        replay(record | {"verdicts": {"a": {"p": 1.0}, "cap": {"p": 1.0}, "veto": {"p": 1.0}}})
    with pytest.raises(InvalidInput, match="needs program_digest"):
        replay({"program": PROGRAM.record(), "verdicts": {}, "mode": "hard"})
    with pytest.raises(InvalidInput, match="mode is"):
        replay(record | {"mode": "soft"})
