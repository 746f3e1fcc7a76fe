import json
from html.parser import HTMLParser

import pytest

from reward_plugin.canonical import digest
from reward_plugin.errors import InvalidInput
from reward_plugin.experiments import charts
from reward_plugin.experiments.reading import SHOWN, Trace, sample
from reward_plugin.experiments.report import TEXT, sentence, why, write_report
from reward_plugin.graph import compile_rubric, run
from reward_plugin.rubric import Rubric
from reward_plugin.scores import trace_record, unknown_reason
from reward_plugin.verdicts import Verdict

RUBRIC = [
    {"id": "brief", "text": "At most 25 words", "check": {"max_words": 25}},
    {"id": "complete", "text": "Answers everything"},
    {"id": "topic", "text": "Names the topic"},
    {"id": "no_list", "text": "Is not a list", "gate": {"cap": 0.5}},
    {"id": "polite", "text": "Has no insult", "gate": "veto"},
]
WEIGHTS = {"brief": 0.31, "complete": 0.31, "topic": 0.38}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> \x00 \ud800 \u202e {{ 7 * 7 }} </pre></details>"


def make_trace(
    completion="Bees fly.",
    missed=(),
    unknown=(),
    step=0,
    phase="train",
    prompt="What do bees do?",
    rubric=RUBRIC,
    weights=WEIGHTS,
    mode="hard",
    probability=1.0,
):
    rubric = Rubric.parse(rubric)
    program = compile_rubric(rubric, weights)
    verdicts = {
        one.id: Verdict.unknown("truncated")
        if one.id in unknown
        else Verdict.of(0.0 if one.id in missed else probability, reason=f"because of {one.id}")
        for one in rubric.criteria
    }
    result = run(program, [verdicts], mode=mode)
    value = result.values[0]
    return {
        "step": step,
        "phase": phase,
        "prompt": prompt,
        "completion": completion,
        **trace_record(rubric, program, verdicts, mode),
        "weights": weights,
        "weighting": "icw",
        "consistency_ratio": 0.23,
        "flagged": True,
        "nodes": {one: [float(low[0]), float(high[0])] for one, (low, high) in result.nodes.items()},
        "bound": list(result.bound[0]),
        "value": value,
        "bounds": [float(result.low[0]), float(result.high[0])],
        "why": unknown_reason(verdicts) if value is None else None,
        "explanation": "",
    }


RUN = [
    make_trace(phase="before", step=0, missed=("brief", "topic"), prompt="Held out?"),
    make_trace(step=0, missed=("topic",)),
    make_trace(step=0, missed=("topic", "no_list")),
    make_trace(step=1, missed=("polite",)),
    make_trace(step=1, unknown=("complete",)),
    make_trace(step=2),
    make_trace(phase="after", step=3, missed=("topic",), prompt="Held out?"),
]
SUMMARY = {
    "model": "tiny",
    "verifier": "scripted",
    "seed": 7,
    "steps": 3,
    "before": {"mean": 0.41, "n": 1},
    "after": {"mean": 0.58, "n": 1},
    "difference": 0.17,
    "interval": [0.09, 0.25],
    "confidence": 0.95,
    "criteria": {"brief": {"before": 0.0, "after": 1.0}, "topic": {"before": 0.0, "after": 0.0}},
    "seconds": {"training": 30.0, "held-out": 10.0, "total": 50.0},
}
METRICS = [
    {"step": 1, "reward": 0.5, "length": 30.0, "seconds": {"generate": 3.0, "verify": 1.0, "total": 4.5}},
    {"step": 2, "reward": 0.6, "length": 20.0, "seconds": {"generate": 5.0, "verify": 1.0, "total": 6.5}},
]


