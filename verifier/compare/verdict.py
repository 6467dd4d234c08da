"""Class, cause and fault of one prompt: the decision order, one function a rule. Pure.

The first rule that has something to say decides, and the comparison names it. Evidence comes before statistics: what
the reference itself thinks of a token decides even where the reference does not repeat itself, since a gap is measured
within one distribution and does not depend on which answer the reference happened to give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from verifier.compare.alignment import Answer, align
from verifier.compare.characters import clusters
from verifier.compare.degeneration import Sign
from verifier.compare.evidence import beyond, suspect, within
from verifier.compare.locality import locality
from verifier.compare.parts import left_in_text, moved, only_layout, same_parts
from verifier.compare.shaping import broken_promise, is_shifted, shaping
from verifier.compare.structure import Structure
from verifier.records import (
    Alignment,
    Cause,
    Class,
    Completion,
    Fault,
    Prompt,
    Scored,
    Span,
    Split,
    Tolerance,
)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Case:
    """Everything that is known about one prompt.

    ``scored`` says how much of the speculative answer the reference was asked about: nothing, its first split only,
    or all of it. ``ref_again`` are further passes of the reference over the same prompt.
    """

    prompt: Prompt
    ref: Completion
    spec: Completion
    alignment: Alignment
    structure: Structure
    tolerance: Tolerance
    ref_again: tuple[Completion, ...] = ()
    splits: tuple[Split, ...] = ()
    scored: Scored = "none"
    signs: tuple[Sign, ...] = ()
    same_prompt: bool = True
    relaxed: bool = False
    """A setting of the speculative server accepts drafts that the model would not have picked."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """What the request adds to logits, by token id."""
    moved: bool = False
    """A parameter moved the reference off the speculative server's token at the first split (`shaping.moved`)."""
    without_parameters: tuple[Split, ...] | None = None
    """Splits of the whole speculative answer from what the model says without parameters; ``None`` if not asked, which
    is done where a parameter moved the reference or the answer is wrong with them."""
    same_engine: bool = True

    @property
    def same_ids(self) -> bool | None:
        """Whether the token ids are equal; ``None`` when a side has none."""
        if self.ref.ids is None or self.spec.ids is None:
            return None
        return self.ref.ids == self.spec.ids

    @property
    def repeats(self) -> bool | None:
        """Whether the reference gave the same answer each time; ``None`` when it was asked once."""
        if not self.ref_again:
            return None
        return all(same_answer(self.ref, again) for again in self.ref_again)


@dataclass(frozen=True)
class Ruling:
    """What a rule decided, and why, in one sentence for people."""

    cls: Class
    cause: Cause
    fault: Fault
    reason: str
    rule: str = field(default="")


Rule = Callable[[Case], Ruling | None]


def same_answer(a: Completion, b: Completion) -> bool:
    """Whether two completions are the same answer: ids where both have them, text, its fields, and why they ended."""
    if a.ids is not None and b.ids is not None and a.ids != b.ids:
        return False
    return a.text == b.text and a.finish == b.finish and same_parts(a, b)


def comparison_valid(case: Case) -> Ruling | None:
    """The two servers must have been asked the same thing."""
    if case.same_prompt:
        return None
    return Ruling("diverged", "prompt-differs", "comparison", "The two servers were sent different prompt tokens.")


def identical(case: Case) -> Ruling | None:
    """The same ids, the same text, the same end."""
    if not same_answer(case.ref, case.spec):
        return None
    by = "tokens and text are" if case.same_ids else "the text is (no token ids to compare)"
    return Ruling("exact", "none", "none", f"The answers are the same: {by} equal.")


def other_parts(case: Case) -> Ruling | None:
    """The same answer must arrive in the same fields of a message, with the same tool calls."""
    ref, spec = case.ref, case.spec
    # A server that ends by a tool call knows that no stop string ended the answer; one that parses no calls may not.
    if case.same_ids is False or (ref.finish != spec.finish and "unknown" not in {ref.finish, spec.finish}):
        return None
    if any(again.text == ref.text and not same_parts(ref, again) for again in case.ref_again):
        return None
    if ref.text == spec.text and (what := moved(ref, spec)):
        said = f"The text is the same, but {'; '.join(what)}."
    elif left := left_in_text(ref, spec):
        said = f"The answers say the same, but {left}."
    else:
        return None
    if only_layout(ref, spec):
        said += " The arguments differ only in their layout."
    return Ruling(
        "near-lossless" if only_layout(ref, spec) else "diverged",
        "parser",
        "undetermined",
        f"{said} Either a parser fails under speculation, or the servers were started with different parser settings.",
    )


