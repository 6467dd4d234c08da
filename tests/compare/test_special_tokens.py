"""Special tokens spelled out in an answer: which are seen, which are proof, and what only looks alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compare.test_verdict import case
from verifier.compare.degeneration import Sign, degeneration, special_tokens
from verifier.compare.special_pieces import Piece, pieces_in
from verifier.compare.verdict import decide
from verifier.records import Completion

PLAIN = "The capital of France is Paris."

CERTAIN = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>",
    "<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|fim_prefix|>", "<|file_sep|>", "<|endofprompt|>",
    "<|reserved_special_token_17|>", "<|extra_0|>", "<|START_OF_TURN_TOKEN|>", "<|assistant|>", "<|end|>", "<|eos|>",
    "<|begin▁of▁sentence|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
    "<｜fim▁hole｜>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<pad>", "<unk>", "<extra_id_0>",
    "<unused12>", "<reserved_special_token_3>", "<fim_prefix>", "<fim_middle>", "<image_soft_token>",
    "<start_of_image>", "<end_of_utterance>", "<jupyter_start>", "<endoftext>", "<BOS_TOKEN>", "<SPECIAL_12>", "[INST]",
    "[/INST]", "[PAD]", "<<SYS>>", "<</SYS>>",
)  # fmt: skip
AMBIGUOUS = (
    "<s>", "</s>", "<mask>", "<cls>", "<sep>", "<image>", "<0x0A>", "<0xE2>", "[CLS]", "[SEP]", "[MASK]", "[UNK]",
    "[gMASK]", "[unused7]", "<|tool_call|>", "<|channel|>", "<｜tool▁calls▁begin｜>", "<|python_tag|>", "<|box_start|>",
    "<|height|>",
)  # fmt: skip


def completion(text: str, arm: str = "spec") -> Completion:
    return Completion("p", "ref" if arm == "ref" else "spec", 0, "d", text, "length")


def signs(spec: str, ref: str = PLAIN, prompt: str = "What is the capital of France?") -> tuple[Sign, ...]:
    return special_tokens(completion(ref, "ref"), completion(spec), prompt)


PLACES = ("Paris.{} user", "Paris. {}", "{}Paris.", "Paris is{} the capital", "Paris.\n{}\nassistant\n")


IN_PLACE = [
    (piece, place)
    for piece in (*CERTAIN, *AMBIGUOUS)
    for place in PLACES
    # Right behind a word these are taken for a type parameter or an index.
    if "is{}" not in place or piece not in AMBIGUOUS or piece == "</s>" or piece.startswith(("<|", "<｜", "<0x"))
]


@pytest.mark.parametrize(("piece", "place"), IN_PLACE)
def test_a_special_token_in_prose_is_seen_where_it_is(piece: str, place: str) -> None:
    text = place.format(piece)
    (sign,) = signs(text)
    assert (sign.kind, text[sign.start : sign.end], sign.unit) == ("special-token", piece, "char")
    assert piece in sign.detail
    assert sign.ambiguous == (piece in AMBIGUOUS)


@pytest.mark.parametrize("piece", CERTAIN)
def test_what_nothing_else_is_written_like_is_speculations_fault(piece: str) -> None:
    ref, spec = completion(PLAIN, "ref"), completion(f"The capital{piece} of France is Paris.")
    ruling = decide(case(ref, spec))
    assert (ruling.cls, ruling.cause, ruling.fault) == ("diverged", "degeneration", "speculation")


@pytest.mark.parametrize("piece", AMBIGUOUS)
def test_what_may_be_something_else_blames_nobody_by_itself(piece: str) -> None:
    ref, spec = completion(PLAIN, "ref"), completion(f"The capital {piece} of France is Paris.")
    ruling = decide(case(ref, spec))
    assert (ruling.cls, ruling.cause, ruling.fault) == ("diverged", "degeneration", "undetermined")


NOT_SPECIAL = (
    "<s>old</s> new", "It is <s>wrong</s> right and <s>off</s> on.", "<p>It is <s>old</p>", "List<s> is a type.",
    "std::vector<s> values;", "std::vector<pad> pads;", "Map<eos> ends = new Map<eos>();", "Vec<mask>", "foo<unk>(x)",
    'if a <0x0A then b', "a <0x0A || b >0x0D", "x = a<0x10>b ? 1 : 0", "let y = f <| x |> g", "xs |> List.map f",
    "p <|> q", "parser = digit <|> letter", "[head <| tail]", "<|", "|>", "a <| b |> c", "<||>", "<|----|>", "<|=|>",
    "<mask id='m'><rect/></mask>", "<mask><rect/></mask>", "<svg><mask></svg>", "<image>a.png</image>",
    "[INST](https://example.org)", "[INST]: https://example.org", "See [the paper][INST].", "[INST][1]", "a[PAD] = 0",
    "buffer[MASK] |= 1", "rows[SEP]", "```python\nx = '<s>'\n```", "```\n<mask>\n```", "The tag `<s>` strikes out.",
    "Use \"<s>\" there.", "The <mask> element hides.", "The <image> tag holds one.", "<think>Hm.</think>Paris.",
    "<tool_call>{}</tool_call>", "<div>", "<b>x</b>", "x < s > y", "<ss>", "< s >", "<sap>", "[instance]", "[1]", "[x]",
    "1 <s 2", "a<s", "<strong>", "<section>", "<unused>", "<extra>", "<start>", "<pad/>", "<pad number='1'>",
    "<pads><pad>1</pad></pads>", "<eos>now</eos>",
    "<unknown>", "E<|x|> is the mean of |x|." , "<em>[inst]</em>", "| [SEP](x) |", "<bos/>", "{{ x }}", "<%= eos %>",
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_SPECIAL)
def test_what_only_looks_alike_is_no_sign(text: str) -> None:
    assert signs(text) == ()
    assert signs(f"Well, {text} So it is.") == ()


FAMILIES = (
    ("<|im_start|>", "<|im_end|>"), ("<｜User｜>", "<｜end▁of▁sentence｜>"), ("<bos>", "<eos>"),
    ("<unk>", "<start_of_turn>"), ("[INST]", "[/INST]"), ("[CLS]", "[SEP]"), ("<0x0A>", "<0x0D>"),
    ("<extra_id_0>", "<extra_id_1>"), ("<s>", "</s>"), ("<fim_prefix>", "<fim_suffix>"), ("<<SYS>>", "<</SYS>>"),
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), FAMILIES)
def test_what_prompt_or_reference_speak_of_is_no_sign(one: str, other: str) -> None:
    for said in (one, other):
        assert signs(f"It is {said} there", prompt=f"What does {one} mean?") == ()
        assert signs(f"It is {said} there", ref=f"It is {one} there") == ()
        assert signs(f"{one} and {other}", ref=f"{one}, then {other}") == ()


@pytest.mark.parametrize(
    "prompt",
    ["List the special tokens of Llama 2.", "How does a chat template work?", "What is the EOS token of T5?",
     "Explain byte fallback in a tokenizer.", "Write a BERT masked language model example."],
)  # fmt: skip
def test_a_question_about_tokens_excuses_what_is_ambiguous_and_weakens_the_rest(prompt: str) -> None:
    assert signs("It begins with <s> here", prompt=prompt) == ()
    (sign,) = signs("It begins with <bos> here", prompt=prompt)
    assert sign.ambiguous


def test_a_prompt_that_is_a_chat_template_does_not_excuse_the_tokens_of_others() -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    (sign,) = signs("Paris.<|endoftext|>Human", prompt=prompt)
    assert not sign.ambiguous


@pytest.mark.parametrize("text", ['tok = "<|endoftext|>"', "Add `<bos>` first.", "```\n<|im_start|>user\n```"])
def test_a_quoted_token_is_spoken_of_and_blames_nobody(text: str) -> None:
    assert all(sign.ambiguous for sign in signs(text))


def test_unparsed_harmony_is_a_matter_of_parsers() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris."
    found = signs(text)
    assert found
    assert all(sign.ambiguous for sign in found)


@pytest.mark.parametrize("text", ["Paris.</s>", "Paris.</s><s>", "<s> Paris", "</s></s></s>", "Paris.</s> So</s>"])
def test_a_tag_that_opens_or_closes_nothing_is_seen(text: str) -> None:
    assert signs(text)
    assert all(sign.ambiguous for sign in signs(text))


def test_the_end_of_a_line_ends_what_could_be_code() -> None:
    assert [sign.detail.split()[0] for sign in signs("Paris<eos>\n[INST] user")] == ["<eos>", "[INST]"]


def test_each_piece_is_given_once_where_it_first_is() -> None:
    found = signs("Paris<eos><eos> and <|im_end|><eos>")
    assert [sign.start for sign in found] == [5, 20]


def test_it_is_one_of_the_signs() -> None:
    found = degeneration(completion(PLAIN, "ref"), completion("Paris <|vision_start|>"))
    assert [sign.kind for sign in found] == ["special-token"]


@pytest.mark.parametrize("text", ["<|" * 50_000, "<s>" * 20_000 + "x", "```" * 30_000, "<" * 100_000, "[INST" * 30_000])
def test_hostile_text_is_read_in_one_pass(text: str) -> None:
    pieces_in(text)


fragments = st.lists(
    st.sampled_from([*CERTAIN, *AMBIGUOUS, "a", " ", "\n", "`", '"', "```\n", "<", "|", ">", "(", "List", "<p>"]),
    max_size=12,
)  # fmt: skip


@given(fragments)
def test_places_are_those_of_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    for piece in pieces_in(text):
        assert isinstance(piece, Piece)
        assert text[piece.start : piece.start + len(piece.text)] == piece.text


@given(fragments, fragments)
def test_an_answer_is_never_a_sign_beside_itself(parts: list[str], prompt: list[str]) -> None:
    text = "".join(parts)
    assert signs(text, ref=text, prompt="".join(prompt)) == ()
