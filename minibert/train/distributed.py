"""Several processes that train one model, as torchrun starts them: who this one is, and what all of them agree on.

    torchrun --nproc-per-node 2 -m minibert pretrain corpus.txt ...

Each process, called a *rank*, computes its rows of every batch; the gradients of all are added up, so that all take the
same step, which is that of one process with the whole batch. A loss is a mean over texts or tokens, and ranks have
different numbers of them, so that a mean of their means would be another number. What is added up are sums:

    loss of a rank = sum over its texts or tokens · ranks / how many all ranks have

The factor `ranks` is there because DistributedDataParallel takes the mean of the ranks' gradients. With shard="full" no
rank holds the whole model: fully_shard deals weights, gradients and moments out, and brings those of a layer together
while it is computed (Zhao et al. 2023; ZeRO, Rajbhandari et al. 2020).

The first rank alone writes, draws the bar and scores; the others wait for what it finds. Whoever is alone, without
torchrun, is a World in which all of this is nothing, and torch.distributed is not imported.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from minibert.device import choose_device
from minibert.model import Layer
from minibert.train.packed import PACKED_STEP, layer_step

SHARDS = ("none", "full")
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what it tells each process
LONGEST_WAIT = timedelta(days=1)  # of one rank for another: the first may score for hours
Found = TypeVar("Found")
Model = TypeVar("Model", bound=nn.Module)


class World:
    """One process, alone: it has all rows, and agrees with itself."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this rank writes and speaks."""
        return self.rank == 0

    def begin(self, device: str) -> str:
        """Meet the other ranks. Returns the device of this one, where `device` was asked for."""
        return choose_device(device)

    def seed(self, seed: int) -> None:
        """Numbers of its own for each rank, once all have the same weights: else all had the same dropout."""

    def join(self, model: nn.Module, shard: str) -> None:
        """Make one model of the ranks' copies; an optimizer comes after it."""

    # A step

    def through(self, model: nn.Module, function: Callable[..., Found], *given: Any) -> Found:
        """function(model, ...), whose gradients will be those of all ranks."""
        return function(model, *given)

    def summing(self, last: bool) -> AbstractContextManager[None]:
        """Inside, the gradients of ranks are added up behind the backward pass if it is the `last` of a step."""
        return nullcontext()

    def sum_numbers(self, numbers: dict[str, float]) -> dict[str, float]:
        """Each number, summed over all ranks."""
        return numbers

    def sum_of(self, numbers: Iterable[int]) -> int:
        """The sum of these, on all ranks."""
        return round(self.sum_numbers({"sum": sum(numbers)})["sum"])

    def sum_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor (), summed over all ranks."""
        return tensors

    def clip(self, model: nn.Module, most: float) -> Tensor:
        """The length of all gradients together, (), which are made shorter where it is more than `most`."""
        return nn.utils.clip_grad_norm_(model.parameters(), most)

    # What all agree on

    def wait(self) -> None:
        """Until all ranks are here."""

    def same(self, ask: Callable[[], Found]) -> Found:
        """What the first rank finds, or has written, for which the others wait; where it fails, all end."""
        return ask()

    def whole_model(self) -> AbstractContextManager[None]:
        """Inside, each rank has all weights of the model that was joined."""
        return nullcontext()

    def ask(self, model: nn.Module, score: Callable[[Any], Found]) -> Found:
        """What the first rank finds of the model."""
        with self.whole_model():
            return self.same(lambda: score(model))

    # What is kept

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor that was dealt out, for which all ranks must ask; only the first is given it."""
        return tensor

    def dealt(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This rank's part of a whole tensor, dealt out as `like` is."""
        return tensor

    def random_states(self) -> dict[str, Tensor]:
        """The state of torch's generators, of each rank, for which all must ask."""
        return own_random_states()

    def set_random(self, states: dict[str, Tensor]) -> None:
        """Put back what random_states took. Raises KeyError where this rank's is missing."""
        torch.set_rng_state(states[self.named("random")])
        if self.named("random cuda") in states:
            torch.cuda.set_rng_state(states[self.named("random cuda")])

    def named(self, name: str) -> str:
        """What this rank's own is called, among those of all."""
        return name if self.first else f"{name} {self.rank}"

    def plain(self, model: Model, new_model: Callable[[], Model]) -> Model:
        """The model as one process has it: itself, or where it was dealt out, a new one with its weights."""
        return model


ALONE = World()


class Ranks(World):
    """One of several processes."""

    def __init__(self, rank: int, size: int, local_rank: int) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.joined: nn.Module | None = None  # by DistributedDataParallel or fully_shard
        self.sharded = False

    def begin(self, device: str) -> str:
        """On a GPU each rank has its own. Raises ValueError for a device that all would share."""
        import torch.distributed as dist

        own = choose_device(device)
        if own not in ("cpu", "cuda"):
            raise ValueError(
                f"device is {device!r}, and {self.size} processes train together, each on the cpu or on a GPU of its "
                "own; ask for cpu, cuda or auto"
            )
        if own == "cuda":
            own = choose_device(f"cuda:{self.local_rank}")
            torch.cuda.set_device(self.local_rank)
        if not dist.is_initialized():
            dist.init_process_group("gloo" if own == "cpu" else "cpu:gloo,cuda:nccl", timeout=LONGEST_WAIT)
            atexit.register(end)
        return own

    def seed(self, seed: int) -> None:
        """By seed and rank."""
        torch.manual_seed((seed * 1_000_003 + self.rank) % 2**63)

    def join(self, model: nn.Module, shard: str) -> None:
        """By DistributedDataParallel, or by fully_shard: each layer by itself, and what is left as one."""
        self.sharded = shard == "full"
        if not self.sharded:
            from torch.nn.parallel import DistributedDataParallel

            # Where no rank has a hidden word the decoder is not reached, and gets no gradient, as in one process.
            self.joined = DistributedDataParallel(Call(model, unused=True), find_unused_parameters=True)
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        self.joined = Call(model)
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.size,))
        for layer in self.layers():
            setattr(layer, PACKED_STEP, partial(layer_step, layer))
            fully_shard(layer, mesh=mesh)
            register_fsdp_forward_method(layer, PACKED_STEP)
        fully_shard(self.joined, mesh=mesh)

    def layers(self) -> list[Layer]:
        """Of the model that was joined; of ELECTRA those of both parts."""
        assert self.joined is not None
        return [module for module in self.joined.modules() if isinstance(module, Layer)]

    def through(self, model: nn.Module, function: Callable[..., Found], *given: Any) -> Found:
        """By the module that was joined, whose hooks add the gradients up."""
        assert self.joined is not None, "join comes before through"
        found: Found = self.joined(function, *given)
        return found

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        """no_sync but for the last part; around the forward pass too, which prepares the sums."""
        joined: Any = self.joined
        if self.sharded:
            joined.set_requires_gradient_sync(last)
        with nullcontext() if last or self.sharded else joined.no_sync():
            yield

    def sum_numbers(self, numbers: dict[str, float]) -> dict[str, float]:
        """On the CPU, in float64: counts are exact."""
        import torch.distributed as dist

        summed = torch.tensor(list(numbers.values()), dtype=torch.float64)
        dist.all_reduce(summed)
        return dict(zip(numbers, summed.tolist(), strict=True))

    def sum_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Where they are, all at once."""
        import torch.distributed as dist

        summed = torch.stack(list(tensors.values()))
        dist.all_reduce(summed)
        return dict(zip(tensors, summed.unbind(), strict=True))

    def clip(self, model: nn.Module, most: float) -> Tensor:
        """Of gradients that were dealt out, the length of all parts."""
        length: Any = super().clip(model, most)
        whole: Tensor = length.full_tensor() if self.sharded else length
        return whole

    def wait(self) -> None:
        """By a sum that nobody has before all have added to it."""
        self.sum_numbers({"here": 1})

    def same(self, ask: Callable[[], Found]) -> Found:
        """What the first rank finds, sent to the others. They end without a word where it fails: it has said why."""
        import torch.distributed as dist

        box: list[Any] = [None, False]
        try:
            if self.first:
                box = [ask(), True]
        finally:
            dist.broadcast_object_list(box, device=torch.device("cpu"))
        if not box[1]:
            raise SystemExit(1)
        return cast(Found, box[0])

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        """Where it was dealt out, all of it is brought together for a while, and layers are computed without hooks."""
        if not self.sharded:
            yield
            return
        from torch.distributed.fsdp import FSDPModule

        assert self.joined is not None
        parts = [module for module in self.joined.modules() if isinstance(module, FSDPModule)]
        steps = {layer: vars(layer).pop(PACKED_STEP) for layer in self.layers()}
        for part in parts:
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()
            for layer, step in steps.items():
                setattr(layer, PACKED_STEP, step)

    def whole(self, tensor: Tensor) -> Tensor:
        """On the CPU of the first rank; nothing on the others, which do not write it."""
        if not hasattr(tensor, "full_tensor"):
            return tensor
        together: Tensor = tensor.full_tensor()
        return together.cpu() if self.first else together.new_empty(0)

    def dealt(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Each rank has the whole and keeps its part."""
        if not self.sharded:
            return tensor
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(like, DTensor)
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

    def random_states(self) -> dict[str, Tensor]:
        """Those of the first rank under their names, of another with its number behind."""
        import torch.distributed as dist

        found: dict[str, Tensor] = {}
        for name, state in own_random_states().items():
            states = [torch.empty_like(state) for _ in range(self.size)]
            dist.all_gather(states, state)
            found |= {Ranks(rank, self.size, 0).named(name): one for rank, one in enumerate(states)}
        return found

    def plain(self, model: Model, new_model: Callable[[], Model]) -> Model:
        """On each rank."""
        if not self.sharded:
            return model
        made = new_model()
        weights = {name: cast(Any, parameter).full_tensor() for name, parameter in model.named_parameters()}
        for name, parameter in made.named_parameters():
            parameter.data.copy_(weights[name])
        return made


