"""Questions about the importance of criteria: what is shown to the model, what comes back, and in which form."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reward_plugin import prompts
from reward_plugin.criterion import Criterion
from reward_plugin.engines.base import Message, Reply, Request
from reward_plugin.rubric import Rubric, Section
from reward_plugin.verifier import ReplyMode
from reward_plugin.weighting.judgments import Judgment, case_of

Complete = Callable[[list[Request]], list[Reply]]
"""Puts requests to a model and returns one reply each."""

_REASON_TOKENS = 96
_WINNER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "maxLength": 200},
        "winner": {"type": "string", "enum": ["1", "2", "neutral"]},
    },
    "required": ["reason", "winner"],
    "additionalProperties": False,
}
_REASON_SHOWN = 200


@dataclass(frozen=True)
class Questionnaire:
    """The questions about one prompt's rubric. All of them begin alike, so that an engine can keep that part.

    Criteria are shown in id order, so that no question depends on the order in which they are declared.
    """

    prompt: str
    rubric: Rubric
    reply: ReplyMode = "json"

    def comparison(self, first: str, second: str) -> Request:
        """Return the question which of two siblings matters more."""
        return self._pair("comparison", first, second)

    def review(self, first: str, second: str, judgments: Sequence[Judgment]) -> Request:
        """Return the question whether the pair's `judgments` are to be kept."""
        label = {first: "1", second: "2", None: None}
        earlier = [
            {"first": label[one.first], "winner": label[one.winner], "reason": _one_line(one.reason)}
            for one in judgments
        ]
        return self._pair("review", first, second, earlier=earlier, case=case_of(judgments))

    def direct(self, ids: Sequence[str]) -> Request:
        """Return the question for a number from 1 to 10 for each of the siblings `ids`."""
        messages = self._render("direct", criteria=[self._texts[one] for one in ids])
        schema = _list_schema("weights", len(ids), 1, 10)
        return Request(messages, max_tokens=16 + 4 * len(ids), schema=schema, meta=self._meta("direct", ids=tuple(ids)))

    def all_pairs(self, ids: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Request:
        """Return the question which of each of `pairs` of the siblings `ids` matters more, all at once."""
        number = {one: place for place, one in enumerate(ids, start=1)}
        numbered = [(number[first], number[second]) for first, second in pairs]
        messages = self._render("all_pairs", criteria=[self._texts[one] for one in ids], pairs=numbered)
        schema = _list_schema("winners", len(pairs), 0, len(ids))
        meta = self._meta("all_pairs", ids=tuple(ids), pairs=tuple(pairs))
        return Request(messages, max_tokens=16 + 4 * len(pairs), schema=schema, meta=meta)

    @cached_property
    def _shown(self) -> dict[str, Any]:
        text = prompts.inert(self.prompt)
        return {"fence": prompts.fence(text), "prompt": text, "rubric": list(_lines(self.rubric.members, ""))}

    @cached_property
    def _texts(self) -> dict[str, str]:
        return {member.id: _text(member) for group in self.rubric.groups for member in group.members}

    def _pair(self, name: str, first: str, second: str, **more: Any) -> Request:
        texts = {"first": self._texts[first], "second": self._texts[second]}
        messages = self._render(name, **texts, reply=self.reply, **more)
        meta = self._meta(name, first=first, second=second)
        if self.reply == "json":
            return Request(messages, max_tokens=_REASON_TOKENS, schema=_WINNER, meta=meta)
        return Request(messages, max_tokens=1, top_logprobs=20, meta=meta)

    def _render(self, name: str, **values: Any) -> tuple[Message, ...]:
        return prompts.render(name, **self._shown, **values)

    def _meta(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "prompt": self.prompt, **more}


def _lines(members: Sequence[Criterion | Section], indent: str) -> Sequence[str]:
    lines = []
    for member in sorted(members, key=lambda one: one.id):
        lines.append(f"{indent}- {_text(member)}")
        if isinstance(member, Section):
            lines += _lines(member.members, indent + "  ")
    return lines


def _text(member: Criterion | Section) -> str:
    text = prompts.inert(member.text)
    return f"(fault) {text}" if isinstance(member, Criterion) and member.pitfall else text


def _one_line(reason: str | None) -> str | None:
    return None if reason is None else prompts.inert(" ".join(reason.split()))[:_REASON_SHOWN]


def _list_schema(name: str, count: int, low: int, high: int) -> dict[str, Any]:
    items = {"type": "integer", "minimum": low, "maximum": high}
    return {
        "type": "object",
        "properties": {name: {"type": "array", "items": items, "minItems": count, "maxItems": count}},
        "required": [name],
        "additionalProperties": False,
    }
