"""How long verdicts take: `python -m benchmarks.verdict [PAIRS] [TOKENS]`, and what evidence adds on a real pair.

The first part classifies stored pairs on one core, one in eight of them differing in three places. The second, with
``--real``, checks the demo's pair twice, without and with evidence, and prints the share that evidence adds.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from verifier.compare.alignment import Answer, align
from verifier.compare.degeneration import degeneration
from verifier.compare.evidence import judge
from verifier.compare.structure import structure
from verifier.compare.suite import Tally
from verifier.compare.verdict import Case, decide, same_answer
from verifier.demo import methods
from verifier.events import Event
from verifier.plan import Score
from verifier.records import Arm, Comparison, Completion, Prompt, Split, Summary, TokenLogprob, Tolerance
from verifier.runner import session
from verifier.store.run_file import Run

WORDS = [f" word{number}" for number in range(5000)]
DIFFERING = 8
"""One answer in so many differs."""


def pair(rng: random.Random, tokens: int, *, differs: bool) -> tuple[Completion, Completion]:
    """Two answers, the second one changed in three places if they are to differ."""
    ids = [rng.randrange(len(WORDS)) for _ in range(tokens)]
    other = list(ids)
    if differs:
        for place in rng.sample(range(tokens), 3):
            other[place] = rng.randrange(len(WORDS))
    return completion("ref", ids), completion("spec", other)


def completion(arm: Arm, ids: list[int]) -> Completion:
    return Completion("p", arm, 0, "d", "".join(WORDS[token] for token in ids), "length", ids=tuple(ids))


def classify(ref: Completion, spec: Completion, prompt: Prompt, tolerance: Tolerance) -> Comparison:
    """What `lossless compare` does for one pair, without reading it."""
    alignment = align(Answer(ref.text, ref.ids), Answer(spec.text, spec.ids))
    differs = not same_answer(ref, spec)
    splits: tuple[Split, ...] = ()
    if differs:
        assert ref.ids is not None
        assert spec.ids is not None
        at = alignment.spans[0].ref_start
        top = (TokenLogprob(ref.ids[at], -0.5), TokenLogprob(spec.ids[at], -0.6))
        splits = (judge(at, ref.ids[at], spec.ids[at], top, tolerance.value, "reference-run"),)
    signs = degeneration(ref, spec, prompt_text=prompt.text or "") if differs else ()
    case = Case(
        prompt, ref, spec, alignment, structure(ref, spec), tolerance, splits=splits, scored="first", signs=signs
    )
    ruling = decide(case)
    return Comparison(
        "p", "code", ruling.cls, ruling.cause, ruling.fault, ruling.rule, ruling.reason, alignment=alignment
    )


def classification(pairs: int, tokens: int) -> None:
    rng = random.Random(1)
    prompt, tolerance, tally = Prompt("p", text="go on"), Tolerance(0.3, "benchmark", "high"), Tally()
    stored = [pair(rng, tokens, differs=number % DIFFERING == 0) for number in range(pairs)]
    began = time.process_time()
    for ref, spec in stored:
        tally.add(classify(ref, spec, prompt, tolerance), ref, spec)
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{pairs} pairs of {tokens} tokens: {spent:.2f} s of one core, {tally.summary().counts}, peak {peak} MiB")


class Silent:
    """A display that shows nothing."""

    def __call__(self, event: Event) -> None: ...

    def opened(self, path: Path, *, resumed: bool) -> None: ...

    def show(self, run: Run, summary: Summary, html: Path | None) -> None: ...


def evidence(kind: str) -> None:
    """The share of wall time that evidence adds on the demo's pair."""
    with tempfile.TemporaryDirectory() as folder, methods.pair(methods.packaged_model(), kind, Path(folder)) as servers:
        seconds: dict[str, float] = {}
        scores: tuple[Score, ...] = ("none", "differing", "none", "differing")
        for score in scores:
            began = time.perf_counter()
            summary = session.check(
                session.Settings(
                    spec=servers.spec_url,
                    ref=servers.ref_url,
                    out=Path(folder),
                    score=score,
                    fresh=True,
                ),
                Silent(),
            )
            spent = time.perf_counter() - began
            seconds[score] = min(spent, seconds.get(score, spent))
            print(f"{score:>10}: {spent:.1f} s, {summary.counts}")
    added = seconds["differing"] / seconds["none"] - 1
    differing = summary.counts["near-lossless"] + summary.counts["diverged"]
    print(
        f"evidence on {differing} differing answers adds {added:.1%}; per one in eight {added / max(1, differing):.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="?", type=int, default=10_000)
    parser.add_argument("tokens", nargs="?", type=int, default=512)
    parser.add_argument("--real", metavar="KIND", help="also measure evidence on the demo's pair of this kind")
    arguments = parser.parse_args()
    classification(arguments.pairs, arguments.tokens)
    if arguments.real:
        evidence(arguments.real)


if __name__ == "__main__":
    main()
