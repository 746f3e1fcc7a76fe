"""Verdicts: known or unknown, never both."""

import math
import pickle

import pytest

from reward_plugin import Verdict
from reward_plugin.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "probability", "met"),
    [(True, 1.0, True), (False, 0.0, False), (0.5, 0.5, True), (0.4999, 0.4999, False), (1, 1.0, True)],
)
def test_known_verdict_is_met_from_one_half_on(given: float, probability: float, met: bool) -> None:
    verdict = Verdict.of(given, reason="quoted")

    assert (verdict.probability, verdict.met, verdict.why, verdict.reason) == (probability, met, None, "quoted")


def test_unknown_verdict_is_neither_met_nor_missed() -> None:
    verdict = Verdict.unknown("timeout", by="check")

    assert (verdict.probability, verdict.met, verdict.why, verdict.by) == (None, None, "timeout", "check")


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan, math.inf])
def test_probability_outside_the_unit_interval_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match=r"lies in \[0, 1\]; got"):
        Verdict.of(value)


def test_verdict_with_both_or_neither_is_refused() -> None:
    with pytest.raises(InvalidInput, match="either a probability or a why; got None and None"):
        Verdict()
    with pytest.raises(InvalidInput, match=r"got 0\.5 and 'lost'"):
        Verdict(probability=0.5, why="lost")


def test_record_leaves_empty_fields_out() -> None:
    assert Verdict.of(False).record() == {"p": 0.0, "by": "model"}
    assert Verdict.of(True, by="rule", reason="r").record() == {"p": 1.0, "by": "rule", "reason": "r"}
    assert Verdict.unknown("lost").record() == {"why": "lost", "by": "model"}


def test_verdict_survives_pickling() -> None:
    verdict = Verdict.of(0.25, by="check", reason="r")

    assert pickle.loads(pickle.dumps(verdict)) == verdict
