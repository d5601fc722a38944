"""A model in use: eval mode and no gradients within a block, also if several threads use the model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import nn

# Modules that `inference` has put in eval mode: how many blocks use each, and the mode to which it returns.
IN_USE: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
IN_USE_LOCK = threading.Lock()


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Use eval mode and no gradients within the block; afterwards each module is back in its own mode.

    Several threads may use a model at a time: a module returns to its mode when the last block that uses it ends.
    """
    modules = list(model.modules())
    with IN_USE_LOCK:
        for module in modules:
            blocks, training = IN_USE.get(module, (0, module.training))
            IN_USE[module] = blocks + 1, training
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with IN_USE_LOCK:
            for module in modules:
                blocks, training = IN_USE.pop(module)
                if blocks > 1:
                    IN_USE[module] = blocks - 1, training
                else:
                    module.training = training
