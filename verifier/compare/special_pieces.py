"""Special tokens of tokenizers and chat templates, spelled out in a text: found by their forms, not by a list. Pure.

Some forms are written by nobody but a tokenizer (``<|im_end|>``, ``<extra_id_0>``). Others are HTML, code or citations
as well (``<s>``, ``<mask>``, ``[SEP]``), or belong to an answer that no parser took apart (``<|tool_call|>``). Those
are *ambiguous*, and they are left out where what stands around them shows the other meaning.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import regex

Family = Literal["pipe", "wide", "angle", "word", "strike", "byte", "bracket", "system"]
"""Which way a piece is written: a text that speaks of one piece of a family may well speak of another."""


@dataclass(frozen=True)
class Piece:
    """A special token in a text, from code point ``start`` on."""

    text: str
    start: int
    family: Family
    ambiguous: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_FORM = regex.compile(
    r"<\|(?P<pipe>[\p{L}\p{N}_▁./:+-]{1,64})\|>"
    r"|<[｜|](?P<wide>[^<>|｜\n]{1,64})｜>"
    r"|(?P<byte><0x[0-9A-Fa-f]{2}>)"
    r"|(?P<strike></?s>)"
    r"|<(?P<angle>[A-Za-z][A-Za-z0-9_]{1,40})>"
    r"|(?P<system><</?SYS>>)"
    r"|\[/?(?P<bracket>[A-Za-z][A-Z_]{2,20}|(?:unused|control_)\d{1,5})\]"
)

_PART = regex.compile(r"[\p{L}\p{N}]+")
_SHORTEST_NAME = 3
"""Letters of an unknown name between pipes: physicists write <|x|> for a mean of absolute values."""

_TEMPLATE_PARTS = frozenset({
    "im", "endoftext", "startoftext", "endofprompt", "begin", "begins", "end", "start", "eot", "eom", "eos", "bos",
    "pad", "unk", "sep", "mask", "cls", "header", "text", "user", "assistant", "system", "vision", "image", "video",
    "audio", "speech", "fim", "prefix", "suffix", "middle", "hole", "file", "repo", "reserved", "special", "extra",
    "unused", "turn", "token", "sentence", "prompt", "human", "chatbot",
})  # fmt: skip
"""Parts of names that chat templates and tokenizers give their tokens between pipes."""

_STRUCTURE_PARTS = frozenset({
    "tool", "tools", "call", "calls", "function", "functions", "python", "channel", "message", "constrain", "return",
    "think", "thinking", "thought", "reasoning", "box", "quad", "object", "ref", "point",
})  # fmt: skip
"""Parts of names that give an answer its structure: of calls and reasoning that were not parsed, and of grounding."""

_HARMONY = ("<|channel|>", "<|message|>")
_HARMONY_PIECES = frozenset({"<|start|>", "<|end|>", "<|return|>", "<|call|>"})

_ANGLE = regex.compile(
    r"(?i:bos|eos|pad|unk)(?:_(?i:token))?|(?i:sep|cls|mask)_(?i:token)|(?i:special|unused|extra_id)_?\d+"
    r"|(?:begin|start|end)_of_[a-z_]+|(?:start|end)of(?:text|prompt)|reserved_(?:special_)?(?:token_)?\d+"
    r"|fim_[a-z]+|(?:image|audio|video)_soft_token|fake_token_around_image|file_sep|repo_name|gh_stars"
    r"|jupyter_[a-z]+|issue_(?:start|comment|closed)|commit_(?:before|msg|after)"
)
_WORDS = frozenset({"mask", "cls", "sep", "image", "MASK", "CLS", "SEP", "EOT", "eot", "eod", "eop", "sop", "gmask"})
"""Names between angle brackets that are elements of HTML, SVG or any XML as well."""
_BRACKETS = {
    "INST": False, "PAD": False, "CLS": True, "SEP": True, "MASK": True, "UNK": True, "BOS": True, "EOS": True,
    "gMASK": True, "SYSTEM_PROMPT": True, "AVAILABLE_TOOLS": True, "TOOL_RESULTS": True,
}  # fmt: skip
"""Names between square brackets, and whether they are ambiguous."""

_ABOUT = regex.compile(
    r"special[- ]tokens?|tokeni[sz]|chat[- ]?templates?|chatml|byte[- ]fallback|masked language|sentencepiece|\bbert\b"
    r"|fill[- ]in[- ]the[- ]middle|\b(?:bos|eos|pad|unk|cls|sep|mask)[- ]tokens?"
    r"|(?:begin|beginning|end|start)[- ]of[- ](?:sequence|sentence|text|turn)",
    regex.IGNORECASE,
)
_MARKUP = regex.compile(r"</?([A-Za-z][A-Za-z0-9-]{0,20})(?:\s[^<>]{0,200})?/?>")
_NO_MARKUP = frozenset({"think", "thinking", "reasoning", "answer", "s", *_WORDS})
_QUOTES = ("``", '""', "''", "“”", "‘’", "«»", "„“")
_IN_CODE = regex.compile(r"[^\S\n]*[(){};&*\[\]=|]|::|[^\S\n]+\w+\s*[=;({)]|>")
_LINK = regex.compile(r"[(\[:]")
_SPOKEN_OF = regex.compile(r"\s+(?:tags?|elements?|tokens?|markers?|placeholders?|operators?|bytes?|characters?)\b")
_LONGEST_ROLE = 24
"""Characters after the last special token of a prompt that is a rendered chat template, such as "assistant"."""


def pieces_in(text: str) -> tuple[Piece, ...]:
    """The special tokens in ``text``, each where it first is, without what only looks like one. Linear."""
    if "<" not in text and "[" not in text:
        return ()
    found: dict[str, Piece] = {}
    surroundings = _Surroundings(text)
    for piece in _forms(text):
        if piece.text not in found and (kept := surroundings.judge(piece)) is not None:
            found[piece.text] = kept
    return tuple(found.values())


def unexpected(spec: str, ref: str, prompt: str) -> tuple[Piece, ...]:
    """The special tokens of an answer that neither the reference's answer nor the prompt speaks of."""
    pieces = pieces_in(spec)
    if not pieces:
        return ()
    in_ref, in_prompt = list(_forms(ref)), list(_forms(prompt))
    spoken_of = {piece.text for piece in (*in_ref, *in_prompt)}
    families = {piece.family for piece in (*in_ref, *(() if _is_template(prompt, in_prompt) else in_prompt))}
    about = bool(_ABOUT.search(prompt))
    kept = []
    for piece in pieces:
        if piece.text in spoken_of or piece.family in families or (about and piece.ambiguous):
            continue
        # An answer about tokens may well name one that the other answer does not.
        kept.append(replace(piece, ambiguous=True) if about or in_ref else piece)
    return tuple(kept)


