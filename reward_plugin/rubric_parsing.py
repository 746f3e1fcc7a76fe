"""Rubrics as people and data sets write them -> `Rubric`."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from reward_plugin.checks import Check
from reward_plugin.criterion import Criterion, Gate
from reward_plugin.errors import InvalidRubric
from reward_plugin.rubric import Rubric, Section

_ID_LENGTH = 40
_DEEPEST = 16
_CRITERION_FIELDS = tuple(field.name for field in fields(Criterion))
_SECTION_FIELDS = ("section", "id", "weight", "criteria")


def parse_rubric(value: object) -> Rubric:
    """Return the rubric that `Rubric.parse` describes. Raises `InvalidRubric`."""
    if isinstance(value, str):
        value = from_json(value)
    name: Any = None
    comparisons: list[Any] = []
    if isinstance(value, Mapping):
        given = {str(key): one for key, one in value.items()}
        if "criteria" not in given or set(given) - {"criteria", "name", "comparisons"}:
            raise InvalidRubric(
                "expected a list of criteria, or a mapping with 'criteria' and perhaps 'name' and 'comparisons'; got the "
                f"keys {sorted(given)}"
            )
        name, value = given.get("name"), given["criteria"]
        if given.get("comparisons") is not None:
            comparisons = _listed(given["comparisons"], "comparisons")
        if name is not None and not isinstance(name, str):
            raise InvalidRubric(f"the name of a rubric is a string; got {name!r}")
    return Rubric(_members(value, "criteria", set(), 1), name=name, comparisons=tuple(map(_unboxed, comparisons)))


def from_json(text: str) -> object:
    """Return the value of a JSON text. Raises `InvalidRubric`, also for a key that stands twice in one object."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidRubric(f"not JSON: {error}") from error


def _members(value: object, where: str, taken: set[str], depth: int) -> tuple[Criterion | Section, ...]:
    if depth > _DEEPEST:
        raise InvalidRubric(f"{where}: sections nest at most {_DEEPEST} deep")
    members: list[Criterion | Section] = []
    for position, item in enumerate(_listed(value, "criteria")):
        place = f"{where}[{position}]"
        if isinstance(item, Mapping) and item.get("section") is not None:
            members.append(_section(place, item, taken, depth))
        else:
            members.append(_criterion(place, item, taken))
        taken.add(members[-1].id)
    return tuple(members)


def _section(place: str, item: Mapping[object, object], taken: set[str], depth: int) -> Section:
    given = {str(name): value for name, value in item.items() if value is not None}
    label = place if "id" not in given else f"section {given['id']!r}"
    unknown = sorted(set(given) - set(_SECTION_FIELDS))
    if unknown:
        raise InvalidRubric(f"{label}: unknown fields {', '.join(unknown)}; known fields: {', '.join(_SECTION_FIELDS)}")
    heading = given["section"]
    if not isinstance(heading, str) or not heading.strip():
        raise InvalidRubric(f"{label}: section is its heading, a non-empty text; got {heading!r}")
    if "criteria" not in given:
        raise InvalidRubric(f"{label}: a section has a list of criteria")
    one = given.get("id", _free_id(heading, taken))
    members = _members(given["criteria"], f"{place}.criteria", taken | {str(one)}, depth + 1)
    taken.update(member.id for member in members)
    return Section(one, heading, members, given.get("weight", 1.0))  # type: ignore[arg-type]


def _criterion(place: str, item: object, taken: set[str]) -> Criterion:
    if isinstance(item, Criterion):
        return item
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, Mapping):
        raise InvalidRubric(f"{place}: expected a text or a mapping; got {item!r}")
    given = {str(name): value for name, value in item.items() if value is not None}
    label = place if "id" not in given else f"criterion {given['id']!r}"
    unknown = sorted(set(given) - set(_CRITERION_FIELDS))
    if unknown:
        raise InvalidRubric(
            f"{label}: unknown fields {', '.join(unknown)}; known fields: {', '.join(_CRITERION_FIELDS)}"
        )
    text = given.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InvalidRubric(f"{label}: expected a non-empty text; got {text!r}")
    try:
        return Criterion(
            id=given.get("id", _free_id(text, taken)),
            text=text,
            weight=given.get("weight", 1.0),
            gate=Gate.parse(given["gate"]) if "gate" in given else None,
            check=Check.parse(given["check"]) if "check" in given else None,
        )
    except InvalidRubric as error:
        raise InvalidRubric(str(error) if str(error).startswith("criterion") else f"{label}: {error}") from error


def _listed(value: object, what: str) -> list[object]:
    value = _unboxed(value)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRubric(f"expected a list of {what}; got {type(value).__name__}")
    return list(value)


def _unboxed(value: Any) -> Any:
    # A numpy array is how Parquet lists arrive through pandas
    return value.tolist() if hasattr(value, "tolist") else value


def _free_id(text: str, taken: set[str]) -> str:
    slug = re.sub(r"\W+", "-", text.casefold()).strip("-_")
    if len(slug) > _ID_LENGTH or not slug:
        # What was cut off still tells two long texts apart
        mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        slug = f"{slug[:_ID_LENGTH].rstrip('-_')}-{mark}".lstrip("-")
    one, count = slug, 1
    while one in taken:
        count += 1
        one = f"{slug}-{count}"
    return one


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise InvalidRubric(f"a key stands twice in one object: {sorted({n for n in names if names.count(n) > 1})}")
    return dict(pairs)
