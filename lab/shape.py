"""The sizes of the lab model and its drafts. Nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """Sizes of the target, by their names in a Hugging Face configuration."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    full_attention_interval: int = 4
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    head_dim: int = 256
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000_000.0
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    rms_norm_eps: float = 1e-6

    def is_full(self, layer: int) -> bool:
        """Whether a layer has full attention; the others have a gated delta net."""
        return (layer + 1) % self.full_attention_interval == 0


POSITIONS = 32768
"""Context length that the exports state."""

MROPE_SECTIONS = (11, 11, 10)
"""How Qwen3.5 divides the rotated pairs among time, height and width."""

DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_WIDTH, DRAFT_THETA = 4, 2, 64, 10_000.0
"""Attention of both drafts: heads, key-value heads, width of a head, rotary base."""

TAPS = (0, 1, 2)
"""Layers of the target whose outputs both drafts are given."""

BLOCK = 8
"""Tokens of one block of the DFlash draft: the last token of the text, and masks."""