def _is_template(prompt: str, pieces: list[Piece]) -> bool:
    """Whether a prompt is a rendered chat template, so that its special tokens are its form and not its subject."""
    if not pieces or prompt[: pieces[0].start].strip():
        return False
    return len(prompt[pieces[-1].end :].strip()) <= _LONGEST_ROLE and "?" not in prompt[pieces[-1].end :]


def _forms(text: str) -> Iterator[Piece]:
    """Everything that is written like a special token, whatever stands around it."""
    harmony = any(mark in text for mark in _HARMONY)
    for match in _FORM.finditer(text):
        whole, start = match.group(), match.start()
        family: Family
        if (name := match["pipe"]) is not None:
            known = {part.lower() for part in _PART.findall(name.replace("_", " ").replace("▁", " "))}
            if not any(map(str.isalpha, name)):
                continue
            ambiguous = not known & _TEMPLATE_PARTS or bool(known & _STRUCTURE_PARTS)
            if ambiguous and len(name) < _SHORTEST_NAME:
                continue
            yield Piece(whole, start, "pipe", ambiguous or (harmony and whole in _HARMONY_PIECES))
        elif (name := match["wide"]) is not None:
            known = {part.lower() for part in _PART.findall(name.replace("_", " ").replace("▁", " "))}
            yield Piece(whole, start, "wide", bool(known & _STRUCTURE_PARTS))
        elif (name := match["angle"]) is not None:
            if name in _WORDS:
                yield Piece(whole, start, "word", True)
            elif _ANGLE.fullmatch(name):
                yield Piece(whole, start, "angle", False)
        elif (name := match["bracket"]) is not None:
            if name in _BRACKETS or name[-1].isdigit():
                yield Piece(whole, start, "bracket", _BRACKETS.get(name, True))
        else:
            family = "byte" if match["byte"] else "strike" if match["strike"] else "system"
            yield Piece(whole, start, family, family != "system")


class _Surroundings:
    """What stands around the pieces of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._fences = [match.start() for match in regex.finditer("```", text)]
        self._unpaired = _unpaired(text)
        self._markup = any(
            match[1] not in _NO_MARKUP and not _ANGLE.fullmatch(match[1]) for match in _MARKUP.finditer(text)
        )
        self._closed = {match[1] for match in regex.finditer(r"</([A-Za-z]\w{0,40})>", text)}

    def judge(self, piece: Piece) -> Piece | None:
        """The piece, more ambiguous where it seems to be quoted; ``None`` where it is something else."""
        before, after = self._text[: piece.start][-1:], self._text[piece.end : piece.end + 48]
        is_glued = before.isalnum() or before in {"_", "]", ")"}
        if piece.family in {"angle", "word", "strike", "bracket"} and not piece.text.startswith("</"):
            if is_glued and (piece.ambiguous or _IN_CODE.match(after)):
                return None
            if piece.family == "bracket" and (_LINK.match(after) or before in {"!", "]"}):
                return None
        if piece.family == "byte" and is_glued and after[:1].isalnum():
            # A comparison: a<0x10>b.
            return None
        if piece.family in {"angle", "word", "strike"} and self._is_element(piece):
            return None
        is_quoted = (before + after[:1]) in _QUOTES or bisect(self._fences, piece.start) % 2 == 1
        if is_quoted or _SPOKEN_OF.match(after):
            return None if piece.ambiguous else replace(piece, ambiguous=True)
        return piece

    def _is_element(self, piece: Piece) -> bool:
        """Whether a piece is a tag of markup."""
        if piece.family == "strike":
            return self._markup or piece.start not in self._unpaired
        # A page of markup may hold any word as a tag; a tokenizer's own names only where they are closed.
        return (self._markup and piece.family == "word") or piece.text.strip("<>") in self._closed


def _unpaired(text: str) -> frozenset[int]:
    """Where a ``<s>`` or ``</s>`` strikes nothing out: without its other half, around nothing, or around all."""
    unpaired: set[int] = set()
    opened: list[int] = []
    for match in regex.finditer(r"</?s>", text):
        if match.group() == "<s>":
            opened.append(match.start())
        elif not opened:
            unpaired.add(match.start())
        else:
            start = opened.pop()
            inside = text[start + len("<s>") : match.start()]
            if not inside.strip() or len(inside) + len("<s></s>") == len(text.strip()):
                unpaired |= {start, match.start()}
    return frozenset(unpaired.union(opened))
