"""The checkpoints of a run: its settings, its progress and its best weights. A killed run resumes from them.

    FOLDER/run_config.json             settings, hashes of data and starting weights
    FOLDER/state-00000200.safetensors  weights, optimizer, random state and progress after step 200; the last two
    FOLDER/best.safetensors            the weights of the epoch with the best score
    FOLDER/windows.txt                 the position in a corpus (batches.py)

Each file appears whole. Only one run at a time uses the folder: it is locked, and the lock ends with its process. Of
several ranks (distributed.py) the main process writes and all read, so the nodes must share the file system.
"""

import json
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert.checkpoints.tensor_files import write_tensors
from minibert.train import distributed
from minibert.train.distributed import SINGLE_PROCESS, DistributedContext
from minibert.train.loop import Progress
from minibert.utils.files import listing, lock_file, read_json, write_text_atomically
from minibert.utils.outputs import OTHER

RUN_CONFIG, LOCK, STATES, BEST, WINDOWS = (
    "run_config.json",
    "lock",
    "state-*.safetensors",
    "best.safetensors",
    "windows*",
)
SAVE_MINUTES = 5.0  # between two states, where no number of steps is given
KEPT = 2  # states: the second one in case the last cannot be read


class Checkpointer:
    """The folder of a run, inside `with`: resume, then save as often as needed.

    config: everything that determines the result, as JSON. restart: delete earlier progress. Raises RuntimeError while
    another run uses the folder, ValueError where it holds files of something else, or a state of a run with another
    config: the error names the differences. A run that fails before its first state leaves nothing.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        restart: bool = False,
        context: DistributedContext = SINGLE_PROCESS,
    ) -> None:
        self.folder, self.config, self.restart, self.context = folder, config, restart, context
        self.writer, self.saved = ThreadPoolExecutor(1, thread_name_prefix="minibert-checkpoint"), time.monotonic()
        self.writing: Future[Any] = self.writer.submit(int)  # nothing

    def __enter__(self) -> Self:
        self.context.on_main(self.open)
        return self

    def open(self) -> None:
        """Lock the folder, and compare or write its config."""
        is_run = any((self.folder / name).exists() for name in (LOCK, RUN_CONFIG))
        if self.folder.is_dir() and any(self.folder.iterdir()) and not is_run:
            raise ValueError(f"{self.folder} holds {listing(self.folder)}, and no run; move it away, or {OTHER}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self.lock = stack.enter_context(lock_file(self.folder / LOCK))
            self.compare_config()
            stack.pop_all()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.context.sum(torch.zeros(1))  # wait for the other ranks, which may still read
        if self.context.is_main:
            self.writer.shutdown()
            self.lock.close()
            if error is None:
                self.writing.result()
            if error and not steps_kept(self.folder):
                remove_run(self.folder)

    def compare_config(self) -> None:
        """Raise ValueError for a run with another config; write the config of a new run, or of one without a state."""
        file = self.folder / RUN_CONFIG
        is_new = self.restart or not (file.exists() and steps_kept(self.folder))
        for pattern in (".*.*.*", *((STATES, BEST, WINDOWS) if is_new else ())):  # .*: half written by a killed run
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        if is_new:  # last: until then the files belong to the earlier run
            write_text_atomically(file, json.dumps(self.config, indent=1) + "\n")
            return
        before, now = read_json(file), json.loads(json.dumps(self.config))
        differs = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differs:
            changes = "; ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differs[:5])
            raise ValueError(
                f"{self.folder} holds a run with other settings: {changes}; resume it with the same settings, or start "
                "again (--restart, restart=True)"
            )

    def resume(self, model: nn.Module, optimizer: torch.optim.AdamW) -> Progress:
        """Restore model, optimizer and random state from the last state; a new Progress where there is none."""
        path, progress = self.context.on_main(lambda: self.last_state(model, optimizer))
        return progress if path is None or self.context.is_main else self.load(path, model, optimizer)

    def last_state(self, model: nn.Module, optimizer: torch.optim.AdamW) -> tuple[Path | None, Progress]:
        """Restore the last readable state, and return its path and progress; delete unreadable ones."""
        for path in sorted(self.folder.glob(STATES), reverse=True):
            try:
                return path, self.load(path, model, optimizer)
            except (SafetensorError, KeyError, ValueError, TypeError) as error:  # truncated, or of something else
                warnings.warn(f"{path} cannot be read ({error}); using the state before it", stacklevel=5)
                path.unlink()
        return None, Progress()

    def load(self, path: Path, model: nn.Module, optimizer: torch.optim.AdamW) -> Progress:
        """Restore one state. Raises KeyError, before anything changes, where a tensor is missing."""
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
        tensors, weights, state = load_file(path), dict[nn.Parameter, Tensor](), dict[Any, dict[str, Tensor]]()
        for name, parameter in trained(model):
            weights[parameter] = self.context.shard(tensors[f"weight {name}"], parameter)
            if f"step {name}" in tensors:
                state[parameter] = {
                    kind: self.context.shard(tensors[f"{kind} {name}"].to(parameter.device, copy=True), parameter)
                    for kind in ("exp_avg", "exp_avg_sq")
                }
                counts = parameter.device if optimizer.defaults["fused"] else "cpu"  # where AdamW counts its steps
                state[parameter]["step"] = tensors[f"step {name}"].to(counts, copy=True)
        self.context.set_random_states(tensors, device_of(model))
        for parameter, weight in weights.items():
            parameter.data.copy_(weight)
        optimizer.state.update(state)
        return progress

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Save the current state; every rank must call this. The state of a GPU is copied, and written by a thread."""
        progress.flush_losses()  # no state is saved after a loss that is not finite
        values = {name: value for name, value in vars(progress).items() if name != "pending"}
        tensors = self.context.random_states(device_of(model))
        for name, parameter in trained(model):
            tensors[f"weight {name}"] = self.context.gather(parameter.detach())
            for kind, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{kind} {name}"] = self.context.gather(value)

        path = self.folder / f"state-{progress.step:08d}.safetensors"
        self.write(path, tensors, device_of(model), {"progress": json.dumps(values)})
        self.saved = time.monotonic()

    def write(
        self, path: Path, tensors: dict[str, Tensor], device: torch.device, metadata: dict[str, str] | None = None
    ) -> None:
        """Write a file at the main process: at once from a CPU; from a GPU by a thread, after its tensors are copied.

        A file is written after those before it.
        """
        in_thread = device.type != "cpu"
        copied = {name: tensor.cpu() for name, tensor in tensors.items()} if in_thread else tensors

        def write() -> None:
            write_tensors(path, copied, metadata)
            for old in sorted(self.folder.glob(STATES))[:-KEPT]:
                old.unlink(missing_ok=True)

        def start() -> None:
            self.writing.result()  # of the state before; raises its error
            self.writing = self.writer.submit(write)

        self.context.on_main(start if in_thread else write)

    def due(self, step: int, every: int | None) -> bool:
        """Whether a state should be saved after this step: every so many steps, None: every SAVE_MINUTES; every rank
        must call this."""
        if every is not None:
            return step % every == 0
        late = self.context.is_main and time.monotonic() - self.saved > 60 * SAVE_MINUTES
        return bool(self.context.sum(torch.tensor([int(late)])))

    def save_best(self, model: nn.Module) -> None:
        """Save the current weights as the best; every rank must call this."""
        tensors = {name: self.context.gather(parameter.detach()) for name, parameter in trained(model)}
        self.write(self.folder / BEST, tensors, device_of(model))

    def load_best(self, model: nn.Module) -> None:
        """Restore the weights that save_best saved."""
        self.context.on_main(self.writing.result)
        model.load_state_dict(load_file(self.folder / BEST), strict=False)  # frozen weights are not in it


def device_of(model: nn.Module) -> torch.device:
    """The device of the weights."""
    return next(model.parameters()).device


def steps_kept(folder: Path) -> int:
    """The number of steps after which the last state of a run was saved; 0: it has none."""
    return max((int(path.stem.removeprefix("state-")) for path in folder.glob(STATES)), default=0)


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """A KeyboardInterrupt inside says how many steps of the run in this folder are kept."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if steps := steps_kept(folder):
            stop.args = (f"the run is kept up to step {steps:,}, in {folder}; the same command continues",)
        raise


def remove_run(folder: Path) -> None:
    """Delete the files of a finished run, and its folder unless other files are in it; the main process does it."""
    if not distributed.context().is_main:
        return
    for pattern in (STATES, BEST, WINDOWS, RUN_CONFIG, LOCK):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
