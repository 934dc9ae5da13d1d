"""The DeepPrior's training step in JAX: jit of grad of a lax.scan of grad. Imports JAX and numpy alone.

    python benchmarks/jax_scan.py GIVEN.npz ANSWER.npz [--checkpoint]

GIVEN holds the parameters under their names in the torch model, and x.image, x.seen and x.target; ANSWER gets a
gradient for each. The last line on standard output is JSON: seconds of each step, bytes, version. Products keep JAX's
default precision, which on an NVIDIA GPU is TF32.
"""

# mypy: ignore-errors
from __future__ import annotations

import argparse
import json
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NAMES = {
    "first": "energy.parts.prior.energy.first.weight",
    "first_bias": "energy.parts.prior.energy.first.bias",
    "second": "energy.parts.prior.energy.second.weight",
    "second_bias": "energy.parts.prior.energy.second.bias",
    "last": "energy.parts.prior.energy.last.weight",
    "log_weight": "energy.parts.prior.weight.log",
    "log_rates": "minimizer.rule.rates.log",
}


def conv(x, w, bias=None):
    out = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return out if bias is None else out + bias[None, :, None, None]


def energy(y, p, x, temperature):
    """Σ over the batch of ‖m(y − x)‖² + 2σ² DNN(y)."""

    def softplus(a):
        return jax.nn.softplus(temperature * a) / temperature

    hidden = softplus(conv(y, p["first"], p["first_bias"]))
    hidden = softplus(conv(hidden, p["second"], p["second_bias"]))
    prior = conv(hidden, p["last"]).sum()
    return ((y - x["image"]) ** 2 * x["seen"]).sum() + jnp.exp(p["log_weight"]) * prior


def loss(p, x, *, decay, temperature, checkpoint):
    """(1/T) Σ_t mean (y_t − y*)² / (T − t + 1)."""
    rates = jnp.exp(p["log_rates"])
    steps = rates.shape[0]
    weights = 1.0 / (steps - jnp.arange(steps)) / steps

    def step(carry, now):
        y, h = carry
        rate, weight = now
        h = decay * h + jax.grad(energy)(y, p, x, temperature)
        y = y - rate * h
        return (y, h), weight * jnp.mean((y - x["target"]) ** 2)

    if checkpoint:
        step = jax.checkpoint(step, prevent_cse=False)
    _, losses = lax.scan(step, (x["image"], jnp.zeros_like(x["image"])), (rates, weights))
    return losses.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("given")
    parser.add_argument("answer")
    parser.add_argument("--decay", type=float, default=0.25)
    parser.add_argument("--temperature", type=float, default=25.0)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    a = parser.parse_args()
    with np.load(a.given) as given:
        p = {short: jnp.asarray(given[name]) for short, name in NAMES.items()}
        x = {part: jnp.asarray(given[f"x.{part}"]) for part in ("image", "seen", "target")}
    began = time.perf_counter()
    whole = partial(loss, decay=a.decay, temperature=a.temperature, checkpoint=a.checkpoint)
    step = jax.jit(jax.grad(whole)).lower(p, x).compile()
    gradients = jax.block_until_ready(step(p, x))
    setup = time.perf_counter() - began
    jax.block_until_ready(step(p, x))
    times, start, processor = [], time.perf_counter(), time.process_time()
    while len(times) < a.repeats and (len(times) < 3 or time.perf_counter() - start < a.seconds):
        began = time.perf_counter()
        jax.block_until_ready(step(p, x))
        times.append(time.perf_counter() - began)
    processor = 1000 * (time.process_time() - processor) / len(times)
    np.savez(a.answer, **{NAMES[short]: np.asarray(g) for short, g in gradients.items()})
    print(json.dumps({"seconds": times, "setup_seconds": setup, "cpu_ms": processor, **memory(step), **about()}))


def memory(step):
    """What the compiled program allocates beside its arguments; and the allocator's own peak where it keeps one.

    The latter also counts what autotuning tried while compiling, which no step needs.
    """
    plan = step.memory_analysis()
    found = {"peak_bytes": float(plan.temp_size_in_bytes + plan.output_size_in_bytes)}
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        found["allocator_peak_bytes"] = float(stats["peak_bytes_in_use"])
    return found


def about():
    device = jax.local_devices()[0]
    precision = jax.config.jax_default_matmul_precision or "default (TF32 on an NVIDIA GPU)"
    return {"version": jax.__version__, "device": device.device_kind, "precision": str(precision)}


if __name__ == "__main__":
    main()
