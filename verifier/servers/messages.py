"""The message of a chat answer: reasoning, content and tool calls, whole or put together from a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from verifier.records.answers import FunctionCall
from verifier.servers import fields

REASONING = ("reasoning_content", "reasoning")
"""Names of the field that engines put reasoning in; those that send both put the same text in each."""


@dataclass(frozen=True)
class Parts:
    """What a message consists of."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[FunctionCall, ...] = ()

    @classmethod
    def of(cls, message: dict[str, Any]) -> Parts:
        """The parts of a whole message."""
        calls = [called for call in fields.mappings(message.get("tool_calls")) if (called := _called(call)) is not None]
        if not calls and (legacy := fields.mapping(message.get("function_call"))):
            calls = [FunctionCall(*_name_and_arguments(legacy))]
        return cls(fields.text(reasoning_of(message)) or "", fields.text(message.get("content")) or "", tuple(calls))


def reasoning_of(message: dict[str, Any]) -> str | None:
    """The reasoning of a message or of a piece of one; ``None`` where there is none."""
    for name in REASONING:
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return None


@dataclass
class Pieces:
    """Puts the deltas of a streamed message together."""

    _reasoning: list[str] = field(default_factory=list)
    _content: list[str] = field(default_factory=list)
    _calls: dict[int, list[str]] = field(default_factory=dict)

    def take(self, delta: dict[str, Any]) -> bool:
        """Add one delta; returns whether it carried a piece of the answer."""
        reasoning, content = reasoning_of(delta), delta.get("content")
        if reasoning:
            self._reasoning.append(reasoning)
        if isinstance(content, str) and content:
            self._content.append(content)
        else:
            content = None
        calls = [(call, call) for call in fields.mappings(delta.get("tool_calls"))]
        legacy = fields.mapping(delta.get("function_call"))
        if legacy:
            calls.append(({"index": 0}, {"function": legacy}))
        for place, call in calls:
            self._add(place, call)
        return bool(reasoning or content or calls)

    def _add(self, place: dict[str, Any], call: dict[str, Any]) -> None:
        found = _function(call)
        name, arguments = _name_and_arguments(found) if found is not None else ("", "")
        index = fields.integer(place.get("index"))
        if index is None:
            # Servers that number no calls send each of them whole, or go on with the one before.
            last = max(self._calls, default=-1)
            index = last + 1 if name or not self._calls else last
        known = self._calls.setdefault(index, ["", ""])
        if name != known[0]:
            known[0] += name
        known[1] += arguments

    def message(self) -> dict[str, Any]:
        """The whole message."""
        calls = [{"function": {"name": name, "arguments": text}} for _, (name, text) in sorted(self._calls.items())]
        return {
            "reasoning_content": "".join(self._reasoning),
            "content": "".join(self._content),
            "tool_calls": calls,
        }


def _called(call: dict[str, Any]) -> FunctionCall | None:
    found = _function(call)
    return None if found is None else FunctionCall(*_name_and_arguments(found))


def _function(call: dict[str, Any]) -> dict[str, Any] | None:
    """What a call calls: a function, or a custom tool with a text as its input."""
    function, custom = fields.mapping(call.get("function")), fields.mapping(call.get("custom"))
    if custom:
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    return function or None


def _name_and_arguments(function: dict[str, Any]) -> tuple[str, str]:
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        # Some servers send the arguments as JSON instead of a string that holds JSON.
        arguments = json.dumps(arguments, ensure_ascii=False)
    return fields.text(function.get("name")) or "", fields.text(arguments) or ""
