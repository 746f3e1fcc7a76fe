"""Program: a frozen, validated evaluation graph, the same before and after JSON."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from reward_plugin.canonical import digest
from reward_plugin.errors import InvalidProgram
from reward_plugin.graph.spaces import OPERATORS

_NODE_FIELDS = {"id", "op", "inputs", "parameters"}


@dataclass(frozen=True)
class Node:
    """One step of a program: an operator, the nodes that feed each of its ports, and its parameters."""

    id: str
    op: str
    inputs: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, object]

    def record(self) -> dict[str, object]:
        """Return the node as a JSON object."""
        inputs = {port: list(sources) for port, sources in self.inputs.items()}
        return {"id": self.id, "op": self.op, "inputs": inputs, "parameters": dict(self.parameters)}


@dataclass(frozen=True)
class Program:
    """Nodes of an evaluation graph and the id of its sink, whose value in [0, 1] is the score.

    Validated at construction: raises `InvalidProgram` with every fault found, each naming its node and port.
    """

    nodes: tuple[Node, ...]
    sink: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        found = faults(self.nodes, self.sink)
        if found:
            raise InvalidProgram(found)

    @cached_property
    def order(self) -> tuple[Node, ...]:
        """The nodes in an order in which inputs come first, whatever the order of declaration."""
        by_id = {node.id: node for node in self.nodes}
        return tuple(by_id[one] for one in TopologicalSorter(_edges(self.nodes)).static_order())

    @cached_property
    def criteria(self) -> tuple[str, ...]:
        """Ids of the criteria that the program reads, sorted."""
        return tuple(
            sorted({str(node.parameters["criterion"]) for node in self.nodes if "criterion" in node.parameters})
        )

    @cached_property
    def gates(self) -> tuple[Node, ...]:
        """The cap and veto nodes, in execution order."""
        return tuple(node for node in self.order if node.op in ("cap", "veto"))

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of the content; the order of declaration does not matter."""
        return digest(self.record())

    def record(self) -> dict[str, object]:
        """Return the program as a JSON object that `from_record` takes; nodes sorted by id."""
        return {"sink": self.sink, "nodes": [node.record() for node in sorted(self.nodes, key=lambda node: node.id)]}

    @classmethod
    def from_record(cls, record: object) -> "Program":
        """Return the program of a JSON object. Raises `InvalidProgram`."""
        if not isinstance(record, Mapping) or set(record) != {"sink", "nodes"} or not isinstance(record["nodes"], list):
            raise InvalidProgram(["expected an object with 'sink' and a list of 'nodes'"])
        wrong = [
            f"nodes[{position}]: expected an object with {', '.join(sorted(_NODE_FIELDS))}"
            for position, node in enumerate(record["nodes"])
            if not isinstance(node, Mapping)
            or set(node) != _NODE_FIELDS
            or not isinstance(node["op"], str)
            or not isinstance(node["inputs"], Mapping)
            or not isinstance(node["parameters"], Mapping)
            or not all(
                isinstance(sources, list) and all(isinstance(one, str) for one in sources)
                for sources in node["inputs"].values()
            )
        ]
        if not isinstance(record["sink"], str):
            wrong.append(f"sink {record['sink']!r}: expected the id of a node")
        if wrong:
            raise InvalidProgram(wrong)
        nodes = (
            Node(
                node["id"], node["op"], {port: tuple(s) for port, s in node["inputs"].items()}, dict(node["parameters"])
            )
            for node in record["nodes"]
        )
        return cls(tuple(nodes), record["sink"])


def faults(nodes: tuple[Node, ...], sink: str) -> list[str]:
    """Return what is wrong with a graph, one sentence a fault, empty when nothing is."""
    found: list[str] = []
    ids = [node.id for node in nodes]
    if not all(isinstance(one, str) and one for one in ids):
        return ["every node has a non-empty string id"]
    found += [f"node id {one!r} stands twice" for one in sorted({one for one in ids if ids.count(one) > 1})]
    known = {node.id: node for node in nodes}
    for node in nodes:
        found += _node_faults(node, known)
    if sink not in known:
        found.append(f"sink {sink!r} is not a node")
    elif known[sink].op in OPERATORS and OPERATORS[known[sink].op].output != "unit":
        found.append(f"sink {sink!r}: a score is a unit; {known[sink].op} gives a flag")
    if found:
        return found
    try:
        tuple(TopologicalSorter(_edges(nodes)).static_order())
    except CycleError as error:
        return [f"cycle: {' -> '.join(error.args[1])}"]
    reached, stack = set(), [sink]
    while stack:
        one = stack.pop()
        if one not in reached:
            reached.add(one)
            stack += [source for sources in known[one].inputs.values() for source in sources]
    return [f"node {one!r} does not reach the sink" for one in ids if one not in reached]


def _edges(nodes: tuple[Node, ...]) -> dict[str, list[str]]:
    # Sorted, so that the execution order is a function of the content
    ordered = sorted(nodes, key=lambda node: node.id)
    return {node.id: [one for _, sources in sorted(node.inputs.items()) for one in sources] for node in ordered}


def _node_faults(node: Node, known: dict[str, Node]) -> list[str]:
    label = f"node {node.id!r}"
    operator = OPERATORS.get(node.op)
    if operator is None:
        return [f"{label}: unknown operator {node.op!r}; known operators: {', '.join(OPERATORS)}"]
    found = []
    for port in sorted(set(node.inputs) ^ set(operator.ports)):
        found.append(f"{label}: port {port!r} is {'unknown' if port in node.inputs else 'not fed'}")
    for port, sources in node.inputs.items():
        if port not in operator.ports:
            continue
        if not sources or (len(sources) > 1 and not operator.many):
            wanted = "at least one input" if operator.many else "exactly one input"
            found.append(f"{label}: port {port!r} takes {wanted}; got {len(sources)}")
        for source in sources:
            if source not in known:
                found.append(f"{label}: port {port!r} is fed by {source!r}, which is not a node")
            elif known[source].op in OPERATORS and OPERATORS[known[source].op].output != operator.ports[port]:
                gives = OPERATORS[known[source].op].output
                found.append(f"{label}: port {port!r} takes a {operator.ports[port]}; {source!r} gives a {gives}")
    if set(node.parameters) != set(operator.parameters):
        wanted = ", ".join(operator.parameters) or "none"
        return [*found, f"{label}: parameters are {wanted}; got {', '.join(sorted(node.parameters)) or 'none'}"]
    return found + _parameter_faults(node, label)


def _parameter_faults(node: Node, label: str) -> list[str]:
    if "criterion" in node.parameters:
        one = node.parameters["criterion"]
        return [] if isinstance(one, str) and one else [f"{label}: criterion is a non-empty id; got {one!r}"]
    if "limit" in node.parameters:
        limit = node.parameters["limit"]
        return [] if _finite(limit) and 0 <= limit <= 1 else [f"{label}: limit lies in [0, 1]; got {limit!r}"]  # type: ignore[operator]
    if "weights" not in node.parameters:
        return []
    weights = node.parameters["weights"]
    count = len(node.inputs.get("scores", ()))
    if not isinstance(weights, list | tuple) or len(weights) != count:
        return [f"{label}: expected {count} weights, one an input; got {weights!r}"]
    if not all(_finite(weight) and weight >= 0 for weight in weights) or not 0 < sum(weights) < math.inf:
        return [f"{label}: weights are finite, 0 or more, and have a finite sum over 0; got {weights!r}"]
    return []


def _finite(value: object) -> bool:
    # Compared rather than converted: an integer may be too large for a float
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
