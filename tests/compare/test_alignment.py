"""`align`: by token or by grapheme, with the texts of every span and the first difference."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.compare.alignment import Answer, align
from verifier.compare.characters import clusters
from verifier.compare.reconvergence import minimum_run
from verifier.judging.gathering import with_pieces
from verifier.records import Alignment, Arm, Completion, Finish, Position, Reconvergence, Span

PARAGRAPH = "\nThe list is sorted in place, and the function returns nothing, as is usual in Python."
VOCABULARY: dict[str, int] = {}


def pieces_of(text: str) -> list[str]:
    """Words with the space before them, and single marks: the shape of real tokens."""
    return re.findall(r" ?\w+|\W", text)


def tokens(text: str, *, pieces: bool = True) -> Answer:
    parts = pieces_of(text)
    ids = [VOCABULARY.setdefault(part, len(VOCABULARY) + 1) for part in parts]
    return Answer(text, ids, parts if pieces else None)


def swapped(alignment: Alignment) -> Alignment:
    """What `align` has to say with the sides swapped."""
    first, again = alignment.first, alignment.reconvergence
    return Alignment(
        unit=alignment.unit,
        ref_length=alignment.spec_length,
        spec_length=alignment.ref_length,
        spans=tuple(
            Span(s.spec_start, s.spec_end, s.ref_start, s.ref_end, s.spec_text, s.ref_text, s.refined)
            for s in alignment.spans
        ),
        reconvergence=Reconvergence(
            again.kind, None if again.shift is None else -again.shift, again.spec_at, again.ref_at
        ),
        first=first
        and Position(
            first.char,
            first.grapheme,
            first.line,
            first.column,
            first.token,
            first.before,
            first.spec_text,
            first.ref_text,
        ),
        inserted=alignment.deleted,
        deleted=alignment.inserted,
        replaced=alignment.replaced,
        equal_before=alignment.equal_before,
        equal_after=alignment.equal_after,
        note=alignment.note,
    )


TEXTS = st.text(st.sampled_from("ab \n.é\u0301👍🏽"), max_size=30)


@settings(deadline=None)
@given(TEXTS, TEXTS, st.booleans(), st.booleans())
def test_swapped_sides_mirror_the_alignment(ref: str, spec: str, ids: bool, pieces: bool) -> None:
    if ids:
        left, right = tokens(ref, pieces=pieces), tokens(spec, pieces=pieces)
    else:
        left, right = Answer(ref), Answer(spec)
    assert align(right, left) == swapped(align(left, right))


@settings(deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_counts_add_up(ref: str, spec: str, ids: bool) -> None:
    left, right = (tokens(ref), tokens(spec)) if ids else (Answer(ref), Answer(spec))
    found = align(left, right)
    assert found.equal_before + found.equal_after + found.replaced + found.deleted == found.ref_length
    assert found.equal_before + found.equal_after + found.replaced + found.inserted == found.spec_length
    assert bool(found.spans) == (ref != spec) == (found.first is not None)
    if found.spans:
        assert found.first is not None
        assert found.equal_before == found.spans[0].ref_start
        assert found.first.token == (found.equal_before if ids else None)
        assert ids or found.first.grapheme == found.equal_before


@settings(deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_span_texts_replaced_in_ref_give_spec(ref: str, spec: str, ids: bool) -> None:
    left, right = (tokens(ref), tokens(spec)) if ids else (Answer(ref), Answer(spec))
    units = (left.pieces or []) if ids else clusters(ref)
    out, at = [], 0
    for span in align(left, right).spans:
        assert span.ref_text == "".join(units[span.ref_start : span.ref_end])
        out += [*units[at : span.ref_start], span.spec_text]
        at = span.ref_end
    assert "".join([*out, *units[at:]]) == spec


def test_identical_answers() -> None:
    answer = tokens("The same.")
    assert align(answer, tokens("The same.")) == Alignment("token", 3, 3, (), Reconvergence("none"), equal_before=3)
    assert align(Answer(""), Answer("")) == Alignment("grapheme", 0, 0, (), Reconvergence("none"))
    assert align(Answer("", []), Answer("", [])).unit == "token"


def test_one_line_that_differs_and_the_same_paragraph_after_it() -> None:
    ref, spec = "Run it.\nThis will output: 55" + PARAGRAPH, "Run it.\nThis will output `55`." + PARAGRAPH
    found = align(tokens(ref), tokens(spec))
    assert found.unit == "token"
    assert [(span.ref_text, span.spec_text) for span in found.spans] == [(": 55", " `55`.")]
    assert found.spans[0] == Span(7, 9, 7, 12, ": 55", " `55`.")
    assert found.reconvergence == Reconvergence("tail-sync", 3, 9, 12)
    assert (found.inserted, found.deleted, found.replaced) == (3, 0, 2)
    assert found.first is not None
    assert (found.first.token, found.first.char, found.first.line, found.first.column) == (7, 24, 2, 17)
    assert found.first.before == "Run it.\nThis will output"
    assert found.first.ref_text.startswith(": 55\nThe list")
    assert found.note == ""
    by_grapheme = align(Answer(ref), Answer(spec))
    assert by_grapheme.unit == "grapheme"
    assert (by_grapheme.reconvergence.kind, by_grapheme.reconvergence.shift) == ("tail-sync", 2)
    line_end = ref.index("\nThe list")
    assert all(24 <= span.ref_start <= span.ref_end <= line_end for span in by_grapheme.spans)
    assert by_grapheme.first is not None
    assert by_grapheme.first.token is None


def test_without_pieces_one_span_gets_the_characters_that_differ() -> None:
    ref, spec = "It prints 55 here." + PARAGRAPH, "It prints `55` here." + PARAGRAPH
    found = align(tokens(ref, pieces=False), tokens(spec, pieces=False))
    assert [(span.ref_text, span.spec_text) for span in found.spans] == [("55", "`55`")]
    one_sided = align(tokens(ref), tokens(spec, pieces=False))
    assert [(span.ref_text, span.spec_text) for span in one_sided.spans] == [(" 55", "`55`")]
    accents = align(
        Answer("cafe\u0301s", [1, 2, 3]),
        Answer("cafe\u0300s", [1, 4, 3]),
    )
    assert [(span.ref_text, span.spec_text) for span in accents.spans] == [("e\u0301", "e\u0300")]


def test_without_pieces_several_spans_get_their_texts_where_the_places_match() -> None:
    ref, spec = "One apple, then two pears, then more.", "One grape, then two plums, then more."
    found = align(tokens(ref, pieces=False), tokens(spec, pieces=False))
    assert [(s.ref_start, s.ref_end) for s in found.spans] == [(1, 2), (5, 6)]
    # The characters that differ, not the whole words: the last letters are common.
    assert [(s.ref_text, s.spec_text) for s in found.spans] == [("appl", "grap"), ("ear", "lum")]


def test_without_pieces_texts_that_do_not_match_up_stay_empty() -> None:
    # Two tokens differ, but the text only in one place: which of them it belongs to is not known.
    found = align(Answer("abcdef", [1, 2, 3, 4]), Answer("abxdef", [1, 9, 3, 8]))
    assert [(s.ref_text, s.spec_text) for s in found.spans] == [("", ""), ("", "")]
    # More places than spans.
    found = align(Answer("a---b---c", [1, 2, 3, 4]), Answer("d---e---f", [5, 2, 3, 6]))
    assert [(s.ref_text, s.spec_text) for s in found.spans] == [("", ""), ("", "")]
    # As many places as spans, but too few characters between them for the tokens between.
    found = align(Answer("a---b", [1, 2, 3, 4, 5, 9]), Answer("c---d", [6, 2, 3, 4, 5, 7]))
    assert [(s.ref_text, s.spec_text) for s in found.spans] == [("", ""), ("", "")]


def test_equal_ids_with_different_text() -> None:
    found = align(Answer("caf\u00e9", [1, 2]), Answer("cafe\u0301", [1, 2]))
    assert found.spans == ()
    assert found.reconvergence == Reconvergence("none")
    assert found.equal_before == 2
    assert found.first is not None
    assert found.first.token is None
    assert (found.first.char, found.first.ref_text, found.first.spec_text) == (3, "\u00e9", "e\u0301")
    assert found.note == "same tokens, different text; same after NFC"
    assert align(Answer("ab", [1]), Answer("ac", [1])).note == "same tokens, different text"


def test_equal_text_with_different_ids() -> None:
    ref = Answer("say hello", [1, 2, 3], ["say", " hel", "lo"])
    spec = Answer("say hello", [1, 4], ["say", " hello"])
    found = align(ref, spec)
    assert found.spans == (Span(1, 3, 1, 2, " hello", " hello"),)
    assert found.first is not None
    assert (found.first.token, found.first.char, found.first.column) == (1, 3, 4)
    assert (found.first.before, found.first.ref_text, found.first.spec_text) == ("say", " hello", " hello")
    assert found.note == "same text, different tokens"
    bare = align(Answer("say hello", [1, 2, 3]), Answer("say hello", [1, 4]))
    assert bare.spans == (Span(1, 3, 1, 2),)
    assert bare.first is not None
    assert (bare.first.token, bare.first.char, bare.first.ref_text) == (1, 9, "")


def test_an_end_token_on_one_side_only_is_a_difference_without_text() -> None:
    found = align(Answer("ab", [1, 2, 99], ["a", "b", "</s>"]), Answer("ab", [1, 2], ["a", "b"]))
    assert found.spans == (Span(2, 3, 2, 2, "</s>", ""),)
    assert found.first is not None
    assert (found.first.token, found.first.char) == (2, 2)
    assert found.reconvergence == Reconvergence("none")


def test_ids_on_one_side_only_compare_by_grapheme() -> None:
    found = align(tokens("a\r\nb"), Answer("a\r\nc"))
    assert (found.unit, found.ref_length, found.spans) == ("grapheme", 3, (Span(2, 3, 2, 3, "b", "c"),))
    assert found.first is not None
    assert (found.first.char, found.first.grapheme, found.first.line, found.first.token) == (3, 2, 2, None)


@pytest.mark.parametrize(
    ("ref", "spec", "differing"),
    [
        ("价格是五元。", "价格是六元。", ("五", "六")),
        ("한국어 문장", "한국말 문장", ("어", "말")),
        ("\u1112\u1161\u11ab", "\u1112\u1161", ("\u1112\u1161\u11ab", "\u1112\u1161")),
        ("यह क्षमा है", "यह क्षेमा है", ("क्ष", "क्षे")),
        ("a👩\u200d👩\u200d👧b", "a👩\u200d👩\u200d👦b", ("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👦")),
        ("👍🏽!", "👍🏿!", ("👍🏽", "👍🏿")),
        ("🇩🇪 🇫🇷", "🇩🇪 🇫🇮", ("🇫🇷", "🇫🇮")),
        ("e\u0301 x", "e\u0300 x", ("e\u0301", "e\u0300")),
        ("שלום עולם", "שלום עולמ", ("ם", "מ")),
        ("a\r\nb", "a\nb", ("\r\n", "\n")),
        ("x\ud800y", "x\udc00y", ("\ud800", "\udc00")),
        ("ab\ufffd", "ab\ufffd\ufffd", ("", "\ufffd")),
        ("ok \ufffd", "ok 👍", ("\ufffd", "👍")),
    ],
)
def test_spans_are_whole_characters(ref: str, spec: str, differing: tuple[str, str]) -> None:
    found = align(Answer(ref), Answer(spec))
    assert [(span.ref_text, span.spec_text) for span in found.spans] == [differing]
    assert found.first is not None
    assert found.first.grapheme == found.spans[0].ref_start
    assert found.first.ref_text.startswith(differing[0])
    assert found.first.spec_text.startswith(differing[1])


def test_two_spellings_differ_and_say_that_nfc_makes_them_the_same() -> None:
    for ref, spec in (
        (Answer("é\u0301".replace("é", "e")), Answer("é")),
        (Answer("e\u0301", [1]), Answer("é", [2])),
    ):
        found = align(ref, spec)
        assert len(found.spans) == 1
        assert found.note == "same after NFC"
    assert align(Answer("cafe\u0301 a"), Answer("café b")).note == ""


def test_tokens_that_are_parts_of_a_character_get_the_whole_of_it() -> None:
    ref = Answer("ok 👍 yes", [1, 2, 3, 4], ["ok ", "\ufffd", "\ufffd", " yes"])
    spec = Answer("ok 👎 yes", [1, 2, 5, 4], ["ok ", "\ufffd", "\ufffd", " yes"])
    assert align(ref, spec).spans == (Span(2, 3, 2, 3, "👍", "👎"),)
    bytes_as_text = Answer("ok 👎 yes", [1, 6, 7, 4], ["ok ", "<0xF0>", "<0x9F>", " yes"])
    assert align(ref, bytes_as_text).spans == (Span(1, 3, 1, 3, "👍", "<0xF0><0x9F>"),)


def test_a_character_cut_at_the_end_shows_what_the_text_shows() -> None:
    ref = Answer("ok \ufffd", [1, 2], ["ok ", "\ufffd"])
    spec = Answer("ok 👍", [1, 2, 3], ["ok ", "\ufffd", "\ufffd"])
    found = align(ref, spec)
    assert found.spans == (Span(2, 2, 2, 3, "", "👍"),)
    dropped = Answer("ok ", [1, 2], ["ok ", "\ufffd"])  # the server left the broken character out
    assert align(dropped, spec).spans == (Span(2, 2, 2, 3, "", "👍"),)


def test_position_of_equal_text_where_pieces_are_not_the_text() -> None:
    ref = Answer("ok 👍 yes", [1, 2, 3, 4], ["ok ", "\ufffd", "\ufffd", " yes"])
    spec = Answer("ok 👍 yes", [1, 2, 3, 5, 6], ["ok ", "\ufffd", "\ufffd", " y", "es"])
    found = align(ref, spec)
    assert found.first is not None
    assert (found.first.token, found.first.char, found.first.before) == (3, 4, "ok 👍")
    assert found.spans == (Span(3, 4, 3, 5, " yes", " yes"),)


@settings(deadline=None)
@given(st.text(st.sampled_from("aé👍 "), max_size=12), st.integers(0, 3), st.data())
def test_pieces_cut_out_of_bytes_never_break(text: str, size: int, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[a:b].decode(errors="replace") for a, b in itertools.pairwise(bounds)]
    ids = list(range(len(pieces)))
    other = Answer(text + "x" * size, [*ids, *([77] * size)], [*pieces, *(["x"] * size)])
    found = align(Answer(text, ids, pieces), other)
    if size:
        assert found.spans == (Span(len(ids), len(ids), len(ids), len(ids) + size, "", "x" * size),)
    changed = align(Answer(text, [*ids, 5], [*pieces, "</s>"]), Answer(text, [500, *ids[1:], 5], [*pieces, "</s>"]))
    assert changed.note == "same text, different tokens"
    assert changed.first is not None
    assert changed.first.char == 0


def test_pieces_have_to_be_one_for_each_id() -> None:
    with pytest.raises(ValueError, match="spec: 1 pieces for 2 ids"):
        align(Answer("ab", [1, 2]), Answer("ab", [1, 2], ["ab"]))
    with pytest.raises(ValueError, match="ref: 3 pieces for 2 ids"):
        align(Answer("ab", [1, 2], ["a", "b", ""]), Answer("ab", [1, 2]))


@pytest.mark.parametrize("ids", [[1, None], ["a"], [1.5], "ab", b"ab"])
def test_ids_that_are_no_integers_are_refused(ids: object) -> None:
    with pytest.raises(TypeError):
        align(Answer("ab", ids), Answer("ab", [1, 2]))  # type: ignore[arg-type]


def test_ids_out_of_any_vocabulary_are_compared_as_they_are() -> None:
    found = align(Answer("ab", [-1, 2**70]), Answer("ac", [-1, 2**71]))
    assert (found.spans, found.equal_before) == ((Span(1, 2, 1, 2, "b", "c"),), 1)


def test_budget_reached_is_marked_on_the_span() -> None:
    size = 20_000
    ref, spec = np.random.default_rng(5).integers(0, 100_000, (2, size)).tolist()
    found = align(Answer("a" * size, ref, ["a"] * size), Answer("b" * size, spec, ["b"] * size))
    assert [span.refined for span in found.spans] == [False]
    assert found.reconvergence == Reconvergence("none")
    text = "".join(chr(97 + value % 26) for value in ref), "".join(chr(65 + value % 26) for value in spec)
    assert [span.refined for span in align(Answer(text[0]), Answer(text[1])).spans] == [False]


def calls_of(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, those in C included."""
    called = 0

    def count(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


def test_python_does_no_work_a_token() -> None:
    """What makes answers of usual length take microseconds: `benchmarks.alignment` tells how many."""

    def calls(tokens: int, *, edit: bool) -> int:
        ids = np.random.default_rng(2).integers(0, 150_000, tokens).tolist()
        pieces = [f" w{value}" for value in ids]
        edited, edited_pieces = list(ids), list(pieces)
        for at in (400, 250, 100) if edit else ():
            edited[at : at + 2], edited_pieces[at : at + 2] = [1], ["x"]
        ref = Answer("".join(pieces), ids, pieces)
        spec = Answer("".join(edited_pieces), edited, edited_pieces)
        return calls_of(lambda: align(ref, spec))

    for edit in (False, True):
        assert calls(16_384, edit=edit) <= calls(512, edit=edit) + 5


# Tails that prove nothing, because the same words stand elsewhere

SHOPPING = ("Ida bought 59 stamps at the old mill.", "Tom sold 12 maps at the old mill.", "Eve saw 7 cats in town.")


def worded(text: str, *, ended: bool = False) -> Answer:
    """An answer of one token a word or full stop; ``ended`` adds an end token, which no other answer has inside."""
    words = re.findall(r"\w+|\.", text)
    known = {word: 1 + int.from_bytes(word.encode(), "big") % (2**40) for word in words}
    ids = [known[word] for word in words] + ([0] if ended else [])
    return Answer(text, ids, closing=int(ended))


def kinds(ref: str, spec: str) -> set[str]:
    """What is said of two texts by token, with and without an end token, and by grapheme; and with sides swapped."""
    pairs = [(worded(ref), worded(spec)), (worded(ref, ended=True), worded(spec, ended=True))]
    pairs.append((Answer(ref), Answer(spec)))
    return {align(*pair).reconvergence.kind for one, two in pairs for pair in ((one, two), (two, one))}


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("ref", "spec"),
    [
        # Names, numbers and things changed; the place is that of every sentence.
        ("Felix bought 83 cups at the old mill.", "Nora sold 50 boxes at the old mill."),
        # The same with a shift.
        ("Felix quickly bought 83 cups at the old mill.", "Nora sold 50 boxes at the old mill."),
        # Only one of the answers has the tail once more, in what is different about it.
        ("Felix is in town.", "Nora is in town. Nora has 5 cups. Bob is in town."),
    ],
)
def test_a_tail_that_occurs_elsewhere_is_no_reconvergence(before: int, ref: str, spec: str) -> None:
    head = " ".join(SHOPPING * before)
    if before or "town" in ref:
        assert kinds(f"{head} {ref}", f"{head} {spec}") == {"none"}


