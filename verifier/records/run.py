"""What is stored: every record that `lossless` writes to a run or golden file, and nothing that it only computes.

A file is JSON Lines. Each line is one record, tagged by its ``type``. Counts are tokens, times are seconds, gaps and
logprobs are nats (natural logarithm), offsets are Python string indices (code points) unless a name says otherwise.

Three-valued facts: a field of a `Fingerprint` is *unknown* when it is `UNSET` (it is then missing from the file),
*absent* when it is ``None`` (known not to be there), and known otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from verifier.records.answers import FunctionCall, TextToken
from verifier.records.arms import Arm
from verifier.records.prompt import Message, Prompt

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
"""Refused when a file is read: a negative tolerance would turn every near-tie into a wrong token. (JSON has neither NaN
nor infinity.)"""

SCHEMA_VERSION = 3
"""Version of the file format. It grows when a reader of the previous version would misread a file."""

Class = Literal["exact", "near-lossless", "diverged", "error"]
Fault = Literal["none", "speculation", "reference", "comparison", "undetermined"]
Cause = Literal[
    "none",
    "prompt-differs",
    "unstable-reference",
    "detokenizer",
    "parser",
    "stream",
    "stop-handling",
    "parameter-ignored",
    "parameter-misapplied",
    "rounding",
    "wrong-token",
    "degeneration",
    "relaxed-acceptance",
    "cross-talk",
    "drift",
    "unreliable-reference",
    "undetermined",
    "server-error",
]
Defect = Literal["usage"]
"""What can be wrong with an answer that is otherwise the reference's."""
Finish = Literal["eos", "stop", "length", "abort", "unknown"]
"""Why an answer ended: the model's own end token, a stop string or stop id of the request, max_tokens, the server."""
Unit = Literal["token", "grapheme"]
ReconvergenceKind = Literal["none", "transient", "tail-sync"]
Scored = Literal["none", "first", "proof", "all"]
"""How much of a speculative answer the reference was asked about: nothing, its first split, all up to the token that
proved it wrong, or all of it."""
SuiteVerdict = Literal["INVALID", "LOSSY", "INCONCLUSIVE", "NEAR-LOSSLESS", "LOSSLESS"]


class SpeculationSettings(Struct, frozen=True, omit_defaults=True):
    """How a server speculates, as far as it reports it."""

    method: str
    draft_model: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


class Fingerprint(Struct, frozen=True, omit_defaults=True):
    """What a server is. `UNSET` fields are unknown, ``None`` fields are known to be absent."""

    engine: str
    version: str | None | UnsetType = UNSET
    model: str | None | UnsetType = UNSET
    tokenizer: str | None | UnsetType = UNSET
    dtype: str | None | UnsetType = UNSET
    quantization: str | None | UnsetType = UNSET
    kv_dtype: str | None | UnsetType = UNSET
    attention_backend: str | None | UnsetType = UNSET
    parallel: str | None | UnsetType = UNSET
    prefix_cache: bool | None | UnsetType = UNSET
    deterministic: bool | None | UnsetType = UNSET
    slots: int | None | UnsetType = UNSET
    kv_pool_tokens: int | None | UnsetType = UNSET
    context_length: int | None | UnsetType = UNSET
    vocabulary: int | None | UnsetType = UNSET
    chat_template: str | None | UnsetType = UNSET
    speculation: SpeculationSettings | None | UnsetType = UNSET


