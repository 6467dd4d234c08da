"""A change is local only when it can be told to be harmless; everything that means something is named instead."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from verifier.compare.locality import LOCAL, Change, Locality, _touches, locality
from verifier.compare.prose import atoms, code_ranges, fold_marks, is_code_line, quotations
from verifier.records import Span


def spans(ref: str, spec: str) -> list[Span]:
    return [
        Span(op.src_start, op.src_end, op.dest_start, op.dest_end)
        for op in Levenshtein.opcodes(ref, spec)
        if op.tag != "equal"
    ]


def judge(ref: str, spec: str) -> Locality:
    return locality(ref, spec, spans(ref, spec))


def kinds(ref: str, spec: str) -> set[str]:
    return {change.kind for change in judge(ref, spec).changes}


LOCAL_CASES = [
    ("markup", "This will output: 55", "This will output `55`."),
    ("markup", "**bold** move", "bold move"),
    ("markup", "_it_ is so", "it is so"),
    ("markup", "- item", "* item"),
    ("markup", "# Title\ntext", "## Title\ntext"),
    ("markup", "Run ls now", "Run `ls` now"),
    ("markup", "Use the `--flag` here", "Use the --flag here"),
    ("punctuation", "one, two and three", "one two and three"),
    ("punctuation", "It ends.", "It ends"),
    ("punctuation", 'He said "hi" to me', "He said “hi” to me"),
    ("punctuation", 'the "cat" sat', "the cat sat"),
    ("punctuation", "I don't know", "I don’t know"),
    ("punctuation", "see fig. 3 there", "see fig 3 there"),
    ("punctuation", "a pause - then more", "a pause – then more"),
    ("punctuation", "東京は大きい。", "東京は大きい！"),
    ("punctuation", "Wait… what", "Wait... what"),
    ("whitespace", "The  tea is hot", "The tea is hot"),
    ("whitespace", "One.\n\nTwo.", "One.\nTwo."),
    ("whitespace", "10\u00a0km away", "10 km away"),
    ("whitespace", '{"a": 1, "b": [2]}', '{"a":1,"b":[2]}'),
    ("wording", "The tea slowly steeps.", "The tea gently steeps."),
    ("wording", "I like big dogs", "I like large dogs"),
    ("wording", "I like the dogs", "I like dogs"),
    ("wording", "This is an apple", "This is the apple"),
]


@pytest.mark.parametrize(("kind", "ref", "spec"), LOCAL_CASES)
def test_harmless_changes_are_local_both_ways(kind: str, ref: str, spec: str) -> None:
    for one, other in ((ref, spec), (spec, ref)):
        assert kinds(one, other) == {kind}
        assert judge(one, other).is_local


HARMFUL_CASES = [
    ("number", "It is 0.22.0 now", "It is 0.22 now"),
    ("number", "It is 55 now", "It is 56 now"),
    ("number", "It is 1,000 now", "It is 1000 now"),
    ("number", "costs $5 each", "costs €5 each"),
    ("number", "only 5% left", "only 5 left"),
    ("number", "-5 degrees", "5 degrees"),
    ("number", "５ 円です", "６ 円です"),
    ("number", "٥ apples", "٦ apples"),
    ("number", "٥ apples", "5 apples"),
    ("number", "½ cup", "¼ cup"),
    ("number", "at 10:30 sharp", "at 10:31 sharp"),
    ("number", "5 apples", "five apples"),
    ("number", "about 5 km away", "about km away"),
    ("number", "Wert 3,14 genau", "Wert 3.14 genau"),
    ("meaning", "It is safe.", "It is not safe."),
    ("meaning", "You can go", "You can't go"),
    ("meaning", "You must go", "You may go"),
    ("meaning", "It has three legs", "It has four legs"),
    ("meaning", "Is it?", "Is it."),
    ("meaning", "prefer increase here", "prefer decrease here"),
    ("meaning", "Das ist gut", "Das ist nicht gut"),
    ("meaning", "Ez jó", "Ez nem jó"),
    ("meaning", "Paris is nice", "London is nice"),
    ("meaning", "a < b here", "a > b here"),
    ("meaning", "the value 3 - 2 then", "the value 3 2 then"),
    ("meaning", "in ~5 minutes", "in 5 minutes"),
    ("meaning", "is 5! large", "is 5 large"),
    ("meaning", "東京は大きい。", "東京は小さい。"),
    ("meaning", "He is tall", "He is very tall and kind"),
    ("meaning", "we may go", "we May go"),
    ("letters", "Az erdő mélyén", "Az erdø mélyén"),
    ("meaning", "we like dogs", "we like huge dogs"),
    ("letters", "the cat", "the cats"),
    ("letters", "the baſe is", "the base is"),
    ("letters", "recieve it", "receive it"),
    ("letters", "foo bar", "foobar"),
    ("letters", "caf\u00e9 is", "cafe\u0301 is"),
    ("letters", "résumé is", "resume is"),
    ("letters", "ab is", "a\u200db is"),
    ("letters", "it is\ufeff so", "it is so"),
    ("letters", "it is so", "it is\x00 so"),
    ("identifier", "call foo_bar now", "call foo_baz now"),
    ("identifier", "use camelCase now", "use camelCaze now"),
    ("identifier", "use camelCase now", "use CamelCase now"),
    ("identifier", "see os.path there", "see os.pash there"),
    ("identifier", "pass --fast to it", "pass --slow to it"),
    ("identifier", "sha deadbeef0123 is", "sha deadbeef0124 is"),
    ("identifier", "snake_case is", "snake case is"),
    ("identifier", "__init__ is", "init is"),
    ("identifier", "and _private is", "and private is"),
    ("identifier", "use UTF-8 there", "use UTF-16 there"),
    ("identifier", "the NATO troops", "the nato troops"),
    ("identifier", "mail a@b.org now", "mail a@b.com now"),
    ("identifier", "read/write it", "read write it"),
    ("quoted-string", 'He said "hi there" to me', 'He said "hi you" to me'),
    ("quoted-string", 'He said "hi, there" to me', 'He said "hi there" to me'),
    ("quoted-string", "Er rief „halt an“ laut", "Er rief „halt ein“ laut"),
    ("quoted-string", "dit «bon jour» fort", "dit «bon soir» fort"),
    ("quoted-string", "「大きい」です", "「小さい」です"),
    ("quoted-string", "Run `ls -l` now", "Run `ls -a` now"),
    ("quoted-string", "Type 'go on' here", "Type 'go off' here"),
    ("json-value", '{"a": 1}', '{"a": 2}'),
    ("json-value", '{"a": 1}', '{"a": 1.0}'),
    ("json-value", '{"a": 1}', '{"a": "1"}'),
    ("json-value", '{"a": 1}', '{"a": 1'),
    ("json-value", '{"a": "x y"}', '{"a": "x  y"}'),
    ("json-value", '```json\n{"a": 1}\n```', '{"a": 1}'),
    ("code", "x = 5", "x = 6"),
    ("code", "```python\nx=1\n```", "```python\nx=2\n```"),
    ("code", "```\nif x:\n    y\n```", "```\nif x:\n  y\n```"),
    ("code", "```python\nx\n```", "```\nx\n```"),
    ("code", "def f(a):\n    return a", "def f(b):\n    return b"),
    ("code", "for (i;;) {\n  go();\n}", "for (i;;) {\n  stop();\n}"),
    ("code", "```\nopen fence a", "```\nopen fence b"),
    ("rewrite", "the small boy went home", "the kind aunt stayed outside"),
]


@pytest.mark.parametrize(("kind", "ref", "spec"), HARMFUL_CASES)
def test_what_means_something_is_named_and_not_local_both_ways(kind: str, ref: str, spec: str) -> None:
    for one, other in ((ref, spec), (spec, ref)):
        assert kind in kinds(one, other)
        assert not judge(one, other).is_local


def test_t09_a_letter_exchanged_inside_a_word_is_never_wording() -> None:
    found = judge("Az erdő mélyén őz áll, őrzi a követ.", "Az erdø mélyén øz áll, őrzi a követ.")
    assert [change.kind for change in found.changes] == ["letters", "letters"]
    assert [(change.ref_text, change.spec_text) for change in found.changes] == [("erdő", "erdø"), ("őz", "øz")]
    assert not found.is_local


def test_the_measured_code_answer_is_local_in_prose_and_in_a_comment() -> None:
    for before, behind in (("", ""), ("```python\nprint(fib(10))\n# ", "\n```\nDone.")):
        ref, spec = f"{before}This will output: 55{behind}", f"{before}This will output `55`.{behind}"
        assert kinds(ref, spec) == {"markup"}
        assert judge(ref, spec).is_local
    assert kinds("```python\nx = 1\n# gives 55\n```", "```python\nx = 1\n# gives 56\n```") == {"number"}


def test_a_new_sentence_may_begin_with_a_capital() -> None:
    found = judge("It was late, then we left", "It was late. Then we left")
    assert {change.kind for change in found.changes} <= LOCAL
    assert found.is_local


def test_changes_are_widened_to_words_and_give_both_texts() -> None:
    found = judge("The tea slowly steeps.", "The tea gently steeps.")
    assert found.changes == (Change("wording", 8, 14, 8, 14, "slowly", "gently"),)
    # The last number is long after a shift.
    moved = judge("A, b and 17 left", "A b and 18 left")
    assert [(c.kind, c.ref_start, c.ref_end, c.spec_start, c.spec_end) for c in moved.changes] == [
        ("punctuation", 0, 2, 0, 1),
        ("number", 9, 11, 8, 10),
    ]


def test_many_reworded_places_are_not_local_together() -> None:
    ref = "The big tree was near. " * 2 + "Birds sang well. " * 2
    spec = "The tall tree was close. " * 2 + "Birds sang nicely. " * 2
    found = judge(ref, spec)
    assert {change.kind for change in found.changes} == {"wording"}
    assert not found.is_local
    # The same four words in a long answer are few.
    long = "It rained all day long and nobody went out. " * 30
    assert judge(long + ref[:46], long + spec[:50]).is_local


def test_three_words_of_one_place_are_local_and_four_are_not() -> None:
    assert judge("we saw a big old tree", "we saw a tall lone pine").is_local
    assert kinds("saw big old tall trees", "met kind lone grey wolf") == {"rewrite"}


def test_a_long_line_is_looked_at_within_reach_only() -> None:
    far = "word " * 5000
    ref, spec = f'"unclosed {far} a, b', f'"unclosed {far} a b'
    assert judge(ref, spec).is_local


def test_a_rewritten_answer_is_not_aligned_word_by_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("aligned")

    ref = " ".join(f"alpha{'x' * (i % 7)}" for i in range(400))
    spec = " ".join(f"beta{'y' * (i % 5)}" for i in range(400))
    whole = [Span(0, len(ref), 0, len(spec))]
    monkeypatch.setattr("verifier.compare.locality.Levenshtein.opcodes", refuse)
    assert [change.kind for change in locality(ref, spec, whole).changes] == ["rewrite"]


@pytest.mark.parametrize("wrong", [[], [Span(1, 2, 2, 3)], [Span(0, 1, 0, 1)]])
def test_ranges_that_do_not_fit_the_texts_are_refused(wrong: list[Span]) -> None:
    if not wrong:
        assert locality("ab", "xy", wrong).changes == ()
        return
    with pytest.raises(ValueError, match="outside of the spans"):
        locality("ab", "xy", wrong)


TEXTS = st.text(alphabet='ab 1.,`"\n_é-', max_size=40)


@settings(deadline=None)
@given(TEXTS, TEXTS)
@example("1.a", "a,1")
@example("1.a", "é,1")
def test_every_difference_lies_in_a_change_and_the_order_of_sides_does_not_matter(ref: str, spec: str) -> None:
    there = spans(ref, spec)
    back = [Span(s.spec_start, s.spec_end, s.ref_start, s.ref_end) for s in there]
    found, turned = locality(ref, spec, there), locality(spec, ref, back)
    assert found.is_local == turned.is_local
    assert [change.kind for change in found.changes] == [change.kind for change in turned.changes]
    for change in found.changes:
        assert change.ref_text == ref[change.ref_start : change.ref_end]
        assert change.spec_text == spec[change.spec_start : change.spec_end]
    for span in there:
        assert any(c.ref_start <= span.ref_start and span.ref_end <= c.ref_end for c in found.changes)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["tea", "is", "hot", "5", "a_b", "né", "no"]), min_size=1, max_size=8), st.data())
def test_a_changed_number_is_never_local(words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(words)))
    old = data.draw(st.integers(0, 999))
    new = data.draw(st.integers(0, 999).filter(lambda n: n != old))
    wrap = data.draw(st.sampled_from(["{}", "`{}`", "**{}**", "({})", "{}.", '"{}"', "{}%", "-{}"]))
    ref = " ".join([*words[:at], wrap.format(old), *words[at:]])
    spec = " ".join([*words[:at], wrap.format(new), *words[at:]])
    assert not judge(ref, spec).is_local


@settings(deadline=None)
@given(st.text(alphabet="abcdeé ", min_size=1, max_size=30), st.data())
def test_a_letter_replaced_by_one_that_was_not_there_is_never_local(text: str, data: st.DataObject) -> None:
    places = [i for i, c in enumerate(text) if c.isalpha() and len(text.split()) and len(_word(text, i)) >= 2]
    if places:
        at = data.draw(st.sampled_from(places))
        spoiled = text[:at] + data.draw(st.sampled_from("øžж漢\u0301")) + text[at + 1 :]
        assert not judge(text, spoiled).is_local


def _word(text: str, at: int) -> str:
    return text[text.rfind(" ", 0, at) + 1 :].split(" ", 1)[0]


@pytest.mark.parametrize(
    ("start", "end", "touches"),
    [
        (0, 3, False),
        (0, 4, True),
        (3, 3, True),
        (4, 4, True),
        (5, 6, True),
        (6, 6, False),
        (6, 9, False),
        (6, 10, True),
        (12, 15, False),
    ],
)
def test_a_range_touches_when_it_shares_a_character(start: int, end: int, touches: bool) -> None:
    assert _touches([(3, 6), (9, 12)], start, end) is touches
    assert not _touches([], start, end)


def test_atoms_keep_what_belongs_together() -> None:
    assert atoms("It costs $5.00, or -3% of a_b.c() in `x-y`.") == [
        "It", "costs", "$5.00", "or", "-3%", "of", "a_b.c()", "in", "x-y",
    ]  # fmt: skip
    assert atoms("v0.22.0 10km 1,000 10:30 ½") == ["v0.22.0", "10km", "1,000", "10:30", "½"]
    assert atoms("大きい") == ["大", "き", "い"]
    assert atoms("**bold** _it_ don’t") == ["bold", "it", "don't"]


def test_quotations_are_found_in_several_languages() -> None:
    text = "\"a\" “b” „c“ «d» ‹e› 「f」 『g』 `h` ``i`` 'j k' it's"
    assert quotations(text) == ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j k"]


def test_code_ranges_are_fences_without_whole_line_comments() -> None:
    text = "a\n```py\nx\n# note\ny\n```\nb\n~~~\nopen"
    assert [text[start:end] for start, end in code_ranges(text)] == ["```py\n", "x\n", "y\n", "```", "~~~\n", "open"]
    assert code_ranges("no fence") == []


@pytest.mark.parametrize(
    "line", ["x = 1", "return x", "foo();", "if (a == b) {", "a -> b", "<div class='x'>", "import os", "print(x)"]
)
def test_code_lines_are_recognised(line: str) -> None:
    assert is_code_line(line)


@pytest.mark.parametrize("line", ["It is so.", "# a comment", "// another", "We return home (late).", "Title\n====="])
def test_prose_lines_are_not_code(line: str) -> None:
    assert not is_code_line(line)


@given(st.text())
def test_folding_keeps_the_length(text: str) -> None:
    assert len(fold_marks(text)) == len(text)
