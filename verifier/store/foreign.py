"""Files of answers that other tools wrote, so that `lossless compare` can compare them by text.

Two kinds of lines are read: objects with a prompt or an id and an answer, as evaluation scripts write them, and the
output of OpenAI's batch API, which vLLM's ``run_batch`` writes as well. A line is one `Entry`. Lines are read one at a
time; what is held for all of them is how they are matched (`matching`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from verifier.errors import StoreError
from verifier.prompts.sets import LONGEST_ID
from verifier.prompts.sources import BYTE_ORDER_MARK, LONGEST_LINE, WHITE_SPACE, message_of
from verifier.records import Finish, Message, Prompt, Record
from verifier.servers import fields
from verifier.servers.ending import named
from verifier.store.compression import open_plain

ANSWERS = ("output", "response", "completion", "text")
"""Names under which scripts write an answer."""
FORMS = (
    'Each line needs "output" (or "response", "completion", "text") and a "prompt", "messages" or "id"; OpenAI batch '
    "output can be compared as well."
)
END_OF_REASONING = "\n[end of reasoning]\n"
"""Stands between reasoning and the rest of an answer, so that one given as the other is a difference."""
TAGS = frozenset(msgspec.inspect.type_info(kind).tag for kind in Record.__args__)  # type: ignore[attr-defined]
"""The ``type`` of every line of ours."""


class Entry(Struct, frozen=True):
    """One line: its number from 1, what was asked as far as it says, and the answer, or why there is none."""

    line: int
    id: str | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    answer: str = ""
    reasoning: str = ""
    finish: Finish = "unknown"
    stop: str | int | None = None
    prompt_tokens: int | None = None
    model: str | None = None
    failure: str = ""

    @property
    def has_prompt(self) -> bool:
        return self.text is not None or self.messages is not None

    def prompt(self, name: str) -> Prompt:
        """What was asked, under the id ``name``."""
        return Prompt(name, text=self.text, messages=self.messages)

    def whole(self, *, marked: bool) -> str:
        """The whole answer. ``marked`` separates reasoning from the rest; answers of our own do not."""
        if not self.reasoning:
            return self.answer
        return f"{self.reasoning}{END_OF_REASONING if marked else ''}{self.answer}"


def is_ours(path: Path) -> bool:
    """Whether the first line is a record of ours, whatever may be wrong further down.

    Raises:
        StoreError: when the file cannot be read, or is not JSON Lines.
    """
    first = next(_lines(path), None)
    if first is None:
        raise StoreError(f"{path} is empty.", FORMS)
    try:
        found = json.loads(first[1])
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("type") in TAGS and not found.keys() & {*ANSWERS[:3], "custom_id"}


def entries(path: Path) -> Iterator[Entry]:
    """Every line of a file.

    Raises:
        StoreError: naming file and line, for a line that is of neither kind.
    """
    for number, line in _lines(path):
        try:
            yield _entry(number, _object(path, number, line))
        except ValueError as error:
            raise _refused(path, number, str(error)) from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file.", "Write it to a file first.")
    try:
        with open_plain(path) as file:
            _require_json_lines(path, file)
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise _refused(path, number, f"it is longer than {LONGEST_LINE >> 20} MiB")
                content = (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).strip(WHITE_SPACE)
                if content:
                    yield number, content
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from None


def _require_json_lines(path: Path, file: BinaryIO) -> None:
    """Name the usual mistakes by what they are; a parser would complain about a character."""
    head = file.read(4096)
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise StoreError(f"{path} is UTF-16 text.", "Save it as UTF-8.")
    if b"\0" in head:
        raise StoreError(f"{path} is a binary file, not JSON Lines.", FORMS)
    content = head.removeprefix(BYTE_ORDER_MARK).lstrip(WHITE_SPACE)
    if content.startswith(b"["):
        raise StoreError(f"{path} is a JSON array, not JSON Lines.", "Write one object per line: jq -c '.[]' FILE.")
    if content.split(b"\n", 1)[0].strip(WHITE_SPACE) == b"{":
        raise StoreError(f"{path} is indented JSON, not JSON Lines.", "Write one object per line: jq -c . FILE.")


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not a JSON object: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if found.get("type") in TAGS and number > 1 and not found.keys() & {*ANSWERS[:3], "custom_id"}:
        raise StoreError(f"{path}, line {number}: a record of `lossless` in a file that does not begin with a header.")
    return found


def _refused(path: Path, number: int, why: str) -> StoreError:
    return StoreError(f"{path} is not a file of `lossless`, and its line {number} cannot be compared: {why}.", FORMS)


def _entry(number: int, line: dict[str, Any]) -> Entry:
    if "custom_id" in line and "body" in line and "response" not in line:
        raise ValueError("it is batch input, a request without its answer")
    if "custom_id" in line and (isinstance(line.get("response"), dict) or not any(line.get(key) for key in ANSWERS)):
        return _batch(number, line)
    return _plain(number, line)


def _plain(number: int, line: dict[str, Any]) -> Entry:
    given = [key for key in ANSWERS if key in line]
    if not given and not line.get("error"):
        keys = ", ".join(f"`{key[:40]}`" for key in list(line)[:8]) or "none"
        raise ValueError(f"it has no answer; its fields are {keys}")
    if len({json.dumps(line[key]) for key in given}) > 1:
        raise ValueError(f"it has several answers: {' and '.join(f'`{key}`' for key in given)}")
    asked = Entry(number, _id(line, "id", "custom_id"), *_asked(line))
    if asked.id is None and not asked.has_prompt:
        raise ValueError("it has neither a prompt nor an id")
    answer = line[given[0]] if given else None
    if answer is None or line.get("error"):
        why = _short(line.get("error")) if line.get("error") else "its answer is null"
        return msgspec.structs.replace(asked, failure=f"line {number}: {why}")
    if not isinstance(answer, str):
        raise ValueError(f"`{given[0]}` is not a string")
    finish, stop = _finish(line)
    return msgspec.structs.replace(asked, answer=fields.text(answer) or "", finish=finish, stop=stop)


def _batch(number: int, line: dict[str, Any]) -> Entry:
    asked = Entry(number, _id(line, "custom_id"), *_asked(line))
    if asked.id is None:
        raise ValueError("`custom_id` is missing")
    reply = fields.mapping(line.get("response"))
    status = fields.integer(reply.get("status_code"))
    body = fields.mapping(reply.get("body"))
    if line.get("error") or body.get("error") or (status is not None and status != 200):
        why = _short(line.get("error") or body.get("error") or "no reason is given")
        status_words = "" if status in {None, 200} else f" (status {status})"
        return msgspec.structs.replace(asked, failure=f"line {number}: the request failed{status_words}: {why}")
    choices = fields.mappings(body.get("choices"))
    if len(choices) != 1:
        raise ValueError(f"`response.body.choices` holds {len(choices)} answers, not one")
    choice = choices[0]
    message = fields.mapping(choice.get("message"))
    calls = [
        json.dumps(call, ensure_ascii=False, sort_keys=True) for call in fields.mappings(message.get("tool_calls"))
    ]
    content = fields.text(choice.get("text")) if "text" in choice else fields.text(message.get("content"))
    reasoning = fields.text(message.get("reasoning_content") or message.get("reasoning"))
    if content is None and not calls and not reasoning:
        return msgspec.structs.replace(asked, failure=f"line {number}: the answer has neither content nor tool calls")
    finish, stop = _finish(choice)
    return msgspec.structs.replace(
        asked,
        answer="\n".join(filter(None, (content, *calls))),
        reasoning=reasoning or "",
        finish=finish,
        stop=stop,
        prompt_tokens=fields.whole(fields.mapping(body.get("usage")).get("prompt_tokens")),
        model=fields.text(body.get("model")),
    )


def _id(line: dict[str, Any], *names: str) -> str | None:
    name = next((name for name in names if line.get(name) is not None), None)
    if name is None:
        return None
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"`{name}` is neither a string nor a whole number")
    found = str(value)
    if not found.strip() or not found.isprintable() or len(found) > LONGEST_ID:
        raise ValueError(f"`{name}` must be 1 to {LONGEST_ID} printable characters")
    return found


def _asked(line: dict[str, Any]) -> tuple[str | None, tuple[Message, ...] | None]:
    """The text and the messages of a line's prompt."""
    prompt, messages = line.get("prompt"), line.get("messages")
    if isinstance(prompt, list) and prompt and all(isinstance(turn, dict) for turn in prompt) and messages is None:
        prompt, messages = None, prompt
    if prompt is not None and not isinstance(prompt, str):
        raise ValueError("`prompt` is not a string")
    if messages is None:
        return fields.text(prompt), None
    if not isinstance(messages, list) or not messages:
        raise ValueError("`messages` is not a list of messages")
    return fields.text(prompt), tuple(map(message_of, messages))


def _finish(line: dict[str, Any]) -> tuple[Finish, str | int | None]:
    """Why an answer ended. "stop" is any end, since such files do not say which stop strings were asked for."""
    reason = fields.text(line.get("finish_reason"))
    if reason == "tool_calls":
        reason = "stop"
    finish, _, _ = named(reason, None, ())
    return finish, None


def _short(error: Any) -> str:
    """What an error in a file says, in a few words."""
    message = error.get("message") if isinstance(error, dict) else error
    text = fields.text(message) if isinstance(message, str) else json.dumps(error, ensure_ascii=True)
    return " ".join((text or "no reason is given").split())[:300]
