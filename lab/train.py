"""Train the lab model with its MTP head, then an EAGLE3 and a DFlash draft for it.

    python -m lab.train --tokens tokens.npy --tokenizer tokenizer --out OUT --seconds 300 --draft-seconds 80

Writes model.safetensors, eagle3.safetensors, dflash.safetensors (bf16, a few tensors float32) and log.txt to OUT.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from lab.model import DFlash, Eagle3, LabModel
from lab.shape import BLOCK, Config


def export(module: nn.Module) -> dict[str, Tensor]:
    """What is saved: bf16, but for the decays and the gated norm, as in Qwen's own checkpoints."""
    kept = ("A_log", "dt_bias", "linear_attn.norm.weight")
    return {
        name: tensor.detach()
        .cpu()
        .to(torch.float32 if name.endswith(kept) else torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)
        .contiguous()
        for name, tensor in module.state_dict().items()
    }


class Trainer:
    def __init__(self, options: argparse.Namespace):
        self.o = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        tokens = torch.from_numpy(np.load(options.tokens).astype(np.int32))
        cut = len(tokens) - max(len(tokens) // 100, 4 * options.length)
        self.data, self.held = tokens[:cut].to(self.device), tokens[cut:].to(self.device)
        self.log = (Path(options.out) / "log.txt").open("w")

    def say(self, *words: object) -> None:
        line = " ".join(str(w) for w in words)
        print(line, flush=True)
        print(line, file=self.log, flush=True)

    def batch(self, data: Tensor) -> Tensor:
        starts = torch.randint(0, len(data) - self.o.length, (self.o.batch,), device=self.device)
        return data[starts[:, None] + torch.arange(self.o.length, device=self.device)].long()

    def fit(
        self,
        name: str,
        module: nn.Module,
        loss: Callable[[], Iterable[Tensor]],
        weights: tuple[float, ...],
        seconds: float,
        rate: float,
    ) -> None:
        """AdamW for a given time, the rate falling to zero along a cosine of the time that has passed."""
        plain = [p for p in module.parameters() if p.requires_grad and p.ndim < 2]
        matrices = [p for p in module.parameters() if p.requires_grad and p.ndim >= 2]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
            lr=rate,
            betas=(0.9, 0.95),
            fused=self.device.type == "cuda",
        )
        begin, step, shown = time.monotonic(), 0, 0.0
        while (past := (time.monotonic() - begin) / seconds) < 1 and step < self.o.steps:
            now = rate * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * past))
            for group in optimizer.param_groups:
                group["lr"] = now
            with torch.autocast(self.device.type, torch.bfloat16):
                losses = tuple(loss())
            sum(w * x for w, x in zip(weights, losses, strict=True)).backward()
            norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if (step % 10 == 0 and time.monotonic() - shown > 10) or step in (1, self.o.steps):
                shown = time.monotonic()
                self.say(
                    name,
                    step,
                    round(shown - begin, 1),
                    "s lr",
                    f"{now:.1e}",
                    [round(x.item(), 3) for x in losses],
                    "norm",
                    round(norm.item(), 2),
                )
        self.say(
            name, step, "steps", round(time.monotonic() - begin, 1), "s", step * self.o.batch * self.o.length, "tokens"
        )


