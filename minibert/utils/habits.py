"""Names that people know from transformers, sentence-transformers and scikit-learn, and what is here in their place.

An error for such a name says what ours is. tutorials/HABITS.md lists all of them, with those that work as they are.
"""

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from minibert.utils.printing import did_you_mean
from minibert.utils.wording import advice

# Attributes and methods, of a class or of `minibert` itself.
ATTRIBUTES = {
    "from_pretrained": "minibert.load(name) loads a model and minibert.load_tokenizer(name) a tokenizer",
    "save_pretrained": "minibert.save(model, folder) writes a model and its tokenizer; a tokenizer has save(folder)",
    "push_to_hub": "write a folder with minibert.save(model, folder) and upload it with `hf upload`",
    "AutoModel": "minibert.load(name) loads an encoder, of BERT or a relative",
    "AutoConfig": "minibert.load(name).config, or minibert.Config.from_file(path)",
    "AutoTokenizer": "minibert.load_tokenizer(name) loads a tokenizer",
    "AutoModelForSequenceClassification": "minibert.load(name, head='sequence-classification')",
    "AutoModelForTokenClassification": "minibert.load(name, head='token-classification')",
    "AutoModelForQuestionAnswering": "minibert.load(name, head='question-answering')",
    "AutoModelForMultipleChoice": "minibert.load(name, head='multiple-choice')",
    "AutoModelForMaskedLM": "minibert.load(name, head='masked-lm')",
    "AutoModelForNextSentencePrediction": "minibert.load(name, head='next-sentence')",
    "AutoModelForPreTraining": "minibert.load(name, head='pretraining')",
    "pipeline": "minibert.predict(name, texts), where name is a folder or a Hub name of a model with a task head",
    "Trainer": "minibert.train.finetune(task, data, labels, out=folder)",
    "TrainingArguments": "pass the settings to minibert.train.finetune(task, data, epochs=3, learning_rate=5e-5)",
    "SentenceTransformer": "minibert.embed(texts, name)",
    "batch_encode_plus": "tokenizer(texts)",
    "encode_plus": "tokenizer(text)",
    "sequence_ids": "token_type_ids",
    "char_to_token": "offsets has the range of characters of each token",
    "encodings": "tokens, offsets and word_ids have one list per row",
    "offset_mapping": "offsets",
    "overflowing_tokens": "tokenizer.encode_texts(texts, long='windows')",
    "get_sentence_embedding_dimension": "width",
    "max_seq_length": "set it with Recipe(max_length=...); tokenizer.max_length has its value",
    "tokenize": "tokenizer.tokenize(text)",
    "encode_query": "encode(texts), with the prompt written before each text",
    "encode_document": "encode(texts), with the prompt written before each text",
    "similarity": "use a @ b.T, for vectors made with normalize=True",
    "CrossEncoder": "minibert.predict(name, texts, others), of a model that minibert.train.finetune trained on pairs",
    "models": "minibert.Recipe(pooling='mean', normalize=True) says how vectors are made",
    "InputExample": "minibert.train.finetune('embed', rows), where a row is a tuple of texts",
    "util": "minibert.search(corpus, queries) and minibert.mine(texts)",
    "semantic_search": "minibert.search(corpus, queries)",
    "paraphrase_mining": "minibert.mine(texts)",
    "SentenceTransformerTrainer": "minibert.train.finetune('embed', data)",
    "losses": "minibert.train.finetune('embed', data, loss=...)",
    "MultipleNegativesRankingLoss": "minibert.train.finetune('embed', pairs)",
    "CachedMultipleNegativesRankingLoss": "minibert.train.finetune('embed', pairs, accumulate=8)",
    "CoSENTLoss": "minibert.train.finetune('embed', data, loss='cosent')",
    "CosineSimilarityLoss": "minibert.train.finetune('embed', data, loss='cosine')",
    "TripletLoss": "minibert.train.finetune('embed', rows), where a row is anchor, positive, negative",
    "evaluation": "minibert.measure_similarity(texts, pairs, scores, name), measure_retrieval(queries, texts, name)",
    "TfidfVectorizer": "minibert.TextFeatures(name)",
    "LogisticRegression": "use scikit-learn's, after minibert.TextFeatures(name)",
    "SGDClassifier": "minibert.FineTunedClassifier(name)",
}
# Kinds of names, and the name above that answers them: BertForMaskedLM is answered as AutoModelForMaskedLM.
KINDS = {
    r"[A-Z]\w*?(Model|Tokenizer|Config)(Fast)?": r"Auto\1",
    r"[A-Z]\w*?(?:Model)?(For[A-Z]\w+)": r"AutoModel\1",
    r"\w+Loss": "losses",
    r"\w+Evaluator": "evaluation",
    r"\w+TrainingArguments": "TrainingArguments",
    r"(\w*cos_sim|dot_score)": "similarity",
}
# Arguments, of functions and of settings: what ours is called, or a sentence.
ARGUMENTS = {
    "batch_size": "batch_tokens",
    "normalize_embeddings": "normalize",
    "convert_to_tensor": "vectors are a numpy array; torch.from_numpy(vectors) makes it a tensor",
    "convert_to_numpy": "vectors are always a numpy array; leave it out",
    "show_progress_bar": "long work always shows a bar; leave it out",
    "max_seq_length": "max_length",
    "pooling_mode": "pooling",
    "prompt": "write it before each text",
    "prompt_name": "write the prompt before each text",
    "truncate_dim": "dimensions",
    "truncation": "long",
    "output_value": "minibert.load(name)(**batch) returns the states of all tokens",
    "model_name_or_path": "model",
    "torch_dtype": "dtype",
    "attn_implementation": "attention",
    "device_map": "device",
    "output_attentions": "pass it when you call the model",
    "output_hidden_states": "pass it when you call the model",
    "num_train_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulate",
    "warmup_ratio": "warmup",
    "max_grad_norm": "clip",
    "output_dir": "out",
    "lr": "learning_rate",
    "text_pair": "pairs",
    "add_special_tokens": "tokenizer.encode(text, add_special_tokens=False) leaves them out",
    "is_split_into_words": "join the words with spaces; to predict tags, use pretokenized=True",
    "pad_to_multiple_of": "use padding='max_length' and max_length=",
    "return_attention_mask": "a batch always has attention_mask; leave it out",
    "return_length": "attention_mask.sum(1) has the lengths; leave it out",
    "return_offsets_mapping": "a batch always has offsets; leave it out",
    "return_overflowing_tokens": "use tokenizer.encode_texts(texts, long='windows')",
    "return_special_tokens_mask": "a batch always has special_tokens_mask; leave it out",
    "return_token_type_ids": "a batch always has token_type_ids; leave it out",
    "top_k": "top",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "use_fast": "there is only one tokenizer; leave it out",
    "do_lower_case": "lowercase",
    "max_steps": "steps",
    "eval_dataset": "dev",
    "random_state": "seed",
    "cache_dir": "set MINIBERT_WEIGHTS or HF_HUB_CACHE in the environment",
    "trust_remote_code": "code in a checkpoint is never run; leave it out",
    "aggregation_strategy": "the tokens of an entity are always joined; leave it out",
    "stride": "use tokenizer.encode_texts(texts, long='windows', stride=...)",
}
# Commands, and what people call them.
COMMANDS = {
    "finetune classify": "text-classification sequence-classification sentiment-analysis",
    "finetune tag": "ner pos token-classification",
    "finetune answer": "qa squad question-answering",
    "finetune choose": "swag multiple-choice",
    "finetune mask": "mlm masked-lm",
    "finetune embed": "sts simcse sentence-transformers",
    "embed": "encode vectors",
    "search": "similarity semantic-search",
    "fill-mask": "unmask",
    "score": "perplexity",
    "--help": "help",
}


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str], what: str = "argument") -> None:
    """Raise TypeError for the first unknown name; it says what minibert calls it, or the nearest known name."""
    for name in given:
        if name not in known:
            ours = ARGUMENTS.get(name, "")
            near = argument(name) if " " in ours or ours in known else "" if ours else did_you_mean(name, known)
            raise TypeError(f"{owner} has no {what} {name}{near or '; choose from ' + ', '.join(known)}")