def same_tokens_other_text(case: Case) -> Ruling | None:
    """Equal ids must give equal text; a character that the token limit cut in half is no fault."""
    if not case.same_ids or case.ref.text == case.spec.text:
        return None
    if case.ref.text.rstrip(REPLACEMENT) == case.spec.text.rstrip(REPLACEMENT) and case.ref.finish == "length":
        return Ruling("exact", "none", "none", "The tokens are equal; both texts end inside one character.")
    return Ruling(
        "near-lossless", "detokenizer", "speculation", "The tokens are equal, but they were turned into different text."
    )


def stop_handling(case: Case) -> Ruling | None:
    """One answer is the beginning of the other, and only their ends differ."""
    if not case.structure.only_the_end_differs:
        return None
    if case.splits and all(within(split) for split in case.splits):
        # Ending or going on was a near-tie of the end token; that is a split like any other.
        return None
    surplus = next((one for one in case.structure.surplus if one.arm == "spec"), None)
    if surplus is not None:
        same_text = case.ref.text == case.spec.text and case.ref.finish == case.spec.finish
        tokens = "1 token" if surplus.count == 1 else f"{surplus.count} tokens"
        return Ruling(
            "near-lossless" if same_text else "diverged",
            "stop-handling",
            "speculation",
            f"The speculative answer has {tokens} after its end; up to there the tokens are equal"
            + (", and so are the texts." if same_text else "."),
        )
    only_ref = any(one.arm == "ref" for one in case.structure.surplus)
    return Ruling(
        "diverged",
        "stop-handling",
        "reference" if only_ref else "speculation",
        f"The tokens are equal as far as both go, but the answers end differently: {case.ref.finish} on the reference, "
        f"{case.spec.finish} on the speculative server.",
    )


def parameter_ignored(case: Case) -> Ruling | None:
    """A request parameter that took effect on one side only.

    Either an answer shows it by itself, or the reference left a token that the model prefers, which only a parameter
    can make it do, and the speculative server took that token. Where a parameter moves logits instead of forbidding
    tokens, that may still be a near-tie of what it left; then the whole speculative answer must be what the model says
    without any parameter.
    """
    parameters = case.prompt.parameters
    of_ref, of_spec = (broken_promise(parameters, case.bias, one) for one in (case.ref, case.spec))
    if bool(of_ref) != bool(of_spec):
        side: Fault = "speculation" if of_spec else "reference"
        who = "speculative server" if of_spec else "reference"
        return Ruling("diverged", "parameter-ignored", side, f"The {who} {of_ref or of_spec}.")
    names = " and ".join(shaping(parameters))
    if case.without_parameters is not None and all(map(within, case.without_parameters)):
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


def wrong_token(case: Case) -> Ruling | None:
    """A token that the reference would not have picked, by more than arithmetic explains."""
    wrong = [split for split in case.splits if beyond(split)]
    if not wrong:
        return None
    worst = max(wrong, key=lambda split: split.gap)
    if len(wrong) == 1 and suspect(worst):
        return Ruling(
            "diverged",
            "undetermined",
            "undetermined",
            f"One token, at {worst.index}, is {worst.gap:.2f} nat behind the reference's choice: beyond the tolerance "
            f"of {case.tolerance.value:.2f}, but by too little to be proof alone. Ask more prompts.",
        )
    least = "at least " if worst.at_least else ""
    many = f"{len(wrong)} tokens are" if len(wrong) > 1 else "One token is"
    if case.relaxed:
        return Ruling(
            "diverged",
            "relaxed-acceptance",
            "speculation",
            f"{many} not what the reference would have picked (worst gap {least}{worst.gap:.2f} nat), and the server "
            "is set to accept such tokens.",
        )
    return Ruling(
        "diverged",
        "wrong-token",
        "speculation",
        f"{many} beyond the tolerance of {case.tolerance.value:.2f} nat on the reference; the worst, at token "
        f"{worst.index}, is {least}{worst.gap:.2f} nat behind its choice.",
    )


def degenerated(case: Case) -> Ruling | None:
    """Broken output on the speculative side alone, unless the reference itself agrees with every token of it."""
    if not case.signs or case.scored == "all":
        return None
    sign = min(case.signs, key=lambda sign: (sign.kind != "special-token", sign.ambiguous))
    what = sign.detail or sign.kind
    # Greedy models loop by themselves once a near-tie has tipped them there, so a loop is proof of nothing; a
    # special token in the middle of an answer is no wording that a model chooses.
    is_proof = sign.kind == "special-token" and not sign.ambiguous
    fault: Fault = "speculation" if is_proof else "undetermined"
    return Ruling("diverged", "degeneration", fault, f"Only the speculative answer shows signs of breakdown: {what}.")