class Call(nn.Module):
    """Functions of a model as a module, which is all that DistributedDataParallel and fully_shard know."""

    def __init__(self, model: nn.Module, unused: bool = False) -> None:
        super().__init__()
        self.model = model
        if unused:  # a parameter that is never reached: without one, torch warns that all are
            self.unused = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, function: Callable[..., Any], *given: Any) -> Any:
        """function(model, ...)"""
        return function(self.model, *given)


def own_random_states() -> dict[str, Tensor]:
    """Of this process, by name."""
    states = {"random": torch.get_rng_state()}
    return states | ({"random cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


# ---------------------------------------------------------------------------------------------------------------
# As torchrun has started it


def here() -> World:
    """Who this process is, by what torchrun told it; nothing is begun."""
    told = os.environ
    if int(told.get("WORLD_SIZE", 1)) == 1 or not all(name in told for name in TORCHRUN):
        return ALONE
    rank = int(told["RANK"])
    return Ranks(rank, int(told["WORLD_SIZE"]), int(told.get("LOCAL_RANK", rank)))


def check(batch_size: int, shard: str) -> None:
    """Raise ValueError for a batch that cannot be dealt out evenly, and a model that cannot be dealt out at all."""
    ranks = here().size
    if shard not in SHARDS:
        raise ValueError(f"shard is {shard!r}; choose from {', '.join(SHARDS)}")
    if shard == "full" and ranks == 1:
        raise ValueError(
            "shard is 'full', which deals a model out to several processes, and there is one; start them: "
            "torchrun --nproc-per-node 2 -m minibert ..."
        )
    if batch_size % ranks:
        raise ValueError(
            f"batch_size is {batch_size}, the size of the whole batch, which {ranks} processes share alike; choose a "
            f"multiple of {ranks}, such as {max(1, round(batch_size / ranks)) * ranks}"
        )


class NoTerminal(io.TextIOWrapper):
    """Standard error of a rank that draws no bar."""

    def isatty(self) -> bool:
        """No."""
        return False


def quiet() -> None:
    """Let the first rank speak: the others say no more than what stopped them."""
    if here().first:
        return
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    sys.stderr = NoTerminal(sys.stderr.buffer, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    warnings.simplefilter("ignore")


def end() -> None:
    """Part from the other ranks before the process ends: threads that wait for them would make it abort."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
