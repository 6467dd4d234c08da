"""The small parts of the adapters: vocabulary, ends of answers, distributions, names, fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import model
from verifier.errors import ServerError
from verifier.records import TokenLogprob
from verifier.servers import fields
from verifier.servers.completions import top_of_names
from verifier.servers.ending import after_end, after_stop, bounded, end_token, named
from verifier.servers.logprobs import doubtful, fitting, ordered, rank_of
from verifier.servers.names import model_name, version_tuple
from verifier.servers.protocol import Answer
from verifier.servers.tokenizing import once
from verifier.servers.vocabulary import MOST_IDS, Vocabulary


async def decode(ids: Sequence[int]) -> str:
    return model.decode(ids)


def top(*pairs: tuple[int, float]) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(*pair) for pair in pairs)


class TestVocabulary:
    def refused(self, vocabulary: Vocabulary, ids: tuple[int, ...]) -> bool:
        try:
            asyncio.run(vocabulary.check(ids, "http://x"))
        except ServerError as error:
            assert error.kind == "out-of-vocabulary"
            assert str(max(ids)) in error.message or str(min(ids)) in error.message
            return True
        return False

    def test_a_known_size_is_the_limit(self) -> None:
        vocabulary = Vocabulary()
        vocabulary.size = 10
        assert not self.refused(vocabulary, (0, 9))
        assert self.refused(vocabulary, (0, 10))
        assert self.refused(vocabulary, (-1,))

    def test_ids_below_one_that_the_server_gave_are_known(self) -> None:
        vocabulary = Vocabulary()
        vocabulary.learn((3, 7))
        assert not self.refused(vocabulary, (6, 7))
        assert self.refused(vocabulary, (8,))

    def test_a_higher_id_is_looked_up_once(self) -> None:
        asked: list[list[int]] = []

        async def lookup(ids: list[int]) -> str | None:
            asked.append(ids)
            return model.decode(ids)

        vocabulary = Vocabulary(lookup)
        last = model.VOCABULARY - 1
        assert not self.refused(vocabulary, (2, last))
        assert not self.refused(vocabulary, (last, 5))
        assert self.refused(vocabulary, (model.VOCABULARY,))
        assert asked == [[last, last], [model.VOCABULARY] * 2]

    def test_an_absurd_id_is_not_even_asked_about(self) -> None:
        async def lookup(ids: list[int]) -> str | None:
            raise AssertionError(ids)

        assert self.refused(Vocabulary(lookup), (MOST_IDS + 1,))
        assert self.refused(Vocabulary(lookup), (-3, 4))

    def test_nothing_passes(self) -> None:
        assert not self.refused(Vocabulary(), ())


class TestEnds:
    def test_ids_after_the_first_end_token_are_counted(self) -> None:
        assert after_end((5, 1, 6, 1, 7), {1}) == 3
        assert after_end((5, 6, 1), {1}) == 0
        assert after_end((5, 6), {1}) == 0

    @pytest.mark.parametrize(
        ("reason", "stop", "asked", "wanted"),
        [
            ("length", None, (), ("length", None, "")),
            ("stop", 106, (), ("eos", 106, "")),
            ("stop", None, (), ("eos", None, "")),
            ("stop", "\n", ("\n",), ("stop", "\n", "")),
            (None, None, (), ("unknown", None, "")),
        ],
    )
    def test_finish_reasons_have_one_vocabulary(
        self, reason: str | None, stop: str | int | None, asked: tuple[str, ...], wanted: tuple[str, str | None, str]
    ) -> None:
        assert named(reason, stop, asked) == wanted

    @pytest.mark.parametrize(("reason", "stop"), [("stop", "NaN happened"), ("abort", None), ("repetition", None)])
    def test_what_the_server_ended_by_itself_is_an_abort_and_is_named(self, reason: str, stop: str | None) -> None:
        finish, _, defect = named(reason, stop, ("\n",))
        assert finish == "abort"
        assert (stop or reason) in defect

    def test_surplus_is_marked_and_not_taken_away(self) -> None:
        answer = bounded(Answer("x", "eos", ids=(5, 1, 6)), 8, {1})
        assert (answer.ids, answer.surplus) == ((5, 1, 6), 1)
        assert "end token" in answer.notes[0]

    def test_what_is_over_the_limit_is_marked(self) -> None:
        answer = bounded(Answer("x", "length", ids=(5, 6, 7)), 2, {1})
        assert (answer.ids, answer.surplus) == ((5, 6, 7), 1)

    @given(
        st.lists(st.sampled_from(range(model.FIRST_WORD, model.VOCABULARY)), min_size=1, max_size=30), st.integers(0, 5)
    )
    def test_the_end_token_is_found_by_what_the_text_leaves_out(self, ids: list[int], late: int) -> None:
        whole = (*ids, model.EOS, *ids[:late])
        answer = Answer(model.decode(ids), "eos", ids=whole)
        assert asyncio.run(end_token(answer, decode)) == model.EOS

    def test_no_end_token_is_found_where_text_and_ids_do_not_fit(self) -> None:
        answer = Answer("something else", "eos", ids=(300, 301, model.EOS))
        assert asyncio.run(end_token(answer, decode)) is None

    @given(st.integers(0, 4))
    def test_ids_after_a_stop_string_are_marked(self, late: int) -> None:
        ids = (*model.encode("one two.", add_special=False), *[300] * late)
        answer = asyncio.run(after_stop(Answer("one two", "stop", ids=ids, stop="."), decode))
        assert (answer.ids, answer.surplus) == (ids, late)


class TestDistributions:
    def test_best_first_and_once(self) -> None:
        assert ordered(top((1, -2.0), (2, -1.0), (1, -2.0), (3, -1.0))) == top((2, -1.0), (3, -1.0), (1, -2.0))
        assert ordered(top((1, -2.0), (2, -1.0)), 1) == top((2, -1.0))

    def test_tied_tokens_share_a_rank(self) -> None:
        both = top((1, -1.0), (2, -1.0), (3, -4.0))
        assert rank_of(-1.0, both) == 1
        assert rank_of(-4.0, both) == 3

    def test_a_rank_below_the_list_is_unknown(self) -> None:
        assert rank_of(-9.0, top((1, -1.0), (2, -2.0))) is None

    @given(st.lists(st.floats(-20, 0), min_size=1, max_size=8))
    def test_the_rank_is_one_more_than_the_tokens_above(self, values: list[float]) -> None:
        entries = ordered(top(*enumerate(values)))
        for entry in entries:
            assert rank_of(entry.logprob, entries) == 1 + sum(value > entry.logprob for value in values)

    def test_logprobs_that_cannot_be_true_are_refused(self) -> None:
        assert "several tokens" in doubtful([top((1, 0.0), (2, 0.0))])
        assert "above" in doubtful([top((1, 0.7))])
        assert "all 0.0" in doubtful([], [0.0, 0.0])
        assert doubtful([top((1, 0.0), (2, -17.0))], [0.0, -0.5]) == ""

    def test_one_certain_token_is_no_defect(self) -> None:
        assert doubtful([top((1, 0.0), (2, -30.0))] * 3, [0.0, 0.0, 0.0]) == ""

    def test_lists_of_the_wrong_length_are_not_used(self) -> None:
        found, notes = fitting((top((1, -1.0)),), (1, 2), 1)
        assert found is None
        assert "1 tokens but 2 ids" in notes[0]

    def test_nothing_is_missed_that_was_not_asked_for(self) -> None:
        assert fitting(None, (1, 2), 0) == (None, ())
        assert fitting(None, (1, 2), 3)[1] != ()


class TestForbidden:
    def test_a_token_that_a_grammar_forbids_has_no_logprob(self) -> None:
        """vLLM tells -9999 of it."""
        found = top_of_names([("token_id:7", 0.0), ("token_id:3", -9999.0), ("token_id:4", -16.7)])
        assert [token.id for token in found] == [7, 4]


class TestNames:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("google/gemma-3-270m", "google/gemma-3-270m"),
            ("/models/gemma", "gemma"),
            ("/models/gemma/", "gemma"),
            ("models/tiny.gguf", "tiny.gguf"),
            ("C:\\models\\tiny.gguf", "tiny.gguf"),
            ("/x/hub/models--google--gemma-3-270m/snapshots/0123", "google/gemma-3-270m"),
            ("/", None),
            ("", None),
            (None, None),
        ],
    )
    def test_a_model_is_named_without_folders(self, path: str | None, name: str | None) -> None:
        assert model_name(path) == name

    @pytest.mark.parametrize(
        ("version", "numbers"),
        [
            ("0.5.17", (0, 5, 17)),
            ("v0.5.10.post1", (0, 5, 10)),
            ("0.9.dev12+g12", (0, 9)),
            ("main", None),
            (None, None),
        ],
    )
    def test_versions_are_read_as_far_as_they_go(self, version: str | None, numbers: tuple[int, ...] | None) -> None:
        assert version_tuple(version) == numbers


class TestFields:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        )
    )
    def test_any_json_is_read_without_trouble(self, value: object) -> None:
        read: Callable[[object], object]
        for read in (
            fields.mapping,
            fields.mappings,
            fields.first,
            fields.text,
            fields.integer,
            fields.integers,
            fields.number,
            fields.whole,
            fields.truth,
        ):
            read(value)

    def test_half_surrogates_are_joined(self) -> None:
        assert fields.text("\ud83d" + "\ude42") == "🙂"
        assert fields.text("a\ud83d") == "a\ufffd"

    @pytest.mark.parametrize(("value", "wanted"), [("True", True), (0, False), ("no", None), (None, None), ("1", True)])
    def test_a_yes_or_no(self, value: object, wanted: bool | None) -> None:
        assert fields.truth(value) is wanted


@given(st.lists(st.integers(3, 9), max_size=5), st.integers(0, 4))
def test_what_a_tokenizer_puts_before_a_text_is_there_once(ids: list[int], times: int) -> None:
    added = (2,)
    found = once((*added * times, *ids), added)
    assert found == (*added * min(times, 1), *ids)
