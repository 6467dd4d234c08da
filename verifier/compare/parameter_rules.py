"""Two rules about request parameters: an answer that breaks one's promise, and one that the model gives without any."""

from __future__ import annotations

from verifier.compare.case import Case, Ruling, ended
from verifier.compare.evidence import beyond, within
from verifier.compare.shaping import broken_promise, is_shifted, shaping
from verifier.records import Fault


def parameter_broken(case: Case) -> Ruling | None:
    """An answer shows by itself that a parameter of its request had no effect, and the other answer does not."""
    of_ref, of_spec = (broken_promise(case.prompt.parameters, case.bias, one) for one in (case.ref, case.spec))
    if bool(of_ref) == bool(of_spec):
        return None
    side: Fault = "speculation" if of_spec else "reference"
    who = "speculative server" if of_spec else "reference"
    answer = case.spec if of_spec else case.ref
    return Ruling(
        "diverged", "parameter-ignored", side, f"The {who} {of_ref or of_spec} ({ended(answer, case.limit)})."
    )


def parameter_ignored(case: Case) -> Ruling | None:
    """A request parameter that took effect on one side only, as the tokens show.

    The reference left a token that the model prefers, which only a parameter can make it do, and the speculative server
    took that token. Where a parameter moves logits instead of forbidding tokens, that may still be a near-tie of what
    it left; then the whole speculative answer must be what the model says without any parameter.
    """
    parameters = case.prompt.parameters
    names = " and ".join(shaping(parameters))
    # Where the parameter changes nothing, the model's own answer without it is not a sign that it was ignored.
    bare = None if case.misapplied else case.without_parameters
    is_bare = bare is not None and all(map(within, bare))
    if is_bare or (case.ignored and any(map(beyond, case.splits))):
        return Ruling(
            "diverged",
            "parameter-ignored",
            "speculation",
            f"Every token of the speculative answer is what the model says without {names}; with it the reference says "
            "something else.",
        )
    if not case.moved or is_shifted(parameters) or not case.same_engine:
        return None
    return Ruling(
        "diverged",
        "parameter-ignored",
        "speculation",
        f"The speculative server took a token that the model prefers and {names} forbids: the reference did not take "
        "it.",
    )
