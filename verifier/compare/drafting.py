"""Whether drafts were verified, and in how many answers. Pure; memory does not grow with the prompts.

Equal answers say something about speculation only where it was at work. Most engines count drafts by answer: the share
of answers in which drafts were verified is then known, and a verdict holds for those. Others count for the server as a
whole: what share of the tokens came from verify steps is all that can be known then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.compare.speed import Acceptance, contradiction, decode_steps, decoded, generated, impossible
from verifier.records import Completion, DraftedAnswers, Drafts, Finding

PROVEN_SHARE = 0.5
"""The least share of answers (of those long enough) in which drafts must have been verified. A model drafts in every
answer, and the recorded lookups did in all answers of 128 tokens. But a lookup may rightly find nothing in a text
without repetitions, so that more than half would be too much to ask."""

VERIFIED_TOKENS = {True: 0.5, False: 0.2}
"""The least share of decoded tokens that must come from verify steps, by whether a model drafts (all of them then do).
Recorded n-gram lookups had 0.47 and 0.61; one of eight answers alone has 0.125 at most."""

DRAFTED_TOKENS = 0.02
"""The least number of drafted tokens for each decoded one, where steps are not counted: one draft of three in 150."""

LONG_ENOUGH = {True: 2, False: 16}
"""Decoded tokens from which on an answer counts as one that could have had drafts, by whether a model drafts. A lookup
needs some text first in which it can find something again."""

MIXED = 1.1
"""A server's own count of drafts may be this much above that of our answers: it counts requests that failed as well."""

MODEL_BASED = ("mtp", "nextn", "eagle", "medusa", "draft", "dflash", "dspark", "standalone", "mlp", "hydra")
LOOKUPS = ("ngram", "n-gram", "lookup", "suffix")

ELSEWHERE = "Choose prompts on which it drafts, such as `--prompts copying`."


def is_model_based(method: str | None) -> bool:
    """Whether a method of speculation, as a server names it, drafts at every step: a model, and not a lookup."""
    name = (method or "").lower()
    return any(word in name for word in MODEL_BASED) and not any(word in name for word in LOOKUPS)


