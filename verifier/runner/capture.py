"""Prompts × server → completions on disk: concurrent up to a limit, resumable, one failed prompt at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from verifier.compare.divergence import common_prefix
from verifier.compare.speed import generated
from verifier.errors import ServerError
from verifier.events import Advanced, Answered, Event, Failed, Found, Handler, StageStarted
from verifier.plan import Pass
from verifier.prompts.sets import Prompts
from verifier.records import Arm, Completion, Drafts, Failure, Finding, Prompt, Rendering, Timing
from verifier.runner.origins import Origins
from verifier.servers.answer_size import require_size
from verifier.servers.logprobs import doubtful
from verifier.servers.parameters import REFUSED, refusal
from verifier.servers.protocol import Answer, Counters, Request, Server
from verifier.store.run_file import Store

MOST_SHOWN = 3
"""Prompts reported as rendered differently; the first few are enough."""
MOST_REFUSALS = 3
"""Prompts in a row without a connection after which the server counts as gone."""


async def run_all(workers: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run workers side by side; the first failure, or being cancelled, ends them all before it is passed on."""
    tasks = [asyncio.ensure_future(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def render(server: Server, arm: Arm, prompts: Prompts, store: Store, emit: Handler) -> None:
    """Render every prompt once, on the server of ``arm``, and store what both servers will be sent."""
    done = sum(store.has_rendering(prompt.id) for prompt in prompts)
    emit(StageStarted("render", len(prompts), done, arm))
    refusals = 0
    for prompt in prompts:
        if store.has_rendering(prompt.id):
            continue
        try:
            if refusals >= MOST_REFUSALS:
                raise _gone(server)
            store.append(msgspec.structs.replace(await server.render(prompt), prompt=prompt))
            refusals = 0
        except ServerError as error:
            refusals = refusals + 1 if error.down else 0
            _fail(store, prompt, Pass(arm), error, emit)
        emit(Advanced("render", arm))


async def other_renderings(server: Server, prompts: Prompts, store: Store, emit: Handler) -> list[Finding]:
    """How the speculative server would render the prompts, where that is not what both are sent.

    A server that cannot render, or does not answer here, gives no finding. At most `MOST_SHOWN` are reported.
    """
    emit(StageStarted("render", len(prompts), 0, "spec"))
    findings: list[Finding] = []
    for prompt in prompts:
        ours = store.rendering(prompt.id)
        if ours is not None and len(findings) < MOST_SHOWN:
            try:
                theirs = await server.render(prompt)
            except ServerError as error:
                if error.down:
                    break
            else:
                # Where only one side reports ids, there is nothing to compare.
                if (ours.ids is None) == (theirs.ids is None) and _sent(ours) != _sent(theirs):
                    findings.append(_differently(prompt, ours, theirs))
        emit(Advanced("render", "spec"))
    return findings


def _sent(rendering: Rendering) -> tuple[object, ...]:
    return rendering.ids, rendering.text, rendering.messages


def _differently(prompt: Prompt, ours: Rendering, theirs: Rendering) -> Finding:
    """Both renderings from a little before their first difference on."""
    a, b = ours.ids or ours.text or ours.messages or (), theirs.ids or theirs.text or theirs.messages or ()
    at = common_prefix(a, b)
    start = max(0, at - 3)
    return Finding(
        "prompt-differs",
        f"The two servers render {prompt.id!r} differently from position {at} on: the reference as "
        f"…{a[start : at + 5]}…, the speculative server as …{b[start : at + 5]}…. Do they have the same chat template "
        "and tokenizer?",
        severity="invalid",
        prompt_id=prompt.id,
    )


async def capture(server: Server, job: Pass, prompts: Prompts, store: Store, emit: Handler) -> None:
    """Ask for every completion of a pass that is not on disk yet.

    A prompt that fails leaves a `Failure` and the others continue. Raises only what ends the run: a full disk, Ctrl-C.
    """
    done = sum(store.has_completion(job.arm, prompt.id, job.run) for prompt in prompts)
    emit(StageStarted("generate", len(prompts), done, job.arm, job.run))
    origins = Origins(job.arm, server.http.url)
    waiting = _backwards(store) if job.backwards else iter(prompts)
    refusals = 0

    async def worker() -> None:
        nonlocal refusals
        for prompt in waiting:
            if store.has_completion(job.arm, prompt.id, job.run):
                continue
            tokens = 0
            try:
                if refusals >= MOST_REFUSALS:
                    raise _gone(server)
                completion = await _answer(server, job, prompt, store, emit, origins)
                refusals = 0
                store.append(completion)
                tokens = completion.completion_tokens or len(completion.ids or ())
                emit(Answered(prompt, completion))
            except ServerError as error:
                refusals = refusals + 1 if error.down else 0
                _fail(store, prompt, job, refusal(error, prompt), emit)
            emit(Advanced("generate", job.arm, job.run, tokens))

    await run_all(worker() for _ in range(job.concurrency))


async def _counters_still(server: Server) -> Counters | None:
    """Counters at the end of a pass, or ``None``: a server that died in the middle leaves what it answered."""
    try:
        return await server.counters()
    except ServerError:
        return None


async def capture_counted(server: Server, job: Pass, prompts: Prompts, store: Store, emit: Handler) -> None:
    """`capture`, and store what the server's own draft counters grew by meanwhile."""
    answers = tokens = 0

    def count(event: Event) -> None:
        nonlocal answers, tokens
        if isinstance(event, Answered):
            answers += 1
            tokens += generated(event.completion)
        emit(event)

    before = await server.counters()
    await capture(server, job, prompts, store, count)
    after = await _counters_still(server) if before is not None else None
    if before is None or after is None:
        return
    drafts = msgspec.structs.replace(grown(job.arm, before, after), answers=answers, tokens=tokens)
    # A speculative server that drafted nothing is worth a record; a reference is not expected to.
    if drafts.drafted > 0 or (job.arm == "spec" and drafts.drafted == 0 and answers):
        store.append(drafts)


def grown(arm: Arm, before: Counters, after: Counters) -> Drafts:
    """What counters grew by between two readings."""
    steps = None
    if before.verify_steps is not None and after.verify_steps is not None:
        steps = after.verify_steps - before.verify_steps
    grew = {place: after.per_position[place] - before.per_position.get(place, 0) for place in after.per_position}
    return Drafts(arm, after.drafted - before.drafted, after.accepted - before.accepted, steps, grew)


def _backwards(store: Store) -> Iterator[Prompt]:
    for prompt_id in reversed(store.prompt_ids()):
        rendering = store.rendering(prompt_id)
        if rendering is not None and rendering.prompt is not None:
            yield rendering.prompt


async def _answer(
    server: Server, job: Pass, prompt: Prompt, store: Store, emit: Handler, origins: Origins
) -> Completion:
    rendering = store.rendering(prompt.id)
    if rendering is None:
        raise ServerError("not-rendered", "The prompt could not be rendered.", "See the failure before this one.")
    request = Request(prompt, rendering, job.limit(prompt), job.top_logprobs)
    began = time.perf_counter()
    answer = await server.generate(request)
    total = round(time.perf_counter() - began, 4)
    require_size(len(answer.ids or ()), len(answer.text), request.max_tokens, server.http.url)
    if answer.top and (wrong := doubtful(answer.top)):
        answer = replace(answer, top=None, notes=(*answer.notes, wrong))
    origins.require_own(prompt.id, answer)
    for change in origins.changes(prompt.id, answer):
        store.append(change)
        emit(Found(change))
    for note in answer.notes:
        finding = Finding("answer", f"The answer {note}.", severity="warning", arm=job.arm, prompt_id=prompt.id)
        store.append(finding)
        emit(Found(finding))
    return completion_of(answer, prompt, job, total)


def completion_of(answer: Answer, prompt: Prompt, job: Pass, total: float) -> Completion:
    """The record of an answer; ``total`` is the client's seconds."""
    timing = msgspec.structs.replace(answer.timing, total=total) if answer.timing else Timing(total=total)
    return Completion(
        prompt_id=prompt.id,
        arm=job.arm,
        run=job.run,
        digest=prompt.digest,
        text=answer.text,
        finish=answer.finish,
        ids=answer.ids,
        stop=answer.stop,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        timing=timing,
        speculation=answer.speculation,
        top=answer.top,
        surplus=answer.surplus,
        reasoning_tokens=answer.reasoning_tokens,
        concurrency=job.concurrency,
        reasoning_length=answer.reasoning_length,
        tool_calls=answer.tool_calls,
        text_tokens=answer.text_tokens,
    )


def _gone(server: Server) -> ServerError:
    return ServerError(
        "not-asked",
        f"Not asked: {server.http.url} did not answer {MOST_REFUSALS} prompts in a row.",
        "Start the server again and run the same command; it resumes.",
        down=True,
    )


def _fail(store: Store, prompt: Prompt, job: Pass, error: ServerError, emit: Handler) -> None:
    failure = Failure(prompt.id, job.arm, job.run, error.kind, error.message, error.advice)
    store.append(failure)
    if error.kind != REFUSED:
        # Refusals are reported once for all prompts, when the stage is over.
        emit(Failed(failure))