def far_by_text(case: Case) -> Ruling | None:
    """A token far behind the reference's choice, by logprobs that are keyed by text: worth knowing, but no proof."""
    far = next((split for split in case.splits if split.texts and split.gap > split.tolerance), None)
    if far is None:
        return None
    least = "at least " if far.at_least else ""
    taken, chosen = far.texts.get(far.spec_token, ""), far.texts.get(far.argmax, "")
    return Ruling(
        "diverged",
        "undetermined",
        "undetermined",
        f"At the first difference {taken!r} is {least}{far.gap:.2f} nat behind the reference's choice {chosen!r}, "
        f"above the tolerance of {far.tolerance:.2f}. Without token ids this is not proof: the same text can be other "
        "tokens, and the prompts may have been rendered differently.",
    )


def rounding(case: Case) -> Ruling | None:
    """Every token that differs from the reference's choice is tied with it, as far as arithmetic goes."""
    if (not case.splits and case.scored != "all") or not all(within(split) for split in case.splits):
        return None
    cls: Class = "near-lossless" if _is_near(case) else "diverged"
    if not case.splits:
        return Ruling(
            cls,
            "rounding",
            "none",
            "The reference, asked again after the same prefix, picks every token of the speculative answer itself.",
        )
    widest = max(split.gap for split in case.splits)
    if widest == 0 and all(split.tied for split in case.splits):
        how = "exact ties: the two logits are equal"
    elif widest == 0:
        how = "those that the reference itself prefers when it is asked again after the same prefix"
    else:
        how = f"near-ties of at most {widest:.2g} nat, within the tolerance of {case.tolerance.value:.2f}"
    where = "every split" if case.scored == "all" else "the first split (later ones were not scored)"
    return Ruling(cls, "rounding", "none", f"At {where} the tokens are {how}.")


def unstable_reference(case: Case) -> Ruling | None:
    """Without evidence, a reference that does not repeat itself leaves nothing to blame on speculation."""
    if case.repeats is not False:
        return None
    return Ruling(
        "near-lossless" if _is_near(case) else "diverged",
        "unstable-reference",
        "reference",
        "The reference itself gave another answer when it was asked again.",
    )


def undetermined(case: Case) -> Ruling:
    """Nothing to go by but the text."""
    near = _is_near(case)
    return Ruling(
        "near-lossless" if near else "diverged",
        "undetermined",
        "undetermined",
        "Judged by the text alone: "
        + ("a small local change, after which the texts agree." if near else "more than a small local change."),
    )


RULES: tuple[tuple[str, Rule], ...] = (
    ("comparison-valid", comparison_valid),
    ("identical", identical),
    # Before the next one, which would take a tool call that one side left unparsed for a fault of the detokenizer.
    ("parser", other_parts),
    ("same-tokens-other-text", same_tokens_other_text),
    ("parameter-ignored", parameter_ignored),
    ("stop-handling", stop_handling),
    ("wrong-token", wrong_token),
    ("degeneration", degenerated),
    ("far-by-text", far_by_text),
    ("rounding", rounding),
    ("unstable-reference", unstable_reference),
    ("undetermined", undetermined),
)
"""The decision order."""


def decide(case: Case) -> Ruling:
    """Apply the rules in order; the first that says something decides."""
    for name, rule in RULES:
        ruling = rule(case)
        if ruling is not None:
            return Ruling(ruling.cls, ruling.cause, ruling.fault, ruling.reason, name)
    raise AssertionError("the last rule always decides")


def _is_near(case: Case) -> bool:
    """Whether a difference is small: together to the end again, the same end, nothing broken.

    With evidence at every split that is enough. Without, the change must also be local and touch no number, name,
    quotation or value.
    """
    if case.alignment.reconvergence.kind != "tail-sync" or case.ref.finish != case.spec.finish or case.signs:
        return False
    if not same_parts(case.ref, case.spec):
        return False
    if case.scored == "all":
        return True
    return locality(case.ref.text, case.spec.text, _character_spans(case)).is_local


def _character_spans(case: Case) -> tuple[Span, ...]:
    """Where the texts differ, in code points, from an alignment by grapheme."""
    alignment = align(Answer(case.ref.text), Answer(case.spec.text))
    starts = [_starts(case.ref.text), _starts(case.spec.text)]
    return tuple(
        Span(
            starts[0][span.ref_start],
            starts[0][span.ref_end],
            starts[1][span.spec_start],
            starts[1][span.spec_end],
            span.ref_text,
            span.spec_text,
        )
        for span in alignment.spans
    )


def _starts(text: str) -> list[int]:
    """The code point at which each grapheme begins, and the text's length."""
    starts = [0]
    for cluster in clusters(text):
        starts.append(starts[-1] + len(cluster))
    return starts
