"""Hardware of this machine: the speed of its devices, and whether it is enough to train a model."""

import os
import platform
import time
from collections import deque
from importlib.metadata import version
from typing import Any

from ping_llm.errors import UsageError

#: Number of parameters from which a training on CPUs takes days.
GPU_PARAMETERS = 10_000_000

#: Share of the speed of matrix products that a training of this size reaches on CPUs.
_REACHED = 0.5


def refuse_cpu(config: Any, seam: Any) -> None:
    """Refuse to train a large model where JAX has only CPUs.

    Raises:
        UsageError: there is no GPU; the message has the hours that the training would take.
    """
    import jax

    heads = 2 * (config.num_query_heads + config.num_kv_heads) * config.head_dim
    of_layers = config.num_decoder_layers * config.emb_dim * (heads + 3 * config.mlp_dim)
    if of_layers < GPU_PARAMETERS or jax.default_backend() != "cpu":
        return
    sizes = seam.sizes(config)  # takes a second
    flops = sizes["flops_per_device_step"] * jax.device_count() * config.steps
    hours = flops / (_REACHED * matrix_flops()) / 3600
    raise UsageError(
        f"a model of {sizes['parameters'] / 1e6:.0f}M parameters is for GPUs, and JAX finds none here "
        f"(`ping-llm doctor` says why): {config.steps:,} steps would take about {hours:,.0f} hours. "
        "--allow-cpu trains all the same; tiny and menog are for CPUs"
    )


#: Peak FLOP/s of dense matrix products by name of the device, in bfloat16 and in float32 (TF32), from
#: NVIDIA's data sheets (of the SXM versions). A name that contains another must come before it.
_PEAKS = (
    ("H100", 989e12, 494e12),
    ("H200", 989e12, 494e12),
    ("A100", 312e12, 156e12),
    ("L40S", 362e12, 183e12),
    ("L4", 121e12, 60e12),
    ("A10G", 70e12, 35e12),
    ("A10", 125e12, 62e12),
    ("T4", 65e12, 8.1e12),
)


def peak_flops(dtype: str) -> float:
    """Peak FLOP/s of one of JAX's devices: by name for GPUs, measured for CPUs; 0: unknown."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return matrix_flops()
    found = (peaks for peaks in _PEAKS if peaks[0] in device.device_kind)
    _, half, single = next(found, ("", 0.0, 0.0))
    return half if "16" in dtype else single


class Utilization:
    """Model FLOP/s as a share of the device's peak (MFU)."""

    #: Number of steps whose mean may raise the peak. Records can be written late: after a checkpoint of 1 s,
    #: the next step seemed to take 5 ms instead of 160. That makes 20 steps at most 5 % too fast.
    WINDOW = 20

    def __init__(self, peak: float):
        self._peak = peak
        self._steps: deque[tuple[float, float]] = deque(maxlen=self.WINDOW)

    def of(self, flops: float, seconds: float) -> float:
        """Return the MFU of a step, at most 1.

        Steps that are faster than the peak show that the machine was busy when the peak was measured.
        """
        self._steps.append((flops, seconds))
        if len(self._steps) == self.WINDOW:
            total, passed = map(sum, zip(*self._steps, strict=True))
            self._peak = max(self._peak, total / passed)
        return min(1.0, flops / seconds / self._peak)


def environment() -> dict[str, Any]:
    """Software versions and hardware of a training, for run.json."""
    import jax

    packages = ("ping-llm", "maxtext", "jax", "numpy")
    device = jax.local_devices()[0]
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "devices": jax.device_count(),
        "device": device.device_kind,
        "cores": os.cpu_count(),
    }


def matrix_flops(size: int = 1024, seconds: float = 0.2) -> float:
    """Measure the FLOP/s of float32 matrix products on JAX's first device: the best of a few tries."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    product(matrix, matrix).block_until_ready()
    best, deadline = 0.0, time.monotonic() + seconds
    while best == 0 or time.monotonic() < deadline:
        begun = time.monotonic()
        product(matrix, matrix).block_until_ready()
        best = max(best, 2 * size**3 / max(time.monotonic() - begun, 1e-9))
    return best
