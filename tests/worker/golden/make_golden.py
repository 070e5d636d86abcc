"""Writes the golden files: PyTorch's answers in fp64. Needs PyTorch 2 and numpy; the C++ tests need only the files.

    make_golden.py [FOLDER]     beside this script without FOLDER

Weights and inputs come from counter_rng.py, which the tests compute too (golden.h), so files hold answers only.
"""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
import numpy_optimizers
import torch_gpt
from counter_rng import bell, seed_key

SEED = 7
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent


def write(name, tensors):
    """A safetensors file of fp64."""
    header, data = {}, b""
    for key, value in tensors.items():
        array = np.ascontiguousarray(
            value.detach().numpy() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
        header[key] = {"dtype": "F64", "shape": list(array.shape),
                       "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (FOLDER / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def given(name, *shape, std=1.0, mean=0.0):
    return torch.from_numpy(bell(SEED, name, shape, std, mean)).requires_grad_()


def tokens(name, count, vocabulary):
    bits = seed_key(SEED).fold("tokens").fold(name).bits(count)
    return torch.from_numpy((bits % np.uint64(vocabulary)).astype(np.int64))


def gradients(output, upstream, **inputs):
    grads = torch.autograd.grad(output, list(inputs.values()), upstream)
    return {f"d{name}": grad for name, grad in zip(inputs, grads)}


def linear():
    x, w, b = given("x", 37, 19), given("w", 19, 23), given("b", 23)
    y = x @ w + b
    write("linear", {"y": y, **gradients(y, given("dy", 37, 23), x=x, w=w, b=b)})


def layer_norm():
    x, residual = given("x", 35, 41, std=3, mean=1), given("residual", 35, 41)
    gain, bias = given("gain", 41, std=0.3, mean=1), given("bias", 41)
    total = x + residual
    y = F.layer_norm(total, (41,), gain, bias)
    grads = gradients(y, given("dy", 35, 41), x=total, gain=gain, bias=bias)
    write("layer_norm", {"sum": total, "y": y, **grads})


def gelu():
    x = given("x", 1003, std=3)
    y = F.gelu(x, approximate="tanh")
    write("gelu", {"y": y, **gradients(y, given("dy", 1003), x=x)})


def attention(name, B, T, H, D):
    qkv = given("qkv", B, T, 3, H, D, std=1.5)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    scores = (q @ k.transpose(2, 3)) / D**0.5
    scores = scores.masked_fill(torch.ones(T, T, dtype=bool).triu(1), -torch.inf)
    out = (scores.softmax(-1) @ v).transpose(1, 2)
    write(name, {"out": out, "log_sum_exp": scores.logsumexp(-1),
                 **gradients(out, given("dout", B, T, H, D), qkv=qkv)})


def embedding():
    B, T, C, V, positions = 3, 11, 21, 13, 16
    ids = tokens("embedding", B * T, V).view(B, T)
    token, position = given("token", V, C), given("position", positions, C)
    out = token[ids] + position[:T]
    write("embedding", {"out": out, **gradients(out, given("dout", B, T, C), token=token,
                                                position=position)})


def cross_entropy():
    rows, V = 33, 53
    logits = given("logits", rows, V, std=4)
    losses = F.cross_entropy(logits, tokens("cross_entropy", rows, V), reduction="none")
    write("cross_entropy", {"losses": losses, **gradients(losses.sum() * 0.25, None, logits=logits)})


SIZES = {"layers": 2, "width": 24, "heads": 3, "vocabulary": 29, "context": 12}
BATCH = 4


def tiny_gpt():
    model = torch_gpt.Gpt(**SIZES).double()
    model.initialize(SEED)
    with torch.no_grad():  # Norms and biases that do something.
        for name, parameter in model.named_parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
            if parameter.dim() == 1:
                parameter.add_(torch.from_numpy(bell(SEED, "shift " + name, parameter.shape, 0.3)))
    return model


def batch(step):
    shape = (BATCH, SIZES["context"])
    count = shape[0] * shape[1]
    return (tokens(f"gpt tokens {step}", count, SIZES["vocabulary"]).view(shape),
            tokens(f"gpt targets {step}", count, SIZES["vocabulary"]).view(shape))


def gpt():
    model = tiny_gpt()
    loss = model(*batch(0))
    loss.backward()
    write("gpt", {"loss": loss.reshape(1),
                  **{name: parameter.grad for name, parameter in model.named_parameters()}})


def training():
    """Nine steps as the trainer makes them: schedule, clip, AdamW; the losses and the weights they end in."""
    model = tiny_gpt()
    optimizer = model.optimizer(1e-2)
    warmup, total = 4, 9
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1),
         torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup, eta_min=1e-3)],
        [warmup])
    losses, rates, norms = [], [], []
    for step in range(9):
        optimizer.zero_grad()
        loss = model(*batch(step))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    write("training", {"losses": np.array(losses), "rates": np.array(rates),
                       "norms": np.array(norms),
                       **{name: parameter for name, parameter in model.named_parameters()}})


def adamw():
    weight = torch.nn.Parameter(given("weight", 103).detach())
    optimizer = torch.optim.AdamW([weight], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    trace = {}
    for step in range(5):
        weight.grad = given(f"gradient {step}", 103, std=10.0**-step).detach()
        optimizer.step()
        trace[f"weight {step}"] = weight.detach().clone()
    state = optimizer.state[weight]
    write("adamw", trace | {"exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]})


OPTIMIZER_RATES = [0.5, 0.25, 1.0, 0.125, 0.5]


def sgd():
    weight = torch.nn.Parameter(given("weight", 103).detach())
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9, weight_decay=0.1)
    trace = {}
    for step, rate in enumerate(OPTIMIZER_RATES):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = given(f"gradient {step}", 103, std=10.0**-step).detach()
        optimizer.step()
        trace[f"weight {step}"] = weight.detach().clone()
    write("sgd", trace | {"momentum_buffer": optimizer.state[weight]["momentum_buffer"]})


def lamb_and_lars():
    """Of 2,500 elements, which lie in three or four blocks, whatever the tensor before them has."""
    weight = given("weight", 2500).detach().numpy()
    steps = [given(f"gradient {step}", 2500, std=10.0**-step).detach().numpy()
             for step in range(len(OPTIMIZER_RATES))]
    trace, first, second = numpy_optimizers.lamb(weight, steps, OPTIMIZER_RATES)
    write("lamb", {f"weight {step}": array for step, array in enumerate(trace)} |
          {"exp_avg": first, "exp_avg_sq": second})
    trace, buffer = numpy_optimizers.lars(weight, steps, OPTIMIZER_RATES)
    write("lars", {f"weight {step}": array for step, array in enumerate(trace)} |
          {"momentum_buffer": buffer})


def main():
    torch.set_default_dtype(torch.float64)
    linear()
    layer_norm()
    gelu()
    attention("attention_small", 2, 9, 2, 6)
    attention("attention_blocks", 1, 141, 2, 20)
    embedding()
    cross_entropy()
    gpt()
    training()
    adamw()
    sgd()
    lamb_and_lars()


if __name__ == "__main__":
    main()
