"""Weights to look at: the summary of a pass, and one prompt's judgments, matrix and weights as a table and a picture."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.progress import ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

from reward_plugin.experiments.charts import fit
from reward_plugin.rubric import Rubric
from reward_plugin.weigh import Summary
from reward_plugin.weighting.weights import Weights

_LISTED = 10
_BAR = 20  # columns of a full bar
_TEXT = 48
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def summary_table(summary: Summary) -> Iterator[RenderableType]:
    """Yield the summary of a pass over a data set, and the least consistent prompts."""
    table = Table(box=None, show_header=False)
    for name, value in _summary(summary):
        table.add_row(name, plain(value))
    yield table
    flagged = [
        (one.consistency_ratio, label)
        for one, label in zip(summary.weights, summary.labels, strict=True)
        if one.flagged and one.consistency_ratio is not None
    ]
    flagged.sort(key=lambda one: (-one[0], one[1]))
    if flagged:
        worst = ", ".join(f"{label} ({ratio:.2f})" for ratio, label in flagged[:_LISTED])
        more = f" and {len(flagged) - _LISTED} more" if len(flagged) > _LISTED else ""
        yield plain(f"least consistent: {worst}{more}; --explain ID shows one")


def _summary(summary: Summary) -> Iterator[tuple[str, str]]:
    found = [one for one in summary.weights if one.why is None]
    yield (
        "prompts",
        f"{summary.prompts} in {summary.rows} rows; {len(found)} with weights, {summary.stored} of them stored before",
    )
    for why, count in summary.without.most_common(_LISTED):
        yield "  without weights", f"{count}: {why}"
    ratios = [one.consistency_ratio for one in found if one.consistency_ratio is not None]
    if ratios:
        low, half, high, top = np.quantile(ratios, (0, 0.5, 0.9, 1))
        yield "consistency ratio", f"min {low:.3f}, median {half:.3f}, 90% {high:.3f}, max {top:.3f}"
        flagged = sum(one.flagged for one in found)
        yield "flagged", f"{flagged} ({flagged / len(found):.0%}): the ratio stayed over tau"
    for name, field in (
        ("order flips", "order_flip_rate"),
        ("neutral", "neutral_share"),
        ("first shown wins", "first_share"),
    ):
        shares = [one.record[field] for one in found if one.record.get(field) is not None]
        if shares:
            yield name, f"{np.mean(shares):.1%} on average over the prompts"
    counts = {
        name: sum(one.record.get(field, 0) for one in found)
        for name, field in (("queries", "queries"), ("revised", "revised"), ("failed", "failed"))
    }
    yield "queries", f"{counts['queries']}; {counts['failed']} failed, {counts['revised']} pairs revised"
    yield (
        "this time",
        f"{summary.asked} asked, {summary.replayed} from an interrupted pass, {_duration(summary.seconds)}",
    )
    cached = (
        f" ({summary.cached_tokens / summary.prompt_tokens:.0%} from the prefix cache)" if summary.prompt_tokens else ""
    )
    yield "tokens", f"{summary.prompt_tokens} read{cached}, {summary.generated_tokens} generated"


def explanation(prompt: str, rubric: Rubric, weights: Weights, label: str) -> Iterator[RenderableType]:
    """Yield one prompt's weights, and for each set of siblings its matrix and judgments."""
    yield plain(f"{label}: {fit(prompt, 100)}")
    yield plain(_headline(weights))
    texts = _texts(rubric)
    table = Table(
        "criterion", "weight", Column("", no_wrap=True, min_width=_BAR), "text", box=None, header_style="bold"
    )
    largest = max(weights.weights.values())
    for one, weight in sorted(weights.weights.items(), key=lambda item: (-item[1], item[0])):
        bar = "█" * max(1, round(_BAR * weight / largest))
        table.add_row(plain(one), f"{weight:.3f}", bar, plain(fit(texts[one], _TEXT)))
    yield table
    for group in weights.record.get("groups", ()):
        if len(group["weights"]) > 1:
            yield ""
            yield from _group(group, weights.record)


def _headline(weights: Weights) -> str:
    record = weights.record
    if weights.consistency_ratio is None:
        return f"{record.get('method')}, {record.get('queries')} queries"
    flagged = f", flagged: over {record.get('tau')}" if weights.flagged else ""
    used = ", equal weights in their place" if record.get("fallback") else ""
    rounds = f", {record['rounds']} rounds of revision" if record.get("rounds") else ""
    return (
        f"{record.get('method')} by {record.get('model')}: consistency ratio {weights.consistency_ratio:.3f}{flagged}{used}; "
        f"{record.get('queries')} queries{rounds}"
    )


