"""The prompt sets that come with the tool: valid, as large as promised, without a text twice."""

from __future__ import annotations

import json
import runpy
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from verifier.compare.shaping import shaping
from verifier.prompts.selection import PAIR, Selection, shipped, stats
from verifier.prompts.sets import find, names
from verifier.prompts.sources import prompt_schema, validate
from verifier.records import Parameters, Prompt

FOLDER = Path(__file__).parents[2] / "prompt_sets"
SIZES = {
    "concurrency": 64,
    "copying": 36,
    "endings": 46,
    "near-ties": 36,
    "parameters": 82,
    "seed8": 8,
    "tasks": 166,
    "tools": 12,
    "unicode": 40,
}
KEYS = ["id", "category", "language", "prompt", "messages", "max_tokens", "tags", "parameters"]
SEED8 = [
    "common-sense",
    "arithmetic",
    "creative-writing",
    "list",
    "logic",
    "summary",
    "question-answering",
    "code",
]
TASKS = {
    "code",
    "extraction",
    "summary",
    "creative-writing",
    "prose",
    "translation",
    "arithmetic",
    "logic",
    "json",
    "tool-calls",
    "list",
    "dialogue",
    "reasoning",
}
every_set = pytest.mark.parametrize("name", sorted(SIZES))


def prompts(name: str) -> list[Prompt]:
    return list(Selection([name]))


def test_the_sets_of_the_readme_are_there() -> None:
    assert names() == sorted(SIZES)
    assert {listed.name: listed.prompts for listed in shipped()} == SIZES
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, size in SIZES.items():
        assert f"| `{name}` | {size} |" in readme
        assert f"\n## {name}\n" in readme


@every_set
def test_a_set_is_valid_and_as_large_as_promised(name: str) -> None:
    assert validate(find(name)) == []
    assert len(Selection([name])) == len(prompts(name)) == SIZES[name]


@every_set
def test_lines_are_written_alike(name: str) -> None:
    content = find(name).read_bytes().decode()
    assert content.endswith("\n")
    assert "\r" not in content
    for line in content.splitlines():
        raw: dict[str, Any] = json.loads(line)
        assert list(raw) == [key for key in KEYS if key in raw]
        assert json.dumps(raw, ensure_ascii=False) == line
        # A default that is spelled out would make two ways to say the same thing.
        assert msgspec.to_builtins(msgspec.convert(raw, Prompt)).keys() == raw.keys()


@every_set
def test_every_prompt_runs_with_and_without_a_chat_template(name: str) -> None:
    for prompt in prompts(name):
        assert prompt.text
        assert prompt.messages
        assert prompt.messages[-1].role in {"user", "tool"}
        assert prompt.language
        assert prompt.id.startswith(f"{prompt.category}-")
        # A space at the end makes the next token an unusual one.
        assert not prompt.text.endswith((" ", "\t"))


@every_set
def test_no_text_comes_twice_but_in_pairs_and_ladders(name: str) -> None:
    digests = Counter(prompt.digest for prompt in prompts(name))
    assert max(digests.values()) == 1
    if name in {"endings", "parameters"}:
        return
    alone = [prompt for prompt in prompts(name) if not any(tag.startswith(PAIR) for tag in prompt.tags)]
    assert max(Counter(prompt.text for prompt in alone).values()) == 1
    assert max(Counter(map(str, (prompt.messages for prompt in alone))).values()) == 1
    texts = Counter(prompt.text for prompt in prompts(name))
    assert max(texts.values()) == 1, "a base model would be asked the same twice"


def test_no_text_is_in_two_sets() -> None:
    where: dict[str | None, set[str]] = defaultdict(set)
    for name in SIZES:
        for prompt in prompts(name):
            where[prompt.text].add(name)
            where[str(prompt.messages)].add(name)
    assert [found for found in where.values() if len(found) > 1] == []


def test_no_id_is_in_two_sets_so_that_all_can_be_combined() -> None:
    assert len(Selection(sorted(SIZES))) == sum(SIZES.values())


