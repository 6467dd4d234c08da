"""Write the lab model and its drafts as GGUF, for llama.cpp's `draft-mtp`, `draft-eagle3` and `draft-dflash`.

    python -m lab.to_gguf OUT [--types F32 BF16 Q8_0 Q6_K Q4_K_M]

Names, keys and layouts are those that llama.cpp reads for `qwen35`, `eagle3` and `dflash`. F32, BF16 and Q8_0 need the
packages `gguf` and `safetensors`; Q6_K and Q4_K_M also `xllamacpp`, since ggml itself makes their blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from lab import checkpoint
from lab.checkpoint import Array
from lab.shape import (
    BLOCK,
    DRAFT_HEADS,
    DRAFT_KV_HEADS,
    DRAFT_THETA,
    DRAFT_WIDTH,
    MROPE_SECTIONS,
    POSITIONS,
    TAPS,
    Config,
)

HERE = Path(__file__).parent
CHECKPOINT, TOKENIZER = HERE / "ckpt", HERE / "tokenizer"

FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q6_K": gguf.LlamaFileType.MOSTLY_Q6_K,
    "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}
DRAFT_TYPE = "Q8_0"

BLOCK_PLACES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""Within a layer: names of the checkpoint, and of GGUF."""

MTP_PLACES = {
    "fc.weight": "nextn.eh_proj.weight",
    "pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "norm.weight": "nextn.shared_head_norm.weight",
}

WHOLE_PLACES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}

DRAFT_PLACES = BLOCK_PLACES | {"post_attention_layernorm.weight": "ffn_norm.weight"}

ZERO_CENTRED = ("norm.weight", "_layernorm.weight", "norm_embedding.weight", "norm_hidden.weight")
"""Ends of names of norms that the checkpoint stores without the one that is added to them. GGUF has it included."""


def has_more_bits(layer: int, layers: int) -> bool:
    """Whether llama.cpp's mix Q4_K_M keeps a layer's sensitive tensors at 6 bits."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def kind_of(name: str, shape: tuple[int, ...], file_type: str, layers: int) -> Kind:
    """The quantization of one tensor in a file of that type."""
    small = len(shape) < 2 or "norm" in name or "ssm_conv1d" in name or not name.endswith(".weight")
    if small or file_type == "F32":
        return Kind.F32
    if file_type != "Q4_K_M":
        return Kind[file_type]
    if name in ("token_embd.weight", "output.weight"):
        return Kind.Q6_K
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    if "attn_qkv" in name:
        return Kind.Q5_K
    if ("attn_v" in name or "ffn_down" in name) and has_more_bits(layer, layers):
        return Kind.Q6_K
    return Kind.Q4_K


def quantized(array: Array, kind: Kind) -> Array:
    """The bytes of a tensor, row by row."""
    array = np.ascontiguousarray(array, np.float32)
    if kind is Kind.F32:
        return array
    if kind in (Kind.BF16, Kind.Q8_0):
        blocks: Array = gguf.quants.quantize(array, kind)
        return blocks
    rows, width = array.shape
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty((rows, width // block * size), np.uint8)
    written = _ggml().ggml_quantize_chunk(int(kind), array.ctypes.data, out.ctypes.data, 0, rows, width, None)
    if width % block or written != out.nbytes:
        raise ValueError(f"ggml wrote {written} bytes of {out.nbytes} for {array.shape} as {kind.name}")
    return out


def _ggml() -> ctypes.CDLL:
    """ggml, out of xllamacpp's library."""
    import xllamacpp.xllamacpp as library

    ggml = ctypes.CDLL(library.__file__)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
    return ggml


