"""Write the lab model and its drafts as Hugging Face checkpoints.

    python -m lab.to_hf OUT

hf/model      Qwen3_5ForConditionalGeneration, as Qwen3.6 is published: text model, a very small untrained vision tower,
              and `mtp.*` for NEXTN. SGLang treats this architecture as its hybrid one; the text-only one misses parts.
hf/text       the same as Qwen3_5ForCausalLM, without a vision tower
hf/eagle3     LlamaForCausalLMEagle3, vocabulary of 2048 (`d2t`, `t2d`)
hf/dflash     DFlashDraftModel, blocks of 8
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

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


def text_config(c: Config) -> dict:
    """`config.json` of the text model (qwen3_5_text)."""
    return {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": c.rms_norm_eps,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": c.full_attention_interval,
        "layer_types": ["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.num_hidden_layers)],
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim,
        "linear_key_head_dim": c.linear_key_head_dim,
        "linear_value_head_dim": c.linear_value_head_dim,
        "linear_num_key_heads": c.linear_num_key_heads,
        "linear_num_value_heads": c.linear_num_value_heads,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": c.partial_rotary_factor,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.partial_rotary_factor,
            "mrope_interleaved": True,
            "mrope_section": list(MROPE_SECTIONS),
        },
    }


VISION = {
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 128,
    "num_heads": 1,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 256,
    "deepstack_visual_indexes": [],
}
"""Untrained and never used: engines want the tower to be there."""


def vision(c: Config) -> dict[str, torch.Tensor]:
    """Its weights, by transformers' own module."""
    from transformers import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    torch.manual_seed(0)
    settings = {**VISION, "model_type": "qwen3_5_vision", "out_hidden_size": c.hidden_size}
    settings.pop("deepstack_visual_indexes")
    module = Qwen3_5VisionModel(Qwen3_5VisionConfig(**settings))
    return {
        f"model.visual.{k}": v.to(torch.bfloat16).contiguous()
        for k, v in module.state_dict().items()
        if v.is_floating_point() and "inv_freq" not in k
    }


def write(folder: Path, config: dict, state: dict[str, torch.Tensor], tokenizer: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    for path in tokenizer.iterdir():
        shutil.copy(path, folder / path.name)
    template = json.loads((tokenizer / "tokenizer_config.json").read_text())["chat_template"]
    (folder / "chat_template.jinja").write_text(template)
    print(folder, round(sum(p.stat().st_size for p in folder.iterdir()) / 1e6, 2), "MB")


def draft_config(c: Config, end: int) -> dict:
    return {
        "dtype": "bfloat16",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": DRAFT_HEADS,
        "num_key_value_heads": DRAFT_KV_HEADS,
        "head_dim": DRAFT_WIDTH,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": DRAFT_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": DRAFT_THETA},
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "bos_token_id": None,
        "pad_token_id": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=HERE / "ckpt")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer")
    o = parser.parse_args()
    state = load_file(o.checkpoint / "model.safetensors")
    c = Config(vocab_size=state["model.embed_tokens.weight"].shape[0])
    ids = {t["content"]: t["id"] for t in json.loads((o.tokenizer / "tokenizer.json").read_text())["added_tokens"]}
    end = ids["<|im_end|>"]
    text = text_config(c) | {"eos_token_id": end, "bos_token_id": None, "pad_token_id": ids["<|endoftext|>"]}

    whole = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "pad_token_id": ids["<|endoftext|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": text,
        "vision_config": {**VISION, "out_hidden_size": c.hidden_size},
    }
    renamed = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in state.items()
    }
    write(o.out / "model", whole, renamed | vision(c), o.tokenizer)
    image = {
        "size": {"longest_edge": 65536, "shortest_edge": 1024},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }
    (o.out / "model/preprocessor_config.json").write_text(
        json.dumps(image | {"image_processor_type": "Qwen2VLImageProcessorFast"}, indent=1)
    )
    (o.out / "model/video_preprocessor_config.json").write_text(
        json.dumps(image | {"video_processor_type": "Qwen3VLVideoProcessor"}, indent=1)
    )
    generation = json.dumps(
        {"eos_token_id": [end, ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"], "do_sample": False},
        indent=1,
    )
    write(o.out / "text", {"architectures": ["Qwen3_5ForCausalLM"], **text}, state, o.tokenizer)
    for folder in ("model", "text"):
        (o.out / folder / "generation_config.json").write_text(generation)

    eagle = load_file(o.checkpoint / "eagle3.safetensors")
    aux = list(TAPS)
    write(
        o.out / "eagle3",
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            **draft_config(c, end),
            "num_hidden_layers": 1,
            "draft_vocab_size": len(eagle["d2t"]),
            "target_hidden_size": c.hidden_size,
            # Both mean the inputs of layers 1, 2 and 3: SGLang adds one to the first, llama.cpp's converter takes the
            # second as it is.
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": aux, "use_aux_hidden_state": True},
            "eagle_aux_hidden_state_layer_ids": [i + 1 for i in aux],
        },
        eagle,
        o.tokenizer,
    )
    flash = load_file(o.checkpoint / "dflash.safetensors")
    layers = 1 + max(int(n.split(".")[1]) for n in flash if n.startswith("layers."))
    write(
        o.out / "dflash",
        {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            **draft_config(c, end),
            "num_hidden_layers": layers,
            "layer_types": ["full_attention"] * layers,
            "num_target_layers": c.num_hidden_layers,
            "block_size": BLOCK,
            "use_sliding_window": False,
            "sliding_window": None,
            "dflash_config": {
                "mask_token_id": ids["<|mask|>"],
                "mask_token": "<|mask|>",
                "target_layer_ids": list(TAPS),
            },
        },
        flash,
        o.tokenizer,
    )


if __name__ == "__main__":
    main()
