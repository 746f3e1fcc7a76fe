"""Criteria that a program decides."""

import numpy as np
import pytest
from hypothesis import given, settings

from reward_plugin import ScriptedEngine, checks
from reward_plugin.checks import KINDS, Check, sentences, words
from reward_plugin.errors import InvalidRubric
from reward_plugin.rubric import Criterion
from reward_plugin.verifier import Job, Verifier

from .strategies import anything_written

OUTCOMES = [
    ({"max_words": 3}, "Red and blue.", "Red and blue too."),
    ({"max_words": 0}, " \n", "x"),
    ({"min_words": 3}, "Red  and\nblue", "Red, blue"),
    ({"max_sentences": 2}, "One. Two!", "One. Two! Three?"),
    ({"min_sentences": 2}, "One. And an open end", "Only one"),
    ({"contains": ["RED", "blue"]}, "blue and red", "red"),
    ({"contains": "straße"}, "STRASSE", "street"),
    ({"contains_any": ["red", "blue"]}, "Blue", "green"),
    ({"not_contains": ["red", "blue"]}, "green", "It is RED"),
    ({"regex": r"^- "}, "List:\n- one", "a - b"),
    ({"regex": r"\p{Lu}\w+$"}, "by Ada\nand others", "by ada\nand others"),
    ({"not_regex": r"^- "}, "a - b", "List:\n- one"),
    ({"json": True}, '{"a": [1, 2.5, null]}', "{'a': 1}"),
    ({"json": True}, " [1] ", "[1] and more"),
    ({"json": True}, "1", "NaN"),
    ({"json": False}, "prose", "{}"),
    (
        {"language": "en"},
        "The weather is lovely today and the children are playing in the garden.",
        "Le temps est magnifique aujourd'hui et les enfants jouent dans le jardin.",
    ),
    (
        {"language": "fr"},
        "Le temps est magnifique aujourd'hui et les enfants jouent dans le jardin.",
        "Das Wetter ist heute wunderschön und die Kinder spielen im Garten.",
    ),
    (
        {"language": "de"},
        "Das Wetter ist heute wunderschön und die Kinder spielen im Garten.",
        "The weather is lovely today and the children are playing in the garden.",
    ),
]


@pytest.mark.parametrize(("check", "met", "missed"), OUTCOMES, ids=[str(check) for check, _, _ in OUTCOMES])
def test_each_kind_has_both_outcomes(check: dict[str, object], met: str, missed: str) -> None:
    parsed = Check.parse(check)

    assert [parsed.decide(met), parsed.decide(missed)] == [True, False]


