"""What a model's reply says: strict JSON, or the probability of the first token's forms."""

import json
import math
import re
from collections.abc import Mapping, Sequence

from reward_plugin.engines.base import Reply

MASS_FLOOR = 0.05
"""An answer token is trusted when the wanted forms together have at least this probability."""

MAX_LOGPROB = 0.01
"""A log-probability is 0 at most; servers round."""


class Unusable(Exception):
    """A reply that says nothing usable; the message is the short reason."""


def choice_probabilities(reply: Reply, choices: Sequence[str]) -> dict[str, float]:
    """Return the probability of each choice among them, from the first token's log-probabilities; they sum to 1.

    Forms that differ in case and surrounding space count together. Raises `Unusable` when the reply failed, its numbers
    are none, or the choices have less than `MASS_FLOOR` of the probability.

    >>> choice_probabilities(Reply(logprobs={"Yes": -0.1, " yes": -3.0, "No": -3.0}), ("yes", "no"))["yes"] > 0.9
    True
    """
    if reply.error is not None:
        raise Unusable(reply.error)
    mass = dict.fromkeys(choices, 0.0)
    for token, logprob in reply.logprobs.items():
        if not logprob <= MAX_LOGPROB:
            raise Unusable("bad_logprobs")
        form = token.strip().strip("▁Ġ").casefold()
        if form in mass:
            mass[form] += math.exp(logprob)
    total = sum(mass.values())
    if not total >= MASS_FLOOR:  # NaN included
        raise Unusable("no_answer")
    return {choice: one / total for choice, one in mass.items()}


def json_object(reply: Reply, fields: Mapping[str, type]) -> dict[str, object]:
    """Return the reply's one JSON object with exactly `fields`, types exact; nothing is repaired.

    Only what follows the last closed reasoning block is read. Raises `Unusable`: "truncated", "malformed", or the reply's
    error.

    >>> json_object(Reply(text='{"reason": "ok", "met": true}'), {"reason": str, "met": bool})["met"]
    True
    """
    if reply.error is not None:
        raise Unusable(reply.error)
    text = re.split(r"</think>", reply.text or "")[-1].strip()
    if text.startswith("<think>"):
        raise Unusable("unclosed_reasoning")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Unusable("truncated" if reply.finish_reason == "length" else "malformed") from None
    if not isinstance(value, dict) or {name: type(one) for name, one in value.items()} != dict(fields):
        raise Unusable("malformed")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
