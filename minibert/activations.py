"""Activations by their names in config.json.

An activation is a function of one number between two matrices, which without it would reduce to one matrix. Each has
the operations of transformers 5.23's ACT2FN in their order, so that results and gradients are bit-identical. Two names
are missing, prelu and xielu: they have weights.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def gelu_new(x: Tensor) -> Tensor:
    """Return GELU by tanh, as in Google's BERT since February 2019; torch's gelu_pytorch_tanh rounds differently."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_python(x: Tensor) -> Tensor:
    """Return GELU, written out; torch's kernel rounds differently."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_fast(x: Tensor) -> Tensor:
    """Return GELU by tanh, with √(2/π) rounded to ten digits."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def gelu_10(x: Tensor) -> Tensor:
    """Return GELU, clipped to -10 and 10, for integers of few bits (Wu et al. 2020)."""
    return torch.clip(F.gelu(x), -10, 10)


def quick_gelu(x: Tensor) -> Tensor:
    """Return GELU by the logistic function, as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


def laplace(x: Tensor) -> Tensor:
    """Return the distribution function of a normal variable, a smooth and bounded relu2 (Ma et al. 2022, MEGA)."""
    return 0.5 * (1.0 + torch.erf((x - 0.707107).div(0.282095 * math.sqrt(2.0))))


def relu2(x: Tensor) -> Tensor:
    """Return the square of ReLU (So et al. 2021, Primer)."""
    return torch.square(F.relu(x))


def sqrtsoftplus(x: Tensor) -> Tensor:
    """Return √log(1 + eˣ)."""
    return F.softplus(x).sqrt()


def linear(x: Tensor) -> Tensor:
    """Return x: the two matrices of the feed-forward are one, of rank F."""
    return x


ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # x Φ(x), Φ the normal distribution function, by the error function: BERT's default
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    # Few checkpoints have the others.
    "gelu_accurate": gelu_new,
    "gelu_python_tanh": gelu_new,
    "gelu_python": gelu_python,
    "gelu_fast": gelu_fast,
    "gelu_10": gelu_10,
    "quick_gelu": quick_gelu,
    "swish": F.silu,  # an older name of silu
    "mish": F.mish,
    "hardswish": F.hardswish,
    "relu2": relu2,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "laplace": laplace,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sqrtsoftplus": sqrtsoftplus,
    "linear": linear,
}
