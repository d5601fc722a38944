"""A run on the disk: what it was asked for, how far it is, its best weights. A killed run goes on from there.

    FOLDER/asked.json                  settings, hashes of data and starting weights
    FOLDER/state-00000200.safetensors  weights, optimizer, random state and progress after step 200; the last two
    FOLDER/best.safetensors            the weights of the epoch with the best score

Each file appears whole. One run at a time has the folder: it is locked, and the lock ends with its process. Of several
ranks (distributed.py) the first writes and all read, so that nodes must share the file system.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minibert.files import OTHER, atomic_write, lock_file, naming, read_json, some_names, write_text_atomically
from minibert.train.distributed import ALONE, World
from minibert.train.loop import Progress

STATES = "state-*.safetensors"
BEST = "best.safetensors"
ASKED, LOCK = "asked.json", "lock"
WINDOWS = "windows*.txt"  # what a Stream notes
KEPT = 2  # states: a second one in case that the last cannot be read


class Keeper:
    """The folder of a run, inside `with`: resume, then save as often as need be.

    asked: all that decides what comes out, as JSON has it. restart: forget what was done before. every: steps between
    two states. Raises RuntimeError while another run has the folder, ValueError, naming what differs, where what was
    begun there was asked for otherwise.
    """

    def __init__(
        self, folder: Path, asked: dict[str, Any], every: int, restart: bool = False, world: World = ALONE
    ) -> None:
        self.folder, self.asked, self.every, self.restart, self.world = folder, asked, every, restart, world

    def __enter__(self) -> Keeper:
        self.folder = self.world.same(self.opened)
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"process {self.world.rank} does not see {self.folder}, the folder of the run; put it where all "
                "processes see it"
            )
        return self

    def opened(self) -> Path:
        """The folder, which nobody else has from now on."""
        is_run = any((self.folder / name).exists() for name in (ASKED, LOCK))
        if self.folder.is_dir() and any(self.folder.iterdir()) and not is_run:
            raise ValueError(f"{self.folder} holds {some_names(self.folder)}, and no run; move it away, or {OTHER}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = lock_file(self.folder / LOCK)
        try:
            self.begin()
        except BaseException:
            self.lock.close()
            raise
        return self.folder

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.world.wait()  # until nobody reads here any more
        if self.world.first:
            self.lock.close()

    def begin(self) -> None:
        """Compare with what was asked for before, or note what is asked for now."""
        file = self.folder / ASKED
        for path in self.folder.glob(".*.*.*"):  # what a killed run was writing
            path.unlink(missing_ok=True)
        if self.restart:
            for path in [*self.folder.glob(STATES), self.folder / BEST]:
                path.unlink(missing_ok=True)
        if self.restart or not file.exists():  # last: until then what is left belongs to what was asked for before
            write_text_atomically(file, json.dumps(self.asked, indent=1) + "\n")
            return
        before, now = read_json(file), json.loads(json.dumps(self.asked))
        differs = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differs:
            told = "; ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differs[:5])
            raise ValueError(
                f"{self.folder} holds a run that was begun otherwise: {told}; ask as before to go on with it, or begin "
                "again (--restart, restart=True)"
            )

    def resume(self, model: nn.Module, optimizer: torch.optim.AdamW) -> Progress:
        """Put model, optimizer and random state where the last state left them; a new Progress where there is none."""
        path, progress = self.world.same(lambda: self.last_state(model, optimizer))
        return progress if path is None or self.world.first else self.taken(path, model, optimizer)

    def last_state(self, model: nn.Module, optimizer: torch.optim.AdamW) -> tuple[Path | None, Progress]:
        """The last state that can be read, which is put back, and how far that is; what cannot be read goes."""
        for path in sorted(self.folder.glob(STATES), reverse=True):
            try:
                return path, self.taken(path, model, optimizer)
            except (SafetensorError, KeyError, ValueError, TypeError) as error:  # torn, or not ours
                warnings.warn(f"{path} cannot be read ({error}); the state before it counts", stacklevel=5)
                path.unlink()
        return None, Progress()

    def taken(self, path: Path, model: nn.Module, optimizer: torch.optim.AdamW) -> Progress:
        """Put back one state."""
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads((file.metadata() or {})["progress"]))
        restore(model, optimizer, load_file(path), self.world)
        return progress

    def after_step(self, progress: Progress, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Save where it is time to."""
        if progress.step % self.every == 0:
            self.save(progress, model, optimizer)

    def save(self, progress: Progress, model: nn.Module, optimizer: torch.optim.AdamW) -> None:
        """Keep the state as it is now; all ranks must ask for it."""
        progress.look()  # nothing that is not finite is kept
        said = {name: value for name, value in vars(progress).items() if name != "pending"}
        path = self.folder / f"state-{progress.step:08d}.safetensors"
        tensors = state_of(model, optimizer, self.world)
        self.world.same(lambda: self.write(path, tensors, said))

    def write(self, path: Path, tensors: dict[str, Tensor], said: dict[str, Any]) -> None:
        """The state, and then let go of all but the last."""
        write_state(path, tensors, {"progress": json.dumps(said)})
        for old in sorted(self.folder.glob(STATES))[:-KEPT]:
            old.unlink(missing_ok=True)

    def keep_best(self, model: nn.Module) -> None:
        """Write the weights as they are now; all ranks must ask for it."""
        tensors = {name: self.world.whole(parameter.detach()) for name, parameter in trained(model)}
        self.world.same(lambda: write_state(self.folder / BEST, tensors, {}))

    def take_best(self, model: nn.Module) -> None:
        """Put back the weights that keep_best wrote."""
        parameters = dict(model.named_parameters())
        for name, tensor in load_file(self.folder / BEST).items():
            parameters[name].data.copy_(tensor)


