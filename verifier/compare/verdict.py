"""Class, cause and fault of one prompt: the decision order, one function a rule. Pure.

The first rule that has something to say decides, and the comparison names it. Evidence comes before statistics: what
the reference itself thinks of a token decides even where the reference does not repeat itself, since a gap is measured
within one distribution and does not depend on which answer the reference happened to give.
"""

from __future__ import annotations

from verifier.compare.case import Case as Case
from verifier.compare.case import Rule as Rule
from verifier.compare.case import Ruling as Ruling
from verifier.compare.case import same_answer as same_answer
from verifier.compare.evidence import beyond, proof, within
from verifier.compare.locality import Kind
from verifier.compare.nearness import is_local, is_whole_again, worst_change
from verifier.compare.parameter_rules import parameter_broken, parameter_ignored
from verifier.compare.parts import left_in_text, moved, only_layout, same_parts
from verifier.compare.self_consistency import REPLACEMENT, Contradiction, contradicted
from verifier.compare.text_evidence import only_change
from verifier.records import Cause, Class, Fault


def comparison_valid(case: Case) -> Ruling | None:
    """The two servers must have been asked the same thing.

    Where both were sent the same ids, a server that counts others has answered another prompt, unless its tokens are
    what the reference says to this one.
    """
    if case.same_prompt:
        return None
    counted = case.ref.prompt_tokens, case.spec.prompt_tokens
    if case.sent is None or case.sent not in counted:
        return Ruling("diverged", "prompt-differs", "comparison", "The two servers were sent different prompt tokens.")
    if same_answer(case.ref, case.spec) or _is_cleared(case):
        return None
    side: Fault = "speculation" if case.sent == counted[0] else "reference"
    who, count = ("speculative server", counted[1]) if side == "speculation" else ("reference", counted[0])
    head = f"Both servers were sent the same {case.sent} prompt tokens, but the {who} counts {count}: it"
    if side == "speculation" and not case.neighbour and not proof(case.splits):
        return Ruling(
            "diverged", "prompt-differs", "undetermined", f"{head} answered another prompt, or counts them wrongly."
        )
    cause: Cause = "cross-talk" if side == "speculation" and case.neighbour else "prompt-differs"
    named = f", {case.neighbour!r}" if cause == "cross-talk" else ""
    return Ruling("diverged", cause, side, f"{head} answered another prompt{named}.")


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
    """Equal ids must give equal text; a character that the token limit cut in half is not a fault."""
    if not case.same_ids or case.ref.text == case.spec.text:
        return None
    if case.ref.text.rstrip(REPLACEMENT) == case.spec.text.rstrip(REPLACEMENT) and case.ref.finish == "length":
        return Ruling("exact", "none", "none", "The tokens are equal; both texts end inside one character.")
    return Ruling(
        "near-lossless", "detokenizer", "speculation", "The tokens are equal, but they were turned into different text."
    )


def own_word(case: Case) -> Ruling | None:
    """An answer that contradicts itself: how it ended, how long it is, what its text is.

    Whatever one side shows and the other does not is that side's fault. No near-tie excuses it.
    """
    of_spec = contradicted(case.contradictions, case.ref_contradictions)
    if of_spec is not None and _is_only_counted_short(case, of_spec):
        of_spec = None
    # A reference whose text is not what its ids decode to says that the detokenizer asked is not the one that wrote it.
    of_ref = [one for one in case.ref_contradictions if one.kind != "text"]
    found = of_spec or contradicted(of_ref, case.contradictions)
    if found is None:
        return None
    who, side = ("speculative", "speculation") if of_spec else ("reference's", "reference")
    same_text = case.ref.text == case.spec.text and case.ref.finish == case.spec.finish
    equal = "" if not _is_beginning(case) else "; up to there the tokens are equal"
    texts = ", and so are the texts" if equal and same_text else ""
    return Ruling(
        "near-lossless" if same_text else "diverged",
        "detokenizer" if found.kind == "text" else "stop-handling",
        "speculation" if side == "speculation" else "reference",
        f"The {who} answer {found.detail}{equal}{texts}.",
    )