class Page(HTMLParser):
    """Tags with attributes, text by the id of an enclosing element, and cells of table rows by table id."""

    VOID = ("meta", "input", "col", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts, self.rows = [], [], {}, {}
        self.feed(text)
        self.close()
        assert not self.open, f"unclosed: {self.open}"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag in self.VOID:
            return
        self.open.append((tag, attributes))
        if tag == "tr":
            self._table().append([])
        if tag in ("td", "th"):
            self._table()[-1].append("")

    def handle_endtag(self, tag):
        opened, _ = self.open.pop()
        assert opened == tag

    def handle_data(self, data):
        for _, attributes in self.open:
            if "id" in attributes:
                self.texts[attributes["id"]] = self.texts.get(attributes["id"], "") + data
        if any(tag in ("td", "th") for tag, _ in self.open):
            self._table()[-1][-1] += data

    def _table(self):
        *_, name = (attributes.get("id", "") for tag, attributes in self.open if tag == "table")
        return self.rows.setdefault(name, [])

    def attributes(self, tag, **wanted):
        return [found for name, found in self.tags if name == tag and wanted.items() <= found.items()]


def write_run(path, traces=RUN, metrics=METRICS, summary=SUMMARY, tail=""):
    (path / "traces.jsonl").write_text("".join(json.dumps(one) + "\n" for one in traces) + tail)
    if metrics is not None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def report(path, **parts):
    return Page(write_report(write_run(path, **parts)).read_text(encoding="utf-8"))


def test_the_headline_states_the_comparison(tmp_path):
    page = report(tmp_path)
    assert page.texts["result"] == (
        "The held-out reward rises from 0.41 to 0.58: +0.17, with a 95% confidence interval of [+0.09, +0.25]."
    )


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ([-0.05, 0.25], "includes 0: this run alone does not show a change"),
        ([0.0, 0.0], "includes 0"),
        ([0.001, 0.25], "[+0.001, +0.250]"),
        (None, "no confidence interval was computed"),
    ],
)
def test_the_headline_claims_no_more_than_the_interval(interval, words):
    numbers = {"before": 0.41, "after": 0.58, "difference": 0.17, "confidence": 0.95, "interval": interval}
    assert words in sentence(numbers)
    assert ("rises" in sentence(numbers)) == (interval == [0.001, 0.25])


def test_a_fall_is_called_one():
    numbers = {"before": 0.58, "after": 0.41, "difference": -0.17, "confidence": 0.9, "interval": [-0.25, -0.09]}
    assert sentence(numbers) == (
        "The held-out reward falls from 0.58 to 0.41: -0.17, with a 90% confidence interval of [-0.25, -0.09]."
    )


def test_values_shown_are_those_of_the_traces(tmp_path):
    page = report(tmp_path)
    shown = sorted(float(one["value"]) for one in page.attributes("data", **{"class": "value"}))
    assert shown == sorted(one["value"] for one in RUN if one["value"] is not None)
    assert page.texts["total"] == "7"
    assert page.texts["unknown"] == "1"
    assert "Showing 7 of 7 completions" in page.texts["showing"]


def test_numbers_by_step(tmp_path):
    page = report(tmp_path)
    assert page.rows["by-step"][1:] == [
        ["0", f"{(0.62 + 0.5) / 2:.3f}", "2", "0", "0", "1"],
        ["1", "0.000", "2", "1", "1", "0"],
        ["2", "1.000", "1", "0", "0", "0"],
    ]


def test_held_out_table_and_seconds(tmp_path):
    page = report(tmp_path)
    assert [row[1:] for row in page.rows["held-out"]] == [
        ["Before", "After", "Change"],
        ["0.00", "1.00", "+1.00"],
        ["0.00", "0.00", "+0.00"],
        ["0.41", "0.58", "+0.17"],
    ]
    parts = [row for row in page.rows[""] if row[0] in ("generate", "verify", "other", "training", "Total")]
    assert parts == [
        ["generate", "8.0", "4.00", "73%"],
        ["verify", "2.0", "1.00", "18%"],
        ["other", "1.0", "0.50", "9%"],
        ["Total", "11.0", "5.50", ""],
        ["training", "30.0", "60%"],
        ["other", "10.0", "20%"],
        ["Total", "50.0", ""],
    ]


def test_weights_and_consistency_are_shown(tmp_path):
    page = report(tmp_path)
    weights = {float(one["value"]) for one in page.attributes("data") if "class" not in one and "id" not in one}
    assert weights == set(WEIGHTS.values())
    assert "consistency ratio 0.23" in page.texts["weights"]
    assert "flagged" in page.texts["weights"]