def forget(folder: Path) -> None:
    """Remove the state of a run that is over and whose result stands elsewhere; no other file that is there."""
    for pattern in (STATES, BEST, WINDOWS, LOCK, ASKED):
        for path in folder.glob(pattern):
            with suppress(OSError):
                path.unlink()
    with suppress(OSError):  # other files are there
        folder.rmdir()


def state_of(model: nn.Module, optimizer: torch.optim.AdamW, world: World = ALONE) -> dict[str, Tensor]:
    """Everything of a run that is a tensor: weights, both moments of each, the random state of each rank."""
    tensors = world.random_states()
    for name, parameter in trained(model):
        tensors[f"weight {name}"] = world.whole(parameter.detach())
        for kind, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{kind} {name}"] = world.whole(value)
    return tensors


def restore(model: nn.Module, optimizer: torch.optim.AdamW, tensors: dict[str, Tensor], world: World = ALONE) -> None:
    """Put back what state_of took. Raises KeyError, before anything changes, where something is missing."""
    weights: dict[nn.Parameter, Tensor] = {}
    state: dict[Any, dict[str, Tensor]] = {}
    for name, parameter in trained(model):
        weights[parameter] = world.dealt(tensors[f"weight {name}"], parameter)
        counts = parameter.device if optimizer.defaults["fused"] else "cpu"  # where AdamW counts its steps
        kinds = {"step": counts, "exp_avg": parameter.device, "exp_avg_sq": parameter.device}
        kept = {
            kind: tensors[f"{kind} {name}"].to(at, copy=True)
            for kind, at in kinds.items()
            if f"{kind} {name}" in tensors
        }
        if kept:
            moments = {kind: world.dealt(value, parameter) for kind, value in kept.items() if kind != "step"}
            state[parameter] = kept | moments
    world.set_random(tensors)
    for parameter, weight in weights.items():
        parameter.data.copy_(weight)
    optimizer.state.update(state)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that change."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def write_state(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file that appears whole. Raises OSError, naming it, where the disk is full."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary, naming(path):
        try:
            save_file(kept, temporary, metadata={"format": "pt"} | metadata)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from None
