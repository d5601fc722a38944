"""A GPU in pure Python: device "gpu", on any machine.

Its tensors are computed by the CPU, so its results are right. It finds three mistakes that a CPU hides:

    mixed devices   an operator that gets tensors of the device and of the CPU raises RuntimeError
    waits           each point at which the host waits for the device is recorded, with its place in minibert
    late copies     what a non-blocking copy brings to the host is NaN until something waits for the device

and counts kernel launches: operators that compute something; views and copies between devices are none. Attention is
one launch forward and one backward, as on a GPU with a fused kernel. The device has random numbers of its own. It is
there in the threads too that are started inside, such as that of a server.

    with emulated_device() as gpu:
        vectors = Engine(encoder, device="gpu").vectors(ids)
    assert gpu.waits == ["copy to the host at vectors/engine.py:368"]
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import Library, fallthrough_kernel
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyPrivateUse1Hook, _setup_privateuseone_for_python_backend

import minibert

NAME = "gpu"
PACKAGE = Path(minibert.__file__).parent
ATTENTION = F.scaled_dot_product_attention
Result = TypeVar("Result")
# Operators whose result the host reads, or whose shape depends on values; beside them, indexing by bool tensors.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPYING = {"_to_copy", "copy_"}
RANDOM = {"native_dropout", "bernoulli", "bernoulli_", "random_", "normal_", "uniform_", "randn", "rand", "multinomial"}
# What autocast computes in bfloat16 and in float32, of its lists for CUDA what BERT has. It casts a weight at each use,
# where CUDA keeps the cast one until autocast ends.
IN_BFLOAT16 = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm")
IN_FLOAT32 = (
    "layer_norm",
    "softmax",
    "log_softmax",
    "cross_entropy_loss",
    "nll_loss",
    "kl_div",
    "cosine_embedding_loss",
)
NO_LAUNCH = {"detach", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "set_", "_unsafe_view"}


@contextmanager
def emulated_device() -> Iterator[EmulatedDevice]:
    """The device, inside."""
    device = EmulatedDevice.active = EmulatedDevice()
    run = threading.Thread.run

    def run_inside(thread: threading.Thread) -> None:
        with device:  # a mode of torch is that of one thread
            run(thread)

    attention = mock.patch.object(F, "scaled_dot_product_attention", fused_attention)
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied parameters of a module that is moved stay tied
    try:
        with attention, mock.patch.object(threading.Thread, "run", run_inside), device:
            yield device
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        EmulatedDevice.active = None


class DeviceTensor(Tensor):
    """A tensor of the device. `values`: its numbers, a tensor of the CPU."""

    values: Tensor  # type: ignore[assignment]  # hides Tensor.values of sparse tensors

    @staticmethod
    def __new__(cls, values: Tensor) -> DeviceTensor:
        """The same numbers, on the device."""
        self: DeviceTensor = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            values.stride(),
            values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
        )
        self.values = values
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{self.values!r} on the emulated device"

    def tolist(self) -> Any:
        """torch refuses it for subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Called where no device is active."""
        raise RuntimeError(f"{func} of a tensor of the emulated device, outside of emulated_device")


class EmulatedDevice(TorchDispatchMode):
    """The device: `waits` are the places where the host waited, `launches` counts the kernels by name."""

    active: ClassVar[EmulatedDevice | None] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []
        self.launches: Counter[str] = Counter()
        self.late: list[tuple[Tensor, Tensor]] = []  # what a non-blocking copy brings to the host, and its numbers
        self.random = torch.get_rng_state()
        self.inside = False  # a kernel whose parts are no launches

    def reset(self) -> None:
        """Forget waits and launches."""
        self.waits.clear()
        self.launches.clear()

    def wait(self, why: str) -> None:
        """The host waits for the device: late copies have arrived."""
        frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
        places = [f"{path.relative_to(PACKAGE)}:{line}" for path, line in frames if path.is_relative_to(PACKAGE)]
        self.waits.append(f"{why} at {places[-1]}" if places else why)
        for result, values in self.late:
            result.copy_(values)
        self.late.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operator of torch comes here."""
        name, kwargs = func.overloadpacket.__name__, dict(kwargs or {})
        if name in ("is_pinned", "pin_memory", "_pin_memory"):
            return pin(args[0]) if name != "is_pinned" else hasattr(args[0], "pinned")
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, DeviceTensor)]
        target = next((x.type for x in leaves if isinstance(x, torch.device)), None)
        if not ours and target != NAME:
            return func(*args, **kwargs)
        if is_composed(func):  # inference mode does not decompose
            with self:
                return func.decompose(*args, **kwargs)
        if name in COPYING and len(ours) < len(tensors) + (target not in (None, NAME)):
            return self.copy(func, args, kwargs, target)
        foreign = [tuple(x.shape) for x in tensors if not isinstance(x, DeviceTensor) and x.dim()]
        if foreign:
            raise RuntimeError(f"{func} of tensors of the device and of the CPU, which have the shapes {foreign}")
        if name in WAITING or (name in INDEXING and any(x is not None and x.dtype == torch.bool for x in args[1])):
            self.wait(name)
        return self.compute(func, args, kwargs)

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator of tensors of the device."""
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NO_LAUNCH and not self.inside:
            self.launches[name] += 1
        arguments, named = tree_map(values_of, (args, kwargs))
        if "device" in named:
            named["device"] = torch.device("cpu")
        with self.random_numbers() if name in RANDOM else torch.no_grad():
            result = OF_ALL_LENGTHS.get(name, func)(*arguments, **named)
        known = {id(x.values): x for x in tree_leaves((args, kwargs)) if isinstance(x, DeviceTensor)}
        if name == "_local_scalar_dense":
            return result
        of_weights = func.is_view and any(not x.is_inference() for x in known.values())  # so is a view of a weight
        with torch.inference_mode(torch.is_inference_mode_enabled() and not of_weights):
            return tree_map(lambda x: known.get(id(x), DeviceTensor(x)) if isinstance(x, Tensor) else x, result)

    def copy(self, func: Any, args: Any, kwargs: Any, target: str | None) -> Any:
        """A copy between host and device."""
        late = kwargs.get("non_blocking", False) or (func.overloadpacket.__name__ == "copy_" and args[2:] == (True,))
        if func.overloadpacket.__name__ == "copy_":
            result, source = args[:2]
            values_of(result).copy_(values_of(source))
            if source.dim():
                self.wait("copy")
            return result
        values: Tensor = func(*tree_map(values_of, args), **(kwargs | {"device": torch.device("cpu")})).clone()
        if target == NAME:
            if not (late and hasattr(args[0], "pinned")) and args[0].dim():
                self.wait("copy to the device")
            return DeviceTensor(values)
        if not late:
            self.wait("copy to the host")
            return values
        result = torch.full_like(values, torch.nan if values.is_floating_point() else -1)
        self.late.append((result, values))
        return result

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Inside, torch's generator is that of the device."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.random)
        yield
        self.random = torch.get_rng_state()
        torch.set_rng_state(before)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, **more: Any
) -> Tensor:
    """In place of torch's function: on the device one kernel forward and one backward."""
    inputs = query, key, value, attn_mask, dropout_p
    if not isinstance(query, DeviceTensor):
        return ATTENTION(*inputs, **more)
    if not torch.is_grad_enabled():
        return one_launch("attention", lambda: by_text(ATTENTION(*inputs)))
    result: Tensor = Attention.apply(*inputs)  # type: ignore[no-untyped-call]
    return result


