"""How an answer is built: its end, its counts, and the JSON, reasoning and tool calls in it, on each side.

Pure and relative like the rest of `verifier.compare`: what both sides do alike is described and is not a difference.
Positions are code points of an answer's text, counts are tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import regex
from msgspec import Struct

from verifier.records import Arm, Completion, Finish

END_TOKENS_IN_USAGE = 1
"""Engines disagree whether the end token counts as a completion token; a difference of one proves nothing."""


class Surplus(Struct, frozen=True):
    """``count`` ids behind the end of an answer: those that the server adapter counted, those behind the end of the
    text, or those behind the reference's end, where the reference stopped for good.
    """

    arm: Arm
    count: int


class FinishDifference(Struct, frozen=True):
    """The two answers ended for different reasons."""

    ref: Finish
    spec: Finish


class Counts(Struct, frozen=True):
    """Tokens an answer says it has (``usage``) and has (``ids``). ``None`` where the server does not report it."""

    usage: int | None
    ids: int | None

    @property
    def agree(self) -> bool | None:
        """Whether they agree but for the end token; ``None`` when one of them is missing."""
        if self.usage is None or self.ids is None:
            return None
        return abs(self.usage - self.ids) <= END_TOKENS_IN_USAGE


class JsonState(Struct, frozen=True):
    """The JSON value of an answer: code points ``start`` to ``end`` (half-open), as far as it is valid.

    When it is not, ``stopped_at`` is the first character that cannot belong to it (the text's length when it was
    merely cut) and ``problem`` says why. ``fenced``: it stood in a Markdown code fence.
    """

    start: int
    end: int
    valid: bool
    fenced: bool
    stopped_at: int | None = None
    problem: str = ""


class Reasoning(Struct, frozen=True):
    """Reasoning text of an answer. ``end`` is where it closes, ``None`` when it never does.

    A closing mark without an opening one is closed: the chat template had opened it in the prompt.
    """

    state: Literal["none", "closed", "open"]
    start: int | None = None
    end: int | None = None


class ToolCall(Struct, frozen=True):
    """One tool call in the text: where it starts, what it calls (``None`` if unreadable), whether it can be read."""

    start: int
    name: str | None
    well_formed: bool


class Side(Struct, frozen=True):
    """How one answer is built."""

    length: int
    """Code points."""
    empty: bool
    counts: Counts
    json: JsonState | None
    reasoning: Reasoning
    tool_calls: tuple[ToolCall, ...]


Broken = Literal["empty", "usage", "json", "reasoning", "tool-call"]


class Structure(Struct, frozen=True):
    """Both answers' build, and what is different about them.

    ``broken`` names what is in order in the reference and broken in the speculative answer, and ``ref_broken`` the
    other way round. ``same_ids_before`` is whether the ids agree up to the shorter end.
    """

    ref: Side
    spec: Side
    finish: FinishDifference | None
    surplus: tuple[Surplus, ...]
    same_ids_before: bool | None
    broken: tuple[Broken, ...]
    ref_broken: tuple[Broken, ...]

    @property
    def only_the_end_differs(self) -> bool:
        """Whether the shorter ids are a prefix of the longer, and end or finish reason are all that differs."""
        return bool(self.same_ids_before) and (self.finish is not None or bool(self.surplus))


def structure(ref: Completion, spec: Completion) -> Structure:
    """Compare the build of two answers to one prompt. Linear in the lengths of the answers. Raises nothing."""
    sides = side(ref), side(spec)
    same = None
    if ref.ids is not None and spec.ids is not None:
        shorter = min(len(ref.ids), len(spec.ids))
        same = ref.ids[:shorter] == spec.ids[:shorter]
    surplus = [Surplus(one.arm, one.surplus) for one in (ref, spec) if one.surplus]
    if same and not surplus:
        surplus = _beyond_reference(ref, spec)
    return Structure(
        ref=sides[0],
        spec=sides[1],
        finish=FinishDifference(ref.finish, spec.finish) if ref.finish != spec.finish else None,
        surplus=tuple(surplus),
        same_ids_before=same,
        broken=_broken(*sides),
        ref_broken=_broken(sides[1], sides[0]),
    )


def side(completion: Completion) -> Side:
    """How one answer is built."""
    text = completion.text
    ids = None if completion.ids is None else len(completion.ids)
    return Side(
        length=len(text),
        empty=not text,
        counts=Counts(completion.completion_tokens, ids),
        json=json_state(text),
        reasoning=reasoning(text),
        tool_calls=tool_calls(text),
    )


def _broken(sound: Side, suspect: Side) -> tuple[Broken, ...]:
    checks: tuple[tuple[Broken, bool], ...] = (
        ("empty", suspect.empty and not sound.empty),
        ("usage", suspect.counts.agree is False and sound.counts.agree is not False),
        (
            "json",
            sound.json is not None and sound.json.valid and not (suspect.json is not None and suspect.json.valid),
        ),
        ("reasoning", sound.reasoning.state != "open" and suspect.reasoning.state == "open"),
        (
            "tool-call",
            all(call.well_formed for call in sound.tool_calls)
            and not all(call.well_formed for call in suspect.tool_calls),
        ),
    )
    return tuple(name for name, broken in checks if broken)


def _beyond_reference(ref: Completion, spec: Completion) -> list[Surplus]:
    """Surplus that shows beside the other answer only: more ids for the same text, or past the other's end."""
    assert ref.ids is not None and spec.ids is not None  # noqa: S101 (the caller compared them)
    longer, shorter = (spec, ref) if len(spec.ids) > len(ref.ids) else (ref, spec)
    count = abs(len(spec.ids) - len(ref.ids))
    if not count or shorter.finish not in ("eos", "stop"):
        return []
    # A longer answer with more text is a fault of its own only on the speculative side.
    return [Surplus(longer.arm, count)] if longer.text == shorter.text or longer is spec else []


