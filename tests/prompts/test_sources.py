"""Users' own files: recognised, read, and every error with its line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.errors import PromptSetError
from verifier.prompts import sources as prompt_sources
from verifier.prompts.sources import (
    Problem,
    format_of,
    prompt_schema,
    read_prompts,
    recognise,
    validate,
    write_prompts,
)
from verifier.records import Message, Parameters, Prompt

GOOD = '{"id": "a", "prompt": "Once"}'


def write(folder: Path, content: str | bytes, name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path) -> list[Prompt]:
    problems: list[Problem] = []
    found = [prompt for _, prompt in read_prompts(path, problems)]
    assert problems == []
    return found


def batch(body: Any, **other: Any) -> str:
    line = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line | other)


HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        f"\ufeff{GOOD}\n",
        f"{GOOD}\r\n",
        f"\n\n  {GOOD}  \n\n",
        f"[{GOOD}]",
        f"\ufeff\n [\n{GOOD}\n]\n",
    ],
    ids=["no newline", "byte order mark", "CRLF", "blank lines", "array", "array with byte order mark"],
)
def test_our_own_lines_are_read_whatever_wraps_them(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, content)
    assert read(path) == [Prompt(id="a", text="Once")]
    assert format_of(path) == "lossless"
    assert validate(path) == []


def test_line_separators_inside_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    text = "one\u2028two\u2029three\x85four\x0cfive"
    path = write(tmp_path, json.dumps({"id": "a", "prompt": text}, ensure_ascii=False))
    assert read(path)[0].text == text


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("{", "", "not a JSON object"),
        ("42", "", "not a JSON object"),
        ('"text"', "", "not a JSON object"),
        ("null", "", "not a JSON object"),
        ('{"prompt": "x"}', "id", "missing required field"),
        ('{"id": 5, "prompt": "x"}', "id", "got `int`"),
        ('{"id": "", "prompt": "x"}', "id", "printable"),
        ('{"id": "a\\u0000", "prompt": "x"}', "id", "printable"),
        ('{"id": "a", "prompt": ["x"]}', "prompt", "got `array`"),
        ('{"id": "a"}', "", "needs `prompt`"),
        ('{"id": "a", "prompt": "x", "temperature": 1}', "temperature", "unknown field"),
        ('{"id": "a", "prompt": "x", "max_tokens": 0}', "max_tokens", "the least is 1"),
        ('{"id": "a", "prompt": "x", "max_tokens": "9"}', "max_tokens", "got `str`"),
        ('{"id": "a", "prompt": "x", "max_tokens": 1e400}', "max_tokens", "got `float`"),
        ('{"id": "a", "prompt": "x", "parameters": {"stop": "end"}}', "parameters.stop", "got `str`"),
        ('{"id": "a", "prompt": "x", "parameters": {"stop": [""]}}', "parameters.stop", "empty string"),
        ('{"id": "a", "prompt": "x", "parameters": {"stops": []}}', "parameters.stops", "unknown field"),
        ('{"id": "a", "messages": [{"role": "user"}]}', "content", "missing required field"),
        ('{"id": "a", "prompt": "\\ud800"}', "", "surrogate"),
        ('{"id": "a", "prompt": "x", "parameters": {"chat_template_kwargs": ' + "[" * 99_999, "", ""),
        ('{"id": ' + "9" * 5000 + ', "prompt": "x"}', "", ""),
    ],
)
def test_a_bad_line_is_named_with_its_field_and_the_others_are_read(
    tmp_path: Path, line: str, field: str, words: str
) -> None:
    path = write(tmp_path, f"{GOOD}\n\n{line}\n" + GOOD.replace('"a"', '"b"'))
    problems: list[Problem] = []
    assert [prompt.id for _, prompt in read_prompts(path, problems)] == ["a", "b"]
    (problem,) = problems
    assert problem.line == 3
    assert field in problem.field
    assert words in problem.message
    assert str(problem).startswith(f"{path}, line 3")


def test_what_is_not_utf8_is_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.encode() + b'\n{"id": "b", "prompt": "caf\xe9"}\n')
    (problem,) = validate(path)
    assert (problem.line, problem.message) == (2, "byte 27 of it is not UTF-8 text")


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_sources, "LONGEST_LINE", 1 << 20)
    path = write(tmp_path, b'{"id": "a", "prompt": "' + b"x" * 3_000_000 + b'"}\n' + GOOD.encode())
    problems: list[Problem] = []
    assert [prompt.id for _, prompt in read_prompts(path, problems)] == ["a"]
    assert [(problem.line, problem.message) for problem in problems] == [(1, "it is longer than 1 MiB")]


def test_an_array_that_is_too_large_or_broken_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (f"[{GOOD}", f"[{GOOD},", f"[{GOOD} {GOOD}]", f"[{GOOD}] x", "[" * 99_999, "[", "[" + "9" * 5000):
        assert "JSON array" in validate(write(tmp_path, f"\n{broken}"))[-1].message
    assert "byte 3 of the file" in validate(write(tmp_path, b'["\xff"]'))[0].message
    monkeypatch.setattr(prompt_sources, "LARGEST_ARRAY", 20)
    assert "too large" in validate(write(tmp_path, f"[{GOOD}]"))[0].message


def test_items_of_an_array_have_the_lines_they_stand_on(tmp_path: Path) -> None:
    path = write(tmp_path, '[\n{"id": "a",\n"prompt": "x"}, {"id": "a", "prompt": "x"},\n\n{"id": 1}]')
    found = [(problem.line, problem.field) for problem in validate(path)]
    assert found == [(3, "id"), (5, "id")]


def test_a_file_without_prompts_is_not_valid(tmp_path: Path) -> None:
    for content in ("", "\n\n", "[]", "\ufeff"):
        assert [problem.message for problem in validate(write(tmp_path, content))] == [
            "there is no prompt in this file"
        ]
        assert format_of(tmp_path / "mine.jsonl") is None


def test_validate_ends_early_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path, "nonsense\n" * 50 + GOOD)
    assert len(validate(path)) == 50
    assert len(validate(path, most=3)) == 3


def test_a_file_that_cannot_be_opened_is_an_error_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(PromptSetError, match="cannot be read: No such file"):
        validate(tmp_path / "missing.jsonl")
    with pytest.raises(PromptSetError, match="cannot be read"):
        format_of(tmp_path)


SHAREGPT = {
    "id": "x_0",
    "model": "",
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello.", "weight": 1},
        {"from": "human", "value": "How are you?"},
        {"from": "gpt", "value": "Fine."},
    ],
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("array", [True, False])
def test_sharegpt_becomes_the_messages_up_to_the_last_question(tmp_path: Path, array: bool, indent: int | None) -> None:
    content = json.dumps([SHAREGPT, SHAREGPT | {"id": None}], indent=indent) if array else json.dumps(SHAREGPT)
    path = write(tmp_path, content, "chats.json")
    first = read(path)[0]
    assert format_of(path) == "sharegpt"
    assert (first.id, first.category, first.text) == ("x_0", "sharegpt", None)
    assert first.messages == (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello."),
        Message("user", "How are you?"),
    )
    if array:
        assert read(path)[1].id.startswith("chats-"), "an item without id is called after file and line"
        assert validate(path) == []


def test_sharegpt_ids_may_be_numbers(tmp_path: Path) -> None:
    assert read(write(tmp_path, json.dumps([SHAREGPT | {"id": 17}])))[0].id == "17"


def test_items_without_id_on_one_line_of_an_array_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps([SHAREGPT | {"id": None}] * 3))
    assert validate(path) == []
    assert len({prompt.id for prompt in read(path)}) == 3


@pytest.mark.parametrize(
    ("turns", "field", "words"),
    [
        ([{"from": "narrator", "value": "x"}], "conversations[0].from", "narrator"),
        ([{"from": "human", "value": 3}], "conversations", "got `int`"),
        ([{"from": "human"}], "value", "missing"),
        ([{"from": "gpt", "value": "x"}], "conversations", "no question"),
        ([], "conversations", "no question"),
        ({}, "conversations", "got `object`"),
        ([{"from": "human", "value": "\ud800"}], "", "surrogate"),
    ],
)
@pytest.mark.parametrize("array", [True, False])
def test_a_bad_conversation_is_named(tmp_path: Path, array: bool, turns: Any, field: str, words: str) -> None:
    item = {"conversations": turns}
    (problem,) = validate(write(tmp_path, json.dumps([item] if array else item)))
    assert field in problem.field
    assert words in problem.message


def test_a_batch_request_becomes_a_prompt_with_its_parameters(tmp_path: Path) -> None:
    body = {
        "model": "any",
        "temperature": 0.7,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}],
        "max_tokens": 9,
        "max_completion_tokens": 70,
        "stop": "END",
        "frequency_penalty": 1,
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": None,
    }
    path = write(tmp_path, batch(body))
    assert format_of(path) == "openai-batch"
    assert read(path) == [
        Prompt(
            id="r1",
            category="openai-batch",
            messages=(Message("user", "Hello"),),
            max_tokens=70,
            parameters=Parameters(
                stop=("END",), frequency_penalty=1.0, chat_template_kwargs={"enable_thinking": False}
            ),
        )
    ]


def test_a_batch_request_keeps_what_chooses_tokens(tmp_path: Path) -> None:
    schema = {"type": "object"}
    body = {
        "messages": HELLO,
        "logit_bias": {"50256": -100},
        "min_tokens": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        "thinking_token_budget": 0,
    }
    (prompt,) = read(write(tmp_path, batch(body)))
    assert prompt.parameters == Parameters(
        logit_bias={"50256": -100.0}, min_tokens=3, json_schema=schema, thinking_budget=0
    )
    (plain,) = read(write(tmp_path, batch({"messages": HELLO, "response_format": {"type": "text"}})))
    assert plain.parameters == Parameters()


def test_a_batch_request_keeps_its_tools_and_the_calls_so_far(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": [{"type": "text", "text": "rain"}]},
    ]
    (prompt,) = read(write(tmp_path, batch({"messages": messages, "tools": tools, "tool_choice": "auto"})))
    assert prompt.parameters == Parameters(tools=tuple(tools))
    assert prompt.messages == (
        Message("user", HELLO[0]["content"]),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "rain", tool_call_id="c1", name="weather"),
    )
    assert [message.whole for message in prompt.messages][1:] == [json.dumps(call, ensure_ascii=False), "rain"]


def test_a_batch_completion_becomes_raw_text(tmp_path: Path) -> None:
    path = write(tmp_path, batch({"prompt": "Once", "stop": ["a", "b"]}, url="/v1/completions"))
    (prompt,) = read(path)
    assert (prompt.text, prompt.messages, prompt.parameters.stop) == ("Once", None, ("a", "b"))


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        (batch({"messages": HELLO, "tool_choice": "none"}), "body.tool_choice", "none"),
        (batch({"messages": HELLO, "tools": [{"type": "function"}]}), "parameters.tools[0]", "not of the form"),
        (batch({"messages": HELLO, "tools": "weather"}), "body.tools", "got `str`"),
        (batch({"messages": HELLO, "seed_bias": {}}), "body.seed_bias", "cannot be sent"),
        (batch({"messages": HELLO, "logit_bias": {"x": 1}}), "parameters.logit_bias", "not a token id"),
        (
            batch({"messages": HELLO, "response_format": {"type": "json_object"}}),
            "body.response_format",
            "json_object",
        ),
        (batch({"messages": HELLO, "n": 3}), "body.n", "one answer"),
        (batch({"messages": HELLO}, url="/v1/embeddings"), "url", "embeddings"),
        (batch({"messages": HELLO}, method="GET"), "url", "GET"),
        (batch({"messages": [{"role": "user", "content": None}]}), "body.messages", "neither content nor tool_calls"),
        (batch({"messages": ["hello"]}), "body.messages", "got `str`"),
        (batch({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "body.messages", "image_url"),
        (batch({"messages": [{"role": "user", "content": "x", "audio": {}}]}), "audio", "unknown field"),
        (batch({"prompt": [1, 2, 3]}), "body.prompt", "got `array`"),
        (batch({}), "", "needs `prompt`"),
        (batch({"messages": HELLO}, custom_id=4), "custom_id", "got `int`"),
        (batch("x"), "body", "got `str`"),
    ],
)
def test_a_batch_request_that_cannot_be_sent_alike_is_refused(
    tmp_path: Path, line: str, field: str, words: str
) -> None:
    (problem,) = validate(write(tmp_path, line))
    assert field in problem.field
    assert words in problem.message


def test_a_broken_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    path = write(tmp_path, "{broken\n" + batch({"messages": HELLO}))
    assert [problem.line for problem in validate(path)] == [1]
    assert format_of(path) == "openai-batch"


def test_a_file_has_one_format(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "\n" + batch({"messages": HELLO}))
    assert [problem.line for problem in validate(path)] == [2]


@given(st.text() | st.from_regex(r"\{.*\}"))
def test_recognise_never_fails(item: str) -> None:
    assert recognise(item) in {None, "lossless", "sharegpt", "openai-batch"}


@given(st.binary(max_size=400))
def test_no_file_makes_reading_fail(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(content)
    validate(path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
shaped = st.fixed_dictionaries(
    {},
    optional={
        "id": json_values,
        "prompt": json_values,
        "messages": json_values | st.lists(st.fixed_dictionaries({"role": json_values, "content": json_values})),
        "max_tokens": json_values,
        "parameters": json_values,
        "conversations": json_values | st.lists(st.fixed_dictionaries({"from": json_values, "value": json_values})),
        "custom_id": json_values,
        "body": json_values | st.fixed_dictionaries({}, optional={"messages": json_values, "stop": json_values}),
    },
)


@given(st.lists(shaped, max_size=4), st.booleans())
def test_wrong_types_anywhere_are_problems_and_never_failures(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], array: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "shaped.jsonl"
    path.write_text(json.dumps(items) if array else "\n".join(map(json.dumps, items)), encoding="utf-8")
    problems: list[Problem] = []
    good = list(read_prompts(path, problems))
    assert len(good) + len(problems) == len(items)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
any_prompt = st.builds(
    Prompt,
    id=st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True),
    category=texts,
    text=texts,
    messages=st.none() | st.lists(st.builds(Message, role=texts, content=texts), min_size=1, max_size=3).map(tuple),
    max_tokens=st.none() | st.integers(1, 10_000),
    tags=st.lists(texts, max_size=3).map(tuple),
    parameters=st.builds(Parameters, stop=st.lists(texts, max_size=2).map(tuple), repetition_penalty=st.floats(0.5, 2)),
)


@given(st.lists(any_prompt, min_size=1, max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, made: list[Prompt]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.jsonl"
    assert write_prompts(path, made) == len(made)
    assert read(path) == made


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)

    def failing() -> Any:
        yield Prompt(id="x", text="y")
        raise PromptSetError("The counter failed.")

    with pytest.raises(PromptSetError):
        write_prompts(path, failing())
    assert path.read_text(encoding="utf-8") == GOOD
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(PromptSetError, match="cannot be written"):
        write_prompts(tmp_path / "no" / "folder.jsonl", [])


def test_the_schema_knows_every_field_and_is_plain_json() -> None:
    schema = prompt_schema()
    fields = {field.encode_name for field in msgspec.structs.fields(Prompt)}
    assert set(schema["$defs"]["Prompt"]["properties"]) == fields
    assert schema["$id"] == f"urn:lossless:prompt:{prompt_sources.PROMPT_SCHEMA_VERSION}"
    assert json.loads(json.dumps(schema)) == schema
