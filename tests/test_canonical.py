"""Canonical JSON and digests: content only, in every process."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin.canonical import canonical_json, digest

from .strategies import anything_written

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | anything_written,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything_written, inner, max_size=4),
    max_leaves=12,
)


def test_digest_is_sha256_of_the_canonical_bytes() -> None:
    """The value of `printf '{"a":1}' | sha256sum`: stores outlive this code."""
    assert digest({"a": 1.0}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"w": 3}, {"w": 3.0}),
        ({"w": [{"x": 0.0}]}, {"w": ({"x": -0.0},)}),
        ((1, 2), [1.0, 2.0]),
    ],
)
def test_same_content_has_the_same_digest(one: object, other: object) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, 1), (False, 0), (None, "null"), ("1", 1), ([1, 2], [2, 1]), (0.1, 0.1000001), ("é", "e\u0301"), ({}, [])],
)
def test_other_content_has_another_digest(one: object, other: object) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": float("-inf")}]])
def test_numbers_that_are_not_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


@settings(max_examples=100, deadline=None)
@given(values)
def test_canonical_json_is_ascii_and_comes_back(value: object) -> None:
    text = canonical_json(value)

    assert text.isascii()
    assert canonical_json(json.loads(text)) == text
    assert json.loads(text) == value


def test_digests_do_not_depend_on_the_hash_seed() -> None:
    """H17: rubric digests and store keys agree between interpreters, whatever the seed of `hash`."""
    script = (
        "from reward_plugin import Rubric, ScriptedEngine\n"
        "from reward_plugin.graph import compile_rubric\n"
        "from reward_plugin.store import Store\n"
        "from reward_plugin.weighting.weigher import Weigher\n"
        "ids = ['a', 'b', 'é', 'd\\ud800']\n"
        "rubric = Rubric.parse([{'id': one, 'text': one * 3} for one in {*ids}] + [{'text': 'g', 'gate': 'veto'}])\n"
        "program = compile_rubric(rubric, {one: 1.0 for one in {*ids}})\n"
        "key = Weigher(ScriptedEngine(lambda request: ''), Store(None)).keys([('p', rubric)])[0]\n"
        "print(rubric.digest, program.digest, key, ascii([node.id for node in program.order]))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert len(printed) == 1
    assert len(printed.pop().split()[0]) == 64
