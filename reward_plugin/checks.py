"""Criteria that a program decides: length, words, patterns, JSON, language. No model is asked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from reward_plugin.errors import InvalidRubric

REGEX_SECONDS = 1.0
"""A pattern that runs longer on one completion is given up: the policy writes the text that it backtracks over."""

# A run is tried from its start only: one of a million dots must not cost the square of it
_SENTENCE_END = regex.compile(r"(?<![.!?…。！？])[.!?…。！？]++[\"'”’)\]]*+(?=\s|$)|[。！？]+")


def words(text: str) -> int:
    """Return the number of whitespace-separated words.

    >>> words("Red, green  and blue.")
    4
    """
    return len(text.split())


def sentences(text: str) -> int:
    """Return the number of sentences: runs of text closed by . ! ? or their full-width forms; an open end counts too.

    >>> sentences("One. Two? And an open end"), sentences("  ")
    (3, 0)
    """
    parts = _SENTENCE_END.split(text)
    return sum(1 for part in parts if any(character.isalnum() for character in part))


def _fold(text: str) -> str:
    return text.casefold()


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _language(text: str) -> str:
    import py3langid  # loads a 5 MB model on first use

    return str(py3langid.classify(text)[0])


def _search(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, flags=regex.MULTILINE, timeout=REGEX_SECONDS) is not None


_DECIDE: dict[str, Callable[[str, Any], bool]] = {
    "max_words": lambda text, limit: words(text) <= limit,
    "min_words": lambda text, limit: words(text) >= limit,
    "max_sentences": lambda text, limit: sentences(text) <= limit,
    "min_sentences": lambda text, limit: sentences(text) >= limit,
    "contains": lambda text, needles: all(_fold(needle) in _fold(text) for needle in needles),
    "contains_any": lambda text, needles: any(_fold(needle) in _fold(text) for needle in needles),
    "not_contains": lambda text, needles: not any(_fold(needle) in _fold(text) for needle in needles),
    "regex": lambda text, pattern: _search(pattern, text),
    "not_regex": lambda text, pattern: not _search(pattern, text),
    "json": lambda text, wanted: _is_json(text) is wanted,
    "language": lambda text, code: _language(text) == code,
}
KINDS = tuple(_DECIDE)


@dataclass(frozen=True, slots=True)
class Check:
    """One decision that needs no model: a kind and its argument.

    `max_words`, `min_words`, `max_sentences`, `min_sentences` take a whole number; `contains` (all of them),
    `contains_any`, `not_contains` take a string or a list, compared without case; `regex`, `not_regex` a pattern of the
    `regex` package, searched line by line (`^` and `$` match at line ends); `json` true or false; `language` an ISO 639-1 code.

    Raises `InvalidRubric` for an unknown kind or an unfit argument.

    >>> Check.parse({"max_words": 3}).decide("Red and blue.")
    True
    """

    kind: str
    argument: int | bool | str | tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "argument", _argument(self.kind, self.argument))

    @classmethod
    def parse(cls, value: object) -> "Check":
        """Return the check written as a mapping of one kind to its argument."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRubric(f"check: expected one kind with its argument, like {{max_words: 40}}; got {value!r}")
        given = {name: argument for name, argument in value.items() if argument is not None}
        if len(given) != 1:
            raise InvalidRubric(
                f"check: expected exactly one kind, like {{max_words: 40}}; got {sorted(map(str, given)) or 'none'}: "
                "write one criterion for each"
            )
        [(kind, argument)] = given.items()
        return cls(str(kind), argument)

    def decide(self, text: str) -> bool:
        """Return whether `text` passes. Raises `TimeoutError` for a pattern that takes over a second on it."""
        return _DECIDE[self.kind](text, self.argument)

    def record(self) -> dict[str, object]:
        """Return the check as the mapping that `parse` takes."""
        return {self.kind: list(self.argument) if isinstance(self.argument, tuple) else self.argument}


def _argument(kind: str, value: object) -> int | bool | str | tuple[str, ...]:
    if kind not in _DECIDE:
        raise InvalidRubric(f"check: unknown kind {kind!r}; known kinds: {', '.join(KINDS)}")
    if kind.startswith(("max_", "min_")):
        # Arrow and JSON turn 40 into 40.0
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or value % 1:
            raise InvalidRubric(f"check: {kind} takes a whole number of 0 or more; got {value!r}")
        return int(value)
    if kind in ("contains", "contains_any", "not_contains"):
        # A numpy array is how Parquet lists arrive through pandas
        needles = (value,) if isinstance(value, str) else value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(needles, list | tuple) or not needles or not all(isinstance(n, str) and n for n in needles):
            raise InvalidRubric(f"check: {kind} takes a non-empty string or a list of them; got {value!r}")
        return tuple(needles)
    if kind == "json":
        if not isinstance(value, bool):
            raise InvalidRubric(f"check: json takes true or false; got {value!r}")
        return value
    if not isinstance(value, str) or not value:
        raise InvalidRubric(f"check: {kind} takes a non-empty string; got {value!r}")
    if kind == "language" and not (len(value) == 2 and value.isalpha() and value.islower()):
        raise InvalidRubric(f"check: language takes a two-letter ISO 639-1 code such as 'en'; got {value!r}")
    if kind in ("regex", "not_regex"):
        try:
            regex.compile(value, flags=regex.MULTILINE)
        except regex.error as error:
            raise InvalidRubric(f"check: {kind} {value!r} is not a valid pattern: {error}") from error
    return value
