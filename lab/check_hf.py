"""Compare `LabModel` with transformers' Qwen3_5ForCausalLM on random weights.

    python -m lab.check_hf

Prints the largest difference of logits; exit code 1 when it is more than 1e-3.
"""

from __future__ import annotations

import sys

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from lab.model import LabModel
from lab.shape import Config
from lab.to_hf import text_config


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    c = Config(vocab_size=512)
    ours = LabModel(c).eval()
    for name, parameter in ours.named_parameters():
        if parameter.ndim == 1 and "norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_config(c))).eval()
    state = {name: tensor for name, tensor in ours.state_dict().items() if not name.startswith("mtp.")}
    theirs.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, strict=True)
    tokens = torch.randint(0, c.vocab_size, (2, 100))
    difference = (ours(tokens) - theirs(tokens).logits).abs().max().item()
    print("largest difference of logits", difference, "parameters", sum(p.numel() for p in ours.parameters()))
    sys.exit(difference > 1e-3)


if __name__ == "__main__":
    main()
