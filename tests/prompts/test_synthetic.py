"""Long prompts: the length that was asked for, something to find in them, the same again for the same seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.errors import PromptSetError, ServerError
from verifier.prompts import token_counter
from verifier.prompts.synthetic import (
    ADJECTIVES,
    ALLOWED_ERROR,
    DEPTHS,
    MOST_COUNTS,
    NOUNS,
    PLACES,
    RECORDS,
    TASKS,
    TRADES,
    VERBS,
    Count,
    Task,
    Words,
    make_long,
    make_long_set,
)
from verifier.records import Message, Prompt, Rendering


def by_characters(text: str) -> int:
    return round(len(text) / 4.3) + 1


def by_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text)) + 12


def by_bytes(text: str) -> int:
    return len(text.encode())


COUNTERS: tuple[Count, ...] = (by_characters, by_words, by_bytes)
tasks = st.sampled_from(TASKS)


@given(st.integers(1300, 9000), st.integers(0, 10**6), st.sampled_from(COUNTERS), tasks, st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_length_is_within_one_percent(tokens: int, seed: int, count: Count, task: Task, depth: float) -> None:
    # A word takes six times as many bytes as tokens of any other kind.
    tokens = tokens * 6 if count is by_bytes else tokens
    prompt = make_long(tokens, seed, count, task=task, depth=depth)
    assert prompt.text is not None
    assert abs(count(prompt.text) - tokens) <= tokens * ALLOWED_ERROR


@pytest.mark.parametrize("tokens", [1600, 13_000, 32_000, 131_072])
def test_long_lengths_take_few_requests_to_the_counter(tokens: int) -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return by_words(text)

    prompt = make_long(tokens, 3, count)
    assert prompt.text is not None
    assert abs(by_words(prompt.text) - tokens) <= tokens * ALLOWED_ERROR
    assert calls <= 20


def test_the_same_seed_gives_the_same_prompt_and_another_one_another() -> None:
    assert make_long(2000, 5, by_words) == make_long(2000, 5, by_words)
    assert make_long(2000, 5, by_words).text != make_long(2000, 5 + len(TASKS) * len(DEPTHS), by_words).text


def test_a_seed_means_the_same_text_in_every_version() -> None:
    assert Words(1).sentence() == (
        "Nobody at the foundry of Valen remembered why the potter Corgaron sold the lost curtain,"
        " but Faro moved 907 rings in the same week."
    )


def test_both_forms_say_the_same_so_that_one_count_holds_for_both() -> None:
    prompt = make_long(1500, 1, by_words)
    assert prompt.messages == (Message("user", prompt.text or ""),)


def test_seeds_go_through_all_tasks_and_depths() -> None:
    made = [make_long(1500, seed, by_words) for seed in range(len(TASKS) * len(DEPTHS))]
    assert {prompt.category for prompt in made} == set(TASKS)
    for task in ("needle", "copy"):
        depths = {tag for prompt in made if prompt.category == task for tag in prompt.tags if tag.startswith("depth:")}
        assert depths == {"depth:10", "depth:30", "depth:50", "depth:70", "depth:90"}


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_needle_lies_where_it_should_and_is_told_once(depth: float) -> None:
    text = make_long(8000, 11, by_words, task="needle", depth=depth).text or ""
    (needle,) = re.findall(r"The secret code of the .*? is [A-Z]{2}-\d{4}-[A-Z]{2}\.", text)
    assert text.count(needle) == 1
    assert text.index(needle) / len(text) == pytest.approx(depth, abs=0.05)
    asked = re.search(r"What is the secret code of (the .*)\?", text)
    assert asked is not None
    assert asked[1] in needle


def test_records_are_numbered_and_lie_all_over_the_text() -> None:
    text = make_long(8000, 11, by_words, task="records").text or ""
    places = [text.index(f"[Record {number}: ") / len(text) for number in range(1, RECORDS + 1)]
    assert places == sorted(places)
    assert all(0.08 < later - earlier < 0.17 for earlier, later in pairwise(places))


def test_the_passage_to_copy_is_marked_once() -> None:
    text = make_long(8000, 11, by_words, task="copy", depth=0.5).text or ""
    assert len(re.findall(r"<passage> (?!and ).+? </passage>", text)) == 1


def test_the_text_does_not_run_into_a_loop() -> None:
    text = make_long(131_072, 1, by_words, task="needle").text or ""
    sentences = re.split(r"(?<=[.!?]) ", text)
    assert len(set(sentences)) > 0.999 * len(sentences)
    words = text.split()
    grams = {tuple(words[at : at + 8]) for at in range(len(words) - 8)}
    assert len(grams) > 0.97 * len(words)


def test_word_lists_hold_nothing_twice() -> None:
    for words in (NOUNS, ADJECTIVES, VERBS, TRADES, PLACES):
        assert len(set(words)) == len(words)


@given(st.integers())
def test_sentences_begin_large_and_end_with_a_full_stop(seed: int) -> None:
    sentence = Words(seed).sentence()
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "  " not in sentence
    assert 8 <= len(sentence.split()) <= 45


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(PromptSetError, match="too short"):
        make_long(20, 1, by_words)
    with pytest.raises(PromptSetError, match="between 0 and 1"):
        make_long(2000, 1, by_words, depth=1.5)


def test_a_counter_that_makes_no_sense_does_not_keep_us_for_ever() -> None:
    calls = 0

    def constant(text: str) -> int:
        nonlocal calls
        calls += 1
        return 100

    with pytest.raises(PromptSetError, match="nearest has 100"):
        make_long(5000, 1, constant)
    assert calls <= 2 * MOST_COUNTS + 1


def test_a_set_has_every_length_task_and_several_depths() -> None:
    made = list(make_long_set([1500, 3000], 7, by_words, each=6))
    assert len({prompt.id for prompt in made}) == len(made) == 12
    for tokens in (1500, 3000):
        some = [prompt for prompt in made if f"tokens:{tokens}" in prompt.tags]
        assert [prompt.category for prompt in some] == [*TASKS, *TASKS]
        assert len({tag for prompt in some for tag in prompt.tags if tag.startswith("depth:")}) >= 3


class FakeHttp:
    """A connection that counts how often it was opened and closed."""

    opened = closed = 0
    url = "http://127.0.0.1:1"

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> FakeHttp:
        FakeHttp.opened += 1
        return self

    async def __aexit__(self, *_: Any) -> None:
        FakeHttp.closed += 1


@contextmanager
def server_with(monkeypatch: pytest.MonkeyPatch, ids: tuple[int, ...] | None) -> Iterator[None]:
    class FakeServer:
        def __init__(self, http: Any) -> None:
            self.http = http

        async def render(self, prompt: Prompt) -> Rendering:
            assert prompt.text == (prompt.messages or ())[0].content
            return Rendering("count", "", ids=ids)

    async def connect(http: Any) -> FakeServer:
        return FakeServer(http)

    monkeypatch.setattr("verifier.servers.connections.Http", FakeHttp)
    monkeypatch.setattr("verifier.servers.connections.connect", connect)
    FakeHttp.opened = FakeHttp.closed = 0
    yield
    assert FakeHttp.opened == FakeHttp.closed == 1


def test_a_server_counts_what_it_would_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_with(monkeypatch, (2, 10, 11)), token_counter.server_counter(":30001") as count:
        assert count("any") == 3


def test_a_server_that_tells_no_ids_cannot_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        server_with(monkeypatch, None),
        token_counter.server_counter(":30001") as count,
        pytest.raises(ServerError, match="does not report the token ids"),
    ):
        count("any")


def test_the_estimate_is_of_the_right_size() -> None:
    assert token_counter.estimate("x" * 4400) == 1000
