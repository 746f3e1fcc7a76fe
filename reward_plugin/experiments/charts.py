"""Where the lines, bars and boxes of the report stand; report.html.jinja draws them. Lengths in SVG user units."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reward_plugin.graph import Node, Program

_SOURCE_WIDTH, _STEP_WIDTH, _BOX_HEIGHT = 276, 156, 44
_COLUMN_GAP, _ROW_GAP, _MARGIN = 58, 12, 2
_ROW = _BOX_HEIGHT + _ROW_GAP


@dataclass(frozen=True, slots=True)
class Line:
    """A line over steps. `path` breaks where a value is missing; `dots` are (x, y, position of the point), `xs` has all."""

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    path: str
    xs: tuple[float, ...]
    dots: tuple[tuple[float, float, int], ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A node of the drawn program: its corner, size, two lines of text, and the full text as a tooltip."""

    x: float
    y: float
    width: int
    height: int
    kind: str
    title: str
    subtitle: str
    full: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection of the drawn program, with its label and where that stands."""

    path: str
    kind: str
    stroke: float
    label: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Diagram:
    """A program, laid out from left to right."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def line(
    points: Sequence[tuple[float, float | None]],
    *,
    width: int,
    height: int,
    margins: tuple[int, int, int, int],
    top: float = 1.0,
    y_ticks: int = 5,
) -> Line:
    """Return the line through `points` (x, y or None), y from 0 to `top`; margins are left, right, above, below.

    >>> line([(0, 0.0), (1, None), (2, 1.0)], width=100, height=100, margins=(0, 0, 0, 0)).path
    'M0 100 M100 0'
    """
    left, right, above, below = margins
    first, last = (points[0][0], points[-1][0]) if points else (0.0, 1.0)
    plot_width, plot_height = width - left - right, height - above - below

    def across(x: float) -> float:
        return round(left + plot_width * ((x - first) / (last - first) if last > first else 0.5), 2)

    def down(y: float) -> float:
        return round(above + plot_height * (1.0 - y / top), 2)

    path, dots, pen = [], [], "M"
    for position, (x, y) in enumerate(points):
        if y is None:
            pen = "M"
            continue
        path.append(f"{pen}{across(x):g} {down(y):g}")
        dots.append((across(x), down(y), position))
        pen = "L"
    heights = [top * one / (y_ticks - 1) for one in range(y_ticks)]
    return Line(
        *(width, height, float(left), float(width - right), float(above), float(height - below)),
        path=" ".join(path),
        xs=tuple(across(x) for x, _ in points),
        dots=tuple(dots),
        x_ticks=tuple((across(x), str(x)) for x in whole_ticks(first, last)),
        y_ticks=tuple((down(y), f"{y:g}") for y in heights),
    )


