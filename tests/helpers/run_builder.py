"""Run files with made-up answers, for reports to draw: verdicts and alignments are made as a check makes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from verifier.compare.alignment import Answer, align
from verifier.records import (
    Abilities,
    Arm,
    Cause,
    Class,
    Comparison,
    Completion,
    Failure,
    Fault,
    Finding,
    Fingerprint,
    Header,
    Record,
    Rendering,
    ServerRecord,
    Speculation,
    SpeculationSettings,
    Split,
    Summary,
    Timing,
    TokenLogprob,
    Tolerance,
)
from verifier.store.run_file import Run, Store

_TOLERANCE = 0.3
_PIECE = re.compile(r" ?\w{1,6}|\s|.", re.DOTALL)


def pieces_of(text: str) -> list[str]:
    """A made-up tokenizer: words of up to six letters with the space before them, and single characters."""
    return _PIECE.findall(text)


@dataclass
class Built:
    """A run file being made. Ids are given to pieces in the order in which they are first seen."""

    path: Path
    kind: Literal["check", "golden"] = "check"
    options: dict[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    """Whether the reference's answers carry the two most likely tokens."""
    ids: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        header = Header(
            1, "lossless 0.1.0", "2026-11-30T09:00:00+00:00", self.kind, "standard", "9f1c2ab0", self.options
        )
        self.store = Store(self.path, header)

    def servers(self) -> Built:
        common: dict[str, Any] = {
            "version": "0.5.12", "model": "Qwen/Qwen3-8B", "dtype": "bfloat16", "kv_dtype": "auto",
            "quantization": None, "parallel": "tp 1", "prefix_cache": True, "context_length": 40960,
        }  # fmt: skip
        spec = SpeculationSettings("EAGLE", "qwen3-8b-eagle3", {"steps": "3", "topk": "1", "draft_tokens": "4"})
        self.add(ServerRecord("ref", "http://127.0.0.1:30000", Fingerprint("sglang", **common, speculation=None),
                              Abilities(token_ids=True, scoring="prefill")))  # fmt: skip
        self.add(ServerRecord("spec", "http://127.0.0.1:30001",
                              Fingerprint("sglang", **{**common, "kv_dtype": "fp8_e5m2"}, speculation=spec),
                              Abilities(token_ids=True, scoring="prefill")))  # fmt: skip
        return self

    def add(self, record: Record) -> None:
        self.store.append(record)

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.ids.setdefault(piece, 100 + len(self.ids)) for piece in pieces_of(text))

    def pieces(self) -> dict[int, str]:
        return {number: piece for piece, number in self.ids.items()}

    def completion(
        self, prompt_id: str, arm: Arm, text: str, *, ids: bool = True, run: int = 0, acceptance: float = 3.0
    ) -> Completion:
        """An answer whose draft counters come as near to an acceptance length as its tokens allow."""
        tokens = self.tokens(text)
        steps = max(1, round((len(tokens) - 1) / acceptance))
        accepted = max(0, len(tokens) - 1 - steps)
        top = None
        if self.logprobs and arm == "ref":
            top = tuple((TokenLogprob(token, -0.1), TokenLogprob(token + 1, -2.5)) for token in tokens)
        return Completion(
            prompt_id, arm, run, "0" * 16, text, "eos", tokens if ids else None,
            prompt_tokens=40, completion_tokens=len(tokens), timing=Timing(1.0, 0.1, 0.9),
            speculation=Speculation(accepted + 10, accepted, steps) if arm == "spec" else None, top=top,
        )  # fmt: skip

    def prompt(
        self,
        prompt_id: str,
        ref: str,
        spec: str | None = None,
        *,
        asked: str = "Say something.",
        category: str = "chat",
        language: str = "en",
        cls: Class | None = None,
        cause: Cause | None = None,
        fault: Fault = "none",
        gap: float = 0.125,
        ids: bool = True,
        repeats: bool | None = True,
        acceptance: float | None = 3.0,
        know_pieces: bool = True,
    ) -> None:
        """One prompt with both answers and the verdict on it; ``spec`` left out means the same answer."""
        spec = ref if spec is None else spec
        self.add(Rendering(prompt_id, "0" * 16, self.tokens(asked), asked))
        self.add(self.completion(prompt_id, "ref", ref, ids=ids))
        self.add(self.completion(prompt_id, "spec", spec, ids=ids, acceptance=acceptance or 3.0))
        sides = [
            Answer(text, self.tokens(text) if ids else None, pieces_of(text) if ids and know_pieces else None)
            for text in (ref, spec)
        ]
        alignment = align(*sides)
        cls = cls or ("exact" if ref == spec else "near-lossless")
        cause = cause or ("none" if cls == "exact" else "rounding")
        splits: tuple[Split, ...] = ()
        if cls != "exact" and ids and alignment.spans and sides[0].ids and sides[1].ids:
            span = alignment.spans[0]
            ref_token = sides[0].ids[min(span.ref_start, len(sides[0].ids) - 1)]
            spec_token = sides[1].ids[min(span.spec_start, len(sides[1].ids) - 1)]
            splits = (
                Split(span.spec_start, ref_token, spec_token, ref_token, gap, 0.3, "prefill", 2, gap > 5, -0.62,
                      -0.62 - gap, (ref_token, spec_token) if gap <= 0.3 else ()),
            )  # fmt: skip
        self.verdict(
            Comparison(
                prompt_id,
                category,
                cls,
                cause,
                fault,
                *_why(cls, gap if splits else None),
                language,
                alignment,
                splits,
                Tolerance(_TOLERANCE, "bf16 floor", "medium") if splits else None,
                repeats,
                acceptance,
                42.0,
                101.5,
            )
        )

    def error(self, prompt_id: str, arm: Arm = "spec", category: str = "chat") -> None:
        """A prompt that one server did not answer."""
        self.add(Rendering(prompt_id, "0" * 16, (1, 2, 3), "Asked in vain."))
        if arm == "spec":
            self.add(self.completion(prompt_id, "ref", "The reference did answer."))
        self.add(Failure(prompt_id, arm, 0, "status-500", "The server answered 500.", "Look at its log."))
        self.verdict(
            Comparison(prompt_id, category, "error", "server-error", "undetermined", "no-answer",
                       "The speculative server gave no answer.", "en")
        )  # fmt: skip

    def verdict(self, comparison: Comparison) -> None:
        for counts, key in ((self.counts, comparison.cls), (self.causes, comparison.cause),
                            (self.faults, comparison.fault)):  # fmt: skip
            counts[key] = counts.get(key, 0) + 1
        self.add(comparison)

    def finding(self, name: str, message: str, severity: Literal["note", "warning", "invalid"] = "warning") -> None:
        self.add(Finding(name, message, severity, "spec"))

    def finish(self, verdict: Any = "NEAR-LOSSLESS", sentence: str = "", *, summary: bool = True) -> Run:
        """Close the file and open it for reading."""
        if summary:
            self.add(
                Summary(verdict, "error" not in self.counts, sentence or "Differences are explained by rounding.",
                        self.counts, self.causes, self.faults, 0, 3.1, 42.0, 101.5)
            )  # fmt: skip
        self.store.close()
        return Run(self.path)


