"""Compare both Hugging Face exports, loaded with transformers, with `LabModel`; print what the model says.

    python -m lab.check_export HF_FOLDER

HF_FOLDER is what `lab.to_hf` wrote. Exit code 1 when logits differ by more than 1e-3.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

from lab.model import LabModel
from lab.shape import Config

PROMPT = "Write a short story about an old map and the harbour."


@torch.no_grad()
def main() -> None:
    folder = Path(sys.argv[1])
    ours = LabModel(Config()).eval()
    state = load_file(Path(__file__).parent / "ckpt" / "model.safetensors")
    ours.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    tokenizer = AutoTokenizer.from_pretrained(folder / "text")
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    wanted = ours(ids)
    worst = 0.0
    for kind, name in ((Qwen3_5ForCausalLM, "text"), (Qwen3_5ForConditionalGeneration, "model")):
        theirs = kind.from_pretrained(folder / name, dtype=torch.float32).eval()
        difference = (theirs(input_ids=ids).logits - wanted).abs().max().item()
        print(name, "largest difference of logits", difference)
        worst = max(worst, difference)
    text = Qwen3_5ForCausalLM.from_pretrained(folder / "text", dtype=torch.float32)
    answer = text.generate(ids, max_new_tokens=60, do_sample=False)
    print(repr(tokenizer.decode(answer[0, ids.shape[1] :])))
    sys.exit(worst > 1e-3)


if __name__ == "__main__":
    main()
