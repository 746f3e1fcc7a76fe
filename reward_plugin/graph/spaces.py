"""The spaces that values of a program live in, and the operators between them."""

from dataclasses import dataclass
from typing import Literal

Space = Literal["unit", "flag"]
"""`unit` is a score in [0, 1]; `flag` is yes or no (in expected mode, the probability of yes)."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What a node does: the spaces of its input ports, which of them take many inputs, its output, its parameters."""

    ports: dict[str, Space]
    output: Space
    parameters: tuple[str, ...] = ()
    many: bool = False


OPERATORS: dict[str, Operator] = {
    # `criterion` feeds a score, `condition` feeds a gate: the same verdict, typed by its use
    "criterion": Operator(ports={}, output="unit", parameters=("criterion",)),
    "condition": Operator(ports={}, output="flag", parameters=("criterion",)),
    "invert": Operator(ports={"score": "unit"}, output="unit"),
    "weighted_mean": Operator(ports={"scores": "unit"}, output="unit", parameters=("weights",), many=True),
    "cap": Operator(ports={"score": "unit", "flag": "flag"}, output="unit", parameters=("limit",)),
    "veto": Operator(ports={"score": "unit", "flag": "flag"}, output="unit", parameters=("limit",)),
}
