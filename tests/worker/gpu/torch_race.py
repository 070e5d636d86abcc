"""A GPT's training step in PyTorch on a GPU, for a bundle of `./dev gpu`: layers, width, heads, context, vocabulary, batch."""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = (part.view(batch, time_, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        logits = self.ln_f(self.blocks(x)) @ self.wte.weight.T
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main():
    layers, width, heads, context, vocabulary, batch = map(int, sys.argv[1:7])
    torch.manual_seed(1)
    model = Gpt(layers, width, heads, context, vocabulary).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(vocabulary, (batch, context + 1), device="cuda")
    seconds = []
    for step in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        if step >= 4:
            seconds.append(time.perf_counter() - began)
    print(json.dumps({"tokens_per_second": batch * context / statistics.median(seconds), "torch": torch.__version__}))


main()
