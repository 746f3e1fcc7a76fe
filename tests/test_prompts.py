"""Prompt files against golden texts: a changed prompt is a change that someone meant."""

from pathlib import Path

import pytest

from reward_plugin import prompts

GOLDEN = Path(__file__).parent / "golden"
ABOUT: dict[str, object] = {
    "prompt": "Why is the sky blue?",
    "rubric": ["- Names scattering.", "- At most 25 words."],
}
VALUES: dict[str, dict[str, object]] = {
    "verdict": {
        "prompt": "Why is the sky blue?",
        "response": "Air scatters {{ blue }} light.",
        "criterion": "Names scattering.",
    },
    "comparison": {**ABOUT, "first": "At most 25 words.", "second": "Names scattering."},
    "direct": {**ABOUT, "criteria": ["Names scattering.", "At most 25 words."]},
    "all_pairs": {**ABOUT, "criteria": ["Names scattering.", "At most 25 words."], "pairs": [(1, 2)]},
}
EARLIER = [
    {"first": "1", "winner": "2", "reason": "The prompt asks for {{ a }} reason."},
    {"first": "2", "winner": None, "reason": None},
]
CASES = ("agree", "both_neutral", "one_neutral", "opposite", "single")
for case in CASES:
    VALUES[f"review_{case}"] = VALUES["comparison"] | {"case": case, "earlier": EARLIER[: 1 if case == "single" else 2]}


@pytest.mark.parametrize("reply", ["token", "json"])
@pytest.mark.parametrize("name", sorted(VALUES))
def test_golden(name: str, reply: str) -> None:
    """To accept a changed prompt: delete the golden file and run the test twice; the first run writes it and fails."""
    path = GOLDEN / f"{name}_{reply}.txt"
    text = "".join(
        f"[{role}]\n{content}\n"
        for role, content in prompts.render(
            name.partition("review_")[1][:-1] or name, fence="```", reply=reply, **VALUES[name]
        )
    )
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} did not exist and was written: read it, then run again")

    assert text == path.read_text()


def test_unknown_placeholder_is_an_error() -> None:
    with pytest.raises(Exception, match="undefined"):
        prompts.render("verdict", fence="```", prompt="p", response="r", reply="token")


@pytest.mark.parametrize(
    "text", ["plain", "a < b | c > d", "x <- y", "[INSTALL]", "if (a<b) {}", "`` code ``", "<table>"]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert prompts.inert(text) == text


def test_the_version_of_a_prompt_covers_its_shared_head(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("comparison", "review", "direct", "all_pairs")
    before = [prompts.version(name) for name in names]
    read = Path.read_text

    def changed(path: Path, encoding: str | None = None) -> str:
        return read(path, encoding=encoding).replace("You compare", "You weigh")

    monkeypatch.setattr(Path, "read_text", changed)
    prompts._source.cache_clear()
    try:
        after = [prompts.version(name) for name in names]
    finally:
        prompts._source.cache_clear()

    assert len({*before, *after}) == 8
