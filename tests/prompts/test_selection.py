"""Choosing prompts: combined, filtered, sampled; the same choice for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from verifier.cli.prompts import command
from verifier.errors import PromptSetError
from verifier.prompts.selection import LONGEST_NAME, Filter, Selection, sample, sample_ids, stats
from verifier.prompts.sets import Prompts
from verifier.records import Prompt


def made(size: int, categories: int = 3) -> list[Prompt]:
    return [
        Prompt(id=f"p{n}", category=f"c{n % categories}", language="zh-Hant" if n % 2 else "en", text=f"t{n}")
        for n in range(size)
    ]


def write(path: Path, prompts: list[Prompt]) -> Path:
    lines = [{"id": p.id, "category": p.category, "language": p.language, "prompt": p.text} for p in prompts]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_selection_can_be_gone_through_again_and_again() -> None:
    selection: Prompts = Selection(["seed8"])
    assert (selection.name, len(selection)) == ("seed8", 8)
    assert list(selection) == list(selection)


def test_sets_and_files_are_combined_in_order(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.jsonl", made(3))
    selection = Selection(["seed8", mine])
    assert [prompt.id for prompt in selection][-3:] == ["p0", "p1", "p2"]
    assert selection.name == "seed8+mine"
    assert len(selection) == 11


def test_filters_are_or_within_a_field_and_and_between_fields() -> None:
    chosen = list(Selection(["tasks"], keep=Filter(categories=("code", "json"), languages=("zh",))))
    assert {prompt.category for prompt in chosen} == {"json"}
    assert {prompt.language for prompt in chosen} == {"zh"}
    both = Selection(["tasks"], keep=Filter(categories=("code", "json")))
    assert Counter(prompt.category for prompt in both) == {"code": 13, "json": 13}
    tables = Selection(["tasks"], keep=Filter(tags=("table",)))
    assert all("table" in prompt.tags for prompt in tables)


def test_a_language_keeps_its_variants() -> None:
    keep = Filter(languages=("ZH",))
    assert keep.keeps(Prompt(id="a", language="zh-Hant", text="x"))
    assert keep.keeps(Prompt(id="a", language="zh", text="x"))
    assert not keep.keeps(Prompt(id="a", language="zha", text="x"))


def test_a_filter_that_keeps_nothing_says_what_there_is() -> None:
    with pytest.raises(PromptSetError, match=r"No prompt matches category=cod(.|\n)*categories: .*code"):
        Selection(["tasks"], keep=Filter(categories=("cod",)))
    with pytest.raises(PromptSetError, match="No prompt matches id=nobody"):
        Selection(["seed8"], keep=Filter(ids=("nobody",)))
    with pytest.raises(PromptSetError, match="There are these tags: none"):
        Selection(["seed8"], keep=Filter(tags=("x",)))


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 1000), st.randoms())
def test_a_sample_depends_on_seed_and_ids_and_not_on_order(size: int, wanted: int, seed: int, random: Random) -> None:
    prompts = made(size)
    shuffled = list(prompts)
    random.shuffle(shuffled)
    chosen = sample_ids(prompts, wanted, seed)
    assert chosen == sample_ids(shuffled, wanted, seed)
    assert len(chosen) == min(wanted, size)
    assert [p for p in prompts if p.id in chosen] == sample(prompts, wanted, seed)


@given(st.integers(1, 60), st.integers(1, 59), st.integers(0, 1000))
def test_a_larger_sample_holds_the_smaller_one(size: int, wanted: int, seed: int) -> None:
    assert sample_ids(made(size), wanted, seed) <= sample_ids(made(size), wanted + 1, seed)


def test_another_seed_gives_another_sample() -> None:
    assert len({sample_ids(made(60), 9, seed) for seed in range(20)}) > 15


def test_a_sample_is_spread_over_the_categories() -> None:
    chosen = Selection(["tasks"], size=40)
    counts = Counter(prompt.category for prompt in chosen)
    assert len(chosen) == 40
    assert len(counts) == 13
    assert set(counts.values()) <= {3, 4}


def test_a_sample_keeps_pairs_together() -> None:
    chosen = Selection(["parameters"], keep=Filter(categories=("repetition-penalty",)), size=6, seed=4)
    pairs = Counter(tag for prompt in chosen for tag in prompt.tags if tag.startswith("pair:"))
    assert set(pairs.values()) == {2}


def test_every_part_of_a_choice_changes_the_digest() -> None:
    choices = [
        Selection(["tasks"]),
        Selection(["tasks"], size=20),
        Selection(["tasks"], size=20, seed=1),
        Selection(["tasks"], keep=Filter(categories=("code",))),
        Selection(["tasks", "copying"]),
    ]
    assert len({selection.digest for selection in choices}) == len(choices)
    assert len({selection.name for selection in choices}) == len(choices)


def test_a_name_is_fit_for_a_folder() -> None:
    selection = Selection(["seed8"], keep=Filter(languages=("en", "../" * 90, "\x1b[2J x")))
    assert "/" not in selection.name
    assert len(selection.name) <= LONGEST_NAME


def test_an_id_that_is_used_twice_is_named_with_both_places(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.jsonl", made(2)), write(tmp_path / "other.jsonl", made(1))
    with pytest.raises(PromptSetError, match=r"other\.jsonl, line 1, field `id`: 'p0' was used on line 1 of .*one"):
        Selection([one, other])


def test_problems_of_all_files_are_listed_but_not_without_end(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("x\n" * 500, encoding="utf-8")
    with pytest.raises(PromptSetError) as caught:
        Selection([bad])
    assert caught.value.message.count("\n") == 10


@pytest.mark.parametrize("size", [0, -1])
def test_a_sample_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(PromptSetError, match="least is 1"):
        Selection(["seed8"], size=size)


def test_no_source_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(PromptSetError, match="holds no prompt"):
        Selection([tmp_path / "empty.jsonl"])
    with pytest.raises(PromptSetError, match="no file"):
        Selection([])
    with pytest.raises(PromptSetError, match="There is no prompt set 'nope'"):
        Selection(["nope"])


def test_a_file_that_changes_under_the_run_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", made(3))
    selection = Selection([path])
    path.write_text("broken\n", encoding="utf-8")
    with pytest.raises(PromptSetError, match="changed while"):
        list(selection)


def test_stats_count_by_category_in_the_order_of_the_set() -> None:
    groups = stats(Selection(["seed8"]))
    assert [group.category for group in groups][:2] == ["common-sense", "arithmetic"]
    assert all((group.prompts, group.raw, group.chat, group.max_tokens) == (1, 1, 1, None) for group in groups)
    (ladder,) = [group for group in stats(Selection(["endings"])) if group.category == "short-limits"]
    assert ladder.max_tokens == (1, 5)
    assert ladder.languages == ("en", "zh")
    assert stats([]) == ()


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == code, result.output
    return result.output


def test_list_names_every_set() -> None:
    assert {row["name"] for row in json.loads(run("list", "--json"))} >= {"seed8", "tasks", "unicode"}
    assert "near-ties" in run("list")


def test_show_prints_prompts_that_are_a_set_again(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(run("show", "tasks", "--category", "json", "--sample", "4", "--json").encode())
    assert list(Selection([path])) == list(Selection(["tasks"], keep=Filter(categories=("json",)), size=4))
    shown = run("show", "endings", "--id", "stop-strings-inside-a-count")
    assert "at most 128 tokens" in shown
    assert '", 27,"' in shown


def test_what_a_prompt_holds_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "evil.jsonl", [Prompt(id="a", category="\x1b[31m", text="\x1b]0;title\x07[bold]")])
    for output in (run("show", str(path)), run("stats", str(path))):
        assert "\x1b" not in output
        assert "\x07" not in output
    assert "[bold]" in run("show", str(path))


def test_stats_gives_one_row_a_category() -> None:
    rows = json.loads(run("stats", "tasks", "--language", "zh", "--json"))["categories"]
    assert all("zh" in row["languages"] for row in rows)
    assert "all" in run("stats", "seed8", "copying")


def test_validate_names_what_is_wrong_and_says_it_by_its_exit_code(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "prompt": "x", "max_tokens": -1}\n', encoding="utf-8")
    assert "line 1, field `max_tokens`" in run("validate", "seed8", str(bad), code=2)
    report = json.loads(run("validate", "seed8", str(bad), "--json", code=2))
    assert [file["valid"] for file in report] == [True, False]
    assert json.loads(run("validate", "--schema"))["$id"].startswith("urn:lossless:prompt:")


def test_make_writes_a_set_of_the_asked_lengths(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    run("make", "long", "--tokens", "900,1800", "--seed", "3", "-o", str(path))
    tags = Counter(tag for prompt in Selection([path]) for tag in prompt.tags if tag.startswith("tokens:"))
    assert tags == {"tokens:900": 3, "tokens:1800": 3}
    first = path.read_bytes()
    run("make", "long", "--tokens", "900,1800", "--seed", "3", "-o", str(path))
    assert path.read_bytes() == first
