"""TRL's shapes of prompts and completions as text."""

import pytest

from reward_plugin.errors import InvalidInput, InvalidText
from reward_plugin.messages import completion_shapes, completion_text, prompt_text, strip_reasoning


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("plain", "plain"),
        ([{"role": "user", "content": "one"}], "one"),
        ([{"content": "one"}], "one"),
        ([{"role": None, "content": "one"}], "one"),
        ({"role": "user", "content": "one"}, "one"),
        ([{"role": "system", "content": "s"}], "system: s"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "system: s\n\nuser: u"),
        ([{"role": "system", "content": "s"}, {"role": None, "content": "u"}], "system: s\n\nuser: u"),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}], "[image]What?"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": object()}]}], "[image]"),
        ([], ""),
        # Reasoning is stripped from completions only
        ("<think>a</think>b", "<think>a</think>b"),
    ],
)
def test_prompt_shapes(prompt: object, text: str) -> None:
    """H08 and H10."""
    assert prompt_text(prompt) == text


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("text", "text"),
        ("", ""),
        ([{"role": "assistant", "content": "text"}], "text"),
        ([{"content": "text"}], "text"),
        ([{"role": None, "content": "text"}], "text"),
        (({"role": "assistant", "content": "text"},), "text"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}], "AB"),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "image", "image": None}]}],
            "A[image]",
        ),
        # A tool call says nothing itself; what was said last counts
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], ""),
        ([{"role": "assistant", "tool_calls": [{}]}], ""),
        (
            [
                {"role": "assistant", "content": None, "tool_calls": [{}]},
                {"role": "tool", "content": "42"},
                {"role": "assistant", "content": "It is 42."},
            ],
            "It is 42.",
        ),
        ([{"role": "tool", "content": "42"}], ""),
        ([], ""),
        ([{"role": "assistant", "content": "a", "reasoning_content": "secret"}], "a"),
        (
            [
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "<think>x"}, {"type": "text", "text": "</think>y"}],
                }
            ],
            "y",
        ),
    ],
)
def test_completion_shapes(completion: object, text: str) -> None:
    """H08 and H10."""
    assert completion_text(completion) == text


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("reasoning</think>\n\nAnswer", "Answer"),
        ('<think>never closed {"met": true}', ""),
        (" \n<think>never closed", ""),
        ("<think>\n\n</think>\n\nAnswer", "Answer"),
        ("<think>a</think>x<think>b</think>Answer", "Answer"),
        ("<think>a</think><think>never closed", ""),
        ("Use the tag `<think>` in prose.", "Use the tag `<think>` in prose."),
        ("reasoning with no tags at all, cut off", "reasoning with no tags at all, cut off"),
        ("<THINK>a</THINK>b", "b"),
        ("<thinking>a</thinking>b", "b"),
        ("<Thinking>never", ""),
        ("<think>a</think>", ""),
        ("</think>", ""),
        ("", ""),
        ("  plain keeps its space  ", "  plain keeps its space  "),
        ("<thinker>a</thinker>b", "<thinker>a</thinker>b"),
    ],
)
def test_reasoning_is_stripped(text: str, rest: str) -> None:
    """H21."""
    assert strip_reasoning(text) == rest
    assert completion_text([{"content": text}]) == rest


def test_mixed_shapes_name_the_first_row_that_differs_and_its_type() -> None:
    """H08: a `TypeError` to who knows only Python's."""
    completions = ["a", "b", [{"content": "c"}], "d"]

    with pytest.raises(InvalidText, match=r"completions\[2\] is messages \(list\) but completions\[0\] is text"):
        completion_shapes(completions)
    with pytest.raises(TypeError):
        completion_shapes(completions)
    with pytest.raises(InvalidInput, match=r"completions\[1\] is text \(str\) but completions\[0\] is messages"):
        completion_shapes([[{"content": "c"}], "d"])


@pytest.mark.parametrize("completions", [[], ["a", ""], [[{"content": "a"}], []]])
def test_uniform_shapes_pass(completions: list[object]) -> None:
    completion_shapes(completions)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"\[7\]: expected a string or a list of messages; got NoneType"),
        (5, r"\[7\]: expected a string or a list of messages; got int"),
        (["a"], r"\[7\]: expected a string or a list of messages; got list"),
        ([{"content": 5}], r"\[7\]: content is a string or a list of blocks; got int"),
        ([{"content": [{"type": "audio"}]}], r"\[7\]: a content block is text or image; got 'audio'"),
        ([{"content": ["a"]}], r"\[7\]: a content block is text or image; got 'str'"),
        ([{"content": [{"type": "text", "text": None}]}], r"\[7\]: a content block is text or image; got 'text'"),
    ],
)
def test_what_is_not_text_is_refused_by_row(value: object, message: str) -> None:
    with pytest.raises(InvalidText, match=f"^prompts{message}"):
        prompt_text(value, row=7)
    with pytest.raises(InvalidText, match=f"^completions{message}"):
        completion_text(value, row=7)