def _is_only_counted_short(case: Case, found: Contradiction) -> bool:
    """Whether an answer without ids is short of the limit by the server's count alone.

    Proxies count again with another tokenizer. The text must show it as well: it is the beginning of the reference's.
    """
    if found.kind != "below-limit" or case.spec.ids is not None:
        return False
    text = case.spec.text.rstrip().rstrip(REPLACEMENT)
    return not (case.ref.text.startswith(text) and len(text) < len(case.ref.text.rstrip()))


def _is_beginning(case: Case) -> bool:
    """Whether the ids of one answer are the beginning of the other's."""
    return bool(case.structure.same_ids_before) and case.ref.ids != case.spec.ids


def unreliable_reference(case: Case) -> Ruling | None:
    """A reference that contradicts itself by far more than arithmetic does is not a judge of tokens."""
    if case.reliable:
        return None
    return Ruling(
        "near-lossless" if _is_small_change(case) else "diverged",
        "unreliable-reference",
        "reference",
        "The reference's own decode and its scores of the same answers disagree by more than rounding explains, so "
        "the scores prove nothing.",
    )


def stop_handling(case: Case) -> Ruling | None:
    """One answer is the beginning of the other, and only their ends differ."""
    if not case.structure.only_the_end_differs or _end_is_a_tie(case):
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
        f"The tokens are equal as far as both go, but the answers end differently: {case.ends}.",
    )


def _end_is_a_tie(case: Case) -> bool:
    """Whether ending or going on was a near-tie of the end token, where the reference ended by itself.

    Only evidence at the very place of the end says so; a tie within what comes after it excuses nothing, and a stop
    string is not a token that could be tied.
    """
    if case.ref.finish != "eos" or case.ref.ids is None or case.spec.ids is None:
        return False
    place = len(case.ref.ids)
    if len(case.spec.ids) <= place or not all(map(within, case.splits)):
        return False
    return case.scored == "all" or any(split.index == place for split in case.splits)


def parameter_misapplied(case: Case) -> Ruling | None:
    """A parameter changes nothing on the reference and nothing is wrong without it, but with it the answer is broken.

    It has one name, whether it shows as a wrong token, as a wrong end or by a gap that would only be suspect alone.
    """
    if not case.misapplied or case.relaxed or case.neighbour or _is_cleared(case):
        return None
    wrong = [split for split in case.splits if beyond(split)]
    ending = stop_handling(case)
    if wrong:
        worst = max(wrong, key=lambda split: split.gap)
        least = "at least " if worst.at_least else ""
        what = f"token {worst.index} is {least}{worst.gap:.2f} nat behind the reference's choice"
    elif ending is not None and ending.fault == "speculation":
        what = f"it ends differently: {case.ends}"
    else:
        return None
    return Ruling("diverged", "parameter-misapplied", "speculation", f"{_only_under_speculation(case)}: {what}.")


def misapplied_without_evidence(case: Case) -> Ruling | None:
    """The same by the answers alone, which a near-tie can do as well: not where one is known to."""
    if not case.misapplied or case.repeats is False or case.scored == "all" or any(map(within, case.splits)):
        return None
    if (broken := degenerated(case)) is not None and broken.fault == "speculation":
        return None
    return Ruling(
        "near-lossless" if _is_near(case) else "diverged",
        "parameter-misapplied",
        "undetermined",
        f"{_only_under_speculation(case)}. There is no evidence that rules out a near-tie.",
    )


def _only_under_speculation(case: Case) -> str:
    names = " and ".join(case.misapplied)
    return (
        f"With and without {names} the reference gives the same answer, and the speculative server gives it without; "
        f"with {names} its answer differs"
    )


def cross_talk(case: Case) -> Ruling | None:
    """The speculative answer is the reference's answer to another prompt of the run."""
    if not case.neighbour or _is_cleared(case):
        return None
    proven = bool(proof(case.splits))
    return Ruling(
        "diverged",
        "cross-talk",
        "speculation" if proven else "undetermined",
        f"The speculative answer is the reference's answer to another prompt, {case.neighbour!r}"
        + (", and the reference would not give it to this one." if proven else "; no evidence rules out a near-tie."),
    )