def whole_ticks(first: float, last: float, most: int = 8) -> list[int]:
    """Return round whole numbers between `first` and `last`, at most about `most` of them.

    >>> whole_ticks(0, 12), whole_ticks(3, 3)
    ([0, 2, 4, 6, 8, 10, 12], [3])
    """
    low, high = int(first), int(last)
    apart = next(size for size in _round_numbers() if (high - low) / size < most)
    return list(range(-(-low // apart) * apart, high + 1, apart)) or [low]


def _round_numbers() -> Iterator[int]:
    size = 1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def fit(text: str, columns: int) -> str:
    """Return `text` on one line, cut with an ellipsis to `columns`; East Asian wide characters take two.

    >>> fit("Names a colour", 8), fit("色の名前", 5)
    ('Names a…', '色の…')
    """
    text = " ".join(text[: 8 * columns].split())
    if sum(map(_columns, text)) <= columns:
        return text
    kept, taken = [], 1
    for character in text:
        taken += _columns(character)
        if taken > columns:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def _columns(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def diagram(program: Program, texts: Mapping[str, str]) -> Diagram:
    """Return the layout of a program: criteria and conditions left, what acts on them to the right, the reward last.

    `texts` are the criteria's by id. Conditions stand below the criteria in the order of their gates, so that the lines
    from them do not cross.
    """
    depth: dict[str, int] = {}
    for node in program.order:
        depth[node.id] = 1 + max((depth[source] for source in _sources(node)), default=-1)
    places = _places(program, depth)
    boxes = {node.id: _box(node, *places[node.id], texts) for node in program.order}
    edges = [edge for node in program.order for edge in _edges(node, boxes)]
    sink = boxes[program.sink]
    reward = Box(sink.x + sink.width + _COLUMN_GAP, sink.y, 84, _BOX_HEIGHT, "reward", "reward", "0 to 1", "reward")
    edges.append(_flow(sink, reward, 2.0, ""))
    everything = (*boxes.values(), reward)
    return Diagram(
        max(box.x + box.width for box in everything) + _MARGIN,
        max(box.y + box.height for box in everything) + _MARGIN,
        everything,
        tuple(edges),
    )


def _sources(node: Node) -> list[str]:
    return [source for sources in node.inputs.values() for source in sources]


def _places(program: Program, depth: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    criteria = [node.id for node in program.order if node.op == "criterion"]
    flags = [source for gate in program.gates for source in gate.inputs["flag"]]
    places: dict[str, tuple[float, float]] = {}
    below: dict[int, float] = {}  # the first free height of each column
    for row, one in enumerate([*criteria, *dict.fromkeys(flags)]):
        places[one] = (_MARGIN, _MARGIN + row * _ROW + (_ROW_GAP if row >= len(criteria) else 0))
    for node in program.order:
        if node.id in places:
            continue
        column = depth[node.id]
        inputs = [places[one][1] for one in node.inputs.get("scores", node.inputs.get("score", ()))]
        y = max(sum(inputs) / len(inputs), below.get(column, 0.0))
        below[column] = y + _ROW
        x = _MARGIN + _SOURCE_WIDTH + _COLUMN_GAP + (column - 1) * (_STEP_WIDTH + _COLUMN_GAP)
        places[node.id] = (x, y)
    return places


def _box(node: Node, x: float, y: float, texts: Mapping[str, str]) -> Box:
    if "criterion" in node.parameters:
        one = str(node.parameters["criterion"])
        text = texts.get(one, "")
        size = (_SOURCE_WIDTH, _BOX_HEIGHT)
        return Box(x, y, *size, node.op, fit(one, 28), fit(text, 40), f"{one[:200]}: {text[:1000]}")
    if node.op == "weighted_mean":
        title, subtitle = "weighted mean", "weights × verdicts"
    elif node.op == "invert":
        title, subtitle = "invert", "1 if not met"
    else:
        limit = float(node.parameters["limit"])  # type: ignore[arg-type]
        title = f"{node.op} {limit:.2f}"
        subtitle = f"at most {limit:.2f} if not met" if node.op == "cap" else f"is {limit:.2f} if not met"
    return Box(x, y, _STEP_WIDTH, _BOX_HEIGHT, node.op, title, subtitle, node.id[:200])


def _edges(node: Node, boxes: Mapping[str, Box]) -> Iterator[Edge]:
    target = boxes[node.id]
    if node.op == "weighted_mean":
        weights = [float(weight) for weight in node.parameters["weights"]]  # type: ignore[attr-defined]
        for source, weight in zip(node.inputs["scores"], weights, strict=True):
            share = weight / sum(weights)
            yield _flow(boxes[source], target, 1.0 + 5.0 * share, f"{share:.2f}")
    elif node.inputs:
        yield _flow(boxes[node.inputs["score"][0]], target, 2.0, "")
    if "flag" in node.inputs:
        flag = boxes[node.inputs["flag"][0]]
        x, y, turn = flag.x + flag.width, flag.y + flag.height / 2, target.x + target.width / 2
        path = f"M{x:g} {y:g} H{turn - 8:g} Q{turn:g} {y:g} {turn:g} {y - 8:g} V{target.y + target.height:g}"
        yield Edge(path, "flag", 1.5, "if not met", x + 8, y - 6)


def _flow(source: Box, target: Box, stroke: float, label: str) -> Edge:
    x, y = source.x + source.width, source.y + source.height / 2
    end_x, end_y = target.x, target.y + target.height / 2
    half = (x + end_x) / 2
    path = f"M{x:g} {y:g} C{half:g} {y:g} {half:g} {end_y:g} {end_x:g} {end_y:g}"
    return Edge(path, "flow", round(stroke, 2), label, x - 12, source.y + 18)