def test_seed8_has_one_prompt_of_each_kind_and_leaves_the_limit_to_the_run() -> None:
    assert [prompt.category for prompt in prompts("seed8")] == SEED8
    assert all(prompt.max_tokens is None for prompt in prompts("seed8"))
    assert {prompt.language for prompt in prompts("seed8")} == {"en", "zh"}


def test_tasks_has_twelve_of_each_kind_and_long_limits() -> None:
    groups = stats(prompts("tasks"))
    assert {group.category for group in groups} == TASKS
    assert min(group.prompts for group in groups) >= 12
    assert all(256 <= (prompt.max_tokens or 0) <= 1024 for prompt in prompts("tasks"))
    assert {prompt.language for prompt in prompts("tasks") if prompt.category == "creative-writing"} == {"zh"}
    dialogues = [prompt for prompt in prompts("tasks") if prompt.category == "dialogue"]
    assert all(sum(message.role == "user" for message in prompt.messages or ()) >= 3 for prompt in dialogues)


@pytest.mark.parametrize("name", ["tasks", "parameters"])
def test_pairs_are_of_two_and_differ_in_parameters(name: str) -> None:
    pairs = defaultdict(list)
    for prompt in prompts(name):
        for tag in prompt.tags:
            if tag.startswith(PAIR):
                pairs[tag].append(prompt)
    assert pairs
    for one, other in pairs.values():
        assert one.messages == other.messages
        assert one.parameters != other.parameters
        if name == "parameters":
            assert (one.text, one.max_tokens) == (other.text, other.max_tokens)
            assert one.parameters == Parameters()


def test_parameters_is_pairs_throughout() -> None:
    assert all(any(tag.startswith(PAIR) for tag in prompt.tags) for prompt in prompts("parameters"))


def test_parameters_has_every_parameter_that_chooses_tokens() -> None:
    """But for biases by id, which are of one vocabulary."""
    used = {name for prompt in prompts("parameters") for name in shaping(prompt.parameters)}
    assert used == set(Parameters.__struct_fields__) - {"stop", "chat_template_kwargs", "tools", "logit_bias"}


def test_tools_are_told_by_the_template_and_in_the_raw_text() -> None:
    for prompt in prompts("tools"):
        assert prompt.messages
        names = [tool["function"]["name"] for tool in prompt.parameters.tools]
        assert names
        assert any(name in (prompt.text or "") for name in names)
        assert not any(message.role == "system" for message in prompt.messages)
        calls = [call["id"] for message in prompt.messages for call in message.tool_calls]
        assert calls == [message.tool_call_id for message in prompt.messages if message.role == "tool"]
        assert ("after-a-result" in prompt.tags) == (prompt.messages[-1].role == "tool")
        for message in prompt.messages:
            assert all(json.loads(call["function"]["arguments"]) is not None for call in message.tool_calls)


def test_endings_has_every_limit_from_one_to_five() -> None:
    limits = {prompt.max_tokens for prompt in prompts("endings") if prompt.category == "short-limits"}
    assert limits == {1, 2, 3, 4, 5}
    assert all(p.parameters.stop for p in prompts("endings") if p.category in {"stop-strings", "empty"})
    assert all(p.parameters.ignore_eos for p in prompts("endings") if p.category == "ignore-eos")


def test_unicode_holds_what_it_is_for() -> None:
    text = "".join(prompt.text or "" for prompt in prompts("unicode"))
    for character in (
        "\u200d",
        "\u200c",
        "\u0301",
        "\u2068",
        "\ufe0f",
        "א",
        "ا",
        "ग",
        "ก",
        "한",
        "ご",
        "龘",
        "𒀭",
        "𠮷",
    ):
        assert character in text


@pytest.mark.parametrize("name", ["copying", "concurrency"])
def test_made_sets_are_what_the_script_makes(name: str) -> None:
    script = runpy.run_path(str(FOLDER / "generate.py"))
    assert script["text_of"](script["SETS"][name]()) == find(name).read_text(encoding="utf-8")


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads((FOLDER / "prompt.schema.json").read_text(encoding="utf-8")) == prompt_schema()
