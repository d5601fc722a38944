"""Several processes that train one model, as torchrun starts them: their ranks, gradients and shared results.

    torchrun --nproc-per-node 2 -m minibert pretrain corpus.txt ...

Each process, a *rank*, computes its rows of every batch. The gradients of all ranks are summed, so that all take the
same step, which is the step of a single process with the whole batch. A loss is a mean over texts or tokens, and ranks
have different numbers of them, so the mean of the ranks' means would be wrong. The sums are added up instead:

    loss of a rank = sum over its texts or tokens · ranks / number on all ranks

The factor `ranks` cancels the mean over ranks that DistributedDataParallel takes.

Rank 0, the main process, writes files, draws the progress bar and evaluates; the others wait for its results. Without
torchrun every method of the context is the identity, and no process group is started.
"""

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minibert.prediction.packed import FunctionModule
from minibert.utils.device import choose_device
from minibert.utils.printing import cut
from minibert.utils.wording import named

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # environment variables that torchrun sets
TIMEOUT = timedelta(days=1)  # of one rank waiting for another: the main process may evaluate for hours
TO_PRINT = timedelta(seconds=10)  # for a rank that says why all of them end
LONG = 1000  # characters of a value in a message, a path or labels
# What a config has as a hash, in words.
HASHED = {
    "train_sha256": "the training data",
    "dev_sha256": "the data for evaluation",
    "weights_sha256": "the weights of the checkpoint",
    "tokenizer": "the tokenizer",
    "corpus": "the corpus",
}
Result = TypeVar("Result")


class DistributedContext:
    """One process of a training, of `size` processes; of 1 by default."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.is_main = rank == 0  # this process writes and prints
        self.module: Any = None  # the model wrapped by DistributedDataParallel

    def start(self, device: str) -> str:
        """Join the process group; returns this rank's device: the CPU, or a GPU of its own whatever GPU is named."""
        own = choose_device(device)
        if self.size == 1:
            return own
        if own != "cpu":
            own = choose_device(f"cuda:{self.local_rank}")
            torch.cuda.set_device(self.local_rank)
        if not dist.is_initialized():
            dist.init_process_group("gloo" if own == "cpu" else "cpu:gloo,cuda:nccl", timeout=TIMEOUT)
            atexit.register(dist.destroy_process_group)  # its threads would make the process abort
        return own

    def seed(self, seed: int) -> None:
        """Seed each rank differently, once all have the same weights: ranks must not share their dropout masks."""
        if self.size > 1:
            torch.manual_seed((seed * 1_000_003 + self.rank) % 2**63)

    def wrap(self, model: nn.Module) -> None:
        """Wrap the model by DistributedDataParallel."""
        if self.size > 1:
            # It waits for the gradient of each parameter that is not frozen: only a loss that is left out has none.
            self.module = nn.parallel.DistributedDataParallel(FunctionModule(model))

    # A step

    def forward(self, model: nn.Module, function: Callable[..., Result], *args: Any) -> Result:
        """Return function(model, ...), called by the wrapped model, whose hooks sum the gradients."""
        return function(model, *args) if self.size == 1 else cast(Result, self.module(function, *args))

    @contextmanager
    def no_sync(self, unless: bool) -> Iterator[None]:
        """Do not sum the gradients of this backward pass, unless it is the last of a step; around the forward too."""
        if unless or self.size == 1:
            yield
        else:
            with self.module.no_sync():
                yield

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients of a step that was all inside no_sync; a parameter without one still has none."""
        for parameter in model.parameters():
            if self.size > 1 and parameter.grad is not None:
                dist.all_reduce(parameter.grad.div_(self.size))

    def sum(self, values: Tensor) -> Tensor:
        """Return each of the values, (n), summed over all ranks."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    # Results that all ranks share

    def gather(self, own: Result) -> list[Result]:
        """Return the values of all ranks, in their order."""
        values: list[Any] = [own] * self.size
        if self.size > 1:
            dist.all_gather_object(values, own)
        return values

    def compare(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError at each rank whose config is not the main process's; the other ranks exit silently."""
        configs = self.gather(config)
        if names := differing(configs[0], config):
            changes = ", ".join(
                HASHED.get(name)
                or f"{name} is {cut(repr(config.get(name)), LONG)} and there {cut(repr(configs[0].get(name)), LONG)}"
                for name in names
            )
            raise ValueError(
                f"rank {self.rank} differs from rank 0: {changes}; start all with the same settings, data and output"
            )
        if any(differing(config, other) for other in configs):
            with suppress(RuntimeError):  # until that rank has ended: torchrun ends all when one ends, printed or not
                dist.all_reduce(torch.zeros(1), async_op=True).wait(TO_PRINT)
            raise SystemExit(1)

    def on_main(self, function: Callable[[], Result]) -> Result:
        """Return the result of the main process, sent to all ranks; if it fails, the other ranks exit silently."""
        if self.size == 1:
            return function()
        result: list[Any] = [None, False]
        try:
            if self.is_main:
                result = [function(), True]
        finally:
            dist.broadcast_object_list(result, device=torch.device("cpu"))
        if not result[1]:
            raise SystemExit(1)
        return cast(Result, result[0])

    # Checkpoints

    def random_states(self, device: torch.device) -> dict[str, Tensor]:
        """Return the states of torch's generators of the CPU and of the model's device, by name.

        Those of another rank than the main process have its number appended.
        """
        own = random_states(device)
        return {
            f"{name} {rank}" if rank else name: state
            for rank, states in enumerate(self.gather(own))
            for name, state in states.items()
        }

    def set_random_states(self, states: dict[str, Tensor], device: torch.device) -> None:
        """Restore this rank's part of random_states. Raises KeyError if it is missing."""
        suffix = "" if self.is_main else f" {self.rank}"
        set_random_states({name: states[name + suffix] for name in random_states(device)}, device)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators of the CPU and of this device, by name."""
    states = {"random": torch.get_rng_state()}
    if device.type != "cpu":
        states[f"random {device.type}"] = torch.get_device_module(device).get_rng_state(*indexed(device))
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore states that random_states returned."""
    torch.set_rng_state(states["random"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[f"random {device.type}"], *indexed(device))


def indexed(device: torch.device) -> list[torch.device]:
    """Return the argument that names this device; MPS, of which there is one, takes none."""
    return [] if device.type == "mps" else [device]


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return up to five names whose values differ."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)][:5]


SINGLE_PROCESS = DistributedContext()


def context() -> DistributedContext:
    """Return the context of this process, from the variables that torchrun set; no process group is started."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1 or not all(name in os.environ for name in TORCHRUN):
        return SINGLE_PROCESS
    rank = int(os.environ["RANK"])
    return DistributedContext(rank, size, int(os.environ.get("LOCAL_RANK", rank)))


def check(batch_size: int) -> None:
    """Raise ValueError for a batch that the ranks cannot share evenly."""
    ranks = context().size
    if batch_size % ranks:
        raise ValueError(
            named("batch_size") + f" is {batch_size}, the size of the whole batch, which {ranks} processes share "
            f"evenly; choose a multiple of {ranks}, such as {max(1, round(batch_size / ranks)) * ranks}"
        )


def silence_other_ranks() -> None:
    """Let only the main process print; the others write only the error that stops them."""
    if not context().is_main:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
        warnings.simplefilter("ignore")
