"""minibert: BERT and its relatives written by hand, to be read, checked and used.

    encoder = minibert.load("distilbert-base-uncased")
    tokenizer = minibert.load_tokenizer("distilbert-base-uncased")
    vectors = minibert.embed(["a visually stunning rumination on love"])
    answers = minibert.predict(FOLDER, ["two hours that I will never get back"])  # of a model with a task head

Each name is imported when it is first used, so that `import minibert` stays quick. Words with one meaning everywhere:

    text, pair         what a user gives: a str, or two that are read together; `data` has many, with labels
    row                one line of the data; in a batch, the ids of one text or pair
    token, id          a piece of a text, and its number in the vocabulary
    padded, packed     a batch whose rows are filled with [PAD], and one whose tokens follow one another
    layout             which tokens of a batch form a text (layout.py)
    state              the vectors after a layer; the state of a run is what it resumes from
    checkpoint         a folder with config.json and weights, opened once (checkpoints/checkpoint.py)
    head               one of the H heads of attention; what reads the encoder is always a task head
    recipe             which vector a text gets (vectors/recipe.py)
    run                one training, from its settings to its checkpoint (train/run.py)
    stage, place       a named tensor of the forward pass, and in which layer (hooks.py)
    truncate           leave out the tokens of a text that is too long
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from minibert import train
    from minibert.checking.check import check
    from minibert.checkpoints.load import load, save
    from minibert.config import Config
    from minibert.model import Encoder
    from minibert.prediction.reader import predict
    from minibert.prediction.rerank import rerank
    from minibert.tasks.scoring import score
    from minibert.tasks.vector_measures import measure_retrieval, measure_similarity
    from minibert.text.tokenizer import Tokenizer, load_tokenizer
    from minibert.tracing.trace import trace
    from minibert.train.estimator import FineTunedClassifier
    from minibert.vectors import stream
    from minibert.vectors.embedder import Embedder, embed
    from minibert.vectors.features import TextFeatures
    from minibert.vectors.recipe import Recipe
    from minibert.vectors.search import mine, search

# The module of each public name.
MODULES = {
    "Config": "config",
    "Embedder": "vectors.embedder",
    "Encoder": "model",
    "FineTunedClassifier": "train.estimator",
    "Recipe": "vectors.recipe",
    "TextFeatures": "vectors.features",
    "Tokenizer": "text.tokenizer",
    "check": "checking.check",
    "embed": "vectors.embedder",
    "load": "checkpoints.load",
    "load_tokenizer": "text.tokenizer",
    "measure_retrieval": "tasks.vector_measures",
    "measure_similarity": "tasks.vector_measures",
    "mine": "vectors.search",
    "predict": "prediction.reader",
    "rerank": "prediction.rerank",
    "save": "checkpoints.load",
    "score": "tasks.scoring",
    "search": "vectors.search",
    "stream": "vectors.stream",
    "trace": "tracing.trace",
    "train": "train",
}
__all__ = [
    "Config",
    "Embedder",
    "Encoder",
    "FineTunedClassifier",
    "Recipe",
    "TextFeatures",
    "Tokenizer",
    "check",
    "embed",
    "load",
    "load_tokenizer",
    "measure_retrieval",
    "measure_similarity",
    "mine",
    "predict",
    "rerank",
    "save",
    "score",
    "search",
    "stream",
    "trace",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        from minibert.utils.habits import unknown_attribute

        raise unknown_attribute("module minibert", name, MODULES)
    module = importlib.import_module(f"minibert.{MODULES[name]}")
    return module if name in ("stream", "train") else getattr(module, name)  # these are modules themselves


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