@pytest.mark.parametrize(
    ("ref", "spec"),
    [
        # One word, in step: however common what follows is.
        ("Felix bought 83 cups at the old mill.", "Felix bought 50 cups at the old mill."),
        ("They slept at the old mill.", "They lunched at the old mill."),
        # A tail that is nowhere else, in step and shifted.
        ("Felix bought 83 cups near our bridge.", "Nora sold 50 boxes near our bridge."),
        ("Felix bought very many cups near our bridge.", "Felix bought cups near our bridge."),
    ],
)
def test_a_small_change_or_a_tail_of_its_own_is_reconvergence(ref: str, spec: str) -> None:
    head = " ".join(SHOPPING * 2)
    assert kinds(f"{head} {ref}", f"{head} {spec}") == {"tail-sync"}


@pytest.mark.parametrize("ended", [True, False])
def test_a_long_tail_may_occur_elsewhere(ended: bool) -> None:
    again = " ".join(SHOPPING)
    ref, spec = f"{again} Yes. {again}", f"{again} No, not that I know of. {again}"
    assert align(worded(ref, ended=ended), worded(spec, ended=ended)).reconvergence.kind == "tail-sync"
    assert align(Answer(ref), Answer(spec)).reconvergence.kind == "tail-sync"


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=40),
    st.lists(st.integers(0, 5), max_size=6),
    st.lists(st.integers(0, 5), max_size=6),
    st.lists(st.integers(0, 5), max_size=8),
    st.booleans(),
)
def test_what_a_short_tail_has_to_be(
    head: list[int], ref_own: list[int], spec_own: list[int], tail: list[int], ended: bool
) -> None:
    """Of any two answers that are together to the end: alone of its kind, long, or behind a change of a unit or two."""
    end = [9] if ended else []
    ref, spec = [*head, *ref_own, *tail, *end], [*head, *spec_own, *tail, *end]
    found = align(Answer("r", ref, closing=ended), Answer("s", spec, closing=ended))
    if ref == spec or found.reconvergence.kind != "tail-sync" or found.spans[-1].ref_end == len(ref):
        return
    last = found.spans[-1]
    length = len(ref) - last.ref_end
    content = ref[last.ref_end : len(ref) - ended]
    places = sum(
        side[at : at + len(content)] == content for side in (ref, spec) for at in range(len(side) - len(content) + 1)
    )
    small = any(last.ref_end - span.ref_start == last.spec_end - span.spec_start <= 2 for span in found.spans)
    assert small or length >= minimum_run(max(len(ref), len(spec))) or not content or places == 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(0, 58), st.integers(1, 2), st.booleans())
