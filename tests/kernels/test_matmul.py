"""The kernels of a matrix product: each proves itself in the engine, a faulty one falls back; memory is reused."""

import ctypes
import platform
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.engine import (
    CPU,
    ENCODER,
    MIXED,
    difference,
    random_rows,
    readable,
)

from minibert.activations import ACTIVATION
from minibert.config import ACTIVATIONS
from minibert.kernels import matmul
from minibert.kernels.matmul import GeluLinear, Linear, PackedLinear, Workspace, keep_freed_memory
from minibert.vectors import engine as module
from minibert.vectors.engine import Engine

BOUND = 1e-5
HERE_PACKED = pytest.mark.skipif(
    not matmul.is_right(PackedLinear, torch.float32, CPU),
    reason="this build of torch has no packed oneDNN products",
)


def settings_of_torch() -> tuple[Any, ...]:
    mkldnn = torch.backends.mkldnn
    return (
        (mkldnn.enabled, mkldnn.deterministic, mkldnn.fp32_precision, mkldnn.matmul.fp32_precision),
        (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32),
        (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        tuple(torch.get_rng_state().tolist()),
    )


@pytest.mark.parametrize("kernel", [pytest.param(PackedLinear, marks=HERE_PACKED), Linear])
def test_every_kernel_gives_the_same_vectors_and_leaves_the_settings_of_torch_alone(monkeypatch, kernel):
    before, rows = settings_of_torch(), random_rows(MIXED)
    Engine(ENCODER)  # which chooses a kernel
    monkeypatch.setattr(module, "choose_linear", lambda dtype, device: kernel)
    engine = Engine(ENCODER)
    assert difference(engine.vectors(rows), readable(ENCODER, rows)) < BOUND
    assert kernel.description in engine.kernels
    with pytest.raises(ZeroDivisionError), matmul.onednn_allowed():
        raise ZeroDivisionError
    assert settings_of_torch() == before


@pytest.mark.parametrize("kernel", [pytest.param(PackedLinear, marks=HERE_PACKED), GeluLinear])
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name not in matmul.ONEDNN_ACTIVATION])
def test_a_kernel_adds_an_activation_that_it_does_not_have_itself(kernel, name):
    layer = torch.nn.Linear(3, 4).requires_grad_(False)
    x = torch.tensor([[1.0, -2.0, 3.0], [90.0, 7.0, -80.0]])  # gelu_10 differs from GELU for large numbers only
    found = kernel([layer], torch.float32, CPU, name)(x)
    torch.testing.assert_close(found, ACTIVATION[name](layer(x)), rtol=1e-5, atol=1e-5)


def product(dtype: torch.dtype = torch.float32, shift: int = 0) -> Callable[..., torch.Tensor]:
    """A product without its activation, in this dtype, whose rows are shifted."""

    def call(self, x):
        bias = None if self.bias is None else self.bias.to(dtype)
        return torch.nn.functional.linear(x.to(dtype), self.weight.to(dtype), bias).float().roll(shift, dims=0)

    return call


FAULTS = {  # AMX may compute in bfloat16 under the name of float32; of another build, an operator has other arguments
    "no operator": Mock(side_effect=AttributeError("no such operator")),
    "other arguments": Mock(side_effect=RuntimeError("expected at most 5 arguments")),
    "rounded": product(torch.bfloat16),
    "off by one row": product(shift=1),
    "without activation": product(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_faulty_kernel_is_not_chosen(monkeypatch, fault):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(PackedLinear, "multiply", fault)
    assert matmul.choose_linear(torch.float32, CPU) is Linear


def test_the_kernel_depends_on_the_build_of_torch_and_on_the_processor(monkeypatch):
    if matmul.is_x86() and matmul.is_right(PackedLinear, torch.float32, CPU):
        assert "packed oneDNN" in Engine(ENCODER).kernels
    monkeypatch.setattr(PackedLinear, "__init__", Mock(side_effect=AttributeError("no such operator")))
    assert matmul.choose_linear(torch.float32, CPU) is Linear
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert Engine(ENCODER).kernels == "float32 on cpu; products: F.linear; attention: groups of equal length"


# Memory


def test_inside_freed_memory_is_kept_and_afterwards_returned_even_after_an_error(monkeypatch):
    calls = []
    library = SimpleNamespace(mallopt=lambda *given: calls.append(given), malloc_trim=lambda pad: calls.append((pad,)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    never = [(-1, matmul.NEVER), (-3, matmul.NEVER)]
    with pytest.raises(KeyboardInterrupt), keep_freed_memory():
        assert calls == never
        raise KeyboardInterrupt
    assert calls == [*never, *matmul.USUAL.items(), (0,)]


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_another_c_library_is_left_alone(error, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=error))
    with keep_freed_memory():  # returns memory at the end
        pass


def test_a_workspace_reuses_memory_and_grows():
    workspace = Workspace()
    first = workspace.buffer("a", 4, 8)
    assert workspace.buffer("a", 2, 8).data_ptr() == first.data_ptr()
    assert workspace.buffer("a", 8, 8).shape == (8, 8)
    assert workspace.buffer("b", 4, 8).data_ptr() != workspace.buffer("a", 4, 8).data_ptr()


def test_the_setting_of_torch_is_restored_by_the_last_of_two_overlapping_blocks():
    setting, first, second = torch.backends.mkldnn.matmul, matmul.onednn_allowed(), matmul.onednn_allowed()
    before = setting.fp32_precision
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert setting.fp32_precision == "bf16" != before
    second.__exit__(None, None, None)
    assert setting.fp32_precision == before