def add(writer: gguf.GGUFWriter, name: str, array: Array, file_type: str, layers: int) -> None:
    kind = kind_of(name, array.shape, file_type, layers)
    writer.add_tensor(name, quantized(array, kind), raw_dtype=kind)


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {number: token for token, number in tokenizer["model"]["vocab"].items()} | special
    tokens = [by_id[number] for number in range(len(by_id))]
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["model"]["merges"]]
    ids = {token: number for number, token in enumerate(tokens)}
    types = [gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[config["eos_token"]])
    writer.add_pad_token_id(ids[config["pad_token"]])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_mask_token_id(ids["<|mask|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])


def tiled(array: Array, axis: int, c: Config, width: int) -> Array:
    """Value heads, which the checkpoint has grouped by key head, in the order that ggml's broadcasting expects."""
    keys, ratio = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    shape = array.shape
    split: Array = array.reshape(*shape[:axis], keys, ratio, width, *shape[axis + 1 :])
    return np.reshape(split.swapaxes(axis, axis + 1), shape)


def target_tensor(name: str, array: Array, c: Config) -> tuple[str, Array]:
    """Name and data in GGUF of one tensor of the checkpoint."""
    if name.endswith(ZERO_CENTRED) and "linear_attn.norm" not in name:
        array = array + 1
    if name in WHOLE_PLACES:
        return WHOLE_PLACES[name], array
    if name.startswith("mtp.") and not name.startswith("mtp.layers."):
        return f"blk.{c.num_hidden_layers}.{MTP_PLACES[name.removeprefix('mtp.')]}", array
    trunk, _, rest = name.partition(".layers.")
    number, _, part = rest.partition(".")
    # The MTP layer is numbered after those of the trunk.
    block = int(number) + (c.num_hidden_layers if trunk == "mtp" else 0)
    return f"blk.{block}.{BLOCK_PLACES[part]}", arranged(part, array, c)


def arranged(part: str, array: Array, c: Config) -> Array:
    """One tensor of a gated delta net as ggml wants it; any other tensor unchanged."""
    queries_and_keys, width = 2 * c.linear_num_key_heads * c.linear_key_head_dim, c.linear_value_head_dim
    if part == "linear_attn.A_log":
        # In double precision, so that the last bit does not depend on the processor.
        return tiled(-np.exp(array.astype(np.float64)).astype(np.float32), 0, c, 1)
    if part in ("linear_attn.dt_bias", "linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight"):
        return tiled(array, 0, c, 1)
    if part in ("linear_attn.conv1d.weight", "linear_attn.in_proj_qkv.weight"):
        array = array.squeeze(1) if "conv1d" in part else array
        return np.concatenate((array[:queries_and_keys], tiled(array[queries_and_keys:], 0, c, width)))
    if part == "linear_attn.in_proj_z.weight":
        return tiled(array, 0, c, width)
    if part == "linear_attn.out_proj.weight":
        return tiled(array, 1, c, width)
    return array


def begun(architecture: str, name: str, c: Config, layers: int, out: Path, file_type: str) -> gguf.GGUFWriter:
    """A writer with what the target and the drafts have in common."""
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_file_type(FILE_TYPES[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(c.vocab_size)
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(out: Path, file_type: str, source: Path = CHECKPOINT, tokenizer: Path = TOKENIZER) -> Path:
    """Write the model with its MTP layer as a file of a type of `FILE_TYPES`; returns ``out``."""
    state = checkpoint.load(source / "model.safetensors")
    c = Config(vocab_size=state["model.embed_tokens.weight"].shape[0])
    layers = c.num_hidden_layers + 1
    writer = begun("qwen35", "Lossless Lab MTP", c, layers, out, file_type)
    writer.add_basename("lossless-lab-mtp")
    writer.add_size_label("5.8M")
    writer.add_nextn_predict_layers(1)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(int(c.head_dim * c.partial_rotary_factor))
    writer.add_rope_dimension_sections([*MROPE_SECTIONS, 0])
    writer.add_uint32("qwen35.full_attention_interval", c.full_attention_interval)
    writer.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    writer.add_ssm_state_size(c.linear_key_head_dim)
    writer.add_ssm_group_count(c.linear_num_key_heads)
    writer.add_ssm_time_step_rank(c.linear_num_value_heads)
    writer.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
    add_vocabulary(writer, tokenizer)
    for name, array in state.items():
        add(writer, *target_tensor(name, array, c), file_type, layers)
    finish(writer)
    return out


def draft_writer(architecture: str, name: str, layers: int, out: Path, tokenizer: Path) -> gguf.GGUFWriter:
    writer = begun(architecture, name, Config(), layers, out, DRAFT_TYPE)
    writer.add_head_count(DRAFT_HEADS)
    writer.add_head_count_kv(DRAFT_KV_HEADS)
    writer.add_key_length(DRAFT_WIDTH)
    writer.add_value_length(DRAFT_WIDTH)
    writer.add_rope_freq_base(DRAFT_THETA)
    writer.add_rope_dimension_count(DRAFT_WIDTH)
    # Inputs of these layers of the target, which are the outputs of the ones before.
    writer.add_array(f"{architecture}.target_layers", [layer + 1 for layer in TAPS])
    add_vocabulary(writer, tokenizer)
    return writer


def interleaved(array: Array, heads: int) -> Array:
    """Rotary halves (NeoX's order) as the pairs that llama.cpp rotates in Llama and EAGLE3."""
    rows = array.shape[0]
    halves: Array = array.reshape(heads, 2, rows // heads // 2, -1)
    return np.reshape(halves.swapaxes(1, 2), array.shape)


def write_eagle3(out: Path, source: Path = CHECKPOINT, tokenizer: Path = TOKENIZER) -> Path:
    """Write the EAGLE3 draft; returns ``out``."""
    writer = draft_writer("eagle3", "Lossless Lab EAGLE3", 1, out, tokenizer)
    writer.add_uint32("eagle3.target_hidden_size", Config().hidden_size)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", False)
    whole = {"fc.weight": "fc.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    places = DRAFT_PLACES | {"hidden_norm.weight": "attn_norm_2.weight"}
    for name, array in checkpoint.load(source / "eagle3.safetensors").items():
        if name == "t2d":
            continue
        if name == "d2t":
            # The checkpoint stores the distance to the target's id, GGUF the id itself.
            writer.add_tensor("d2t", array.astype(np.int64) + np.arange(len(array)), raw_dtype=Kind.I64)
            continue
        part = name.removeprefix("midlayer.")
        heads = {"self_attn.q_proj.weight": DRAFT_HEADS, "self_attn.k_proj.weight": DRAFT_KV_HEADS}.get(part)
        rotated = interleaved(array, heads) if heads else array
        add(writer, whole.get(name) or f"blk.0.{places[part]}", rotated, DRAFT_TYPE, 1)
    finish(writer)
    return out


def write_dflash(out: Path, source: Path = CHECKPOINT, tokenizer: Path = TOKENIZER) -> Path:
    """Write the DFlash draft; returns ``out``."""
    state = checkpoint.load(source / "dflash.safetensors")
    layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
    writer = draft_writer("dflash", "Lossless Lab DFlash", layers, out, tokenizer)
    writer.add_uint32("dflash.block_size", BLOCK)
    # llama.cpp asks for sections in every draft of a target that has them.
    writer.add_rope_dimension_sections([DRAFT_WIDTH // 2, 0, 0, 0])
    whole: dict[str, Any] = {
        "fc.weight": "fc.weight",
        "norm.weight": "output_norm.weight",
        "hidden_norm.weight": "enc.output_norm.weight",
    }
    for name, array in state.items():
        number, _, part = name.removeprefix("layers.").partition(".")
        add(writer, whole.get(name) or f"blk.{number}.{DRAFT_PLACES[part]}", array, DRAFT_TYPE, layers)
    finish(writer)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the lab model and its drafts as GGUF.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--types", nargs="+", default=list(FILE_TYPES), choices=list(FILE_TYPES))
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    o = parser.parse_args()
    o.out.mkdir(exist_ok=True, parents=True)
    written = [write_target(o.out / f"lab-mtp-{kind}.gguf", kind, o.checkpoint, o.tokenizer) for kind in o.types]
    written.append(write_eagle3(o.out / f"lab-eagle3-{DRAFT_TYPE}.gguf", o.checkpoint, o.tokenizer))
    written.append(write_dflash(o.out / f"lab-dflash-{DRAFT_TYPE}.gguf", o.checkpoint, o.tokenizer))
    for path in written:
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
