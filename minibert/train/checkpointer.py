"""The checkpoints of a run: its settings, its progress and its best weights. A killed run resumes from them.

    FOLDER/run_config.json             settings, hashes of data and starting weights
    FOLDER/state-00000200.safetensors  weights, optimizer, random state and progress after step 200; the last two
    FOLDER/best.safetensors            the weights of the epoch with the best score
    FOLDER/windows.txt                 the position in a corpus (batches.py)

Each file appears whole and has a checksum, so damage is found and what was damaged is not used. Only one run at a time
uses the folder: .minibert.lock is locked, until its process ends. No file is removed unless run_config.json is by
minibert and the file has one of these names. With several ranks (distributed.py) the main process writes
and all read, so the nodes must share the file system.
"""

import json
import re
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from minibert import __version__
from minibert.storage.tensor_files import write_tensors
from minibert.train import distributed
from minibert.train.distributed import SINGLE_PROCESS, DistributedContext
from minibert.train.loop import Progress
from minibert.utils.files import final_name, lock_file, read_json, regular, write_text_atomically
from minibert.utils.outputs import OTHER
from minibert.utils.wording import advice

RUN_CONFIG, LOCK, BEST = "run_config.json", ".minibert.lock", "best.safetensors"
STATE = re.compile(r"state-\d{8,}\.safetensors")
RUN_FILE = re.compile(rf"{STATE.pattern}|best\.safetensors|windows(-\d+)?\.txt|run_config\.json")
CONFIG_KEYS = {"minibert", "seed", "processes", "tokenizer"}  # of every run
SAVE_MINUTES = 5.0  # between two states, if no number of steps is given
KEPT = 2  # states: the second one in case the last cannot be read