def test_the_program_is_drawn_and_said(tmp_path):
    page = report(tmp_path)
    assert page.texts["program-words"] == (
        "The reward is a weighted mean of 3 inputs, then at most 0.50 unless no_list is met, "
        "then set to 0.00 unless polite is met."
    )
    drawn = page.texts["program"]
    assert all(text in drawn for text in ("At most 25 words", "0.31", "0.38", "cap 0.50", "veto 0.00", "reward"))


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (make_trace(), "1.00 = brief 0.31 + complete 0.31 + topic 0.38"),
        (make_trace(missed=("topic",)), "0.62 = brief 0.31 + complete 0.31; not met: topic 0.38"),
        (
            make_trace(missed=("topic", "no_list")),
            "0.50, from a mean of 0.62 = brief 0.31 + complete 0.31; not met: topic 0.38; capped at 0.50 by no_list",
        ),
        (
            make_trace(missed=("polite",), unknown=("topic",)),
            "0.00, from a mean of 0.62 to 1.00 = brief 0.31 + complete 0.31; unknown: topic (truncated); "
            "vetoed to 0.00 by polite",
        ),
        (
            make_trace(missed=("complete", "brief"), unknown=("topic",)),
            "unknown, between 0.00 and 0.38: nothing met; not met: brief 0.31, complete 0.31; unknown: topic (truncated)",
        ),
        (
            make_trace(missed=("brief", "complete", "no_list")),
            "0.38 = topic 0.38; not met: brief 0.31, complete 0.31, no_list (a gate, no effect)",
        ),
        (
            make_trace(mode="expected", probability=0.5, rubric=RUBRIC[:3]),
            "0.50 = brief 0.15 + complete 0.15 + topic 0.19",
        ),
        (
            {"prompt": "", "completion": "", "value": None, "bounds": [0, 1], "why": "no rubric"},
            "no reward: no rubric",
        ),
    ],
)
def test_why_a_completion_got_its_reward(trace, line):
    assert why(Trace.parse(trace)) == line


def test_hostile_text_stays_text(tmp_path):
    rubric = [{"id": HOSTILE, "text": HOSTILE}, {"id": "b", "text": "B", "gate": "veto"}]
    trace = make_trace(HOSTILE, prompt=HOSTILE, rubric=rubric, weights={HOSTILE: 1.0}, phase=HOSTILE)
    trace["verdicts"][HOSTILE]["reason"] = HOSTILE
    summary = {**SUMMARY, "model": HOSTILE, "criteria": {HOSTILE: {"before": 0, "after": 1}}}
    page = report(tmp_path, traces=[trace], summary=summary)
    assert len(page.attributes("script")) == 1
    assert page.attributes("img") == []
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.texts["completions"]
    assert "{{ 7 * 7 }}" in page.texts["completions"]
    text = (tmp_path / "report.html").read_bytes().decode("utf-8")
    assert "\x00" not in text
    assert "\ud800" not in text


def test_nothing_is_fetched(tmp_path):
    page = report(tmp_path, traces=[make_trace('See <a href="https://example.org/">this</a>')])
    links = [
        value for _, found in page.tags for name, value in found.items() if name in ("src", "href", "action", "data")
    ]
    assert links
    assert all(link.startswith("#") for link in links)
    assert page.attributes("link") == []
    style = page.tags and (tmp_path / "report.html").read_text().partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_a_long_text_is_cut_and_says_so(tmp_path):
    page = report(tmp_path, traces=[make_trace("é" * 1_000_000), make_trace("y" * TEXT)])
    assert "Cut here: 2,000 of 1,000,000 characters shown." in page.texts["completions"]
    assert page.texts["completions"].count("Cut here") == 1
    assert (tmp_path / "report.html").stat().st_size < 200_000


def test_damaged_lines_are_counted(tmp_path):
    wrong = [
        {"step": 1},
        {**RUN[1], "value": 1.5},
        {**RUN[1], "value": float("nan")},
        {**RUN[1], "step": 10**400},
        {**RUN[1], "verdicts": {"brief": {"p": "high"}}},
        {**RUN[1], "rubric": {"criteria": []}},
        [1],
    ]
    page = report(tmp_path, traces=[*RUN, *wrong], tail='{"step": 3, "prom')
    assert page.texts["damaged"].startswith(f"{len(wrong) + 1} damaged lines skipped")
    assert page.texts["total"] == "7"


