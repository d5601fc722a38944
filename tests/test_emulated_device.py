"""The emulated device finds what a CPU hides; without these, the tests that use it would prove nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.emulated_device import emulated_device


def test_tensors_of_two_devices_do_not_mix():
    with emulated_device(), pytest.raises(RuntimeError, match=r"\(3,\)"):
        torch.ones(3, device="gpu") + torch.ones(3)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
    ],
)
def test_whatever_needs_a_value_of_the_device_is_a_wait(read):
    with emulated_device() as gpu:
        x = torch.arange(4.0).pin_memory().to("gpu", non_blocking=True)
        assert not gpu.waits
        read(x)
        assert len(gpu.waits) == 1


def test_a_copy_to_the_device_is_a_wait_unless_its_memory_is_pinned():
    with emulated_device() as gpu:
        torch.ones(3).to("gpu", non_blocking=True)
        assert gpu.waits == ["copy to the device"]


def test_a_late_copy_is_nan_until_something_waits():
    with emulated_device(), torch.inference_mode():
        x = torch.ones(2, device="gpu").to("cpu", non_blocking=True)
        assert x.isnan().all()
        torch.get_device_module("gpu").current_stream().record_event().synchronize()
        assert x.tolist() == [1, 1]


def test_attention_is_one_launch_forward_and_one_backward():
    q = torch.randn(2, 3, 5, 4)
    with emulated_device() as gpu:
        x = q.to("gpu").requires_grad_()
        torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
        assert gpu.launches["attention"] == 2


def test_the_device_draws_its_own_random_numbers():
    with emulated_device():
        before = torch.get_rng_state()
        torch.rand(3, device="gpu")
        assert torch.equal(torch.get_rng_state(), before)


def test_another_thread_finds_the_device():
    with emulated_device() as gpu, ThreadPoolExecutor(1) as executor:
        assert executor.submit(lambda: torch.ones(3).to("gpu").tolist()).result() == [1, 1, 1]
        assert gpu.waits == ["copy to the device", "copy to the host"]