class Checkpointer:
    """The folder of a run, inside `with`: resume, then save as often as needed.

    config: everything that determines the result, as JSON. restart: delete earlier progress. Raises RuntimeError while
    another run uses the folder, ValueError if it holds files of something else, or a state of a run with another
    config: the error names the differences. A run that fails before its first state leaves nothing.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        restart: bool = False,
        context: DistributedContext = SINGLE_PROCESS,
    ) -> None:
        self.folder = folder
        self.config = config
        self.restart = restart
        self.context = context
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="minibert-checkpoint")
        self.saved = time.monotonic()
        self.writing: Future[Any] = self.writer.submit(int)  # nothing

    def __enter__(self) -> Self:
        self.context.on_main(self.open)
        return self

    def open(self) -> None:
        """Lock the folder, and compare or write its config. Raises ValueError, changing nothing, if it is not a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in run_files(self.folder):
            regular(path)
        others = [path.name for path in self.folder.glob("[!.]*")]
        if others and run_config(self.folder) is None:
            raise ValueError(
                f"{self.folder} holds {', '.join(sorted(others)[:9])}, and no {RUN_CONFIG} that minibert wrote, so "
                f"nothing in it is used or removed; move it away, or {OTHER}"
            )
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
        before = run_config(self.folder)
        now = json.loads(json.dumps(self.config))
        is_new = self.restart or before is None or not steps_kept(self.folder)
        for path in run_files(self.folder) if before is not None else []:
            if is_new or path.name != final_name(path):  # half written by a killed run
                path.unlink(missing_ok=True)
        if is_new or before is None:  # last: until then the files belong to the earlier run
            marked = {"minibert": __version__} | now
            write_text_atomically(self.folder / RUN_CONFIG, json.dumps(marked, indent=1) + "\n")
            return
        before.pop("minibert", None)
        if names := distributed.differing(before, now):
            changes = "; ".join(
                distributed.HASHED.get(name) or f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
                for name in names
            )
            raise ValueError(
                f"{self.folder} holds a run that differs in: {changes}; resume it with the same settings and data"
                + advice(", or start again: {}", restart=True)
            )

    def resume(self, model: nn.Module, optimizer: torch.optim.AdamW) -> Progress:
        """Restore model, optimizer and random state from the last state, and return its progress, new if there is none.

        Raises ValueError if the best weights are lost: training again is the only way to get them back.
        """
        path, progress = self.context.on_main(lambda: self.last_state(model, optimizer))
        if path is not None and not self.context.is_main:
            self.restore(read_checked(path)[0], model, optimizer)
        if progress.best >= 0:
            self.context.on_main(lambda: len(self.best_weights(model)))  # raises before anything is computed
        return progress

    def last_state(self, model: nn.Module, optimizer: torch.optim.AdamW) -> tuple[Path | None, Progress]:
        """Restore the last readable state; return its path and progress, and delete unreadable ones after it.

        Raises ValueError, and deletes nothing, if there are states and none can be read.
        """
        unreadable = list[Path]()
        for path in reversed(states(self.folder)):
            try:
                tensors, metadata = read_checked(path)
                progress = read_progress(tensors, json.loads(metadata["progress"]))
                self.restore(tensors, model, optimizer)
            except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
                unreadable.append(path)
                warnings.warn(f"{path} cannot be read ({error})", stacklevel=5)
                continue
            for later in unreadable:
                later.unlink()
            return path, progress
        if unreadable:
            raise ValueError(f"no state in {self.folder} can be read" + advice("; start again: {}", restart=True))
        return None, Progress()

    def restore(self, tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Restore one state. Raises KeyError, before anything changes, if a tensor is missing."""
        weights = dict[nn.Parameter, Tensor]()
        state = dict[Any, dict[str, Tensor]]()
        for name, parameter in trained_parameters(model):
            weights[parameter] = tensors[f"weight {name}"]
            if f"step {name}" in tensors:
                state[parameter] = {
                    kind: tensors[f"{kind} {name}"].to(parameter.device, copy=True)
                    for kind in ("exp_avg", "exp_avg_sq")
                }
                counts = parameter.device if optimizer.defaults["fused"] else "cpu"  # where AdamW counts its steps
                state[parameter]["step"] = tensors[f"step {name}"].to(counts, copy=True)
        self.context.set_random_states(tensors, device_of(model))
        for parameter, weight in weights.items():
            parameter.data.copy_(weight)
        optimizer.state.update(state)

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Save the current state; every rank must call this. The state of a GPU is copied, and written by a thread."""
        progress.flush_losses()  # no state is saved after a loss that is not finite
        tensors = self.context.random_states(device_of(model))
        for name, parameter in trained_parameters(model):
            tensors[f"weight {name}"] = parameter.detach()
            for kind, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{kind} {name}"] = value

        curves = {"curve": progress.curve} | {f"term {name}": values for name, values in progress.terms.items()}
        tensors |= {name: torch.tensor(values, dtype=torch.float64) for name, values in curves.items()}
        kept = {name: getattr(progress, name) for name in ("step", "epoch", "batch", "tokens", "best", "scores")}
        path = self.folder / f"state-{progress.step:08d}.safetensors"
        self.write(path, tensors, json.dumps(kept))
        self.saved = time.monotonic()

    def write(self, path: Path, tensors: dict[str, Tensor], progress: str = "") -> None:
        """Write a file at the main process: at once from a CPU; from a GPU by a thread, after its tensors are copied.

        A file is written after those before it.
        """
        in_thread = not all(tensor.is_cpu for tensor in tensors.values())
        copied = {name: tensor.cpu() for name, tensor in tensors.items()} if in_thread else tensors

        def write() -> None:
            write_tensors(path, copied, {"progress": progress, "crc32": crc32(copied, progress)})
            for old in states(self.folder)[:-KEPT]:
                old.unlink(missing_ok=True)

        def start() -> None:
            self.writing.result()  # of the state before; raises its error
            self.writing = self.writer.submit(write)

        self.context.on_main(start if in_thread else write)

    def due(self, step: int, every: int | None) -> bool:
        """Return whether to save now: every so many steps; None: every SAVE_MINUTES. Every rank must call this."""
        if every is not None:
            return step % every == 0
        late = self.context.is_main and time.monotonic() - self.saved > 60 * SAVE_MINUTES
        return bool(self.context.sum(torch.tensor([int(late)])))

    def save_best(self, model: nn.Module) -> None:
        """Save the current weights as the best; every rank must call this."""
        tensors = {name: parameter.detach() for name, parameter in trained_parameters(model)}
        self.write(self.folder / BEST, tensors)

    def load_best(self, model: nn.Module) -> None:
        """Restore the weights that save_best saved. Raises ValueError if they are damaged."""
        self.context.on_main(self.writing.result)
        model.load_state_dict(self.best_weights(model), strict=False)  # frozen weights are not in it

    def best_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Read the weights that save_best saved. Raises ValueError if they are damaged, or of another model."""
        try:
            tensors, _ = read_checked(self.folder / BEST)
            if {name: x.shape for name, x in tensors.items()} != {
                name: x.shape for name, x in trained_parameters(model)
            }:
                raise ValueError("it has the tensors of another model")
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"{self.folder / BEST}, the weights of the best epoch, cannot be read ({error}); put a copy of the "
                "file back" + advice(", or train again: {}", restart=True)
            ) from None
        return tensors


def read_progress(tensors: dict[str, Tensor], kept: dict[str, Any]) -> Progress:
    """Return the progress of a state: its curves are tensors."""
    curves = {name.removeprefix("term "): tensors[name].tolist() for name in tensors if re.match("curve$|term ", name)}
    return Progress(**kept, curve=curves.pop("curve"), terms=curves)


def crc32(tensors: dict[str, Tensor], text: str) -> str:
    """Return a checksum of tensors, their names and shapes, and a text; it takes half a second per GB."""
    crc = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        values = tensor.detach().cpu().contiguous()
        crc = zlib.crc32(f"{name} {values.dtype} {tuple(values.shape)}".encode(), crc)
        crc = zlib.crc32(values.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata that Checkpointer.write wrote; SafetensorError or ValueError for a damaged file."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    tensors = load_file(path)
    if metadata.get("crc32") != crc32(tensors, metadata.get("progress", "")):
        raise ValueError("its checksum differs")
    return tensors, metadata


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the weights."""
    return next(model.parameters()).device


def states(folder: Path) -> list[Path]:
    """Return the states in a folder, in the order of their steps."""
    return sorted((path for path in folder.glob("state-*") if STATE.fullmatch(path.name)), key=step_of)


def step_of(state: Path) -> int:
    """Return the number of steps after which a state was saved."""
    return int(state.stem.removeprefix("state-"))


def steps_kept(folder: Path) -> int:
    """Return the number of steps after which the last state of a run was saved; 0 if it has none."""
    return max(map(step_of, states(folder)), default=0)


def run_config(folder: Path) -> dict[str, Any] | None:
    """Return the content of run_config.json; None if there is none that minibert wrote."""
    try:
        config = read_json(folder / RUN_CONFIG)
    except (OSError, ValueError):
        return None
    return config if config.keys() >= CONFIG_KEYS and (folder / LOCK).exists() else None


def run_files(folder: Path) -> list[Path]:
    """Return all files of a run, half-written ones included, except its config and its lock."""
    return [path for path in folder.iterdir() if path.name != RUN_CONFIG and RUN_FILE.fullmatch(final_name(path))]


@contextmanager
def reported(folder: Path) -> Iterator[None]:
    """Make a KeyboardInterrupt within the block say how many steps of the run in this folder are kept."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if steps := steps_kept(folder):
            stop.args = (f"the run is kept up to step {steps:,}, in {folder}; the same command continues",)
        raise


def remove_run(folder: Path) -> None:
    """Delete the files of a finished run, and its folder unless other files are in it; the main process does it."""
    if not distributed.context().is_main or run_config(folder) is None:
        return
    for path in (*run_files(folder), folder / RUN_CONFIG, folder / LOCK):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are trained."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