class Abilities(Struct, frozen=True, omit_defaults=True):
    """What a server can be asked for. ``None`` means that it could not be found out without a request."""

    token_ids: bool | None = None
    prompt_ids: bool | None = None
    scoring: Literal["prefill", "one-token"] | Literal[False] | None = None
    draft_counters: Literal["request", "metrics"] | Literal[False] | None = None
    chat_template: bool | None = None
    detokenize: bool | None = None
    lacks: tuple[str, ...] = ()
    """Parameters of prompts that it cannot be asked for."""
    shaped_logprobs: bool = False
    """Whether the logprobs of its answers are of what penalties, biases and grammars left, not of the plain model."""
    forced_decoding: bool = False
    """Whether it decodes a given answer, so that the answer need not be scored by a prefill."""


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token and its logprob (nats) in one distribution."""

    id: int
    logprob: float


class Speculation(Struct, frozen=True, omit_defaults=True):
    """Draft counters of one answer. ``verify_steps`` is ``None`` where the engine does not count them by request."""

    drafted: int
    accepted: int
    verify_steps: int | None = None


class Timing(Struct, frozen=True, omit_defaults=True):
    """Seconds. ``total`` is the client's clock; the others are the server's where it reports them, else ``None``."""

    total: float
    prefill: float | None = None
    decode: float | None = None


class Invocation(Struct, frozen=True, omit_defaults=True):
    """One command that made a file, so that it can be run again; `verifier.runner.invocation` makes and reads it.

    ``options`` holds what was set on the command line, in the environment or in a configuration file, by long name
    without dashes: ``True`` for a flag, a list for an option that may be repeated. Secrets are left out. ``keys`` names
    the environment variables that held API keys.
    """

    command: str
    options: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Header(Struct, frozen=True, tag="header", omit_defaults=True):
    """First line of every file. A later one replaces it: when a run is resumed by another command, or rescored.

    ``made_by`` holds the commands that make such a file, in order. It plays no part in whether a run can be resumed.
    """

    schema: int
    tool: str
    created: str
    kind: Literal["check", "golden"]
    prompt_set: str
    prompt_set_digest: str
    options: dict[str, Any]
    made_by: tuple[Invocation, ...] = ()


class ServerRecord(Struct, frozen=True, tag="server"):
    """One arm: where it was and what it was. The URL carries no user, password or query."""

    arm: Arm
    url: str
    fingerprint: Fingerprint
    abilities: Abilities


class Rendering(Struct, frozen=True, tag="rendering", omit_defaults=True):
    """A prompt as it is sent: token ids where the engine takes them, else text or messages.

    ``prompt`` is the prompt itself, so that a file can be compared and read without the prompt set. ``bias`` is what is
    added to the logits of tokens, by id: the prompt's biases, texts resolved.
    """

    prompt_id: str
    digest: str
    ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    vocabulary: int | None = None
    prompt: Prompt | None = None
    bias: dict[int, float] = field(default_factory=dict)


class Completion(Struct, frozen=True, tag="completion", omit_defaults=True):
    """One answer of one server.

    ``run`` counts the passes of an arm from 0. ``ids`` are the server's own and may include its end token.
    ``top[i]`` are the most likely tokens at position i, best first, where they were asked for.
    ``surplus`` is the number of ids at the end that came after the answer was over. ``text`` is reasoning and content
    joined, of which the first ``reasoning_length`` code points came as reasoning; it is ``None`` where the answer is
    not a chat message or the file is older than this field. ``tool_calls`` are those that the server parsed.
    """

    prompt_id: str
    arm: Arm
    run: int
    digest: str
    text: str
    finish: Finish
    ids: tuple[int, ...] | None = None
    stop: str | int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    timing: Timing | None = None
    speculation: Speculation | None = None
    top: tuple[tuple[TokenLogprob, ...], ...] | None = None
    surplus: int = 0
    concurrency: int = 1
    reasoning_tokens: int | None = None
    """How many of its tokens the server counts as reasoning."""
    reasoning_length: int | None = None
    tool_calls: tuple[FunctionCall, ...] = ()
    text_tokens: tuple[TextToken, ...] | None = None
    """The tokens by text, with logprobs, where they were asked for and the server knows no ids."""


class Failure(Struct, frozen=True, tag="failure", omit_defaults=True):
    """A prompt that got no usable answer: what happened and what to do."""

    prompt_id: str
    arm: Arm
    run: int
    kind: str
    message: str
    advice: str = ""


class Span(Struct, frozen=True, array_like=True):
    """A place where the aligned sequences differ: half-open ranges in units of the alignment, one for each side."""

    ref_start: int
    ref_end: int
    spec_start: int
    spec_end: int
    ref_text: str = ""
    spec_text: str = ""
    refined: bool = True
    """False where the edit budget was reached and the whole range is given as one replacement."""


class Position(Struct, frozen=True, omit_defaults=True):
    """Where the answers first part. ``line`` and ``column`` count from 1, everything else from 0.

    ``char`` counts code points and ``grapheme`` user-perceived characters of the common text. ``token`` is ``None``
    where ids were missing.
    """

    char: int
    grapheme: int
    line: int
    column: int
    token: int | None = None
    before: str = ""
    """Common text just before the difference."""
    ref_text: str = ""
    spec_text: str = ""
    """The two texts from the difference on, shortened."""


class Reconvergence(Struct, frozen=True, omit_defaults=True):
    """Whether the answers run together again after the first difference.

    ``shift`` is spec position minus ref position of the last run of equal units (tokens; negative: spec is shorter).
    """

    kind: ReconvergenceKind
    shift: int | None = None
    ref_at: int | None = None
    spec_at: int | None = None


class Alignment(Struct, frozen=True, omit_defaults=True):
    """How two answers lie beside each other, in ``unit`` steps."""

    unit: Unit
    ref_length: int
    spec_length: int
    spans: tuple[Span, ...]
    reconvergence: Reconvergence
    first: Position | None = None
    inserted: int = 0
    deleted: int = 0
    replaced: int = 0
    equal_before: int = 0
    """Units before the first difference."""
    equal_after: int = 0
    """Equal units after the first difference."""
    note: str = ""
    """Such as "same after NFC"; empty when there is nothing to add."""


class Split(Struct, frozen=True, omit_defaults=True):
    """Evidence at one position of the speculative answer: what the reference thinks of the two tokens there.

    ``gap`` = logprob(reference's argmax) − logprob(speculative token), both in ONE distribution of the reference.
    A lower bound is marked by ``at_least``: the token was not among the top-k that were asked for. Where the reference
    names tokens by text, ``texts`` holds those of this split, ids are negative and mean nothing elsewhere, and
    ``index`` counts the reference's tokens.
    """

    index: int
    ref_token: int
    spec_token: int
    argmax: int
    gap: float
    tolerance: NotNegative
    source: Literal["reference-run", "prefill", "one-token", "decode"]
    rank: int | None = None
    at_least: bool = False
    ref_logprob: float | None = None
    spec_logprob: float | None = None
    tied: tuple[int, ...] = ()
    texts: dict[int, str] = field(default_factory=dict)
    doubt: NotNegative = 0.0
    """Nats up to which a gap beyond the tolerance is only suspect, where set; see `compare.evidence.suspect`."""


class Tolerance(Struct, frozen=True, omit_defaults=True):
    """The gap that arithmetic alone can explain on this server, in nats.

    Measured at other positions it could as well have come out anywhere from ``low`` to ``high`` (90%). They are
    ``None`` where nothing is uncertain: it was set, or a floor or the cap decides whatever is measured.
    """

    value: NotNegative
    source: str
    confidence: Literal["high", "medium", "low"]
    low: NotNegative | None = None
    high: NotNegative | None = None

    def __str__(self) -> str:
        """Such as ``0.28 (0.21 to 0.42)``."""
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


class Measurement(Struct, frozen=True, tag="measurement", omit_defaults=True):
    """How far the reference's own decode and prefill are apart: the basis of a measured tolerance. Nats.

    ``rms`` and ``largest`` are of the change of the gap between the two most likely tokens over ``samples`` positions.
    Of ``own_tokens`` tokens of its own answers, ``own_beyond`` lie further behind its scores' choice than any rounding.
    Where the reference decodes given answers, all of this is of its decode against a second, forced decode;
    ``by_prefill`` is then the tolerance of evidence that had to be taken by prefill after all, and ``None`` elsewhere.
    """

    tolerance: Tolerance
    samples: Annotated[int, msgspec.Meta(ge=0)]
    rms: NotNegative
    largest: NotNegative
    own_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    own_beyond: Annotated[int, msgspec.Meta(ge=0)] = 0
    by_prefill: Tolerance | None = None
    asked: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests that it took, so that a later measurement can go on from there; 0 in files of earlier versions."""


class Comparison(Struct, frozen=True, tag="comparison", omit_defaults=True):
    """The verdict on one prompt, with what it rests on."""

    prompt_id: str
    category: str
    cls: Class
    cause: Cause
    fault: Fault
    rule: str
    reason: str
    language: str = ""
    alignment: Alignment | None = None
    splits: tuple[Split, ...] = ()
    tolerance: Tolerance | None = None
    ref_repeats: bool | None = None
    """Whether the reference gave the same answer again; ``None`` when it was asked once."""
    acceptance_length: float | None = None
    ref_speed: float | None = None
    spec_speed: float | None = None
    """Decode tokens per second."""
    scored: Scored = "none"
    notes: tuple[str, ...] = ()
    """What else is different about the two answers: broken JSON, an open tool call, signs of breakdown."""
    defects: tuple[Defect, ...] = ()
    """What is wrong with the speculative answer besides its text and tokens: wrong token counts."""


class Drafts(Struct, frozen=True, tag="drafts", omit_defaults=True):
    """What a server's own counters grew by while it answered a pass: all traffic on it, not only ours.

    ``per_position[i]`` counts accepted drafts at position i of a draft, where the engine reports them. ``answers`` is
    how many of ours came meanwhile, with ``tokens`` in them: fewer than the run holds where it was interrupted. Files
    of earlier versions lack both.
    """

    arm: Arm
    drafted: int
    accepted: int
    verify_steps: int | None = None
    per_position: dict[int, int] = field(default_factory=dict)
    answers: int | None = None
    tokens: int | None = None


class Finding(Struct, frozen=True, tag="finding", omit_defaults=True):
    """Something worth knowing that is not a difference in an answer."""

    name: str
    message: str
    severity: Literal["note", "warning", "invalid"] = "note"
    arm: Arm | None = None
    prompt_id: str | None = None


class NoiseFloor(Struct, frozen=True, array_like=True):
    """How often, in one category, the reference differs from itself and the speculative server from it."""

    prompts: int
    ref_differs: int
    spec_differs: int


class Statistics(Struct, frozen=True, omit_defaults=True):
    """What a run says about rates. Intervals are 95%, two-sided; hazards are divergences per token exposed.

    ``p_value`` is of the exact one-sided McNemar test that speculation adds differences to those that the reference
    has with itself, over all prompts; ``excess`` names the categories where that is significant after Holm's
    correction, ``"all"`` standing for the pooled test. ``smallest_answer_rate`` and ``smallest_token_rate`` are the
    smallest effects that this run would have shown with 95% probability.
    """

    exact_share: float
    exact_low: float
    exact_high: float
    hazard: float | None = None
    hazard_low: float | None = None
    hazard_high: float | None = None
    exposed_tokens: int = 0
    ref_hazard: float | None = None
    p_value: float | None = None
    excess: tuple[str, ...] = ()
    noise_floor: dict[str, NoiseFloor] = field(default_factory=dict)
    noise_at_other_shape: bool = False
    """Whether the reference was also asked at another concurrency, as a verify step is another shape too."""
    smallest_answer_rate: float | None = None
    smallest_token_rate: float | None = None


class DraftedAnswers(Struct, frozen=True):
    """In how many of ``answers`` drafts were verified, and in how many of those some were accepted or rejected."""

    answers: int
    verified: int
    accepted: int
    rejected: int


class Summary(Struct, frozen=True, tag="summary", omit_defaults=True):
    """The result of a run. ``complete`` is False when some prompt has no verdict because a server failed.

    ``acceptance_length`` is tokens per decode step, the bonus token and steps without a draft included;
    ``tokens_per_verify_step`` leaves those steps out, and is known only where an engine counts verify steps.
    ``min_acceptance`` is the acceptance length that was asked for.
    """

    verdict: SuiteVerdict
    complete: bool
    sentence: str
    counts: dict[str, int]
    causes: dict[str, int]
    faults: dict[str, int]
    exit_code: int
    acceptance_length: float | None = None
    ref_speed: float | None = None
    spec_speed: float | None = None
    ref_repeats: tuple[int, int] | None = None
    """How many answers the reference repeated exactly, of how many asked twice."""
    statistics: Statistics | None = None
    policy: str = "lossless"
    """A label, such as ``strict -near-lossless``."""
    fail_on: tuple[str, ...] | None = None
    allow: tuple[str, ...] | None = None
    """The policy itself: what fails the run and what is excused. ``None`` in files of earlier versions."""
    beyond_prompts: SuiteVerdict | None = None
    """The verdict when no prompt is held against the run: LOSSY by the number of differences alone, INCONCLUSIVE where
    drafting is unproven or the reference is unstable."""
    tokens_per_verify_step: float | None = None
    drafting: DraftedAnswers | None = None
    """``None`` where the engine does not count drafts by answer."""
    min_acceptance: float | None = None