def by_text(x: Tensor) -> Tensor:
    """(B,H,S,W) in the memory of (B,S,H,W), as the kernels of a GPU return it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def efficient_attention(query: Tensor, key: Tensor, value: Tensor, bias: None, *more: Any) -> tuple[Any, ...]:
    """torch's memory-efficient kernel for texts of all lengths, (1,T,H,W) -> (1,T,H,W)."""
    context = flash_attention(query[0], key[0], value[0], *more)[0][None]
    return context, context, context, context, 0, 0


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor, *more: Any
) -> tuple[Tensor, ...]:
    """The kernel of FlashAttention for texts of all lengths, (T,H,W) -> (T,H,W); queries, keys: their bounds."""
    assert queries.dtype == keys.dtype == torch.int32
    assert more[:3] == (int(queries.diff().max()), int(keys.diff().max()), 0.0) and not any(more[3:])
    if query.dtype != torch.float32 and query.shape[-1] % 8:
        raise RuntimeError("head size must be a multiple of 8")
    parts = (torch.tensor_split(x, bounds[1:-1].long()) for x, bounds in ((query, queries), (key, keys), (value, keys)))
    texts = ([x.transpose(0, 1)[None] for x in text] for text in zip(*parts, strict=True))  # (1,H,S,W) each
    return (torch.cat([ATTENTION(*text)[0].transpose(0, 1) for text in texts]),) * 5


