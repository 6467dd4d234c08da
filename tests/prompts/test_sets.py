"""Prompt sets: found by name, validated line by line, nothing silently ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifier.errors import PromptSetError
from verifier.prompts import sets as prompts
from verifier.prompts.selection import MOST_PROBLEMS, Selection
from verifier.prompts.sets import parse

CHAT = '{"id": "a", "messages": [{"role": "user", "content": "x"}]'
"""A line that is not closed yet."""
TOOL = '{"type": "function", "function": {"name": "f"}}'


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_default_set_is_found_by_name_and_covers_its_eight_kinds() -> None:
    seed8 = Selection(["seed8"])
    found = list(seed8)
    assert len(seed8) == len(found) == 8
    assert {prompt.category for prompt in found} == {
        "common-sense", "arithmetic", "creative-writing", "list", "logic", "summary", "question-answering", "code",
    }  # fmt: skip
    assert {prompt.language for prompt in found} == {"en", "zh"}
    assert all(prompt.text and prompt.messages for prompt in found)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PromptSetError, match="seed8"):
        prompts.find("no-such-set")


def test_a_name_cannot_leave_the_folder_of_sets() -> None:
    with pytest.raises(PromptSetError):
        prompts.find("../pyproject")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "b", "prompt": "x", "colour": 1}', "colour"),
        ('{"id": "b", "prompt": "x", "max_tokens": "8"}', "max_tokens"),
        ('{"id": "b", "prompt": "x", "max_tokens": 0}', "max_tokens"),
        ('{"id": "b", "prompt": "x", "parameters": {"stop": [1]}}', "stop"),
        ('{"id": "b", "prompt": "x", "parameters": {"stop": [""]}}', "stop"),
        ('{"id": "b", "prompt": "x", "parameters": {"logit_bias": {"red": 1}}}', "text_bias takes texts"),
        ('{"id": "b", "prompt": "x", "parameters": {"logit_bias": {"-1": 1}}}', "not a token id"),
        ('{"id": "b", "prompt": "x", "parameters": {"logit_bias": {"1": 100.5}}}', "-100 to 100"),
        ('{"id": "b", "prompt": "x", "parameters": {"text_bias": {" red": -101}}}', "-100 to 100"),
        ('{"id": "b", "prompt": "x", "parameters": {"text_bias": {"": 1}}}', "empty text"),
        ('{"id": "b", "prompt": "x", "parameters": {"min_tokens": -1}}', "min_tokens"),
        ('{"id": "b", "prompt": "x", "max_tokens": 8, "parameters": {"min_tokens": 9}}', "max_tokens 8"),
        ('{"id": "b", "prompt": "x", "parameters": {"thinking_budget": -1}}', "thinking_budget"),
        ('{"id": "b", "prompt": "x", "parameters": {"json_schema": {}, "grammar": "a"}}', "one of them"),
        ('{"id": "b", "messages": [{"role": "user"}]}', "content"),
        ('{"id": "b"}', "prompt"),
        ('{"id": "b", "prompt": ""}', "prompt"),
        ('{"id": "", "prompt": "x"}', "id"),
        ('{"id": "\\u001b[2J", "prompt": "x"}', "id"),
        ('{"id": "b", "prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": "x"}', "id"),
        ('{"id": "b", "prompt": "x", "parameters": {"tools": [{"type": "function"}]}}', "messages"),
        (f'{CHAT}, "parameters": {{"tools": [{{"name": "f"}}]}}}}', "tools[0]"),
        (
            f'{CHAT}, "parameters": {{"tools": [{TOOL}, {{"type": "function", "function": {{"name": ""}}}}]}}}}',
            "tools[1]",
        ),
        (f'{CHAT}, "parameters": {{"tools": [{{"type": "x", "function": {{"name": "f"}}}}]}}}}', "tools[0]"),
        (f'{CHAT}, "parameters": {{"tools": [{{"type": "function", "function": {{"name": 5}}}}]}}}}', "tools[0]"),
        ('{"id": "b", "messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}', "tool_calls[0]"),
        ('{"id": "b", "prompt": "x", "parameters": {"json_schema": {"minimum": NaN}}}', "object: NaN is not a number"),
        ("[1, 2]", "object"),
        ('{"id": "b", "prompt": ', "column"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path, '{"id": "a", "prompt": "x"}', line)
    with pytest.raises(PromptSetError) as error:
        Selection([path])
    assert "line 2" in error.value.message
    assert said in error.value.message


def test_a_duplicate_id_names_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, '{"id": "a", "prompt": "x"}', "", '{"id": "a", "prompt": "y"}')
    with pytest.raises(PromptSetError, match=r"line 3.*line 1"):
        Selection([path])


def test_an_empty_file_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    with pytest.raises(PromptSetError, match="no prompt"):
        Selection([path])
    path.write_bytes(b'{"id": "a", "prompt": "\xff"}\n')
    with pytest.raises(PromptSetError, match="UTF-8"):
        Selection([path])


def test_many_problems_are_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, *["{}"] * 500)
    with pytest.raises(PromptSetError) as error:
        Selection([path])
    assert error.value.message.count("mine.jsonl") == MOST_PROBLEMS


def test_the_digest_changes_with_what_is_asked_and_not_with_layout(tmp_path: Path) -> None:
    one = Selection([written(tmp_path, '{"id": "a", "prompt": "x"}')]).digest
    assert Selection([written(tmp_path, '{ "prompt":"x",  "id":"a" }', "")]).digest == one
    assert Selection([written(tmp_path, '{"id": "a", "prompt": "y"}')]).digest != one
    assert Selection([written(tmp_path, '{"id": "a", "prompt": "x", "max_tokens": 9}')]).digest != one


def test_a_prompts_digest_leaves_out_what_cannot_change_the_answer() -> None:
    plain = parse('{"id": "a", "prompt": "x"}')
    assert parse('{"id": "b", "prompt": "x", "category": "code", "tags": ["t"]}').digest == plain.digest
    assert parse('{"id": "a", "prompt": "x", "parameters": {"ignore_eos": true}}').digest != plain.digest


def test_the_digest_of_a_prompt_is_what_earlier_versions_wrote() -> None:
    """Else every golden would be stale."""
    assert parse(f"{CHAT}}}").digest == "62772398fff16a35"
    asked = parse(f'{CHAT}, "max_tokens": 9, "parameters": {{"stop": ["\\n"]}}}}')
    assert asked.digest == "911ff0047b73dbbb"
    assert parse(f'{CHAT}, "parameters": {{"tools": [{TOOL}]}}}}').digest != "62772398fff16a35"


def test_a_set_of_ones_own_is_found_by_the_name_that_a_header_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "seed8"):
        Path(f"{name}.jsonl").touch()
    assert prompts.find("mine") == Path("mine.jsonl")
    # A set that came with the tool keeps its name, whatever lies in this folder.
    assert prompts.find("seed8").parent != Path()
