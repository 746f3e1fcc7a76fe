"""Weights written ahead: what `reward-plugin weigh` puts beside a rubric, and a training run reads."""

import json
from collections.abc import Mapping
from typing import Any

from reward_plugin.canonical import canonical_json
from reward_plugin.errors import InvalidInput
from reward_plugin.rubric import Rubric
from reward_plugin.weighting.weights import Weights

_FIELDS = {"method", "rubric_digest", "weights", "consistency_ratio", "lambda_max", "flagged", "record"}
_TOLERANCE = 1e-6


def write_weights(weights: Weights, rubric: Rubric, method: str) -> str | None:
    """Return the JSON that `read_weights` reads, None where there are no weights."""
    if weights.why is not None:
        return None
    return canonical_json(
        {
            "method": method,
            "rubric_digest": rubric.digest,
            "weights": dict(weights.weights),
            "consistency_ratio": weights.consistency_ratio,
            "lambda_max": weights.lambda_max,
            "flagged": weights.flagged,
            "record": dict(weights.record),
        }
    )


def read_weights(value: object, rubric: Rubric, method: str | None, where: str) -> Weights:
    """Return the weights that were written for `rubric` by `method`, None for any.

    Raises `InvalidInput`, naming `where`, for a value that is none, or one of another rubric or method: a wrong yardstick
    must not pass for the right one.
    """
    again = "run reward-plugin weigh again, or leave the column out to compute weights while training"
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: expected weights as JSON: {error}; {again}") from error
    if not isinstance(found, Mapping) or not set(found) >= {"method", "rubric_digest", "weights"}:
        raise InvalidInput(f"{where}: expected weights by reward-plugin weigh; got {str(value)[:80]!r}; {again}")
    unknown = sorted(set(map(str, found)) - _FIELDS)
    if unknown:
        raise InvalidInput(f"{where}: unknown fields {', '.join(unknown)}; {again}")
    if found["rubric_digest"] != rubric.digest:
        raise InvalidInput(f"{where}: the weights are those of another rubric; {again}")
    if method is not None and found["method"] != method:
        raise InvalidInput(
            f"{where}: the weights are by {found['method']!r}, the reward's weighting is {method!r}; {again}"
        )
    shares = found["weights"]
    ids = {criterion.id for criterion in rubric.contributing}
    if not isinstance(shares, Mapping) or set(shares) != ids or not all(map(_is_share, shares.values())):
        raise InvalidInput(f"{where}: expected a weight from 0 to 1 for each of {', '.join(sorted(ids))}; {again}")
    if abs(sum(shares.values()) - 1.0) > _TOLERANCE:
        raise InvalidInput(f"{where}: weights sum to 1; got {sum(shares.values())}; {again}")
    fields: dict[str, Any] = {name: found[name] for name in ("consistency_ratio", "lambda_max") if name in found}
    return Weights(dict(shares), flagged=bool(found.get("flagged")), record=dict(found.get("record") or {}), **fields)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