def test_every_kind_is_tried_above() -> None:
    assert {kind for check, _, _ in OUTCOMES for kind in check} == set(KINDS)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("One", 1),
        ("One.", 1),
        ("One. Two? And an open end", 3),
        ("Wait... what?!", 2),
        ('He said "Go." Then left.', 2),
        ("Version 3.11 is out.", 1),
        ("你好。再见！", 2),
        ("你好。再见", 2),
        ("One.\n\nTwo.", 2),
        ("Dots..。then", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert sentences(text) == count


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", [".", "。", '."', "a. ", "?!)"])
def test_sentences_of_a_megabyte_take_no_square(unit: str) -> None:
    """A policy that writes dots must not stop the run: the square of a million is more than an hour."""
    assert sentences(unit * (1_000_000 // len(unit)) + "a") >= 1


def test_words_are_parted_by_any_white_space() -> None:
    assert words(" Red,\tgreen\u00a0and\nblue. ") == 4


def test_deep_json_is_no_json_and_no_crash() -> None:
    assert Check.parse({"json": True}).decide("[" * 200_000) is False


@pytest.mark.timeout(60)
def test_pattern_that_backtracks_forever_becomes_an_unknown_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """H26: the policy writes the text that the pattern runs on; a lost race is not a 0, and the other rows are unharmed."""
    monkeypatch.setattr(checks, "REGEX_SECONDS", 0.05)
    criterion = Criterion("ends", "Ends in a", check=Check.parse({"regex": "(a|aa)+$"}))
    jobs = [Job("p", text, (criterion,)) for text in ("a" * 40 + "b", "aaa", "b")]
    verdicts = [row["ends"] for row in Verifier(ScriptedEngine(lambda request: "")).judge(jobs)]

    assert [(one.met, one.why, one.by) for one in verdicts] == [
        (None, "pattern_timeout", "check"),
        (True, None, "check"),
        (False, None, "check"),
    ]


@pytest.mark.timeout(60)
def test_nested_repeats_are_decided() -> None:
    """Python's own `re` needs years for this one."""
    assert Check.parse({"regex": "(a+)+$"}).decide("a" * 40 + "b") is False


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("max_words", r"check: expected one kind with its argument, like {max_words: 40}; got 'max_words'"),
        ({}, "expected exactly one kind.*got none"),
        ({"max_words": None}, "expected exactly one kind.*got none"),
        ({"max_words": 3, "json": True}, r"got \['json', 'max_words'\]: write one criterion for each"),
        ({"max_word": 3}, r"unknown kind 'max_word'; known kinds: max_words, min_words"),
        ({"max_words": -1}, "max_words takes a whole number of 0 or more; got -1"),
        ({"max_words": 2.5}, r"max_words takes a whole number of 0 or more; got 2\.5"),
        ({"min_words": True}, "min_words takes a whole number of 0 or more; got True"),
        ({"max_sentences": float("nan")}, "max_sentences takes a whole number of 0 or more; got nan"),
        ({"max_sentences": float("inf")}, "max_sentences takes a whole number of 0 or more; got inf"),
        ({"min_sentences": "3"}, "min_sentences takes a whole number of 0 or more; got '3'"),
        ({"contains": ""}, "contains takes a non-empty string or a list of them; got ''"),
        ({"contains": []}, r"contains takes a non-empty string or a list of them; got \[\]"),
        ({"contains_any": ["a", ""]}, "contains_any takes a non-empty string or a list"),
        ({"not_contains": [1]}, "not_contains takes a non-empty string or a list"),
        ({"json": 1}, "json takes true or false; got 1"),
        ({"json": "true"}, "json takes true or false; got 'true'"),
        ({"regex": "("}, r"regex '\(' is not a valid pattern: missing \)"),
        ({"not_regex": ""}, "not_regex takes a non-empty string; got ''"),
        ({"regex": ["a"]}, "regex takes a non-empty string"),
        ({"language": "english"}, "language takes a two-letter ISO 639-1 code such as 'en'; got 'english'"),
        ({"language": "EN"}, "language takes a two-letter ISO 639-1 code"),
    ],
)
def test_unfit_checks_are_refused(check: object, message: str) -> None:
    with pytest.raises(InvalidRubric, match=message):
        Check.parse(check)


def test_unfit_check_is_refused_at_construction_too() -> None:
    with pytest.raises(InvalidRubric, match="unknown kind 'size'"):
        Check("size", 3)
    with pytest.raises(InvalidRubric, match="max_words takes a whole number"):
        Check("max_words", -1)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ({"max_words": 40.0}, {"max_words": 40}),  # H38: Arrow and JSON turn integers into floats
        ({"max_words": 40, "json": None, "contains": None}, {"max_words": 40}),  # Arrow pads the other kinds in
        ({"contains": "a"}, {"contains": ["a"]}),
        ({"contains": ("a", "b")}, {"contains": ["a", "b"]}),
        ({"contains": np.array(["a", "b"], dtype=object)}, {"contains": ["a", "b"]}),
        (Check("json", True), {"json": True}),
    ],
)
def test_writings_of_the_same_check(written: object, same: dict[str, object]) -> None:
    parsed = Check.parse(written)

    assert parsed == Check.parse(same)
    assert parsed.record() == same
    assert type(parsed.argument) is type(Check.parse(same).argument)


@settings(max_examples=60, deadline=None)
@given(anything_written)
def test_every_kind_decides_every_text(text: str) -> None:
    for check, _, _ in OUTCOMES:
        if "language" not in check:
            assert Check.parse(check).decide(text) in (True, False)
