"""One run of any training: prepared, resumed, trained, evaluated, saved as a checkpoint with training.json beside it.

    settings, data -> Run -> train in FOLDER.training, which a killed run resumes from -> FOLDER

Fine-tuning, pretraining and distillation are subclasses that say which model, batches, loss and evaluation they have.
"""

import json
import os
import platform
import statistics
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from minibert import __version__
from minibert.checkpoints.load import save
from minibert.heads import Head
from minibert.prediction.reader import REPORT
from minibert.tasks.base import Measure
from minibert.text.tokenizer import Tokenizer
from minibert.train import distributed
from minibert.train.batches import Batches, Stream
from minibert.train.checkpointer import Checkpointer, remove_run, reported
from minibert.train.distributed import DistributedContext
from minibert.train.interrupts import delayed_signals
from minibert.train.loop import Loss, Progress, new_optimizer, train
from minibert.train.settings import TrainSettings
from minibert.utils.device import choose_device, choose_dtype
from minibert.utils.files import write_text_atomically
from minibert.utils.outputs import atomic_folder
from minibert.utils.plotting import pyplot, save_figure
from minibert.utils.printing import Figures, block, counted, note

# Settings that do not change the result, or that the config of a run has in another form: hashes of files.
NOT_IN_CONFIG = {"device", "save_every", "model", "tokenizer", "config", "init", "dev", "phrases"}
RECENT = 100  # steps over which the printed loss is averaged
MOST_VALUES = 500_000  # of a curve in training.json: 10 MB, a tenth of what minibert reads as JSON
DEGENERATE = (
    "degenerate: the score on dev, {score:.3f}, is that of always predicting the majority class; try another seed, a "
    "lower learning rate or more data"
)
Settings = TypeVar("Settings", bound=TrainSettings)


class DegenerateWarning(UserWarning):
    """The model always predicts the majority class: it has learned nothing."""


@dataclass
class Trained:
    """A trained model with its training.json."""

    models: dict[str, Head]  # by their folders within the result; "" is the result itself
    measure: Measure | None  # of the best epoch, on dev
    figures: Figures  # the content of training.json

    @property
    def model(self) -> Head:
        """The model itself."""
        return self.models[""]


@dataclass(frozen=True)
class Goal:
    """What a run minimises, and how it is measured."""

    loss: Loss
    measure: Callable[[Any], Measure] | None  # the scores on held-out data; None: there is no such data


