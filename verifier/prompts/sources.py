"""Users' own prompt files: our JSON Lines, ShareGPT JSON and OpenAI batch input, recognised and read as prompts.

Lines are read one at a time, so that the size of a file costs no memory; a JSON array is held as bytes and decoded one
item at a time. Everything wrong with a file is a `Problem` with line and field, and reading goes on after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field

from verifier.errors import PromptSetError
from verifier.prompts.sets import LONGEST_ID, parse
from verifier.records import Message, Parameters, Prompt

Format = Literal["lossless", "sharegpt", "openai-batch"]
FORMATS: tuple[Format, ...] = get_args(Format)
LONGEST_LINE = 64 * 2**20
"""Bytes. A prompt of a million tokens has about 5 MB; a longer line is not a prompt but a file of another kind."""
LARGEST_ARRAY = 2 * 2**30
"""Bytes. A JSON array has to be held whole; JSON Lines of any size can be read."""
PROMPT_SCHEMA_VERSION = 2
"""Grows when a line that was valid no longer is, or means something else."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"
JSON_SPACE = re.compile(r"[ \t\r\n]*")

ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "assistant": "assistant",
}
"""Who speaks in a ShareGPT conversation, in the words of the chat endpoints."""
WITHOUT_EFFECT = frozenset(
    (
        *("model", "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "stream", "stream_options"),
        *("logprobs", "top_logprobs", "user", "metadata", "store", "service_tier", "parallel_tool_calls"),
    )
)
"""Fields of a batch request that cannot change a greedy answer, or that a check sets by itself."""
PARAMETERS = frozenset(each.name for each in msgspec.structs.fields(Parameters))


class Problem(Struct, frozen=True):
    """What is wrong with a file: ``line`` counts from 1, ``field`` is a path such as ``messages[0].role`` or empty."""

    path: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        place = f"{self.path}, line {self.line}" + (f", field `{self.field}`" if self.field else "")
        return f"{place}: {self.message}"


class Turn(Struct, frozen=True, rename={"speaker": "from", "text": "value"}):
    """One turn of a ShareGPT conversation; what else a data set keeps beside it is let through."""

    speaker: str
    text: str


class Conversation(Struct, frozen=True):
    """One item of a ShareGPT file."""

    conversations: tuple[Turn, ...]
    id: str | int | None = None


class BatchRequest(Struct, frozen=True):
    """One line of OpenAI batch input."""

    custom_id: str
    body: dict[str, Any]
    method: str = "POST"
    url: str = "/v1/chat/completions"


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """A piece of a message's content; pieces of other types, such as images, are refused."""

    text: str


class BatchMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a batch request, without its fields that are null."""

    role: str
    content: str | tuple[TextPart, ...] | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str = ""
    name: str = ""


class PlainText(Struct, frozen=True, tag="text", tag_field="type"):
    """Nothing is asked of the answer's format."""


class NamedSchema(Struct, frozen=True, rename={"body": "schema"}):
    """A JSON schema with its name, which has no effect."""

    body: dict[str, Any]


class SchemaFormat(Struct, frozen=True, tag="json_schema", tag_field="type"):
    """The answer is to be JSON that fits a schema."""

    json_schema: NamedSchema


class BatchBody(Struct, frozen=True):
    """The fields of a request that a prompt is made of."""

    messages: tuple[BatchMessage, ...] | None = None
    prompt: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | tuple[str, ...] | None = None
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    logit_bias: dict[str, float] = field(default_factory=dict)
    min_tokens: int = 0
    response_format: PlainText | SchemaFormat = PlainText()
    thinking_token_budget: int | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Literal["auto"] = "auto"


TAKEN = frozenset(each.name for each in msgspec.structs.fields(BatchBody))


def read_prompts(path: Path, problems: list[Problem]) -> Iterator[tuple[int, Prompt]]:
    """The prompts of a file in any known format, each with its line; what is wrong is appended to ``problems``.

    The format is that of the first item. Ids are not compared here.

    Raises:
        PromptSetError: when the file cannot be opened or read at all.
    """
    read: Callable[[str, str], Prompt] | None = None
    for ordinal, (number, raw) in enumerate(_items(path, problems), 1):
        try:
            item = raw.decode()
            if read is None and (found := recognise(item)):
                read = READERS[found]
            yield number, (read or _ours)(item, f"{path.stem}-{ordinal}")
        except UnicodeDecodeError as error:
            problems.append(Problem(str(path), number, "", f"byte {error.start + 1} of it is not UTF-8 text"))
        except RecursionError:
            problems.append(Problem(str(path), number, "", "this is nested too deeply"))
        except ValueError as error:
            problems.append(problem_of(error, path, number))


def recognise(item: str) -> Format | None:
    """The format that a line or item is of; ``None`` for what is no JSON object.

    An object of no known kind is taken for ours, whose errors say what is missing.
    """
    try:
        keys = json.loads(item)
    except (ValueError, RecursionError):
        return None
    if not isinstance(keys, dict):
        return None
    if "conversations" in keys:
        return "sharegpt"
    if "custom_id" in keys and "body" in keys:
        return "openai-batch"
    return "lossless"


def format_of(path: Path) -> Format | None:
    """The format of a file, by its first item that is a JSON object; ``None`` where there is none.

    Raises:
        PromptSetError: when the file cannot be read.
    """
    found = (recognise(raw.decode(errors="replace")) for _, raw in _items(path, []))
    return next((kind for kind in found if kind), None)


def problem_of(error: ValueError, path: Path, line: int) -> Problem:
    """The field that an error is about, parted from what is wrong with it."""
    text = str(error)
    located = re.search(r"^(.*?)(?: - at `\$\.?(.*?)`)$", text, re.DOTALL)
    message, place = (located[1], located[2]) if located else (text, "")
    named = re.search(r"(?:unknown field|required field|^) ?`([^`]+)`", message)
    if named and named[1] not in place:
        place = f"{place}.{named[1]}" if place else named[1]
    return Problem(str(path), line, place.replace("[...]", "[]"), message)


def _items(path: Path, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """The raw items of a file with their lines: of a JSON array, or else one a line."""
    try:
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(BYTE_ORDER_MARK).lstrip(WHITE_SPACE)
            file.seek(0)
            if head.startswith(b"["):
                yield from _array(path, file.read(LARGEST_ARRAY + 1), problems)
                return
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    problems.append(Problem(str(path), number, "", f"it is longer than {LONGEST_LINE >> 20} MiB"))
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
                    continue
                content = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).strip(WHITE_SPACE)
                if content:
                    yield number, content
    except OSError as error:
        raise PromptSetError(f"{path} cannot be read: {error.strerror}", "Check the path.") from None


def _array(path: Path, data: bytes, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array with the lines they begin on; what comes after a broken one cannot be told apart."""
    if len(data) > LARGEST_ARRAY:
        problems.append(Problem(str(path), 1, "", "this JSON array is too large; write one object a line instead"))
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(str(path), line, "", f"byte {error.start + 1} of the file is not UTF-8 text"))
        return
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    at = _after_space(text, text.index("[") + 1)
    more = not text.startswith("]", at)
    while more:
        line, counted = line + text.count("\n", counted, at), at
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            wrong = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
            problems.append(Problem(str(path), line, "", f"this is not an item of a JSON array: {wrong}"))
            return
        yield line, text[at:end].encode()
        at = _after_space(text, end)
        more = text.startswith(",", at)
        at = _after_space(text, at + 1) if more else at
    if text[at:].strip(" \t\r\n") != "]":
        line += text.count("\n", counted, at)
        problems.append(Problem(str(path), line, "", "the JSON array is not closed, or something follows it"))


def _after_space(text: str, at: int) -> int:
    found = JSON_SPACE.match(text, at)
    return found.end() if found else at


def _ours(item: str, name: str) -> Prompt:
    del name  # our lines have ids of their own
    return parse(item)


def _sharegpt(item: str, name: str) -> Prompt:
    """The conversation up to its last question; the answer that a data set keeps after it is left out."""
    conversation = _decode(item, Conversation)
    messages = []
    for number, turn in enumerate(conversation.conversations):
        role = ROLES.get(turn.speaker.lower())
        if role is None:
            known = ", ".join(sorted(ROLES))
            raise ValueError(f"`conversations[{number}].from` is {turn.speaker!r}; known are {known}")
        messages.append(Message(role, turn.text))
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not any(message.role == "user" for message in messages):
        raise ValueError("`conversations` holds no question of a human")
    given = "" if conversation.id is None else str(conversation.id)
    return _checked(Prompt(id=given or name, category="sharegpt", messages=tuple(messages)))


def _batch(item: str, name: str) -> Prompt:
    del name  # `custom_id` is required
    request = _decode(item, BatchRequest)
    if request.method.upper() != "POST" or not request.url.rstrip("/").endswith("/completions"):
        raise ValueError(f"`url` is {request.method} {request.url}; only (chat) completions can be compared")
    given = {key: value for key, value in request.body.items() if value is not None}
    other = sorted(given.keys() - TAKEN - WITHOUT_EFFECT)
    if other:
        raise ValueError(f"`body.{other[0]}` would change the answer and cannot be sent by this tool")
    if request.body.get("n") not in {None, 1}:
        raise ValueError("`body.n` is not 1; a greedy request has one answer")
    if isinstance(given.get("messages"), list):
        given["messages"] = [_without_nulls(message) for message in given["messages"]]
    try:
        body = msgspec.convert(given, BatchBody)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("`$", "`$.body") if "`$" in str(error) else f"`body`: {error}") from None
    stop = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
    alike = {key: getattr(body, key) for key in PARAMETERS & TAKEN if key != "stop"}
    asked = body.response_format
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _checked(
        Prompt(
            id=request.custom_id,
            category="openai-batch",
            text=body.prompt,
            messages=None if body.messages is None else tuple(_message(message) for message in body.messages),
            max_tokens=limit,
            parameters=Parameters(
                stop=stop,
                json_schema=asked.json_schema.body if isinstance(asked, SchemaFormat) else None,
                thinking_budget=body.thinking_token_budget,
                **alike,
            ),
        )
    )


def message_of(raw: Any) -> Message:
    """A message in OpenAI's form; fields without a value are left out.

    Raises:
        ValueError: naming what is wrong with it.
    """
    try:
        return _message(msgspec.convert(_without_nulls(raw), BatchMessage))
    except msgspec.ValidationError as error:
        raise ValueError(f"a message cannot be read: {error}") from None


def _without_nulls(message: Any) -> Any:
    """As answers are recorded, a message may have any of its fields without a value."""
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None}


def _message(message: BatchMessage) -> Message:
    content = message.content
    if content is None and not message.tool_calls:
        raise ValueError(f"`body.messages` has one of {message.role!r} with neither content nor tool_calls")
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    return Message(message.role, text, message.tool_calls, message.tool_call_id, message.name)


def _decode(item: str, kind: type[Any]) -> Any:
    # Through `json` and not msgspec, which refuses half surrogates without saying where.
    try:
        return msgspec.convert(json.loads(item), kind)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not a JSON object: {error.msg} at column {error.colno}") from None


def _checked(prompt: Prompt) -> Prompt:
    """The prompt as it comes out of a line of ours, so that every rule for our lines holds for it as well."""
    return parse(json.dumps(msgspec.to_builtins(prompt)))


READERS: dict[Format, Callable[[str, str], Prompt]] = {
    "lossless": _ours,
    "sharegpt": _sharegpt,
    "openai-batch": _batch,
}


def validate(path: Path, *, most: int | None = None) -> list[Problem]:
    """Everything wrong with a prompt file, in the order of its lines; an empty list for a valid one.

    ``most`` ends the search early. A file without any prompt has a problem too.

    Raises:
        PromptSetError: when the file cannot be opened or read at all.
    """
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for line, prompt in read_prompts(path, problems):
        if prompt.id in seen:
            problems.append(Problem(str(path), line, "id", f"{prompt.id!r} was used on line {seen[prompt.id]} already"))
        seen.setdefault(prompt.id, line)
        if most is not None and len(problems) >= most:
            break
    if not seen and not problems:
        problems.append(Problem(str(path), 1, "", "there is no prompt in this file"))
    return problems[:most]


def prompt_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one line of a prompt set, with the rules that the types alone do not say."""
    schema: dict[str, Any] = msgspec.json.schema(Prompt)
    properties = schema["$defs"]["Prompt"]["properties"]
    properties["id"] |= {"minLength": 1, "maxLength": LONGEST_ID}
    for choice in properties["max_tokens"]["anyOf"]:
        if choice["type"] == "integer":
            choice["minimum"] = 1
    schema["$defs"]["Parameters"]["properties"]["repetition_penalty"]["exclusiveMinimum"] = 0
    schema["$defs"]["Parameters"]["properties"]["stop"]["items"]["minLength"] = 1
    schema["$defs"]["Prompt"]["anyOf"] = [
        {"required": ["prompt"], "properties": {"prompt": {"type": "string", "minLength": 1}}},
        {"required": ["messages"], "properties": {"messages": {"type": "array", "minItems": 1}}},
    ]
    versioned = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:lossless:prompt:{PROMPT_SCHEMA_VERSION}",
        "title": "One prompt of a set: a line of a JSON Lines file",
        **schema,
    }
    plain: dict[str, Any] = json.loads(json.dumps(versioned))  # defaults that are tuples become lists
    return plain


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    """Write prompts as JSON Lines, one at a time, and return how many. An old file is replaced when all is written.

    Raises:
        PromptSetError: when the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    written = 0
    try:
        with beside.open("wb") as file:
            for prompt in prompts:
                file.write(msgspec.json.encode(prompt) + b"\n")
                written += 1
        beside.replace(path)
    except OSError as error:
        raise PromptSetError(f"{path} cannot be written: {error.strerror}", "Choose another place.") from None
    finally:
        beside.unlink(missing_ok=True)
    return written