OF_ALL_LENGTHS = {"_efficient_attention_forward": efficient_attention, "_flash_attention_forward": flash_attention}


class Attention(torch.autograd.Function):
    """torch's own attention and its gradient, each counted as one launch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """(B,H,S,W) each -> (B,H,S,W)."""
        ctx.leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        with torch.enable_grad():
            ctx.result = one_launch("attention", lambda: by_text(ATTENTION(*ctx.leaves, *inputs[3:])))
        result: Tensor = ctx.result.detach()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """To query, key and value."""
        found = one_launch(
            "attention", lambda: [by_text(x) for x in torch.autograd.grad(ctx.result, ctx.leaves, gradients)]
        )
        return *found, None, None


def one_launch(name: str, function: Callable[[], Result]) -> Result:
    """The result of a function that is one kernel of the device."""
    device = active_device()
    if not device.inside:
        device.launches[name] += 1
    before, device.inside = device.inside, True
    try:
        return function()
    finally:
        device.inside = before


def pin(x: Tensor) -> Tensor:
    """A copy that the device can read while the host goes on."""
    copied = x.clone()
    copied.pinned = True  # type: ignore[attr-defined]
    return copied


def is_composed(func: Any) -> bool:
    """Whether an operator consists of others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def values_of(x: Any) -> Any:
    """The numbers of a tensor of the device; anything else as it is."""
    return x.values if isinstance(x, DeviceTensor) else x


class Event:
    """A point in the work of the device."""

    def record(self, stream: object = None) -> None:
        """Here."""

    def synchronize(self) -> None:
        """Wait until the device is there."""
        active_device().wait("event")


class Stream:
    """The only queue of the device."""

    def record_event(self) -> Event:
        """A point after all work so far."""
        return Event()


class Backend:
    """torch.gpu, as torch.cuda is for CUDA."""

    Event = Event

    def is_available(self) -> bool:
        return EmulatedDevice.active is not None

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return int(EmulatedDevice.active is not None)

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: object = None) -> Stream:
        return Stream()

    def synchronize(self, device: object = None) -> None:
        Event().synchronize()

    def manual_seed_all(self, seed: int) -> None:
        if EmulatedDevice.active is not None:
            EmulatedDevice.active.random = torch.Generator().manual_seed(seed).get_state()

    def get_rng_state(self, device: object = None) -> Tensor:
        return active_device().random

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        active_device().random = state

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class Hook(_DummyPrivateUse1Hook):
    """What torch asks before it takes a device for an accelerator of this machine."""

    def is_available(self) -> bool:
        return EmulatedDevice.active is not None


def active_device() -> EmulatedDevice:
    """The device that is active."""
    assert EmulatedDevice.active is not None, "the emulated device is used outside of emulated_device"
    return EmulatedDevice.active


def autocast_kernel(name: str, dtype_of: Callable[[], torch.dtype]) -> Callable[..., Any]:
    """The operator of inputs in this dtype."""
    operator, key = getattr(torch.ops.aten, name), torch._C.DispatchKey.AutocastPrivateUse1

    def kernel(*args: Any, **kwargs: Any) -> Any:
        floating = lambda x: isinstance(x, Tensor) and x.is_floating_point()  # noqa: E731
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return operator(*tree_map(lambda x: x.to(dtype_of()) if floating(x) else x, args), **kwargs)

    return kernel


AUTOCAST = [Library("_", "IMPL"), Library("aten", "IMPL")]  # they last as long as these objects
AUTOCAST[0].fallback(fallthrough_kernel, "AutocastPrivateUse1")
for names, dtype_of in ((IN_BFLOAT16, lambda: torch.get_autocast_dtype(NAME)), (IN_FLOAT32, lambda: torch.float32)):
    for name in names:
        overload = f"{name}.int" if name.endswith("softmax") else name
        AUTOCAST[1].impl(overload, autocast_kernel(name, dtype_of), "AutocastPrivateUse1")
_setup_privateuseone_for_python_backend(NAME, backend_module=Backend(), hook=Hook())
for supported in {
    id(types): types for types in (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types)
}.values():
    supported.append(DeviceTensor)  # type: ignore[arg-type]  # one launch for all parameters, as on a GPU