def resolve_precision(settings: Settings, **more: Any) -> Settings:
    """Return the settings with the precision that the hardware has; warns if a GPU falls back to float32."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.precision, torch.device(device))
    if dtype == torch.float16:
        warnings.warn(f"{device} multiplies float16 and not bfloat16; training is in float32", stacklevel=2)
    precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
    return replace(settings, precision=precision, exact=settings.step == "readable", **more)


ONE_TRAINING = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers within the block, and continue the caller's after it.

    torch has one generator per device and process, which dropout draws from: a second thread that trains waits until
    the first has finished. Random numbers that other threads draw meanwhile change the training's.
    """
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with ONE_TRAINING, torch.random.fork_rng(devices):
        if device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Run(ABC):
    """Everything that is known before training begins."""

    settings: Any  # of the subclass; its precision is resolved
    tokenizer: Tokenizer

    @property
    def main(self) -> str | None:
        """The figure by which epochs are compared; None: the model is evaluated every `save_every` steps instead."""
        return None

    @property
    def config(self) -> dict[str, Any]:
        """Everything that determines the trained weights, as JSON."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in NOT_IN_CONFIG}
        return settings | {"processes": distributed.context().size, "tokenizer": self.tokenizer.fingerprint}

    @property
    def computed_in(self) -> str:
        """The precision that was really chosen, and the device, for people."""
        return f"computed in {self.settings.precision} on {choose_device(self.settings.device)}"

    @property
    @abstractmethod
    def report(self) -> Figures:
        """What training.json has of this kind of run."""

    @abstractmethod
    def new_model(self) -> Any:
        """Return the model before training, its frozen parameters frozen."""

    @abstractmethod
    def batches(self, folder: Path) -> Batches | Stream:
        """Return this rank's batches; folder: the run's."""

    @abstractmethod
    def goal(self, model: Any) -> Goal:
        """Return the loss for this model and its evaluation; a frozen encoder reads its texts here, once."""

    def finished(self, model: Any) -> dict[str, Head]:
        """Return the trained models, ready to predict, by their folders within the result; "" is the result itself."""
        model.tokenizer = self.tokenizer
        return {"": model}

    def train(self, folder: Path, *, restart: bool = False, verbose: bool = False) -> Trained:
        """Train. Checkpoints of the run are kept in `folder`; a run that was begun there is resumed.

        A process trains one model at a time: a second thread waits. The random numbers of the caller stay as they were.
        verbose: print each evaluation. Raises what DistributedContext.compare, Checkpointer and loop.train raise, and
        after Ctrl-C or SIGTERM KeyboardInterrupt, once the step is done and saved; may warn DegenerateWarning.
        """
        settings = self.settings
        begin = time.perf_counter()
        context = distributed.context()
        device = context.start(settings.device)
        random_numbers = seeded(settings.seed, torch.device(device))
        config = self.config  # once: it hashes the data and the weights
        context.compare(config | {"save_every": settings.save_every, "out": os.path.abspath(folder)})
        with Checkpointer(folder, config, restart, context) as checkpointer, random_numbers:
            model = self.new_model().to(device)
            context.seed(settings.seed)
            optimizer = new_optimizer(model, settings)
            progress = checkpointer.resume(model, optimizer)
            tokens = progress.tokens
            if progress.step and context.is_main:
                note(f"resumed in {folder}, after {counted(progress.step, 'step')}")
            goal = self.goal(model)
            progress = self.run_steps(model, goal, optimizer, progress, checkpointer, verbose)
            if self.main:
                checkpointer.load_best(model)
        score = goal.measure
        measure = context.on_main(lambda: score(model)) if self.main and score else None
        if measure and measure.figures.get("degenerate"):
            warnings.warn(DEGENERATE.format(score=measure.score), DegenerateWarning, stacklevel=2)
        figures = self.figures(config, model, progress, measure, progress.tokens - tokens, time.perf_counter() - begin)
        return Trained(self.finished(model), measure, figures)

    def run_steps(
        self,
        model: Any,
        goal: Goal,
        optimizer: torch.optim.AdamW,
        progress: Progress,
        checkpointer: Checkpointer,
        verbose: bool,
    ) -> Progress:
        """Train to the end, evaluate and save on the way, and return the last progress.

        Raises KeyboardInterrupt after Ctrl-C or SIGTERM at any rank, once the step is done and saved.
        """
        context = checkpointer.context
        save_every = self.settings.save_every if self.main else None
        batches = self.batches(checkpointer.folder)
        how: Any = {"loss_of": goal.loss, "progress": progress, "optimizer": optimizer, "context": context}
        with delayed_signals() as signals:
            for progress in train(model, batches, self.settings, **how):
                evaluated = self.is_evaluated(progress)
                if evaluated and self.evaluate(model, goal, progress, context):
                    checkpointer.save_best(model)
                if evaluated and verbose:
                    print_evaluation(progress, self.main)
                interrupted = bool(context.sum(torch.tensor(len(signals))))
                if checkpointer.due(progress.step, save_every) or evaluated or interrupted:
                    checkpointer.save(progress, model, optimizer)
                if interrupted:
                    raise KeyboardInterrupt
        return progress

    def is_evaluated(self, progress: Progress) -> bool:
        """Return whether to evaluate now: after an epoch, or without `main` every `save_every` steps and at the end."""
        if self.main:
            return progress.batch == 0
        return progress.batch > 0 and (
            progress.step % self.settings.save_every == 0 or progress.step == self.settings.steps
        )

    def evaluate(self, model: Any, goal: Goal, progress: Progress, context: DistributedContext) -> bool:
        """Add the scores of the model to the progress; return whether the epoch is the best so far."""
        if (measure := goal.measure) is not None:
            figures = context.on_main(lambda: measure(model).figures)
            progress.scores.append(({} if self.main else {"step": progress.step}) | figures)
        best = self.main is not None and is_best(progress, self.main)
        if best:
            progress.best = progress.epoch - 1
        return best

    def figures(
        self,
        config: dict[str, Any],
        model: nn.Module,
        progress: Progress,
        measure: Measure | None,
        tokens: int,
        seconds: float,
    ) -> Figures:
        """Return the content of training.json; tokens and seconds: of this call, for the speed."""
        sizes = {
            name: sum(x.numel() for x in model.parameters() if x.requires_grad == trained)
            for name, trained in (("trained", True), ("frozen", False))
        }
        return {
            "minibert": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "asked": config,
            "steps": progress.step,
            "tokens": progress.tokens,
            "parameters": sizes,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1),
            **self.report,
            "dev": measure.figures if measure else progress.scores[-1] if progress.scores else None,
            "best_epoch": progress.best + 1,
            "epochs": progress.scores,
            "curve": thinned(progress.curve),
            **(
                {"curves": {name: thinned(curve) for name, curve in progress.terms.items()}}
                if len(progress.terms) > 1
                else {}
            ),
        }

    def finish(self, out: Path, *, restart: bool = False, overwrite: bool = False, verbose: bool = False) -> Trained:
        """Train, write the result to `out`, which the caller has checked, and delete the checkpoints."""
        state = out.with_name(out.name + ".training")
        with reported(state):
            trained = self.train(state, restart=restart, verbose=verbose)
            write(trained, out, overwrite)
            remove_run(state)
        return trained


def thinned(curve: list[float]) -> list[float]:
    """Return the loss of each step; for a very long run, the means of 2, 3, ... consecutive steps."""
    steps = -(-len(curve) // MOST_VALUES)
    return curve if steps <= 1 else [statistics.fmean(curve[at : at + steps]) for at in range(0, len(curve), steps)]


def is_best(progress: Progress, main: str) -> bool:
    """Return whether the last epoch has the best score so far, or there are no scores."""
    scores = [score[main] for score in progress.scores]
    return progress.best < 0 or not scores or scores[-1] > scores[progress.best]


def print_evaluation(progress: Progress, main: str | None) -> None:
    """Print an evaluation above the progress bar: that of an epoch, compared by `main`, or of some steps."""
    scores = progress.scores[-1] if progress.scores else {}
    curves = progress.terms if len(progress.terms) > 1 else {"": progress.curve}
    shown = [main] if main else [name for name in scores if name.endswith(("loss", "accuracy", "found", "kept"))]
    parts = [f"{name} loss {statistics.mean(curve[-RECENT:]):.3f}".strip() for name, curve in curves.items()]
    parts += [f"held-out {name.replace('_', ' ')} {scores[name]:.4f}" for name in shown if scores.get(name) is not None]
    if main and scores and progress.best == progress.epoch - 1:
        parts.append("the best so far")
    with tqdm.external_write_mode():
        print(block(f"epoch {progress.epoch}" if main else f"step {progress.step:,}", ", ".join(parts)), flush=True)


def write(trained: Trained, out: Path, overwrite: bool = False) -> None:
    """Write checkpoint, tokenizer and training.json to a folder, which appears whole; the main process does it."""

    def write_models() -> None:
        with atomic_folder(out, overwrite) as folder:
            for name, model in trained.models.items():
                save(model, folder / name, model.tokenizer)
                write_text_atomically(folder / name / REPORT, json.dumps(trained.figures, indent=1) + "\n")

    distributed.context().on_main(write_models)


# ---------------------------------------------------------------------------------------------------------------
# The picture of a run

LOSS, SCORE = "#0072B2", "#D55E00"  # blue and orange differ for every kind of colour blindness
WINDOW = 0.1  # fraction of the steps, up to each, over which the thick line averages


def plot_runs(runs: Sequence[Mapping[str, Any]], main: str, path: Path) -> None:
    """Plot the loss of every step of some runs, given by their training.json, and their scores `main` on dev."""
    plt = pyplot()
    panels = 2 if any(run["epochs"] for run in runs) else 1
    figure, axes = plt.subplots(1, panels, figsize=(4.25 * panels, 3.2), layout="constrained", squeeze=False)
    axes[0, 0].set(xlabel="step", title="loss of each step, and its average")
    for run in runs:
        curve = run["curve"]
        every = -(-run["steps"] // len(curve))  # of a long run each value is a mean; see `thinned`
        steps = every * np.arange(1, len(curve) + 1)
        recent = max(1, round(WINDOW * len(curve)))
        axes[0, 0].plot(steps, curve, color=LOSS, alpha=0.2, linewidth=0.7)
        mean = np.convolve(curve, np.full(recent, 1 / recent), "valid")
        axes[0, 0].plot(steps[recent - 1 :], mean, color=LOSS, linewidth=1.6)
        if panels == 2:
            scores = [epoch[main] for epoch in run["epochs"]]
            best = run["best_epoch"]
            axes[0, 1].plot(range(1, len(scores) + 1), scores, color=SCORE, marker="o", markersize=4)
            axes[0, 1].plot(best, scores[best - 1], color=SCORE, marker="o", markersize=9, fillstyle="none")
            axes[0, 1].set(xlabel="epoch", title=f"{main} on dev; the ring is kept")
    axes[0, 0].set_ylim(0, None)
    save_figure(figure, path)
