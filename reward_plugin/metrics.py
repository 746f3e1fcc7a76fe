"""What a reward call logs: the same names on every call and every rank, never NaN."""

from collections.abc import Sequence

import numpy as np

from reward_plugin.scores import Score
from reward_plugin.verifier import Tally
from reward_plugin.weighting.weights import Weights

METRICS = (
    "mean",
    "unknown_share",
    "verdict_coverage",
    "vetoed_share",
    "capped_share",
    "zero_spread_share",
    "length_correlation",
    "weights_missing_share",
    "consistency_ratio",
    "inconsistent_share",
    "store_hits",
    "verifier_seconds",
    "weigher_seconds",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
)
"""Names of the metrics, logged as `reward_plugin/<name>`. Per-criterion detail goes to the traces: rubrics differ by
prompt, and names that differ between ranks would make a gather hang."""


def call_metrics(
    scores: Sequence[Score],
    groups: Sequence[str],
    lengths: Sequence[int],
    weights: Sequence[Weights],
    verifier: Tally,
    weigher: Tally,
    store_hits: int,
) -> dict[str, float]:
    """Return every metric of one call over B completions.

    `groups` (B,) names each completion's prompt; `lengths` (B,) are in tokens, or words where no token ids came;
    `weights` has one entry a distinct prompt. An average over nothing is 0.
    """
    values = [score.value for score in scores]
    known = [value for value in values if value is not None]
    verdicts = [verdict for score in scores for verdict in score.verdicts.values()]
    ratios = [one.consistency_ratio for one in weights if one.consistency_ratio is not None]
    found = {
        "mean": _mean(known),
        "unknown_share": _mean([value is None for value in values]),
        "verdict_coverage": _mean([verdict.probability is not None for verdict in verdicts]),
        "vetoed_share": _mean([any(gate.startswith("veto:") for gate in score.bound) for score in scores]),
        "capped_share": _mean([any(gate.startswith("cap:") for gate in score.bound) for score in scores]),
        "zero_spread_share": _zero_spread(values, groups),
        "length_correlation": _correlation(values, lengths),
        "weights_missing_share": _mean([one.why is not None for one in weights]),
        "consistency_ratio": _mean(ratios),
        "inconsistent_share": _mean([one.flagged for one in weights]),
        "store_hits": float(store_hits),
        "verifier_seconds": verifier.seconds,
        "weigher_seconds": weigher.seconds,
        "requests": float(verifier.requests + weigher.requests),
        "prompt_tokens": float(verifier.prompt_tokens + weigher.prompt_tokens),
        "cached_tokens": float(verifier.cached_tokens + weigher.cached_tokens),
        "generated_tokens": float(verifier.generated_tokens + weigher.generated_tokens),
    }
    return {name: found[name] for name in METRICS}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _zero_spread(values: Sequence[float | None], groups: Sequence[str]) -> float:
    by_group: dict[str, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            by_group.setdefault(group, []).append(value)
    return _mean([max(group) == min(group) for group in by_group.values() if len(group) > 1])


def _correlation(values: Sequence[float | None], lengths: Sequence[int]) -> float:
    pairs = [(value, length) for value, length in zip(values, lengths, strict=True) if value is not None]
    if len(pairs) < 2:
        return 0.0
    rewards, sizes = np.asarray(pairs, dtype=np.float64).T
    if rewards.std() == 0 or sizes.std() == 0:
        return 0.0
    return float(np.corrcoef(rewards, sizes)[0, 1])