def test_an_undamaged_run_has_no_note(tmp_path):
    assert "damaged" not in report(tmp_path).texts


def test_only_traces(tmp_path):
    page = report(tmp_path, metrics=None, summary=None)
    before, after = RUN[0]["value"], RUN[-1]["value"]
    assert page.texts["result"] == (
        f"The held-out reward goes from {before:.2f} to {after:.2f} ({after - before:+.2f}); "
        "no confidence interval was computed, so this may be chance."
    )
    assert page.rows["held-out"][-1] == ["Reward", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"]
    assert "time" not in page.texts


@pytest.mark.parametrize("traces", [[], [{"prompt": "p", "completion": "c", "value": None, "why": "no rubric"}]])
def test_a_run_with_next_to_nothing(tmp_path, traces):
    page = report(tmp_path, traces=traces, metrics=[], summary=None)
    assert page.texts["result"].startswith("No held-out comparison")
    assert ("empty" in page.texts) == (not traces)


@pytest.mark.parametrize("summary", ["{", "[1]", '{"interval": [NaN, "x"], "criteria": [], "seconds": 3, "before": 1}'])
def test_an_odd_summary_does_no_harm(tmp_path, summary):
    write_run(tmp_path, summary=None)
    (tmp_path / "summary.json").write_text(summary)
    assert "no confidence interval was computed" in Page(write_report(tmp_path).read_text()).texts["result"]


def test_no_trace_file(tmp_path):
    with pytest.raises(InvalidInput, match=r"traces\.jsonl: no such file; .*RubricReward\(\.\.\., traces=FILE\)"):
        write_report(tmp_path)


def test_the_page_is_the_same_every_time(tmp_path):
    first = write_report(write_run(tmp_path)).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


def test_a_long_run_is_sampled(tmp_path):
    train = [make_trace(step=step, prompt=f"Prompt {step}") for step in range(300)]
    page = report(tmp_path, traces=[RUN[0], *train, RUN[-1]])
    assert "of 302 completions: the first step, the last" in page.texts["showing"]
    rows = page.attributes("tr", **{"class": "completion"})
    assert len(rows) <= SHOWN
    assert [one["data-phase"] for one in rows].count("before") == 1
    assert {"Prompt 0", "Prompt 299"} <= {row[0].strip() for row in page.rows["rows"] if len(row) == 1}
    assert len(page.rows["by-step"]) - 1 == 100  # three steps a point


def test_a_sample_has_both_ends_and_whole_steps():
    places = [(0, "before", 0)] * 90 + [(0, "train", step) for step in range(100) for _ in range(8)]
    places += [(0, "after", 100)] * 90
    chosen = [places[one] for one in sample(places)]
    assert len(chosen) <= SHOWN
    assert chosen.count((0, "before", 0)) == chosen.count((0, "after", 100)) == SHOWN // 5
    assert {chosen.count((0, "train", step)) for step in (0, 99)} == {8}


@pytest.mark.parametrize("size", [1, 17, 500])
def test_a_sample_of_one_big_step_fits(size):
    assert len(sample([(0, "scored", None)] * size)) == min(size, SHOWN)


def test_an_invalid_program_is_said_not_drawn(tmp_path):
    page = report(tmp_path, traces=[{**RUN[1], "program": {"sink": "x", "nodes": []}}])
    assert "no valid program" in page.texts["program"]


def test_boxes_of_a_program_do_not_overlap():
    rubric = Rubric.parse([{"id": f"c{n}", "text": "T"} for n in range(9)] + RUBRIC[3:])
    boxes = charts.diagram(compile_rubric(rubric, {f"c{n}": 1.0 for n in range(9)}), {}).boxes
    assert len(boxes) == 9 + 1 + 2 + 2 + 1
    for a in boxes:
        apart = [
            a.x + a.width <= b.x or b.x + b.width <= a.x or abs(a.y - b.y) >= a.height for b in boxes if b is not a
        ]
        assert all(apart)


def test_a_trace_keeps_its_digest():
    assert RUN[0]["program_digest"] == digest(RUN[0]["program"])
