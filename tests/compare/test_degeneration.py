"""Signs of breakdown are found where they are, and repetition that people ask for is left alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.compare import cycles as cycles_module
from verifier.compare.cycles import Cycle, cycles, word_ids
from verifier.compare.degeneration import (
    Sign,
    cut_sentence,
    degeneration,
    foreign_scripts,
    loops,
    scripts_in,
    special_tokens,
)
from verifier.records import Arm, Completion, Finish

EOS = 1


def answer(
    text: str = "",
    ids: Sequence[int] | None = None,
    *,
    finish: Finish = "length",
    arm: Arm = "spec",
    stop: str | int | None = None,
    surplus: int = 0,
) -> Completion:
    return Completion("p", arm, 0, "", text, finish, None if ids is None else tuple(ids), stop=stop, surplus=surplus)


def plain(length: int, seed: int = 0) -> list[int]:
    """Ids without any repetition."""
    return random.Random(seed).sample(range(1000, 1000 + 4 * length), length)


def kinds(signs: Sequence[Sign]) -> list[str]:
    return [sign.kind for sign in signs]


def naive_cycles(ids: Sequence[int], shortest: int, longest_period: int) -> list[Cycle]:
    found: dict[tuple[int, int], int] = {}
    for period in range(1, longest_period + 1):
        start = None
        for i in range(period, len(ids) + 1):
            same = i < len(ids) and ids[i] == ids[i - period]
            if same and start is None:
                start = i - period
            if not same and start is not None:
                if i - start >= max(shortest, 2 * period):
                    found.setdefault((start, i), period)
                start = None
    return sorted(Cycle(start, end, period) for (start, end), period in found.items())


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(1, 12),
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(2, 20),
    st.integers(1, 9),
)
def test_cycles_are_those_of_the_definition(
    before: list[int], once: list[int], times: int, behind: list[int], shortest: int, longest_period: int
) -> None:
    ids = before + once * times + behind
    assert cycles(ids, shortest, longest_period) == naive_cycles(ids, shortest, longest_period)


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(2, 6), st.integers(0, 100), st.integers(0, 100))
def test_a_planted_cycle_is_found_with_its_place_period_and_repeats(
    period: int, repeats: int, before: int, behind: int
) -> None:
    ids = plain(before + period + behind)
    once = ids[before : before + period]
    found = cycles([*ids[:before], *once * repeats, *ids[before + period :]], shortest=2)
    assert found == [Cycle(before, before + period * repeats, period)]
    assert found[0].repeats == repeats


def test_two_cycles_close_together_are_each_found_once() -> None:
    assert cycles([*[1, 2] * 20, 99, *[1, 2] * 20], shortest=24) == [Cycle(0, 40, 2), Cycle(41, 81, 2)]


def test_a_period_of_65_is_not_looked_for() -> None:
    assert cycles(plain(65) * 4, shortest=48) == []
    assert cycles(plain(64) * 4, shortest=48) == [Cycle(0, 256, 64)]


def test_an_incomplete_last_repeat_belongs_to_the_cycle() -> None:
    assert cycles([*plain(10) * 5, *plain(10)[:7]], shortest=20) == [Cycle(0, 57, 10)]
    assert Cycle(0, 57, 10).repeats == 5


def test_cycles_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    ids = [*plain(50), *[rng.randrange(3) for _ in range(300)], *plain(7) * 12, *plain(30)]
    expected = cycles(ids, 16)
    monkeypatch.setattr(cycles_module, "MOST_COMPARED_AT_ONCE", 1000)
    assert cycles(ids, 16) == expected
    assert Cycle(350, 434, 7) in expected


@pytest.mark.parametrize("vocabulary", [2, 60, 50_000])
def test_comparisons_are_at_most_64_a_token_and_few_in_ordinary_text(
    vocabulary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 131_072
    compared = 0
    within = cycles_module._cycles_within

    def counting(units: np.ndarray, lead: int, offset: int, shortest: int, longest: int) -> list[Cycle]:
        nonlocal compared
        compared += len(units)
        return within(units, lead, offset, shortest, longest)

    monkeypatch.setattr(cycles_module, "_cycles_within", counting)
    cycles(np.random.default_rng(1).integers(0, vocabulary, length).tolist(), 24)
    # A stretch is at least 12 long and brings at most 64 units of lead with it.
    assert compared <= length * (1 + 64 / 12)
    if vocabulary == 50_000:
        assert compared == 0


def test_no_ids_and_few_ids_have_no_cycles() -> None:
    assert cycles([], 2) == []
    assert cycles([7], 2) == []
    assert cycles([7, 7], 2) == [Cycle(0, 2, 1)]


@pytest.mark.parametrize("period", [2, 3, 7, 12, 16])
def test_a_loop_into_the_cut_is_a_sign(period: int) -> None:
    spec = [*plain(40), *plain(period, 1) * 30]
    (sign,) = loops(answer(ids=plain(100)), answer(ids=spec))
    assert sign == Sign(
        "cycle", 40, 40 + 30 * period, "token", period, 30, f"{period} token(s) repeated 30 times, to the end"
    )


def test_one_id_to_the_end_is_a_sign() -> None:
    (sign,) = loops(answer(ids=plain(100)), answer(ids=[*plain(40), *[0] * 60]))
    assert (sign.kind, sign.start, sign.end, sign.period, sign.repeats) == ("repeated-id", 40, 100, 1, 60)


@pytest.mark.parametrize(
    ("once", "times", "is_loop"),
    [
        ([5], 23, False),
        ([5], 24, True),
        ([5, 6], 23, False),
        ([5, 6], 24, True),
        (plain(16), 3, False),
        (plain(16), 4, True),
        (plain(60), 3, False),
        (plain(60), 4, True),
    ],
)
def test_thresholds_of_a_loop_into_the_cut(once: list[int], times: int, is_loop: bool) -> None:
    assert bool(loops(answer(ids=plain(100)), answer(ids=[*plain(40, 9), *once * times]))) is is_loop


@pytest.mark.parametrize(
    ("once", "times", "is_loop"),
    [
        ([5], 127, False),
        ([5], 128, True),
        ([5, 6], 64, False),
        ([5, 6], 65, True),
        (plain(40), 7, False),
        (plain(40), 8, True),
    ],
)
def test_thresholds_of_a_loop_that_the_answer_left(once: list[int], times: int, is_loop: bool) -> None:
    spec = [*plain(40, 9), *once * times, *plain(40, 8)]
    assert bool(loops(answer(ids=plain(100)), answer(ids=spec))) is is_loop
    # Ending by itself right behind the repetition is leaving it, too.
    ended = [*plain(40, 9), *once * times, EOS]
    assert bool(loops(answer(ids=plain(100)), answer(ids=ended, finish="eos"))) is is_loop


def test_a_loop_on_both_sides_is_no_sign() -> None:
    ref = answer(ids=[*plain(60), *plain(9, 1) * 20])
    assert loops(ref, answer(ids=[*plain(30, 2), *plain(9, 1) * 24])) == ()
    # Another loop than the reference's: which one a model falls into is a matter of one tie.
    assert loops(ref, answer(ids=[*plain(30, 2), *plain(13, 3) * 16])) == ()


def test_the_same_repetition_elsewhere_and_turned_is_no_sign() -> None:
    row = plain(10, 1)
    ref = answer(ids=[*plain(40), *row * 15, *plain(40, 2)])
    turned = row[4:] + row[:4]
    assert loops(ref, answer(ids=[*plain(33, 3), *turned * 16, *plain(9, 4)])) == ()
    # It goes on for more than twice as long: it never got out.
    assert kinds(loops(ref, answer(ids=[*plain(33, 3), *turned * 40]))) == ["cycle"]


def test_a_sentence_said_twice_in_the_reference_does_not_excuse_a_loop() -> None:
    ref = answer(ids=[*plain(40), *plain(20, 1) * 2])
    assert kinds(loops(ref, answer(ids=[*plain(40), *plain(9, 2) * 20]))) == ["cycle"]
    thrice = answer(ids=[*plain(40), *plain(20, 1) * 3])
    assert loops(thrice, answer(ids=[*plain(40), *plain(9, 2) * 20])) == ()


def test_a_table_in_the_reference_does_not_excuse_another_loop() -> None:
    ref = answer(ids=[*plain(40), *[5, 6] * 30, *plain(40, 2)])
    assert kinds(loops(ref, answer(ids=[*plain(40), *plain(9, 1) * 20]))) == ["cycle"]


def test_the_end_token_and_surplus_do_not_hide_a_loop_of_the_reference() -> None:
    row = plain(6, 1)
    ref = answer(ids=[*plain(40), *row * 12, EOS, 77, 78], finish="eos", surplus=2)
    assert loops(ref, answer(ids=[*plain(40), *plain(5, 2) * 14])) == ()


ORDINARY = {
    "table": "| name | value | unit |\n| --- | --- | --- |\n"
    + "".join(f"| row {i} | {i * 7} | kg |\n" for i in range(30)),
    "wide separator": "|" + " --- |" * 12 + "\n",
    "laughter": "And they all went ha ha ha ha ha ha ha ha ha ha!",
    "numbers": ", ".join(str(n) for n in range(200)),
    "list": "\n".join(f"- item number {i} of the list" for i in range(60)),
    "zeros": "[[0, 0, 0, 0, 0, 0],\n" + " [0, 0, 0, 0, 0, 0],\n" * 5 + "]",
    "code": "def f(x):\n" + "".join(f"    if x == {i}:\n        return {i + 1}\n" for i in range(30)),
    "same lines": "print('hello')\n" * 6,
    "rule": "Title\n" + "-" * 80 + "\nText",
    "googol": "1" + "0" * 100 + " is a googol",
    "chorus": "Row, row, row your boat, gently down the stream, life is but a dream.\n" * 3,
    "decimals": "1/3 = 0." + "3" * 60 + " and so on",
}


@pytest.mark.parametrize("finish", ["eos", "length"])
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_repetition_is_no_sign(name: str, finish: Finish) -> None:
    text = ORDINARY[name]
    if name in ("wide separator", "laughter", "same lines", "zeros"):
        text += "\nThat is all."
    ref = answer("A short and quite different answer.", finish="eos")
    assert degeneration(ref, answer(text, finish=finish)) == ()
    table: dict[str, int] = {}
    ref_ids, spec_ids = word_ids(ref.text, table), word_ids(text, table)
    assert degeneration(answer(ref.text, ref_ids, finish="eos"), answer(text, spec_ids, finish=finish)) == ()


def test_text_alone_shows_loops_in_words() -> None:
    ref = answer("The quick brown fox jumps over the lazy dog. " * 2)
    (sign,) = loops(ref, answer("It began well. " + "of the " * 40))
    # "It", " ", "began", " ", "well", "." come before; the space behind belongs to the cycle.
    assert (sign.kind, sign.unit, sign.period, sign.start) == ("cycle", "word", 4, 6)
    (sign,) = loops(ref, answer("It began well. " + "a" * 500))
    assert (sign.kind, sign.period) == ("repeated-id", 1)
    (sign,) = loops(ref, answer("东京是日本的首都" + "大大小小" * 60))
    assert (sign.kind, sign.period) == ("cycle", 4)


def test_ids_on_one_side_only_are_not_compared_with_words() -> None:
    assert kinds(loops(answer("calm"), answer("x " + "no no yes " * 40, ids=plain(99)))) == ["cycle"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=300), st.sampled_from(["eos", "length"]))
def test_an_answer_equal_to_the_reference_has_no_sign(ids: list[int], finish: Finish) -> None:
    text = "".join("ab <pad>жλ\n"[token] for token in ids)
    assert degeneration(answer(text, ids, finish=finish), answer(text, ids, finish=finish)) == ()


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_can_be_compared(ref: str, spec: str) -> None:
    for sign in degeneration(answer(ref, finish="eos"), answer(spec, finish="eos")):
        assert 0 <= sign.start <= sign.end
        if sign.unit == "char":
            assert sign.end <= len(spec)


@pytest.mark.parametrize("piece", ["<|im_start|>", "<bos>", "<pad>", "[INST]"])
def test_special_pieces_spelled_out_are_a_sign_unless_asked_about(piece: str) -> None:
    spec = answer(f"Paris.{piece} user")
    (sign,) = special_tokens(answer("Paris."), spec)
    assert (sign.start, sign.end, sign.unit) == (6, 6 + len(piece), "char")
    assert piece in sign.detail
    assert special_tokens(answer("Paris."), spec, prompt_text=f"What is {piece}?") == ()
    assert special_tokens(answer(f"It is {piece}"), spec) == ()


def test_strikethrough_is_not_a_special_token() -> None:
    assert special_tokens(answer("old"), answer("<s>old</s> new")) == ()


def test_a_script_of_neither_prompt_nor_reference_is_a_sign() -> None:
    (sign,) = foreign_scripts("The capital is Paris.", "The capital is 因此我们 Paris.")
    assert (sign.kind, sign.start, sign.end) == ("script", 15, 19)
    assert "4 letters of Han" in sign.detail
    assert kinds(foreign_scripts("Париж.", "Париж. தமிழ்நாடு")) == ["script"]


def test_foreign_letters_that_are_no_sign() -> None:
    ref = "The angle is 90 degrees."
    for spec in (
        "The angle α plus β plus γ plus δ plus ε is π.",
        "Tokyo 東京 is large.",
        "Moscow (Москва) is large.",
        "He said “Привет мир” to me.",
        "5 µm, 3 Ω, ℵ₀ and ∑ 🙂",
        "naïve café Ærø ſ",
    ):
        assert foreign_scripts(ref, spec) == (), spec
    assert foreign_scripts(ref, "Привет мир", prompt_text="Say hello in Русский") == ()
    assert foreign_scripts("Привет", "Здравствуй мир") == ()


def test_four_letters_are_the_least() -> None:
    assert foreign_scripts("ok", "ok где") == ()
    assert kinds(foreign_scripts("ok", "ok гдее")) == ["script"]


def test_kana_and_kanji_go_together_and_hangul_and_han_do_not() -> None:
    assert foreign_scripts("これはペンです", "東京都庁舎です") == ()
    assert kinds(foreign_scripts("안녕하세요 여러분", "안녕하세요 因此我们")) == ["script"]


def test_latin_is_foreign_only_when_whole_sentences_are() -> None:
    ref = "这是一个很好的问题。"
    assert foreign_scripts(ref, "这是 Python 和 SGLang 的问题。") == ()
    assert kinds(foreign_scripts(ref, "这是 the answer that was never asked for, in another language altogether.")) == [
        "script"
    ]


def test_a_reference_in_many_scripts_expects_more() -> None:
    ref = "Hello, Привет, Γειά σου, 你好"
    assert foreign_scripts(ref, ref + ", สวัสดีครับ") == ()
    assert kinds(foreign_scripts("Hello, Привет, Γειά", "Hello, Привет, Γειά, สวัสดีครับ")) == ["script"]


def test_scripts_leave_common_and_inherited_out() -> None:
    assert scripts_in("1 + 2 = 3!?\u0301 🙂 µ") == frozenset()
    assert scripts_in("aж漢あ") == {"Latin", "Cyrillic", "Han", "Hiragana"}


@pytest.mark.parametrize(
    ("ref", "spec"),
    [
        ("The cat sat on the mat and slept.", "The cat sat on the"),
        ("The cat sat on the mattress.", "The cat sat on the mat"),
        ("The cat sat on the mat, and slept.", "The cat sat on the mat"),
        ("Az őzek futnak.", "Az őze"),
        ("It was warm.", "It was cold and then we went to,"),
        ("It was warm.", "It was cold (very"[:13]),
        ("```python\nx = 1\n```\nDone.", "```python\ny = 1\n"),
    ],
)
def test_an_end_in_the_middle_of_a_sentence_is_a_sign(ref: str, spec: str) -> None:
    (sign,) = cut_sentence(answer(ref, finish="eos"), answer(spec, finish="eos"))
    assert (sign.kind, sign.start, sign.end, sign.unit) == ("cut", len(spec), len(spec), "char")


@pytest.mark.parametrize(
    ("ref", "spec"),
    [
        ("This will output `55`.", "This will output: 55"),
        ("This will output 55.", "This will output 55"),
        ("Paris is the capital.", "Paris"),
        ("One. Two.", "One."),
        ("One.\nTwo.", "One.\n"),
        ('He said "no." and left for good.', 'He said "no."'),
        ("Kind regards,\n[Your Name]", "Best regards,"),
        ("- a\n- b\n- c", "- a\n- b"),
        ("東京は大きいです。", "東京は大きい"),
        ("It ended so:", "It was meant to end so:"),
        ("", ""),
        ("Something.", ""),
    ],
)
def test_ends_that_prove_nothing(ref: str, spec: str) -> None:
    assert cut_sentence(answer(ref, finish="eos"), answer(spec, finish="eos")) == ()


def test_a_cut_that_was_asked_for_is_no_sign() -> None:
    ref = answer("The cat sat on the mat and slept.", finish="eos")
    assert cut_sentence(ref, answer("The cat sat on the", finish="length")) == ()
    assert cut_sentence(ref, answer("The cat sat on the", finish="stop", stop=" mat")) == ()
    assert kinds(cut_sentence(ref, answer("The cat sat on the", finish="stop", stop=7))) == ["cut"]
    cut_reference = answer("It was warm and", finish="length")
    assert cut_sentence(cut_reference, answer("It was cold and then we went to,", finish="eos")) == ()


def test_every_kind_of_sign_comes_together() -> None:
    ref = answer("A calm answer.", [*plain(20), EOS], finish="eos")
    spec = answer("A calm <pad> привет answer that goes on and on,", [*plain(20), 2, *[9] * 200, EOS], finish="eos")
    assert kinds(degeneration(ref, spec)) == [
        "repeated-id", "special-token", "script", "cut",
    ]  # fmt: skip
