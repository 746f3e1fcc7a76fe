"""Criteria, gates and rubrics: every way to write one, and every refusal."""

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_plugin import Criterion, Gate, Rubric
from reward_plugin.checks import Check
from reward_plugin.errors import InvalidInput, InvalidRubric

from .strategies import anything_written

WRITTEN = [
    {"id": "colour", "text": "Names a colour", "weight": 3},
    {"id": "brief", "text": "At most 40 words", "check": {"max_words": 40}},
    {"id": "polite", "text": "No insult", "gate": "veto"},
    {"id": "prose", "text": "No list", "gate": {"cap": 0.4}, "check": {"not_regex": "^- "}},
]
RUBRIC = Rubric(
    (
        Criterion("colour", "Names a colour", weight=3.0),
        Criterion("brief", "At most 40 words", check=Check("max_words", 40)),
        Criterion("polite", "No insult", gate=Gate("veto", 0.0)),
        Criterion("prose", "No list", gate=Gate("cap", 0.4), check=Check("not_regex", "^- ")),
    )
)
PADDED = [
    {
        "id": item["id"],
        "text": item["text"],
        "weight": float(item["weight"]) if "weight" in item else None,  # type: ignore[arg-type]
        "gate": {"veto": 0.0, "cap": None} if item.get("gate") == "veto" else item.get("gate"),
        "check": {"max_words": None, "not_regex": None, **item["check"]} if "check" in item else None,  # type: ignore[dict-item]
    }
    for item in WRITTEN
]
PADDED[1]["check"] = {"max_words": 40.0, "not_regex": None}


@pytest.mark.parametrize(
    "written",
    [
        WRITTEN,
        tuple(WRITTEN),
        {"criteria": WRITTEN},
        {"criteria": WRITTEN, "name": None},
        json.dumps(WRITTEN),
        json.dumps({"criteria": WRITTEN, "name": "n"}),
        PADDED,
        json.dumps(PADDED),
        np.array(PADDED, dtype=object),
        {"criteria": np.array(WRITTEN, dtype=object)},
        list(RUBRIC.criteria),
        RUBRIC,
    ],
    ids=[
        "list",
        "tuple",
        "mapping",
        "null-name",
        "json",
        "json-named",
        "arrow",
        "arrow-json",
        "numpy",
        "numpy-inner",
        "criteria",
        "rubric",
    ],
)
def test_every_way_to_write_the_same_rubric(written: object) -> None:
    """H38: Arrow pads fields with None and turns integers into floats."""
    parsed = Rubric.parse(written)

    assert parsed == RUBRIC
    assert parsed.digest == RUBRIC.digest


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_rubric_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rubric{suffix}"
    path.write_text(json.dumps({"name": "file", "criteria": WRITTEN}))

    assert Rubric.load(path) == RUBRIC
    assert Rubric.load(str(path)).name == "file"


def test_yaml_shorthand(tmp_path: Path) -> None:
    path = tmp_path / "rubric.yaml"
    path.write_text("- Names a colour\n- text: No insult\n  gate: {veto: 0.1}\n", encoding="utf-8")
    first, second = Rubric.load(path).criteria

    assert (first.id, first.weight, first.gate) == ("names-a-colour", 1.0, None)
    assert (second.id, second.gate) == ("no-insult", Gate("veto", 0.1))


def test_record_comes_back() -> None:
    named = Rubric(RUBRIC.criteria, name="n")

    assert json.loads(json.dumps(RUBRIC.record()))["criteria"] == [
        {"id": "colour", "text": "Names a colour", "weight": 3.0},
        {"id": "brief", "text": "At most 40 words", "check": {"max_words": 40}},
        {"id": "polite", "text": "No insult", "gate": {"veto": 0.0}},
        {"id": "prose", "text": "No list", "gate": {"cap": 0.4}, "check": {"not_regex": "^- "}},
    ]
    assert Rubric.parse(json.dumps(named.record())).name == "n"
    assert Rubric.parse(named.record()) == pickle.loads(pickle.dumps(named)) == RUBRIC


def test_contributing_criteria_are_those_without_a_gate() -> None:
    assert [criterion.id for criterion in RUBRIC.contributing] == ["colour", "brief"]


