"""The three ways in: a file of functions, a model, and numbers from any program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from minibert.checking import TEXT
from minibert.checking.mistakes import MISTAKES
from minibert.checking.report import Report
from minibert.checking.solution import RIGHT, UNWRITTEN, WAITS, WRONG, Verdict, check_file, next_stage
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.utils.files import AnyPath, user_path
from minibert.utils.settings import with_settings

MODEL = "all-MiniLM-L6-v2"


@with_settings()
def check(
    what: Any, model: AnyPath = MODEL, *, stage: str | None = None, precision: str = "auto", text: str = TEXT
) -> Report:
    """Return what is wrong with a BERT of your own, and why.

        minibert.check("my_bert.py")                        a file of functions, as tutorials/build/my_bert.py
        minibert.check("my_bert.py:MyBert", "bert-base-uncased")   a class or function of a file
        minibert.check(my_model, "bert-base-uncased")       a model, or what makes one from the folder
        minibert.check("outputs.npz", "bert-base-uncased")  the numbers of any program (`minibert check --export`)

    model: the checkpoint that a model or the numbers are compared with. stage: one function of a file. precision: of
    the numbers in a file, "float32", "float16" or "bfloat16"; "auto": the precision of the arrays. text: on which right
    functions of a file are shown at work; [MASK] is guessed. Raises ValueError or FileNotFoundError for what cannot be
    checked: a file with an error in it, unknown names, other inputs.
    """
    path = os.fspath(what) if isinstance(what, str | os.PathLike) else ""
    file, colon, name = path.rpartition(".py:")
    if path and not colon and not path.endswith(".npz"):
        return of_solution(check_file(user_path(path), stage, text), stage)
    # Loaded here: a file of functions does not need them.
    from minibert.checking.arrays import check_arrays
    from minibert.checking.port import check_model, check_model_of_file

    checkpoint = Checkpoint.open(model)
    if not path.endswith(".npz"):
        return (
            check_model_of_file(user_path(file + ".py"), name, checkpoint) if colon else check_model(what, checkpoint)
        )
    if not user_path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file; `minibert check --export inputs.npz` writes the inputs")
    return check_arrays(user_path(path), checkpoint, precision)


def of_solution(verdicts: Sequence[Verdict], only: str | None) -> Report:
    """Return the report on a file of functions; only: the stage that was asked for."""
    asked = [one for one in verdicts if only in (None, one.stage.function)]
    first = next_stage(verdicts)
    widths = [
        max(len(one) for one in column)
        for column in zip(*((v.stage.function, v.stage.title) for v in asked), strict=True)
    ]
    lines = []
    for v in asked:
        lines.append(f"{v.stage.function:{widths[0]}}  {v.stage.title:{widths[1]}}  {verdict_text(v)}")
        lines += [f"    {v.shows}"] * bool(v.shows)
    lines += ["all of it is right"] if first is None else explained(first)
    largest = max((one.largest for one in asked), default=0.0)
    return Report(
        all(one.state == RIGHT for one in asked),
        None if first is None else first.stage.function,
        None,
        () if first is None else first.causes,
        largest,
        tuple(lines),
    )


def verdict_text(verdict: Verdict) -> str:
    """Return a verdict in a few words."""
    if verdict.state == WAITS:
        return f"waits for {verdict.what}"
    by = f", by library: {', '.join(verdict.library)}" * bool(verdict.library)
    if verdict.state == RIGHT and verdict.allowed:
        return f"right (largest difference {verdict.largest:.1e}, {verdict.allowed:.1e} allowed){by}"
    why = f": {verdict.causes[0]}" if verdict.causes else ""
    return {RIGHT: f"right{by}", UNWRITTEN: "not written", WRONG: f"WRONG{why}"}[verdict.state]


def explained(verdict: Verdict) -> list[str]:
    """Return what is known about the stage to work on next."""
    stage = verdict.stage
    said = {UNWRITTEN: "next to write", WRONG: "to repair", WAITS: "to repair"}[verdict.state]
    lines = ["", f"{said}: {stage.function}, {stage.title}; explained in {stage.explained}"]
    if verdict.state == WRONG:
        lines.append(f"wrong for {verdict.what}")
        if verdict.place is not None:
            lines.append(str(verdict.place))
        if verdict.place is not None and not verdict.causes:
            lines.append(f"no known mistake of {len(MISTAKES)} gives these numbers")
    return lines