@torch.no_grad()
def judge(t: Trainer, model: LabModel) -> None:
    """Losses on held-out text, and how often the head's greedy drafts agree with the model's greedy choices."""
    model.eval()
    tokens = t.batch(t.held)
    with torch.autocast(t.device.type, torch.bfloat16):
        t.say("held-out losses", [round(x.item(), 3) for x in model.losses(tokens)])
        hidden = model.model(tokens)
        logits = model.head(hidden).float()
        best = logits.argmax(-1)
        top = logits.log_softmax(-1).topk(2).values
        gap = top[..., 0] - top[..., 1]
        t.say(
            "gap of the best two below 0.1 nat:",
            round((gap < 0.1).float().mean().item(), 4),
            "above 2:",
            round((gap > 2).float().mean().item(), 4),
        )
        embedded = model.model.embed_tokens(tokens)
        first = model.mtp(embedded[:, 1:-1], hidden[:, :-2])
        agree = model.head(first).argmax(-1) == best[:, 1:-1]
        second = model.mtp(embedded[:, 2:-1], first[:, :-1])
        agree2 = model.head(second).argmax(-1) == best[:, 2:-1]
        t.say(
            "MTP agrees with the model, first and second draft:",
            round(agree.float().mean().item(), 3),
            round(agree2.float().mean().item(), 3),
        )
    model.train()


@torch.no_grad()
def samples(t: Trainer, model: LabModel, tokenizer: Tokenizer, prompts: list[str], count: int) -> None:
    model.eval()
    for prompt in prompts:
        ids = tokenizer.encode(prompt).ids
        for _ in range(count):
            with torch.autocast(t.device.type, torch.bfloat16):
                logits = model(torch.tensor([ids[-512:]], device=t.device))[0, -1]
            ids.append(int(logits.argmax()))
        t.say("SAMPLE", json.dumps(tokenizer.decode(ids, skip_special_tokens=False), ensure_ascii=False))
    model.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--draft-seconds", type=float, default=80)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--anchors", type=int, default=48)
    parser.add_argument("--common", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=48)
    o = parser.parse_args()
    Path(o.out).mkdir(exist_ok=True, parents=True)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    t = Trainer(o)
    tokenizer = Tokenizer.from_file(f"{o.tokenizer}/tokenizer.json")
    c = Config(vocab_size=tokenizer.get_vocab_size())
    model = LabModel(c).to(t.device)
    t.say("parameters", sum(p.numel() for p in model.parameters()), "device", t.device, "tokens", len(t.data))
    t.fit("model", model, lambda: model.losses(t.batch(t.data)), (1.0, 0.3, 0.2), o.seconds, 3e-3)
    save_file(export(model), f"{o.out}/model.safetensors", {"format": "pt"})
    judge(t, model)
    samples(
        t,
        model,
        tokenizer,
        [
            "<|im_start|>user\nList ten things to pack for a walk.<|im_end|>\n<|im_start|>assistant\n",
            "<|im_start|>user\n请写一篇短篇小说,写一盏灯和码头。<|im_end|>\n<|im_start|>assistant\n",
            'def to_roman(number: int) -> str:\n    """Return',
            "Four lockers in a row are painted red,",
        ],
        o.samples,
    )

    model.requires_grad_(False)
    embedding = model.model.embed_tokens

    def seen(tokens: Tensor) -> list[Tensor]:
        taps: list[Tensor] = []
        with torch.no_grad():
            model.model(tokens, taps)
        return taps

    counts = torch.bincount(t.data.long(), minlength=c.vocab_size)
    common = counts.topk(min(o.common, c.vocab_size)).indices.sort().values
    eagle = Eagle3(c, common.cpu()).to(t.device)

    def eagle_loss() -> Iterable[Tensor]:
        tokens = t.batch(t.data)
        return (eagle.losses(embedding(tokens), seen(tokens), tokens),)

    t.fit("eagle3", eagle, eagle_loss, (1.0,), o.draft_seconds, 2e-3)
    save_file(export(eagle), f"{o.out}/eagle3.safetensors", {"format": "pt"})

    flash = DFlash(c, BLOCK, tokenizer.token_to_id("<|mask|>")).to(t.device)

    def flash_loss() -> Iterable[Tensor]:
        tokens = t.batch(t.data)
        return (flash.losses(embedding, seen(tokens), tokens, o.anchors),)

    t.fit("dflash", flash, flash_loss, (1.0,), o.draft_seconds, 2e-3)
    save_file(export(flash), f"{o.out}/dflash.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
