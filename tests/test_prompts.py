"""Prompt files against golden texts: a changed prompt is a change that someone meant."""

from pathlib import Path

import pytest

from reward_plugin import prompts

GOLDEN = Path(__file__).parent / "golden"
VALUES: dict[str, dict[str, object]] = {
    "verdict": {
        "prompt": "Why is the sky blue?",
        "response": "Air scatters {{ blue }} light.",
        "criterion": "Names scattering.",
    },
    "comparison": {
        "prompt": "Why is the sky blue?",
        "rubric": ["Names scattering.", "At most 25 words."],
        "first": "At most 25 words.",
        "second": "Names scattering.",
    },
}


@pytest.mark.parametrize("reply", ["token", "json"])
@pytest.mark.parametrize("name", sorted(VALUES))
def test_golden(name: str, reply: str) -> None:
    """To accept a changed prompt: delete the golden file and run the test twice; the first run writes it and fails."""
    path = GOLDEN / f"{name}_{reply}.txt"
    text = "".join(
        f"[{role}]\n{content}\n" for role, content in prompts.render(name, fence="```", reply=reply, **VALUES[name])
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