_FENCE = regex.compile(r"^[ \t]*(?:```|~~~)[ \t]*(\w*)[^\n]*(?:\n|\Z)", regex.MULTILINE)
_FENCE_END = regex.compile(r"```|~~~")
_VALUE_START = regex.compile(r'\{\s*(?:["}]|\Z)|\[\s*(?:[\[{"\]\-0-9tfn]|\Z)')
_PLAINLY_JSON = regex.compile(r'\{|\[\s*[\[{"]')
_CUT_NUMBER = regex.compile(r"[-.eE][-+.eE\d]*\Z")
_CUT_ESCAPE = regex.compile(r"\\?u[0-9a-fA-F]{0,4}\Z")
_LITERALS = ("true", "false", "null")
CUT = "cut off"
"""The problem of a value that was valid as far as it went."""


def json_state(text: str) -> JsonState | None:
    """The JSON object or array that an answer consists of, or ``None`` when it does not look like one.

    Looked at is the first fence marked as JSON, or an unmarked fence or a text that begins like an object or an
    array. The test is RFC 8259: NaN and Infinity are not JSON. Text behind a bare value makes it invalid, text behind
    a fence does not.
    """
    openings = list(_FENCE.finditer(text))[::2]
    for fence in openings:
        if fence.group(1).lower().startswith("json"):
            return _parse(text, fence.end(), fenced=True)
    for fence in openings:
        if not fence.group(1) and _VALUE_START.match(text, _skip_space(text, fence.end())):
            return _parse(text, fence.end(), fenced=True)
    start = _skip_space(text, 0)
    if _VALUE_START.match(text, start) is None:
        return None
    state = _parse(text, start, fenced=False)
    # "[1] Knuth" and "[no]" begin like an array and are prose.
    return state if state.valid or state.problem == CUT or _PLAINLY_JSON.match(text, start) else None


def json_value(text: str, state: JsonState) -> Any:
    """The value of a valid state, numbers as written and objects as lists of pairs, so that nothing is lost."""
    return _decoder().raw_decode(text, state.start)[0]


