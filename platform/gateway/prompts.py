"""What a client may send as a prompt or as messages, and what of it goes to the engine.

Only text: a part of another kind is refused, never dropped. Templates and tokens are the
engine's; nothing here knows either.
"""

from __future__ import annotations

from typing import Any

from inference.wire import Prompt, TextPrompt, TokenPrompt

LARGEST_TOKEN_ID = 2**31 - 1
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "refusal", "tool_calls", "tool_call_id", "function_call", "audio"}
)


def is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_token_id, value)) and bool(value)


def is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_TOKEN_ID


def prompt_for_engine(prompt: str | list[int]) -> Prompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(prompt)


def message_problem(message: Any) -> tuple[str, str] | None:
    """The dotted rest of the path, and what is wrong there."""
    if not isinstance(message, dict):
        return "", "A message is an object."
    for name in sorted(message.keys() - MESSAGE_FIELDS):
        return f".{name}", "There is no such field."
    if not isinstance(message.get("role"), str) or message["role"] not in ROLES:
        return ".role", f"The role is one of {', '.join(sorted(ROLES))}."
    if message.get("audio") or message.get("tool_calls") or message.get("function_call"):
        return "", "Tool calls and audio are not supported here."
    if not isinstance(message.get("name") or "", str):
        return ".name", "A name is a string."
    return _content_problem(message)


def _content_problem(message: dict[str, Any]) -> tuple[str, str] | None:
    content = message.get("content")
    if isinstance(content, str):
        return None
    if content is None and message["role"] == "assistant":
        return None
    if not isinstance(content, list) or not content:
        return ".content", "Content is a string or a list of text parts."
    for position, part in enumerate(content):
        if not _is_text_part(part):
            return f".content.{position}", "Only text parts are supported here."
    return None


def _is_text_part(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    name = "refusal" if part["type"] == "refusal" else "text"
    return part["type"] in TEXT_PARTS and isinstance(part.get(name), str)


def messages_for_engine(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a chat template expects them: content is one string; `developer` is `system`."""
    return [_for_template(message) for message in messages]


def _for_template(message: dict[str, Any]) -> dict[str, Any]:
    role = "system" if message["role"] == "developer" else message["role"]
    found = {"role": role, "content": _content_text(message.get("content"))}
    return found | {name: message[name] for name in ("name", "tool_call_id") if message.get(name)}


def _content_text(content: str | list[dict[str, Any]] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    return "".join(part.get("text") or part.get("refusal") or "" for part in content)