@dataclass
class Drafting:
    """Counts of a run. Feed it the speculative answers and the server's own counters, in any order."""

    method: str | None = None
    answers: int = 0
    tokens: int = 0
    """Of all answers, as the server counts them."""
    counted: int = 0
    """Answers with counters of their own, impossible ones included."""
    contradicted: int = 0
    first_impossible: str = ""
    first_contradiction: str = ""
    verified: int = 0
    """Answers in which drafts were verified."""
    accepting: int = 0
    rejecting: int = 0
    idle: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    """Answers without drafts that are long enough, by whether a model drafts."""
    first_idle: str = ""
    acceptance: Acceptance = field(default_factory=Acceptance)
    drafted: int = 0
    accepted: int = 0
    server: Drafts | None = None
    """The server's own counters, summed."""

    def add(self, completion: Completion) -> None:
        """Take a speculative answer."""
        self.answers += 1
        self.tokens += generated(completion)
        counts, problem = completion.speculation, contradiction(completion)
        self.counted += counts is not None
        if problem:
            self.contradicted += 1
            if not self.first_impossible:
                self.first_impossible, self.first_contradiction = completion.prompt_id, problem
        if counts is not None and counts.drafted and not problem:
            self.verified += 1
            self.accepting += counts.accepted > 0
            self.rejecting += counts.accepted < counts.drafted
            self.drafted += counts.drafted
            self.accepted += counts.accepted
        else:
            for by_model, least in LONG_ENOUGH.items():
                self.idle[by_model] += decoded(completion) >= least
            if not self.first_idle and decoded(completion) >= LONG_ENOUGH[True] and not problem:
                self.first_idle = completion.prompt_id
        self.acceptance.add(completion)

    def add_drafts(self, drafts: Drafts) -> None:
        """Take a server's own counters; those of the reference say nothing about speculation."""
        if drafts.arm != "spec":
            return
        before = self.server or Drafts("spec", 0, 0, 0, answers=0, tokens=0)
        self.server = Drafts(
            "spec",
            before.drafted + drafts.drafted,
            before.accepted + drafts.accepted,
            _sum(before.verify_steps, drafts.verify_steps),
            answers=_sum(before.answers, drafts.answers),
            tokens=_sum(before.tokens, drafts.tokens),
        )

    @property
    def by_answer(self) -> bool:
        """Whether the answers' own counters decide; a server's totals hold other traffic as well."""
        return self.counted > 0 or self.server is None

    @property
    def by_model(self) -> bool:
        return is_model_based(self.method)

    @property
    def eligible(self) -> int:
        """Answers that had drafts or were long enough for some."""
        return self.verified + self.idle[self.by_model]

    @property
    def _decoded(self) -> int:
        """Tokens from decode steps in the answers that came while the server counted."""
        server = self.server
        if server is None or server.answers is None or server.tokens is None:
            return max(0, self.tokens - self.answers)
        return max(0, server.tokens - server.answers)

    def _server_problem(self) -> str:
        """How the server's own counters contradict themselves or our answers; empty if they do not."""
        server = self.server
        if server is None:
            return ""
        answers = self.answers if server.answers is None else server.answers
        decoded = int(MIXED * self._decoded)
        if self.by_answer:
            # Others' traffic is known for what it is then, by the answers' own counters.
            decoded = server.accepted + (server.verify_steps or 0)
        return impossible(server.drafted, server.accepted, server.verify_steps, decoded, answers=answers)

    @property
    def _is_lower_bound(self) -> bool:
        """Whether the answers report only what was accepted, as TensorRT-LLM's do, and the server's totals agree: what
        it drafted beyond that was rejected."""
        return self.server is not None and self.rejecting == 0 and self.server.accepted <= self.accepted * MIXED

    @property
    def _is_mixed(self) -> bool:
        """Whether the server answered others as well meanwhile."""
        more = self.server is not None and self.server.drafted > self.drafted * MIXED and self.counted > 0
        return more and not self._is_lower_bound

    def length(self) -> float | None:
        """Acceptance length of the run; see `verifier.compare.speed`. ``None`` where it is unknown."""
        if self.by_answer:
            return self.acceptance.length
        server = self.server
        if server is None or not server.drafted or self._server_problem():
            return None
        steps = decode_steps(self._decoded, server.accepted, server.verify_steps)
        return 1 + server.accepted / steps if steps else None

    def per_verify_step(self) -> float | None:
        """Mean tokens per step that had a draft; ``None`` where those are not counted."""
        if self.by_answer and self.acceptance.per_verify_step is not None:
            return self.acceptance.per_verify_step
        server = self.server
        if server is None or not server.verify_steps or self._is_mixed or self._server_problem():
            return None
        return 1 + server.accepted / server.verify_steps

    def share(self) -> DraftedAnswers | None:
        """In how many answers drafts were verified; ``None`` where the engine does not count them by answer."""
        if not self.by_answer or not self.counted:
            return None
        return DraftedAnswers(self.answers, self.verified, self.accepting, self.rejecting)

    def verified_tokens(self) -> float:
        """Share of decoded tokens that came from verify steps, as far as a server that counts as a whole shows it."""
        if self.server is None or not self._decoded:
            return 0.0
        return min(1.0, (self.server.accepted + (self.server.verify_steps or 0)) / self._decoded)

    def verified_in_words(self, *, by_name: bool) -> str:
        """For how many answers drafts are proven, as words after "drafts were verified"; ``by_name`` calls them answers
        and not "them"."""
        if not self.by_answer:
            return f"for {self.verified_tokens():.0%} of the tokens"
        if self.verified == self.answers:
            return f"in all {_answers(self.answers)}" if by_name else "in all of them"
        return f"in {self.verified} of {_answers(self.answers) if by_name else 'them'}"

    def unproven(self) -> str:
        """Why it is not proven that drafts were verified, as a sentence; empty if it is."""
        if self.by_answer and not self.counted:
            return "The speculative server does not report whether it drafted anything, so its speculation is unproven."
        problem = self.first_contradiction if self.contradicted and not self.verified else ""
        problem = problem or ("" if self.by_answer else self._server_problem())
        if problem:
            return f"The speculative server's draft counters are impossible, so they prove nothing: {problem}."
        drafted, accepted = self._totals()
        if not drafted:
            return "The speculative server drafted nothing: what was compared is two servers without speculation."
        if not accepted:
            return "No draft token was accepted, so the accepting side of the verify step was never tested."
        if accepted == drafted:
            return "No draft token was rejected, so the rejecting side of the verify step was never tested."
        return self._too_few() if self.by_answer else self._too_few_tokens()

    def _totals(self) -> tuple[int, int]:
        """Drafted and accepted tokens, from the better source."""
        if self.server is not None and (not self.by_answer or (self.verified and self._is_lower_bound)):
            return max(self.drafted, self.server.drafted), max(self.accepted, self.server.accepted)
        return self.drafted, self.accepted

    def _too_few(self) -> str:
        if self.verified >= PROVEN_SHARE * self.eligible:
            return ""
        short = self.answers - self.eligible
        long = f" ({short} {'was' if short == 1 else 'were'} too short for drafts)" if short else ""
        if self.by_model:
            return (
                f"Speculation was inactive in {self.answers - self.verified} of {self.answers} answers{long}, so "
                "nothing is proven about most of them. See the server's log."
            )
        return (
            f"Drafts were verified in only {self.verified} of {self.answers} answers{long}, so nothing is proven about "
            f"most of them. {ELSEWHERE}"
        )

    def _too_few_tokens(self) -> str:
        server, decoded = self.server, self._decoded
        assert server is not None  # noqa: S101 - whoever asks has looked
        if server.verify_steps is None:
            if server.drafted >= DRAFTED_TOKENS * decoded:
                return ""
            return (
                f"The server drafted only {server.drafted} tokens while {decoded} were decoded, so nothing is proven "
                f"about most of the answers. {ELSEWHERE}"
            )
        if self.verified_tokens() >= VERIFIED_TOKENS[self.by_model]:
            return ""
        advice = "See the server's log." if self.by_model else ELSEWHERE
        return (
            f"Only {self.verified_tokens():.0%} of {decoded} tokens came from verify steps, so nothing is proven about "
            f"most of the answers. {advice}"
        )

    def findings(self) -> list[Finding]:
        """Defects of the counters and of drafting, which say nothing about single answers."""
        found = []
        if self.contradicted:
            alone = self.contradicted == 1
            found.append(
                Finding(
                    "impossible-counters",
                    f"The draft counters of {self.contradicted} of {self.answers} answers are impossible and are not "
                    f"used: {self.first_contradiction}.",
                    "warning",
                    arm="spec",
                    prompt_id=self.first_impossible if alone else None,
                )
            )
        if problem := self._server_problem():
            found.append(
                Finding(
                    "impossible-counters",
                    f"The server's own draft counters are impossible and are not used: {problem}. They are wrong, or "
                    "others were asking the server too, and batching with them changes greedy output.",
                    "warning",
                    arm="spec",
                )
            )
        if self._is_mixed and self.server is not None:
            found.append(
                Finding(
                    "mixed-traffic",
                    f"The server drafted {self.server.drafted} tokens, {self.drafted} of them for us: others were "
                    "asking it too, and batching with them changes greedy output.",
                    "warning",
                    arm="spec",
                )
            )
        if self.by_model and self.verified and self.verified < self.eligible and not self.unproven():
            idle = self.eligible - self.verified
            found.append(
                Finding(
                    "speculation-inactive",
                    f"Speculation was inactive in {idle} of {self.eligible} answers (such as {self.first_idle!r}), "
                    f"although {self.method} drafts at every step.",
                    "warning",
                    arm="spec",
                )
            )
        return found


def _answers(count: int) -> str:
    return f"{count} answer" if count == 1 else f"{count} answers"


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