def wrong_token(case: Case) -> Ruling | None:
    """A token that the reference would not have picked, by more than arithmetic explains."""
    wrong = proof(case.splits)
    if not wrong:
        doubtful = [split for split in case.splits if beyond(split)]
        if not doubtful:
            return None
        worst = max(doubtful, key=lambda split: split.gap)
        many = "One token," if len(doubtful) == 1 else f"{len(doubtful)} tokens, the worst"
        verb = "is" if len(doubtful) == 1 else "are up to"
        return Ruling(
            "diverged",
            "undetermined",
            "undetermined",
            f"{many} at {worst.index}, {verb} {worst.gap:.2f} nat behind the reference's choice: above the tolerance "
            f"of {case.tolerance}{_by_decoding(case)}, but too close to count as proof on its own. "
            "Run more prompts.",
        )
    worst = max(wrong, key=lambda split: split.gap)
    least = "at least " if worst.at_least else ""
    many = f"{len(wrong)} tokens are" if len(wrong) > 1 else "One token is"
    rest = " That is proof, so the rest was not scored." if case.scored == "proof" else ""
    if case.relaxed:
        return Ruling(
            "diverged",
            "relaxed-acceptance",
            "speculation",
            f"{many} not what the reference would have picked (worst gap {least}{worst.gap:.2f} nat), and the server "
            f"is set to accept such tokens.{rest}",
        )
    return Ruling(
        "diverged",
        "wrong-token",
        "speculation",
        f"{many} beyond the tolerance of {case.tolerance.value:.2f} nat on the reference; the worst, at token "
        f"{worst.index}, is {least}{worst.gap:.2f} nat behind its choice{_by_decoding(case)}.{rest}",
    )


def _by_decoding(case: Case) -> str:
    """Names the evidence where it is not the usual one, to be put behind what it says."""
    is_decoded = any(split.source == "decode" for split in case.splits)
    return ", by decoding the answer again on the reference" if is_decoded else ""


def degenerated(case: Case) -> Ruling | None:
    """Broken output on the speculative side alone, unless the reference itself agrees with every token of it."""
    if not case.signs or case.scored == "all":
        return None
    sign = min(case.signs, key=lambda sign: (sign.kind != "special-token", sign.ambiguous))
    what = sign.detail or sign.kind
    # Greedy models loop by themselves once a near-tie has tipped them there, so a loop is proof of nothing; a
    # special token in the middle of an answer is not a wording that a model chooses.
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
    """Every token that differs from the reference's choice is tied with it, as far as arithmetic goes.

    What was not scored is not explained: evidence must reach the end of the answer, or the answers must be equal from
    the explained token on.
    """
    if not _is_explained(case):
        return None
    cls: Class = "near-lossless" if _is_whole_again(case) else "diverged"
    if not case.splits:
        return Ruling(
            cls,
            "rounding",
            "none",
            "Re-scored on its own prefixes, the reference picks every token of the speculative answer itself.",
        )
    widest = max(split.gap for split in case.splits)
    if widest == 0 and all(split.tied for split in case.splits):
        how = "exact ties: the two logits are equal"
    elif widest == 0:
        how = "those that the reference itself prefers when re-scored on the same prefix"
    else:
        how = f"near-ties of at most {widest:.2g} nat, within the tolerance of {case.tolerance}"
    how += _by_decoding(case)
    where = (
        "every divergence point"
        if case.scored == "all"
        else "the only divergence point, after which the answers are equal,"
    )
    return Ruling(cls, "rounding", "none", f"At {where} the tokens are {how}.")


def _is_cleared(case: Case) -> bool:
    """Whether the reference was asked about every token of the speculative answer and agrees with each."""
    return case.reliable and case.scored == "all" and all(map(within, case.splits))