@pytest.mark.parametrize(
    ("written", "gate"),
    [
        ("veto", Gate("veto", 0.0)),
        ({"veto": 0.25}, Gate("veto", 0.25)),
        ({"veto": 1}, Gate("veto", 1.0)),
        ({"cap": 0}, Gate("cap", 0.0)),
        ({"cap": 0.4, "veto": None}, Gate("cap", 0.4)),
        (Gate("cap", 0.3), Gate("cap", 0.3)),
    ],
)
def test_gate_shapes(written: object, gate: Gate) -> None:
    parsed = Gate.parse(written)

    assert parsed == gate
    assert type(parsed.limit) is float
    assert Gate.parse(parsed.record()) == gate


@pytest.mark.parametrize(
    ("written", "message"),
    [
        # The rubric as a whole
        ([], "^empty rubric: expected at least one criterion"),
        ("[]", "^empty rubric"),
        ([{"id": "b", "text": "x"}, {"id": "a", "text": "y"}, {"id": "a", "text": "z"}], "duplicate criterion ids: a;"),
        ([{"id": "a", "text": "x", "gate": "veto"}], "every criterion is a gate: expected at least one without"),
        (5, "expected a list of criteria; got int"),
        (b"[]", "expected a list of criteria; got bytes"),
        ({"criteria": "abc"}, "expected a list of criteria; got str"),
        ({"criteria": None}, "expected a list of criteria; got NoneType"),
        ({"criterias": []}, r"a mapping with 'criteria' and perhaps 'name' and 'comparisons'; got the keys \['criterias'\]"),
        ({"criteria": [], "weights": []}, r"got the keys \['criteria', 'weights'\]"),
        ({"criteria": ["a"], "name": 5}, "the name of a rubric is a string; got 5"),
        ('{"a": 1', "^not JSON: Expecting"),
        ("Names a colour", "^not JSON: Expecting"),
        ("[" * 200_000, "^not JSON: "),
        ('[{"text": "a", "weight": 1, "weight": 2}]', r"a key stands twice in one object: \['weight'\]"),
        # One criterion, by position as long as it has no id
        (["a", 5], r"^criteria\[1\]: expected a text or a mapping; got 5"),
        (["a", None], r"^criteria\[1\]: expected a text or a mapping; got None"),
        (["a", " "], r"^criteria\[1\]: expected a non-empty text; got ' '"),
        (["a", {"weight": 2}], r"^criteria\[1\]: expected a non-empty text; got None"),
        (["a", {"id": "b", "text": ["x"]}], r"^criterion 'b': expected a non-empty text; got \['x'\]"),
        (["a", {"id": " ", "text": "x"}], "^criterion ' ': the id is a non-empty string"),
        (["a", {"id": 7, "text": "x"}], "^criterion 7: the id is a non-empty string"),
        (["a", {"id": "b", "text": "x", "wieght": 2}], "^criterion 'b': unknown fields wieght; known fields: id, text, weight"),
        ([{"text": "x", "tags": ["t"]}], r"^criteria\[0\]: unknown fields tags; known"),
        # Weights
        (["a", {"id": "b", "text": "x", "weight": math.nan}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got nan"),
        ('[{"id": "b", "text": "x", "weight": NaN}]', "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got nan"),
        ([{"id": "b", "text": "x", "weight": math.inf}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got inf"),
        ([{"id": "b", "text": "x", "weight": 10**400}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got 1000"),
        ([{"id": "b", "text": "x", "weight": 0}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got 0$"),
        ([{"id": "b", "text": "x", "weight": -2, "gate": "veto"}], "^criterion 'b': a gate carries no weight, so it cannot"),
        ([{"id": "b", "text": "x", "weight": True}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got True"),
        ([{"text": "B!", "weight": "2"}], "^criterion 'b': the weight is a finite number, over 0 or, for a pitfall, under 0; got '2'"),
        # Gates
        ([{"id": "b", "text": "x", "gate": "floor"}], "^criterion 'b': gate: unknown gate 'floor'; known gates: veto"),
        ([{"id": "b", "text": "x", "gate": {"floor": 0.1}}], "^criterion 'b': gate: unknown gate 'floor'"),
        ([{"id": "b", "text": "x", "gate": "cap"}], "^criterion 'b': gate: a cap needs its limit, like {cap: 0.4}"),
        ([{"id": "b", "text": "x", "gate": {"cap": 1.5}}], r"^criterion 'b': gate: the limit of a cap lies in \[0, 1\]; got 1\.5"),
        ([{"id": "b", "text": "x", "gate": {"veto": -0.1}}], r"^criterion 'b': gate: the limit of a veto lies in \[0, 1\]; got -0\.1"),
        ([{"id": "b", "text": "x", "gate": {"cap": True}}], r"^criterion 'b': gate: the limit of a cap lies in \[0, 1\]; got True"),
        ([{"id": "b", "text": "x", "gate": {"cap": math.nan}}], r"^criterion 'b': gate: .*got nan"),
        ([{"id": "b", "text": "x", "gate": {"cap": "0.4"}}], r"^criterion 'b': gate: .*got '0\.4'"),
        ([{"id": "b", "text": "x", "gate": {"cap": 0.4, "veto": 0.1}}], "^criterion 'b': gate: expected veto, {veto: 0.1} or"),
        ([{"text": "x", "gate": {"cap": None}}], r"^criteria\[0\]: gate: expected veto"),
        ([{"text": "x", "gate": 0.4}], r"^criteria\[0\]: gate: expected veto.*got 0\.4"),
        # Checks
        ([{"id": "b", "text": "x", "check": {"max_word": 4}}], "^criterion 'b': check: unknown kind 'max_word'"),
        ([{"text": "x", "check": {"max_words": -1}}], r"^criteria\[0\]: check: max_words takes a whole number"),
    ],
)  # fmt: skip
def test_refusals_name_the_item(written: object, message: str) -> None:
    with pytest.raises(InvalidRubric, match=message):
        Rubric.parse(written)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "cannot be read: "),
        (b"- [", "not YAML: "),
        (b"- \x00", "not YAML: "),
        (b"[" * 5000, "not YAML: "),
        (b"- {text: a, text: b}", "not YAML: a key stands twice in one mapping: text"),
        (b"", "empty rubric"),
        (b"- yes", r"criteria\[0\]: expected a text or a mapping; got True"),
        (b"- {text: a, gate: floor}", r"criteria\[0\]: gate: unknown gate 'floor'"),
    ],
)
def test_unusable_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)

    with pytest.raises(InvalidInput, match=rf"^rubric file .*odd\.yaml: {message}"):
        Rubric.load(path)


def test_missing_file_and_bad_json_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^rubric file .*none\.yaml: cannot be read: "):
        Rubric.load(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match=r"^rubric file .*: cannot be read: "):
        Rubric.load(tmp_path)
    (tmp_path / "bad.json").write_text("- yaml, not JSON")
    with pytest.raises(InvalidRubric, match=r"^rubric file .*bad\.json: not JSON: "):
        Rubric.load(tmp_path / "bad.json")


def test_values_are_validated_at_construction_too() -> None:
    with pytest.raises(InvalidRubric, match=r"criteria\[0\]: expected a Criterion; got 'a' \(use Rubric\.parse\)"):
        Rubric(("a",))  # type: ignore[arg-type]
    with pytest.raises(InvalidRubric, match=r"criterion 'a': gate is a Gate; got 'veto' \(Gate\.parse reads it\)"):
        Criterion("a", "A", gate="veto")  # type: ignore[arg-type]
    with pytest.raises(InvalidRubric, match=r"criterion 'a': check is a Check; got .*\(Check\.parse reads it\)"):
        Criterion("a", "A", check={"json": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidRubric, match="criterion 'a': expected a non-empty text; got ''"):
        Criterion("a", "")


@pytest.mark.parametrize(
    "change",
    [
        {"id": "color"},
        {"text": "Names a color"},
        {"weight": 2},
        {"gate": {"cap": 0.4}},
        {"check": {"contains": "red"}},
    ],
)
def test_any_changed_field_changes_the_digest(change: dict[str, object]) -> None:
    """H17: a changed rubric never meets the stored weights of the old one."""
    assert Rubric.parse([{**WRITTEN[0], **change}, *WRITTEN[1:]]).digest != RUBRIC.digest


def test_name_does_not_change_the_digest() -> None:
    assert Rubric(RUBRIC.criteria, name="n").digest == RUBRIC.digest


texts = anything_written.filter(str.strip)


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_ids_from_texts_are_unique_and_the_order_leaves_the_digest(written: list[str], random: object) -> None:
    rubric = Rubric.parse(written)
    ids = [criterion.id for criterion in rubric.criteria]
    shuffled = list(rubric.criteria)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert len(set(ids)) == len(ids)
    assert all(one.strip() for one in ids)
    assert Rubric(tuple(shuffled)).digest == rubric.digest
    assert Rubric.parse(json.dumps(rubric.record())).digest == rubric.digest


@settings(max_examples=100, deadline=None)
@given(texts, texts)
def test_any_string_can_be_an_id(one: str, text: str) -> None:
    """Lone surrogates, control characters and line ends included."""
    rubric = Rubric.parse([{"id": one, "text": text}])

    assert Rubric.parse(json.loads(json.dumps(rubric.record()))) == rubric
    assert len(rubric.digest) == 64


@pytest.mark.parametrize(
    ("texts", "ids"),
    [
        (["Names a colour!"], ["names-a-colour"]),
        (["Is kind", "is KIND?", "Is  kind."], ["is-kind", "is-kind-2", "is-kind-3"]),
        (["Is kind 2", "Is kind", "Is kind"], ["is-kind-2", "is-kind", "is-kind-3"]),
        (["Nennt Größe"], ["nennt-grösse"]),
        (["说明颜色"], ["说明颜色"]),
    ],
)
def test_ids_of_texts(texts: list[str], ids: list[str]) -> None:
    assert [criterion.id for criterion in Rubric.parse(texts).criteria] == ids


def test_long_texts_that_begin_alike_and_texts_of_signs_get_their_own_ids() -> None:
    start = "The response names every colour of the rainbow in the right order, "
    ids = [c.id for c in Rubric.parse([f"{start}first red", f"{start}first violet", "!!!", "???", "\ud800"]).criteria]

    assert len(set(ids)) == 5
    assert all(len(one) <= 49 for one in ids)
    assert ids[0].startswith("the-response-names-every-colour-of-the-r-")
    # What one text is called does not depend on its neighbours
    assert ids[1] == Rubric.parse([f"{start}first violet"]).criteria[0].id


def test_dates_in_a_file_are_text(tmp_path: Path) -> None:
    """Whatever other packages do to YAML's shared table."""
    (tmp_path / "r.yaml").write_text("- 2024-01-02")

    assert Rubric.load(tmp_path / "r.yaml").criteria[0].text == "2024-01-02"


SECTIONED = {
    "criteria": [
        {"section": "Content", "id": "content", "weight": 3, "criteria": ["Says why", {"section": "Depth", "criteria": ["Names waves", "Names air"]}]},
        {"section": "Style", "criteria": [{"id": "brief", "text": "At most 40 words"}, {"id": "trap", "text": "Has a list", "weight": -2}]},
        {"id": "polite", "text": "No insult", "gate": "veto"},
    ],
    "comparisons": [["style", "content", 0.5], ["brief", "trap", 4]],
}  # fmt: skip


def test_sections_group_siblings_and_comparisons_find_theirs() -> None:
    rubric = Rubric.parse(SECTIONED)

    assert [one.id for one in rubric.criteria] == ["says-why", "names-waves", "names-air", "brief", "trap", "polite"]
    assert [(group.id, [member.id for member in group.members], group.comparisons) for group in rubric.groups] == [
        ("", ["content", "style"], (("content", "style", 2.0),)),
        ("content", ["depth", "says-why"], ()),
        ("depth", ["names-air", "names-waves"], ()),
        ("style", ["brief", "trap"], (("brief", "trap", 4.0),)),
    ]
    assert [one.id for one in rubric.contributing if one.pitfall] == ["trap"]
    assert Rubric.parse(json.dumps(rubric.record())) == rubric
    assert Rubric.parse(json.dumps(rubric.record())).digest == rubric.digest


def test_digest_of_a_rubric_with_sections_is_that_of_its_content() -> None:
    rubric = Rubric.parse(SECTIONED)
    other_order = {**SECTIONED, "criteria": SECTIONED["criteria"][::-1], "comparisons": SECTIONED["comparisons"][::-1]}
    same = {**SECTIONED, "comparisons": [["content", "style", 2], ["style", "content", 0.5], ["trap", "brief", 0.25]]}
    others = [
        {**SECTIONED, "comparisons": [["style", "content", 0.5]]},
        {**SECTIONED, "comparisons": []},
        {"criteria": SECTIONED["criteria"][1:]},
        list(rubric.criteria),
    ]

    assert Rubric.parse(other_order).digest == Rubric.parse(same).digest == rubric.digest
    assert len({rubric.digest, *(Rubric.parse(one).digest for one in others)}) == 5


@pytest.mark.parametrize(
    ("comparisons", "message"),
    [
        ([["brief", "nothing", 2]], r"comparisons\[0\] \('brief', 'nothing'\): no criterion has the id 'nothing'; known"),
        ([["brief", "brief", 2]], "not compared with itself"),
        ([["brief", "says-why", 2]], "only siblings are compared"),
        ([["polite", "style", 2]], "'polite' is a gate"),
        ([["brief", "trap", 0]], r"\('brief', 'trap'\): the ratio is a number from 0.001 to 1000; got 0"),
        ([["brief", "trap", -3]], "got -3"),
        ([["brief", "trap", math.nan]], "got nan"),
        ([["brief", "trap", math.inf]], "got inf"),
        ([["brief", "trap", "3"]], "got '3'"),
        ([["brief", "trap", True]], "got True"),
        ([["brief", "trap"]], r"comparisons\[0\]: expected \[id, id, ratio\]"),
        (["brief"], r"comparisons\[0\]: expected \[id, id, ratio\]; got 'brief'"),
        ("brief", "expected a list of comparisons"),
        ([["brief", "trap", 3], ["trap", "brief", 3]], r"\[1\] \('trap', 'brief'\): contradicts an earlier .* 3 .* 0.333333"),
    ],
)  # fmt: skip
def test_unusable_comparisons_are_refused_by_name(comparisons: object, message: str) -> None:
    with pytest.raises(InvalidRubric, match=message):
        Rubric.parse({**SECTIONED, "comparisons": comparisons})


@pytest.mark.parametrize("equal", [2, 1])
def test_a_cycle_of_comparisons_is_refused(equal: float) -> None:
    cycle = [["a", "b", 2], ["b", "c", equal], ["c", "a", 3]]
    with pytest.raises(InvalidRubric, match=r"they contradict each other: '.' over '.'"):
        Rubric.parse({"criteria": [{"id": one, "text": one} for one in "abc"], "comparisons": cycle})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"section": "S"}, r"criteria\[0\]: a section has a list of criteria"),
        ({"section": "S", "criteria": []}, "section 's': expected at least one criterion"),
        ({"section": " ", "criteria": ["a"]}, "a non-empty text"),
        ({"section": "S", "criteria": ["a"], "weight": 0}, "the weight is a finite number over 0; got 0"),
        ({"section": "S", "criteria": ["a"], "weight": -1}, "got -1"),
        ({"section": "S", "criteria": ["a"], "gate": "veto"}, "unknown fields gate"),
        ({"section": "S", "criteria": [{"text": "a", "gate": "veto"}]}, "move it out of section 's'"),
        ({"section": "S", "criteria": [3]}, r"criteria\[0\].criteria\[0\]: expected a text"),
        ({"section": "S", "criteria": [{"id": "x", "text": "a"}]}, "duplicate criterion ids: x"),
    ],
)
def test_unusable_sections_are_refused_by_name(section: object, message: str) -> None:
    with pytest.raises(InvalidRubric, match=message):
        Rubric.parse([section, {"id": "x", "text": "X"}])


def test_bottomless_sections_are_refused() -> None:
    section: object = ["a"]
    for _ in range(500):
        section = [{"section": "S", "criteria": section}]
    with pytest.raises(InvalidRubric, match="nest at most 16 deep"):
        Rubric.parse(section)
