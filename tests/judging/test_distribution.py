"""One distribution of the reference, and whether a parameter kept it off the speculative server's token."""

from __future__ import annotations

import pytest
from msgspec import structs

from verifier.compare.evidence import judge
from verifier.judging.distribution import View, from_probed_run
from verifier.plan import TOP
from verifier.records import Completion, Parameters, Prompt, Rendering, TokenLogprob, Tolerance

PENALISED = Prompt("p", text="x", parameters=Parameters(presence_penalty=1.0))
RENDERED = Rendering("p", "d", ids=(5,))


def view(ref: int, spec: int, count: int = TOP, *, shaped: bool = False) -> View:
    """Tokens 0, 1, 2 … half a nat apart, of which the servers took two."""
    top = tuple(TokenLogprob(token, -0.5 * token - 0.5) for token in range(count))
    return View(judge(4, ref, spec, top, 0.3, "reference-run"), top, shaped)


@pytest.mark.parametrize("shaped", [False, True])
def test_a_token_that_is_missing_where_not_all_are_told_is_forbidden(shaped: bool) -> None:
    assert view(0, 77, TOP - 1, shaped=shaped).moved
    assert not view(0, 77, TOP, shaped=shaped).moved
    assert not view(0, 3, TOP - 1, shaped=shaped).moved


@pytest.mark.parametrize(("most", "forbidden"), [(3, False), (4, True)])
def test_where_a_server_never_tells_more_nothing_is_forbidden(most: int, forbidden: bool) -> None:
    first, second = (tuple(TokenLogprob(token, -0.5 * token - 0.5) for token in range(count)) for count in (most, 3))
    ref = Completion("p", "ref", 0, "d", "x", "eos", ids=(9, 0))
    spec = Completion("p", "spec", 0, "d", "y", "eos", ids=(9, 77))
    probed = structs.replace(ref, run=1, top=(first, second))
    seen = from_probed_run(ref, probed, spec, 1, Tolerance(0.3, "set", "high"))
    assert seen is not None
    assert seen.moved == forbidden


def test_a_token_that_a_server_adds_to_those_asked_for_does_not_make_others_forbidden() -> None:
    """Token 50 was lifted by a bias: the plain model has it far below the three that were asked for."""
    asked = tuple(TokenLogprob(token, -0.5 * token - 0.5) for token in range(3))
    lifted = (*asked, TokenLogprob(50, -9.0))
    ref = Completion("p", "ref", 0, "d", "x", "eos", ids=(50, 0))
    spec = Completion("p", "spec", 0, "d", "y", "eos", ids=(50, 77))
    seen = from_probed_run(
        ref, structs.replace(ref, run=1, top=(lifted, asked)), spec, 1, Tolerance(0.3, "set", "high")
    )
    assert seen is not None
    assert not seen.moved


def test_what_is_not_listed_may_lie_between_the_likeliest_and_a_token_that_was_added() -> None:
    asked = tuple(TokenLogprob(token, -0.5 * token - 0.5) for token in range(3))
    ref = Completion("p", "ref", 0, "d", "x", "eos", ids=(50,))
    spec = Completion("p", "spec", 0, "d", "y", "eos", ids=(77,))
    probed = structs.replace(ref, run=1, top=((*asked, TokenLogprob(50, -9.0)),))
    seen = from_probed_run(ref, probed, spec, 0, Tolerance(0.3, "set", "high"))
    assert seen is not None
    assert (seen.split.gap, seen.split.at_least) == (1.0, True)
    biased = structs.replace(RENDERED, bias={50: 9.0})
    told = seen.under_parameters(Prompt("p", text="x", parameters=Parameters(logit_bias={"50": 9.0})), biased, ())
    assert told is not None
    assert (told.gap, told.at_least) == (1.5, True)


def test_only_the_plain_model_tells_by_its_preference() -> None:
    assert view(1, 0).moved
    assert not view(0, 1).moved
    assert not view(1, 0, shaped=True).moved


def test_what_is_shaped_already_is_taken_as_it_is() -> None:
    """Token 1 was said before: the plain model's preference for it shrinks by its penalty."""
    plain, shaped = view(2, 1), view(2, 1, shaped=True)
    assert shaped.under_parameters(PENALISED, RENDERED, (1,)) == shaped.split
    told = plain.under_parameters(PENALISED, RENDERED, (1,))
    assert told is not None
    assert told.gap == pytest.approx(0.5)
    assert plain.under_parameters(Prompt("p", text="x"), RENDERED, (1,)) == plain.split