def _is_explained(case: Case) -> bool:
    """Whether near-ties explain the whole difference, up to the end of the answer."""
    if case.scored == "all":
        return all(map(within, case.splits))
    if case.scored != "first" or not case.splits or not all(map(within, case.splits)):
        return False
    if case.splits[0].texts:
        return only_change(case.ref.text, case.spec.text, case.splits[0])
    spans = case.alignment.spans
    if len(spans) != 1 or case.alignment.reconvergence.kind != "tail-sync" or case.ref.finish != case.spec.finish:
        return False
    # One token has its evidence; several are an unscored stretch, however soon the answers agree again.
    return spans[0].spec_end - spans[0].spec_start <= 1 or _is_small_change(case)


def unstable_reference(case: Case) -> Ruling | None:
    """Without evidence, a reference that does not repeat itself leaves nothing to blame on speculation."""
    if case.repeats is not False:
        return None
    return Ruling(
        "near-lossless" if _is_near(case) else "diverged",
        "unstable-reference",
        "reference",
        "The reference itself gave another answer when asked again.",
    )


def undetermined(case: Case) -> Ruling:
    """What no evidence explains: nothing but the text, or a near-tie with an unscored rest behind it."""
    near = _is_near(case)
    return Ruling("near-lossless" if near else "diverged", "undetermined", "undetermined", _open(case, near=near))


def _open(case: Case, *, near: bool) -> str:
    """Why an answer stays open, and what it looks like."""
    ref, spec = case.ref.text, case.spec.text
    if case.splits and all(map(within, case.splits)):
        first = case.splits[0]
        return (
            f"The first divergence point, at token {first.index}, is a near-tie of {first.gap:.2g} nat, within the "
            f"tolerance of {case.tolerance.value:.2f}, but nothing after it was scored, so the rest is unknown."
        )
    if ref and not spec:
        return "The speculative answer is empty, and the reference's is not; there is no evidence for its end."
    if case.ref.ids is None or case.spec.ids is None:
        if ref and spec.startswith(ref):
            return f"The reference's answer is the beginning of the speculative one, which goes on: {case.ends}."
        if spec and ref.startswith(spec):
            return f"The speculative answer is only the beginning of the reference's: {case.ends}."
    by = "the text alone" if case.scored == "none" else "the text, since what is known of the tokens decides nothing"
    if near:
        return f"Judged by {by}: a small local change, after which the texts agree."
    worst = worst_change(case.ref, case.spec) if _is_whole_again(case) else None
    what = f": {CHANGED[worst.kind]} at character {worst.spec_start}" if worst else ""
    return f"Judged by {by}: more than a small local change{what}."


CHANGED: dict[Kind, str] = {
    "meaning": "a word that turns the meaning",
    "letters": "letters inside a word",
    "number": "a number",
    "identifier": "a name",
    "quoted-string": "a quotation",
    "json-value": "a JSON value",
    "code": "code",
    "rewrite": "a rewritten passage",
}
"""What changed, by the kinds of change that are not local."""


RULES: tuple[tuple[str, Rule], ...] = (
    ("comparison-valid", comparison_valid),
    ("identical", identical),
    # Before the next one, which would take a tool call that one side left unparsed for a fault of the detokenizer.
    ("parser", other_parts),
    ("same-tokens-other-text", same_tokens_other_text),
    ("parameter-broken", parameter_broken),
    ("own-word", own_word),
    ("unreliable-reference", unreliable_reference),
    ("parameter-misapplied", parameter_misapplied),
    ("parameter-ignored", parameter_ignored),
    ("stop-handling", stop_handling),
    ("cross-talk", cross_talk),
    ("wrong-token", wrong_token),
    ("parameter-misapplied", misapplied_without_evidence),
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
    """Whether a difference is small: it reconverges to the end, with the same end, nothing broken.

    With evidence at every divergence point that is enough. Without, the change must also be local and touch no number,
    name, quotation or value.
    """
    return _is_whole_again(case) and (case.scored == "all" or is_local(case.ref, case.spec))


def _is_small_change(case: Case) -> bool:
    """Whether a difference is small by the texts alone."""
    return _is_whole_again(case) and is_local(case.ref, case.spec)


def _is_whole_again(case: Case) -> bool:
    return same_parts(case.ref, case.spec) and is_whole_again(case.ref, case.spec, case.alignment, case.signs)
