"""TRL prompts and completions as plain text: strings, messages, content blocks, reasoning stripped."""

import re
from collections.abc import Mapping, Sequence

from reward_plugin.errors import InvalidText

_OPEN = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_CLOSE = re.compile(r"</think(?:ing)?>", re.IGNORECASE)


def prompt_text(prompt: object, row: int = 0) -> str:
    """Return a prompt as text: a string as it is, messages as `role: content` lines (one user message: its content).

    `row` is named in errors. Raises `InvalidText`.

    >>> prompt_text([{"role": "user", "content": "Why is the sky blue?"}])
    'Why is the sky blue?'
    """
    if isinstance(prompt, str):
        return prompt
    messages = _messages(prompt, "prompts", row)
    if len(messages) == 1 and (messages[0].get("role") or "user") == "user":
        return _content(messages[0], "prompts", row)
    return "\n\n".join(f"{message.get('role') or 'user'}: {_content(message, 'prompts', row)}" for message in messages)


def completion_text(completion: object, row: int = 0) -> str:
    """Return what a completion says: a string, or the content of its last assistant message; reasoning is stripped.

    A message without a role counts as the assistant's; `reasoning_content` is never read. Raises `InvalidText`.

    >>> completion_text([{"role": "assistant", "content": "<think>hm</think>Rayleigh scattering."}])
    'Rayleigh scattering.'
    """
    if isinstance(completion, str):
        return strip_reasoning(completion)
    spoken = [m for m in _messages(completion, "completions", row) if (m.get("role") or "assistant") == "assistant"]
    return strip_reasoning(_content(spoken[-1], "completions", row)) if spoken else ""


def strip_reasoning(text: str) -> str:
    """Return the text after the last closed reasoning block; "" if a leading block never closes.

    Tags are `<think>` and `<thinking>` in any case; a text that only mentions an opening tag later on is left as it is.

    >>> strip_reasoning("hm</think>\\n\\nAnswer"), strip_reasoning("<think>never closed"), strip_reasoning("plain")
    ('Answer', '', 'plain')
    """
    closings = list(_CLOSE.finditer(text))
    rest = text[closings[-1].end() :] if closings else text
    if _OPEN.match(rest.lstrip()):
        return ""
    return rest.lstrip() if closings else rest


def completion_shapes(completions: Sequence[object]) -> None:
    """Raise `InvalidText` when a batch mixes plain strings and messages, naming the first row that differs."""
    kinds = ["text" if isinstance(completion, str) else "messages" for completion in completions]
    for row, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InvalidText(
                f"completions[{row}] is {kind} ({type(completions[row]).__name__}) but completions[0] is {kinds[0]}: "
                "a batch holds either strings or lists of messages"
            )


def _messages(value: object, what: str, row: int) -> list[Mapping[str, object]]:
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise InvalidText(f"{what}[{row}]: expected a string or a list of messages; got {type(value).__name__}")
    return list(value)


def _content(message: Mapping[str, object], what: str, row: int) -> str:
    content = message.get("content")
    if content is None:  # a tool call
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidText(f"{what}[{row}]: content is a string or a list of blocks; got {type(content).__name__}")
    return "".join(_block(block, what, row) for block in content)


def _block(block: object, what: str, row: int) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(block, Mapping) and kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    if kind in ("image", "image_url"):
        return "[image]"
    raise InvalidText(f"{what}[{row}]: a content block is text or image; got {kind or type(block).__name__!r}")