def _why(cls: Class, gap: float | None) -> tuple[str, str]:
    """Rule and reason as a verdict would give them."""
    if cls == "exact":
        return "identical", "Same ids, same text, same finish."
    if gap is None:
        return "no evidence", "Nothing tells what the reference thinks of the other token."
    if gap > _TOLERANCE:
        return "gap at the split", f"The emitted token lies {gap:.2f} nats below the reference's own."
    return "gap at the split", f"Two tokens {gap:.3f} nats apart: arithmetic alone explains which one is first."


CODE_REF = (
    "Here is a function:\n\n```python\ndef fib(n: int) -> int:\n    a, b = 0, 1\n    for _ in range(n):\n"
    "        a, b = b, a + b\n    return a\n```\n\nThe tenth Fibonacci number is 55\n\nCall `fib(10)` to check it."
)
CODE_SPEC = CODE_REF.replace("number is 55\n", "number is `55`.\n")
CHINESE_REF = (
    "投机解码用一个小模型先猜测若干词元，再由大模型一次验证。只要验证严格，输出就不会改变。\n"
    "它能把速度提高一倍半到三倍。"
)
CHINESE_SPEC = CHINESE_REF.replace("若干词元", "几个词元").replace("三倍。", "三倍！")
ARABIC_REF = (
    "فك التشفير التخميني يستخدم نموذجًا صغيرًا لتخمين الكلمات التالية.\n"
    "ثم يتحقق النموذج الكبير منها دفعة واحدة (في 55 خطوة)."
)
ARABIC_SPEC = ARABIC_REF.replace("الكلمات التالية", "الرموز التالية")

HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
    "<svg onload=window.pwned=1>{{7*7}}{% raw %}<a href='javascript:window.pwned=1'>click</a>"
    '<style>body{display:none}</style>" onmouseover="window.pwned=1" ]]> --> <!-- \x00\x1b[31m\x07'
    "\u202eevil\u202c\u2066iso\u2069\u200bzero\u2028line\x85next\x7f &lt;b&gt; ${window.pwned=1} `x`"
)


def sample(path: Path) -> Run:
    """A run with one prompt of every kind."""
    built = Built(path, logprobs=True).servers()
    built.prompt("code-fib", CODE_REF, CODE_SPEC, asked="Write fib in Python.", category="code", acceptance=5.4)
    built.prompt("zh-explain", CHINESE_REF, CHINESE_SPEC, asked="解释投机解码。", language="zh", acceptance=2.4)
    built.prompt("ar-explain", ARABIC_REF, ARABIC_SPEC, asked="اشرح فك التشفير التخميني.", language="ar", gap=0.25)
    built.prompt(
        "story", "Once upon a time there was a fox. " * 12, "Once upon a time a wolf ran far away from home. " * 9,
        category="prose", cls="diverged", cause="wrong-token", fault="speculation", gap=6.2, acceptance=2.1,
    )  # fmt: skip
    built.prompt("no-ids", "The answer is 41, as said.", "The answer is 42, as said.", ids=False, cls="diverged",
                 cause="undetermined", fault="undetermined", category="math")  # fmt: skip
    built.error("timeout")
    for number in range(6):
        built.prompt(f"exact-{number}", f"Answer number {number} is the same on both sides. " * (number + 1),
                     category=("code", "chat", "extraction")[number % 3], acceptance=2.0 + number)  # fmt: skip
    built.finding("logprobs-zero", "All logprobs are 0.0 while drafting is on.")
    built.finding("drafting", "Drafting is proven: 240 tokens accepted, 120 rejected.", "note")
    return built.finish("LOSSY", "1 of 12 answers was changed by speculation.")


def hostile(path: Path) -> Run:
    """A run in which everything that a model, a server or a user can write tries to get out of its place."""
    built = Built(path, options={"command": f"lossless check {HOSTILE}"}, logprobs=True)
    named = Fingerprint(HOSTILE, version=HOSTILE, model=HOSTILE, chat_template=HOSTILE)
    for arm in ("ref", "spec"):
        built.add(ServerRecord(arm, f"http://127.0.0.1/{HOSTILE}", named, Abilities()))
    built.prompt(HOSTILE, f"before {HOSTILE}", f"before {HOSTILE[::-1]}", asked=HOSTILE, category=HOSTILE,
                 language=HOSTILE, cls="diverged", cause="wrong-token", fault="speculation", gap=7)  # fmt: skip
    built.prompt(f"exact {HOSTILE}", HOSTILE, asked=HOSTILE, category=f"other {HOSTILE}", language='"><b>')
    built.prompt("one line", "x" * 1_000_000, "x" * 500_000 + "y" + "x" * 499_999, know_pieces=False)
    built.add(Failure(f"failed {HOSTILE}", "spec", 0, HOSTILE, HOSTILE, HOSTILE))
    built.verdict(
        Comparison(f"failed {HOSTILE}", HOSTILE, "error", "server-error", "undetermined", HOSTILE, HOSTILE, HOSTILE)
    )
    built.finding(HOSTILE, HOSTILE, "invalid")
    return built.finish("LOSSY", HOSTILE)


def golden(path: Path) -> Run:
    """A golden: answers of the reference, no verdicts."""
    built = Built(path, kind="golden")
    built.add(ServerRecord("ref", "http://127.0.0.1:8080", Fingerprint("llama.cpp"), Abilities()))
    for number in range(3):
        built.add(Rendering(f"golden-{number}", "0" * 16, None, "Say something."))
        built.add(built.completion(f"golden-{number}", "ref", f"Recorded answer {number}."))
    built.add(Rendering("golden-failed", "0" * 16, None, "Say something."))
    built.add(Failure("golden-failed", "ref", 0, "timeout", "No answer within 60 s."))
    built.add(Rendering("golden-open", "0" * 16, None, "Not asked yet."))
    return built.finish(summary=False)
