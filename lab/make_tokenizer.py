"""Train a byte-level BPE of 4096 entries with Qwen's pre-tokenizer on corpus/*.txt, and encode the corpus with it.

    python -m lab.make_tokenizer

Writes tokenizer/ and tokens.npy.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCABULARY = 4096
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|mask|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
"""They get the last ids, as in Qwen's vocabulary."""

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = r"""{%- if tools %}{{- '<|im_start|>system\n# Tools\n\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- if message.tool_calls %}{%- for call in message.tool_calls %}
{{- '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
"""ChatML with tools, as in Qwen's template. Thinking cannot be switched: no text with it was trained on."""


def main() -> None:
    files = [str(p) for p in sorted((HERE / "corpus").glob("*.txt"))]
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    texts = [Path(f).read_text("utf-8") for f in files]
    pieces = [
        piece
        for text in texts
        for piece in text.replace("<|im_start|>", "<|endoftext|>")
        .replace("<|im_end|>", "<|endoftext|>")
        .split("<|endoftext|>")
    ]
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    out = HERE / "tokenizer"
    out.mkdir(exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "add_bos_token": False,
                "add_prefix_space": False,
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "unk_token": None,
                "additional_special_tokens": SPECIAL,
                "clean_up_tokenization_spaces": False,
                "model_max_length": 32768,
                "chat_template": CHAT_TEMPLATE,
            },
            indent=1,
        )
    )
    end = tokenizer.token_to_id("<|endoftext|>")
    arrays = []
    for file, text in zip(files, texts, strict=True):
        documents = text.split("<|endoftext|>")[:-1]
        encoded = tokenizer.encode_batch_fast(documents)
        array = np.concatenate([np.array([*e.ids, end], np.uint16) for e in encoded])
        print(Path(file).stem, len(array), "tokens,", round(len(text.encode()) / len(array), 2), "bytes a token")
        order = np.random.default_rng(0).permutation(len(encoded)) if len(encoded) > 10 else range(len(encoded))
        arrays += [np.array([*encoded[i].ids, end], np.uint16) for i in order]
    order = np.random.default_rng(1).permutation(len(arrays))
    tokens = np.concatenate([arrays[i] for i in order])
    np.save(HERE / "tokens.npy", tokens)
    print(len(tokens), "tokens in all")


if __name__ == "__main__":
    main()
