"""A verdict: met with some probability, or unknown with the reason why."""

from dataclasses import dataclass

from reward_plugin.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about one criterion of one completion.

    Exactly one of `probability` (that the criterion is met, in [0, 1]) and `why` (no verdict could be had) is set.
    `by` names who decided: `"model"`, `"check"` or `"rule"`; `reason` is the judge's own sentence, if it gave one.

    >>> Verdict.of(0.9).met, Verdict.unknown("truncated").met
    (True, None)
    """

    probability: float | None = None
    why: str | None = None
    by: str = "model"
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.probability is None) == (self.why is None):
            raise InvalidInput(
                f"a verdict has either a probability or a why; got {self.probability!r} and {self.why!r}"
            )
        if self.probability is not None and not 0.0 <= self.probability <= 1.0:
            raise InvalidInput(f"a verdict's probability lies in [0, 1]; got {self.probability!r}")

    @classmethod
    def of(cls, met: bool | float, *, by: str = "model", reason: str | None = None) -> "Verdict":
        """Return a known verdict: True, False, or the probability in [0, 1] that the criterion is met."""
        return cls(probability=float(met), by=by, reason=reason)

    @classmethod
    def unknown(cls, why: str, *, by: str = "model") -> "Verdict":
        """Return the verdict that could not be had; `why` is one short word or phrase, counted in the metrics."""
        return cls(why=why, by=by)

    @property
    def met(self) -> bool | None:
        """True at a probability of 0.5 or more, None when unknown."""
        return None if self.probability is None else self.probability >= 0.5

    def record(self) -> dict[str, object]:
        """Return the verdict as a JSON object without its empty fields."""
        fields = {"p": self.probability, "why": self.why, "by": self.by, "reason": self.reason}
        return {name: value for name, value in fields.items() if value is not None}