def argument(name: str) -> str:
    """Return the advice for an argument or option of other libraries; "" for any other name."""
    ours = ARGUMENTS.get(name, "")
    return f"; {ours}" if " " in ours else advice("; use {}", **{ours: ...}) if ours else ""


def in_place_of(name: str) -> str:
    """Return what minibert has in place of a name of other libraries; "" for any other name."""
    for kind, first in KINDS.items():
        name = name if name in ATTRIBUTES else re.sub(f"^{kind}$", first, name)
    return ATTRIBUTES.get(name, "")


def unknown_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a missing attribute; it says what minibert has in its place, or the nearest name."""
    ours = in_place_of(name)
    return AttributeError(f"{owner} has no attribute {name}{f'; {ours}' if ours else did_you_mean(name, known)}")


def save_pretrained(*_: object, **__: object) -> None:
    """Raise AttributeError, with our name for it, which torch's own error for a missing attribute could not say."""
    raise AttributeError(f"there is no save_pretrained; {ATTRIBUTES['save_pretrained']}")


def from_pretrained(*_: object, **__: object) -> None:
    """Raise AttributeError, whether it is called on a class or on an object."""
    raise AttributeError(f"there is no from_pretrained; {ATTRIBUTES['from_pretrained']}")


class Habits:
    """A base class whose missing attributes raise the error above."""

    from_pretrained = staticmethod(from_pretrained)

    if not TYPE_CHECKING:  # else mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if not in_place_of(name):
                return self.__getattribute__(name)  # raises the usual error, or that of a property
            raise unknown_attribute(type(self).__name__, name, ())
