"""The input of `/v1/responses`: a string, or a list of messages; what of it goes to the engine.

Output messages of an earlier response may be sent back as they were received. Items of another
kind are refused, never dropped.
"""

from __future__ import annotations

from typing import Any

from gateway.prompts import message_problem, messages_for_engine

ROLES = frozenset({"system", "developer", "user", "assistant"})
# What messages that were received carry, and what says nothing to the model.
_INERT_FIELDS = frozenset({"type", "id", "status", "phase"})


def input_problem(data: Any) -> tuple[str, str] | None:
    """The dotted rest of the path, and what is wrong there."""
    if isinstance(data, str):
        return None if data else ("", "The input must not be empty.")
    if not isinstance(data, list) or not data:
        return "", "A string or a list of at least one message is needed."
    for position, item in enumerate(data):
        problem = _item_problem(item)
        if problem is not None:
            path, text = problem
            return f"{position}{path}", text
    return None


def _item_problem(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict):
        return "", "An input item is an object."
    if item.get("type", "message") != "message":
        return ".type", "Only messages are supported here."
    if not isinstance(item.get("role"), str) or item["role"] not in ROLES:
        return ".role", f"The role is one of {', '.join(sorted(ROLES))}."
    return message_problem(_message(item))


def _message(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in _INERT_FIELDS}


def input_messages(
    given: str | list[dict[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """As a chat template expects them, the instructions first."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    first = [{"role": "system", "content": instructions}] if instructions else []
    return messages_for_engine([*first, *map(_message, items)])