def _group(group: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[RenderableType]:
    ids = sorted(group["weights"])
    title = f"section {group['section']}: " if group["section"] else ""
    yield plain(
        f"{title}row over column, consistency ratio {group['consistency_ratio']:.3f} ({', '.join(_legend(ids))})"
    )
    ratios = matrix_of(group)
    matrix = Table("", *(str(place + 1) for place in range(len(ids))), "weight", box=None, header_style="bold")
    for place, one in enumerate(ids):
        cells = ["·" if value is None else f"{value:.2g}" for value in ratios[place]]
        matrix.add_row(str(place + 1), *cells, f"{group['weights'][one]:.3f}")
    yield matrix
    judged = [one for one in record.get("judgments", ()) if one["first"] in group["weights"]]
    table = Table("shown first", "shown second", "winner", "how", box=None, header_style="bold")
    for one in group["given"]:
        table.add_row(plain(one[0]), plain(one[1]), "", "given by a person")
    revised = {tuple(one["pair"]): one["round"] for one in record.get("revisions", ()) if one["accepted"]}
    for one in judged:
        pair = tuple(sorted((one["first"], one["second"])))
        how = one.get("failed") or one.get("reason") or " ".join(f"{c} {p:.2f}" for c, p in one.get("p", {}).items())
        how = f"{how} (revised in round {revised[pair]})" if pair in revised else how
        table.add_row(plain(one["first"]), plain(one["second"]), plain(one["winner"] or "neither"), plain(how))
    yield table


def _legend(ids: Sequence[str]) -> list[str]:
    return [f"{place} {one}" for place, one in enumerate(ids, start=1)]


def matrix_of(group: Mapping[str, Any]) -> list[list[float | None]]:
    """Return the ratios (K, K) of a record's group, its members in id order, None for pairs that were not compared."""
    place = {one: position for position, one in enumerate(sorted(group["weights"]))}
    matrix: list[list[float | None]] = [[1.0 if i == j else None for j in place.values()] for i in place.values()]
    for first, second, ratio in group["ratios"]:
        matrix[place[first]][place[second]] = ratio
        matrix[place[second]][place[first]] = 1.0 / ratio
    return matrix


def picture(prompt: str, rubric: Rubric, weights: Weights) -> str:
    """Return an SVG: each set of siblings as a matrix of ratios, coloured by which side wins, beside the weights."""
    import jinja2

    texts = _texts(rubric)
    groups = []
    for group in weights.record.get("groups", ()):
        ids = sorted(group["weights"])
        rows = [
            {"id": one, "text": fit(texts.get(one, one), _TEXT), "weight": group["weights"][one], "cells": cells}
            for one, cells in zip(ids, matrix_of(group), strict=True)
        ]
        groups.append({"section": texts.get(group["section"], ""), "rows": rows, "ratio": group["consistency_ratio"]})
    if not groups:
        bars = [
            {"id": one, "text": fit(texts[one], _TEXT), "weight": w, "cells": []} for one, w in weights.weights.items()
        ]
        groups = [{"section": "", "rows": bars, "ratio": None}]
    source = (files("reward_plugin.experiments") / "weights.svg.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    alpha = float(weights.record.get("alpha", 3.0))
    text: str = template.render(prompt=fit(prompt, 90), headline=_headline(weights), groups=groups, alpha=alpha)
    return _NOT_XML.sub("\ufffd", text)


def _texts(rubric: Rubric) -> dict[str, str]:
    members = {member.id: member.text for group in rubric.groups for member in group.members}
    signs = {one.id: "(fault) " for one in rubric.criteria if one.pitfall}
    return {one: signs.get(one, "") + text for one, text in members.items()}


def plain(text: str) -> Text:
    """Return text that is shown as it is: [red] in it is not markup, and what cannot be encoded does not stop a table."""
    return Text(text.encode("utf-8", "replace").decode("utf-8"))


class RateColumn(ProgressColumn):
    """Queries a second, over the last moments."""

    def render(self, task: Task) -> Text:
        """Return the rate, or nothing while it is not known."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.3g}/s")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