def _decoder() -> json.JSONDecoder:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    # Numbers stay text: 1.0 is not 1 for whoever compares, and a long one would be refused by `int`.
    return json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=refuse, object_pairs_hook=_Pairs)


class _Number(str):
    """A number as it was written; not equal to a string of the same digits."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)

    __hash__ = str.__hash__


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, in order and with duplicates."""


def _parse(text: str, start: int, *, fenced: bool) -> JsonState:
    start = _skip_space(text, start)
    try:
        _, end = _decoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        return JsonState(start, error.pos, False, fenced, *_where(text, error))
    except RecursionError:
        return JsonState(start, start, False, fenced, start, "nested too deep")
    except ValueError as error:
        at = text.find(str(error), start)
        return JsonState(start, at, False, fenced, at, f"{error} is not JSON")
    rest = _skip_space(text, end)
    closed = _FENCE_END.match(text, rest) if fenced else rest == len(text)
    if closed:
        return JsonState(start, end, True, fenced)
    if fenced and rest == len(text):
        return JsonState(start, end, False, fenced, rest, CUT)
    return JsonState(start, end, False, fenced, rest, "text after the value")


def _where(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """Where a value stopped being JSON. A value that was merely cut stops at the end of the text."""
    rest = text[error.pos :].rstrip()
    cut = (
        error.msg.startswith("Unterminated string")
        or any(word.startswith(rest) for word in _LITERALS)
        or _CUT_NUMBER.match(rest)
        or _CUT_ESCAPE.match(rest)
    )
    if cut:
        return len(text), CUT
    return error.pos, error.msg[0].lower() + error.msg[1:]


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


_THINK_OPEN = regex.compile(r"<(think|thinking|reasoning)>|<\|channel\|>analysis<\|message\|>")
_THINK_CLOSE = regex.compile(r"</(think|thinking|reasoning)>|<\|channel\|>final<\|message\|>|<\|end\|>")
_CALLS: Sequence[tuple[regex.Pattern[str], str]] = (
    (regex.compile(r"<tool_call>(?!\s*<function=)\s*"), "</tool_call>"),
    (regex.compile(r"<function=(?P<name>[\w.-]+)>\s*"), "</function>"),
    (regex.compile(r"\[TOOL_CALLS\]\s*"), ""),
)
"""Hermes and Qwen, Llama and Qwen-Coder, Mistral."""


def reasoning(text: str) -> Reasoning:
    """Where the reasoning text of an answer opens and closes (``<think>`` and its kin, and the harmony format)."""
    opened = _THINK_OPEN.search(text)
    closed = _THINK_CLOSE.search(text, opened.end() if opened else 0)
    if closed:
        return Reasoning("closed", opened.start() if opened else 0, closed.end())
    return Reasoning("open", opened.start()) if opened else Reasoning("none")


def tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Tool calls spelled out in the text, in order, each with whether its JSON can be read and its end mark is there.

    The form ``<function=name>`` with ``<parameter=…>`` parts is not JSON; it only has to be closed. Inside of
    ``<tool_call>`` it counts once.
    """
    calls = []
    for opening, ending in _CALLS:
        for match in opening.finditer(text):
            calls.append(_tool_call(text, match, ending))
    return tuple(sorted(calls, key=lambda call: call.start))


def _tool_call(text: str, match: regex.Match[str], ending: str) -> ToolCall:
    name = match.groupdict().get("name")
    at = match.end()
    if name is not None and not text.startswith("{", at):
        return ToolCall(match.start(), name, ending in text[at:])
    try:
        value, end = _decoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return ToolCall(match.start(), name, False)
    if name is None:
        first = value[0] if isinstance(value, list) and not isinstance(value, _Pairs) and value else value
        called = dict(first).get("name") if isinstance(first, _Pairs) else None
        name = called if isinstance(called, str) and not isinstance(called, _Number) else None
    closed = not ending or text.startswith(ending, _skip_space(text, end))
    return ToolCall(match.start(), name, closed and name is not None)