def test_a_unit_or_two_that_are_exchanged_are_always_reconvergence(
    ids: list[int], at: int, count: int, ended: bool
) -> None:
    ids = [*ids, 9] if ended else ids
    if at + count >= len(ids):
        return
    spec = [*ids[:at], *[7] * count, *ids[at + count :]]
    found = align(Answer("r", ids, closing=ended), Answer("s", spec, closing=ended)).reconvergence
    assert (found.kind, found.shift) == ("tail-sync", 0)


@pytest.mark.parametrize(("finish", "stop"), [("eos", None), ("stop", "END;"), ("length", None)])
def test_how_an_answer_ends_does_not_make_its_tail_one_of_a_kind(finish: Finish, stop: str | None) -> None:
    """An end token stands nowhere else, and neither do the tokens of a stop string: they are no words of the answer."""

    def completion(arm: Arm, text: str) -> Completion:
        words = [*re.findall(r"\w+|\.", text), *{"eos": ["<eos>"], "stop": ["END", ";"]}.get(finish, [])]
        ids = tuple(int.from_bytes(word.encode(), "big") % 2**40 for word in words)
        pieces.update(zip(ids, words, strict=True))
        return Completion("p", arm, 0, "d", text, finish, ids=ids, stop=stop)

    def kind(ref: str, spec: str) -> str:
        sides = [with_pieces(completion("ref", ref), pieces), with_pieces(completion("spec", spec), pieces)]
        return align(*sides).reconvergence.kind

    pieces: dict[int, str] = {}
    head = " ".join(SHOPPING * 2)
    assert kind(f"{head} Max bought 83 cups at the old mill.", f"{head} Nora sold 5 boxes at the old mill.") == "none"
    assert (
        kind(f"{head} Max bought 83 cups near our bridge.", f"{head} Nora sold 5 boxes near our bridge.") == "tail-sync"
    )
