"""A tiny model of Qwen3.5's architecture in plain PyTorch: gated delta net, gated full attention, one MTP layer.

Names of parameters are those of a Hugging Face checkpoint of the text model (`model.*`, `mtp.*`), so `to_hf.py`
needs no table of names. Checked against transformers' own Qwen3_5ForCausalLM by `check_hf.py`.

The two draft models, `Eagle3` (as SGLang's LlamaForCausalLMEagle3) and `DFlash` (as SGLang's DFlashDraftModel), are
here as well.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.shape import DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_THETA, DRAFT_WIDTH, TAPS, Config


class RMSNorm(nn.Module):
    """Zero-centred: the weight is added to one."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).to(x.dtype)


class PlainRMSNorm(RMSNorm):
    """Not zero-centred: of the drafts (Llama, Qwen3)."""

    def __init__(self, size: int, eps: float):
        super().__init__(size, eps)
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype)


class GatedNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight.float() * y * F.silu(gate.float())).to(gate.dtype)


def rope_tables(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / (theta ** (torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim))
    angles = positions.float()[..., None] * inverse
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """NeoX style, on the first `tables` width of the last axis. x: [B, H, T, D]; tables: [T, R] or [B, 1, T, R]."""
    cos, sin = tables
    width = cos.shape[-1]
    part, rest = x[..., :width].float(), x[..., width:]
    half = width // 2
    turned = torch.cat((-part[..., half:], part[..., :half]), -1)
    return torch.cat(((part * cos + turned * sin).to(x.dtype), rest), -1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    """The chunked gated delta rule. q, k, v: [B, T, H, D]; g, beta: [B, T, H]. Float32 inside."""
    kind = q.dtype
    q, k = (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k, v, g, beta = (x.transpose(1, 2).float() for x in (q, k, v, g, beta))
    batch, heads, length, width = k.shape
    pad = -length % chunk
    q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    g, beta = (F.pad(x, (0, pad)) for x in (g, beta))
    q = q * width**-0.5
    q, k, v = (x.reshape(batch, heads, -1, chunk, x.shape[-1]) for x in (q, k, v))
    g, beta = (x.reshape(batch, heads, -1, chunk) for x in (g, beta))
    g = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, 0).exp().masked_fill(~lower, 0)
    k_beta, v_beta = k * beta[..., None], v * beta[..., None]
    strict = (k_beta @ k.transpose(-1, -2)) * decay
    strict = strict.tril(-1)
    eye = torch.eye(chunk, device=q.device)
    right = torch.cat((v_beta, k_beta * g.exp()[..., None]), -1)
    solved = torch.linalg.solve_triangular(strict + eye, right, upper=False, unitriangular=True)
    value, k_decay = solved.split((v.shape[-1], width), -1)
    inside = (q @ k.transpose(-1, -2)) * decay
    q_decay = q * g.exp()[..., None]
    last = g[..., -1]
    k_rest = k * (last[..., None] - g).exp()[..., None]
    state = v.new_zeros(batch, heads, width, v.shape[-1])
    out = []
    for i in range(q.shape[2]):
        fresh = value[:, :, i] - k_decay[:, :, i] @ state
        out.append(q_decay[:, :, i] @ state + inside[:, :, i] @ fresh)
        state = state * last[:, :, i, None, None].exp() + k_rest[:, :, i].transpose(-1, -2) @ fresh
    merged = torch.stack(out, 2).reshape(batch, heads, -1, v.shape[-1])[:, :, :length]
    return merged.transpose(1, 2).to(kind)


class LinearAttention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.key_dim = c.linear_num_key_heads * c.linear_key_head_dim
        self.value_dim = c.linear_num_value_heads * c.linear_value_head_dim
        width = 2 * self.key_dim + self.value_dim
        self.in_proj_qkv = nn.Linear(c.hidden_size, width, bias=False)
        self.in_proj_z = nn.Linear(c.hidden_size, self.value_dim, bias=False)
        self.in_proj_b = nn.Linear(c.hidden_size, c.linear_num_value_heads, bias=False)
        self.in_proj_a = nn.Linear(c.hidden_size, c.linear_num_value_heads, bias=False)
        self.conv1d = nn.Conv1d(
            width, width, c.linear_conv_kernel_dim, groups=width, padding=c.linear_conv_kernel_dim - 1, bias=False
        )
        self.dt_bias = nn.Parameter(torch.empty(c.linear_num_value_heads))
        self.A_log = nn.Parameter(torch.empty(c.linear_num_value_heads).uniform_(0.5, 8).log())
        self.norm = GatedNorm(c.linear_value_head_dim, c.rms_norm_eps)
        self.out_proj = nn.Linear(self.value_dim, c.hidden_size, bias=False)
        dt = torch.exp(torch.empty(c.linear_num_value_heads).uniform_(-6.5, -2.5))
        self.dt_bias.data = dt + torch.log(-torch.expm1(-dt))

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        batch, length, _ = x.shape
        qkv = self.in_proj_qkv(x)
        # A causal depthwise convolution as a sum of shifts: cheaper than a grouped Conv1d at this size.
        kernel = self.conv1d.weight[:, 0].to(qkv.dtype)
        size = c.linear_conv_kernel_dim
        padded = F.pad(qkv, (0, 0, size - 1, 0))
        qkv = F.silu(sum(padded[:, i : i + length] * kernel[:, i] for i in range(size)))
        q, k, v = qkv.split((self.key_dim, self.key_dim, self.value_dim), -1)
        q = q.reshape(batch, length, c.linear_num_key_heads, -1)
        k = k.reshape(batch, length, c.linear_num_key_heads, -1)
        v = v.reshape(batch, length, c.linear_num_value_heads, -1)
        ratio = c.linear_num_value_heads // c.linear_num_key_heads
        q, k = q.repeat_interleave(ratio, 2), k.repeat_interleave(ratio, 2)
        beta = self.in_proj_b(x).float().sigmoid()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        with torch.autocast(x.device.type, enabled=False):
            out = delta_rule(q, k, v, g, beta)
        z = self.in_proj_z(x).reshape(batch, length, c.linear_num_value_heads, -1)
        return self.out_proj(self.norm(out, z).reshape(batch, length, -1))


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        batch, length, _ = x.shape
        q, gate = self.q_proj(x).view(batch, length, c.num_attention_heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k_proj(x).view(batch, length, c.num_key_value_heads, c.head_dim)
        v = self.v_proj(x).view(batch, length, c.num_key_value_heads, c.head_dim)
        tables = rope_tables(
            torch.arange(length, device=x.device), int(c.head_dim * c.partial_rotary_factor), c.rope_theta
        )
        q, k = rotate(self.q_norm(q).transpose(1, 2), tables), rotate(self.k_norm(k).transpose(1, 2), tables)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        out = out.transpose(1, 2).reshape(batch, length, -1) * gate.reshape(batch, length, -1).sigmoid()
        return self.o_proj(out)


class MLP(nn.Module):
    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: Config, full: bool):
        super().__init__()
        if full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = LinearAttention(c)
        self.full = full
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, c.is_full(i)) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, tokens: Tensor, taps: list[Tensor] | None = None) -> Tensor:
        """The last hidden states after the norm; what each layer gave goes to `taps`."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
            if taps is not None:
                taps.append(x)
        return self.norm(x)


class Mtp(nn.Module):
    """The head for multi-token prediction: (embedding of token t+1, hidden state at t) → token t+2."""

    def __init__(self, c: Config):
        super().__init__()
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.pre_fc_norm_embedding = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.pre_fc_norm_hidden = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(c, full=True)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        x = self.fc(torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), -1))
        return self.norm(self.layers[0](x))


class LabModel(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        self.mtp = Mtp(c)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2 and "conv1d" not in name:
                std = 0.02 if "embed" in name else parameter.shape[-1] ** -0.5
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    std *= (2 * c.num_hidden_layers) ** -0.5
                nn.init.normal_(parameter, std=std)

    def head(self, hidden: Tensor) -> Tensor:
        """Tied to the embedding."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.model(tokens))

    def losses(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the next token, of the MTP head, and of the MTP head applied to its own output."""

        def loss(hidden: Tensor, wanted: Tensor) -> Tensor:
            return F.cross_entropy(self.head(hidden).float().flatten(0, 1), wanted.flatten())

        hidden = self.model(tokens)
        embedded = self.model.embed_tokens(tokens)
        first = self.mtp(embedded[:, 1:-1], hidden[:, :-2])
        second = self.mtp(embedded[:, 2:-1], first[:, :-1])
        return loss(hidden[:, :-1], tokens[:, 1:]), loss(first, tokens[:, 2:]), loss(second, tokens[:, 3:])


class DraftAttention(nn.Module):
    """As in Llama (no norms) or Qwen3 (norms of q and k), with rotary embedding of the whole head."""

    def __init__(self, size_in: int, c: Config, heads: int, kv_heads: int, width: int, theta: float, norms: bool):
        super().__init__()
        self.heads, self.kv_heads, self.width, self.theta = heads, kv_heads, width, theta
        self.q_proj = nn.Linear(size_in, heads * width, bias=False)
        self.k_proj = nn.Linear(size_in, kv_heads * width, bias=False)
        self.v_proj = nn.Linear(size_in, kv_heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, c.hidden_size, bias=False)
        if norms:
            self.q_norm, self.k_norm = PlainRMSNorm(width, c.rms_norm_eps), PlainRMSNorm(width, c.rms_norm_eps)
        self.norms = norms

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        q = self.q_proj(x).view(*x.shape[:2], self.heads, self.width)
        q = self.q_norm(q) if self.norms else q
        return rotate(q.transpose(1, 2), rope_tables(positions, self.width, self.theta))

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        k = self.k_proj(x).view(*x.shape[:2], self.kv_heads, self.width)
        k = self.k_norm(k) if self.norms else k
        v = self.v_proj(x).view(*x.shape[:2], self.kv_heads, self.width)
        return rotate(k.transpose(1, 2), rope_tables(positions, self.width, self.theta)), v.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Eagle3Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.self_attn = DraftAttention(
            2 * c.hidden_size, c, DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_WIDTH, DRAFT_THETA, norms=False
        )
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        positions = torch.arange(x.shape[1], device=x.device)
        attention = self.self_attn
        x = hidden + attention.attend(attention.query(x, positions), *attention.key_value(x, positions), None)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """(embedding of token t+1, outputs of three layers at t) → token t+2, in a vocabulary of the commonest tokens."""

    def __init__(self, c: Config, common: Tensor):
        super().__init__()
        self.midlayer = Eagle3Layer(c)
        self.fc = nn.Linear(len(TAPS) * c.hidden_size, c.hidden_size, bias=False)
        self.norm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, len(common), bias=False)
        self.register_buffer("d2t", common - torch.arange(len(common)))
        known = torch.zeros(c.vocab_size, dtype=torch.bool)
        known[common] = True
        self.register_buffer("t2d", known)
        rank = torch.full((c.vocab_size,), -100)
        rank[common] = torch.arange(len(common))
        self.register_buffer("rank", rank, persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)

    def losses(self, embedded: Tensor, taps: list[Tensor], tokens: Tensor, steps: int = 3) -> Tensor:
        """Of `steps` drafts in a row, each from the hidden states of the one before."""
        hidden = self.fc(torch.cat([taps[i] for i in TAPS], -1))[:, :-1]
        total = hidden.new_zeros((), dtype=torch.float32)
        for step in range(1, steps + 1):
            hidden = self.midlayer(embedded[:, step:][:, : hidden.shape[1]], hidden)
            hidden = hidden[:, :-1]
            logits = self.lm_head(self.norm(hidden)).float()
            wanted = self.rank[tokens[:, step + 1 :]]
            total = total + 0.8 ** (step - 1) * F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return total


class DFlashLayer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.self_attn = DraftAttention(
            c.hidden_size, c, DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_WIDTH, DRAFT_THETA, norms=True
        )
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, places: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        attention = self.self_attn
        normed = self.input_layernorm(x)
        at = torch.arange(context.shape[1], device=x.device)
        k_context, v_context = attention.key_value(context, at)
        k, v = attention.key_value(normed, places)
        q = attention.query(normed, places)
        x = x + attention.attend(q, torch.cat((k_context, k), 2), torch.cat((v_context, v), 2), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlash(nn.Module):
    """Fills a block [last token, mask × (block − 1)] at once, given the outputs of target layers before it."""

    def __init__(self, c: Config, block: int, mask_token: int, layers: int = 2):
        super().__init__()
        self.block, self.mask_token = block, mask_token
        self.layers = nn.ModuleList(DFlashLayer(c) for _ in range(layers))
        self.fc = nn.Linear(len(TAPS) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.norm = PlainRMSNorm(c.hidden_size, c.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)

    def losses(self, embedding: nn.Embedding, taps: list[Tensor], tokens: Tensor, anchors: int) -> Tensor:
        """Of `anchors` random blocks of each row."""
        batch, length = tokens.shape
        block = self.block
        # The same anchors in all rows of the batch: one mask.
        starts = torch.randint(4, length - block, (anchors,), device=tokens.device)
        places = (starts[:, None] + torch.arange(block, device=tokens.device)).flatten()
        inputs = torch.full((batch, anchors, block), self.mask_token, device=tokens.device)
        inputs[:, :, 0] = tokens[:, starts]
        owner = torch.arange(anchors, device=tokens.device).repeat_interleave(block)
        before = torch.arange(length, device=tokens.device)[None] < starts[owner][:, None]
        mask = torch.cat((before, owner[:, None] == owner[None]), 1)
        context = self.hidden_norm(self.fc(torch.cat([taps[i] for i in TAPS], -1)))
        x = embedding(inputs.flatten(1))
        for layer in self.layers:
            x = layer(x, places, context, mask)
        x = self.norm(x).view(batch, anchors, block, -1)[:, :, 1:]
        logits = F.linear(x, embedding.weight).float()
        wanted = tokens[:, places].view(batch, anchors, block)[:, :, 1:]
        loss = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(batch, anchors, block - 1)
        weight = torch.exp(-torch.arange(block - 1, device=tokens.device) / 4.0)
        return (loss * weight).sum() / (weight.sum() * batch * anchors)
