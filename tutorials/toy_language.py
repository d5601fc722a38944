"""A language whose entropy is known, and with it the best possible prediction of masked tokens and next sentences.

    these old boats near every island drift slowly .        the verb agrees with the subject, "boats ... drift", across
    this captain loads many young sailors .                 the phrase between them

On real text nobody knows how far the loss of pretraining could fall. Here it is known. Sentences come from a finite
automaton that emits one word in each state. A document has one of eight topics, which supplies most of its nouns and
verbs. So a masked word depends on its neighbours, on a subject further away and on the topic of the whole row, and a
next sentence depends on its topic.

The predictions of the best possible model are posterior probabilities over all possible words. The forward-backward
algorithm computes them exactly (Rabiner 1989, section III). k is a state, t a topic, x_i the token seen at i, w_i the
true word:

    forward_i(k)   =  p(x_1 ... x_i-1, k at i | t)          from the left, state by state
    backward_i(k)  =  p(x_i+1 ... x_n | k at i, t)          from the right
    p(w_i | x)     ~  sum over t, k of  p(t, other text) forward_i(k) backward_i(k) p(w_i | k, t) p(x_i | w_i, chosen)

Only [MASK] shows that a token was chosen for masking. Any other token may be a random one, so p(x | w) comes from the
masking procedure; at a place that counts, it is the probability for a chosen token. R rows, n words in a text, K
states, T topics, W words of the language.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minibert.inputs import IGNORED
from minibert.text.masking import MASKED, RATE, REPLACED
from minibert.text.wordpiece import SPECIAL_TOKENS
from minibert.utils.files import atomic_write
from minibert.utils.printing import progress_bar

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NUMBERS = ("singular", "plural")
STOP = "."
TOPIC_SHARE = 0.86  # of nouns and verbs belong to the document's topic
SAME_FOR_ALL = {  # words that do not depend on the topic
    "determiner singular": "this every",
    "determiner plural": "these many",
    "adjective": "old new small big red quiet strange young bright heavy proud lonely gentle clever",
    "preposition": "near behind beside above below without",
    "adverb": "slowly often again soon today loudly gladly",
    STOP: STOP,
}
TOPICS = {  # nouns, transitive verbs, intransitive verbs; the other number has an s
    "sea": ("boat captain sailor island whale harbour", "steer load repair", "drift sink float"),
    "kitchen": ("baker spoon oven pan kettle recipe", "stir taste serve", "boil simmer steam"),
    "garden": ("gardener flower hedge beetle lawn pond", "plant trim rake", "bloom grow wilt"),
    "music": ("singer violin drum choir piano song", "play tune hear", "hum resound rehearse"),
    "school": ("teacher pupil book lesson pencil desk", "read explain learn", "listen whisper think"),
    "farm": ("farmer horse goat barn tractor field", "feed milk plough", "graze sleep gallop"),
    "city": ("driver tram bridge tower street clerk", "enter build visit", "wait arrive turn"),
    "space": ("planet rocket comet pilot moon star", "orbit observe measure", "shine spin explode"),
}


# ---------------------------------------------------------------------------------------------------------------
# The language


@dataclass(frozen=True, eq=False)
class Grammar:
    """A finite automaton that emits one word in each state and never ends: a sentence starts after the full stop."""

    words: tuple[str, ...]  # W
    transitions: Floats  # (K,K): p(next state | state)
    emissions: Floats  # (T,K,W): p(word | topic, state)
    stop: int  # the state of the full stop, which ends a sentence

    @property
    def vocabulary(self) -> list[str]:
        """The special tokens and the words; ids are positions in this list."""
        return [*SPECIAL_TOKENS, *self.words]

    @cached_property
    def stationary(self) -> Floats:
        """(K): the frequency of each state in a long text."""
        K = len(self.transitions)
        equations = np.vstack([self.transitions.T - np.eye(K), np.ones(K)])  # unchanged by a step, and sums to 1
        return np.asarray(np.linalg.lstsq(equations, np.eye(K + 1)[K], rcond=None)[0])

    @cached_property
    def _sums(self) -> tuple[list[list[float]], list[list[list[float]]]]:
        tables = self.transitions.cumsum(axis=-1), self.emissions.cumsum(axis=-1)
        transitions, emissions = (sums / sums[..., -1:] for sums in tables)
        return transitions.tolist(), emissions.tolist()

    def documents(
        self, count: int, seed: int = 0, sentences: tuple[int, int] = (4, 12), first: int = 0
    ) -> Iterator[list[str]]:
        """Yield documents, lists of sentences on one topic; all topics are equally likely.

        A document depends only on the seed and on its number. sentences: the fewest and the most per document. first:
        the number of the first document.
        """
        for number in range(first, first + count):
            random = np.random.default_rng([seed, number])
            topic = int(random.integers(len(self.emissions)))
            length = int(random.integers(sentences[0], sentences[1] + 1))
            yield [" ".join(self.sentence(topic, random)) for _ in range(length)]

    def sentence(self, topic: int, random: np.random.Generator) -> list[str]:
        """Draw the words of a sentence, with its full stop."""
        transitions, emissions = self._sums
        state = self.stop
        words = list[str]()
        while not words or state != self.stop:
            state = bisect(transitions[state], random.random())
            words.append(self.words[bisect(emissions[topic][state], random.random())])
        return words

    def write(self, path: str | Path, count: int, seed: int = 0, sentences: tuple[int, int] = (4, 12)) -> None:
        """Write documents as a corpus, atomically: one sentence per line, an empty line between documents."""
        documents = progress_bar(self.documents(count, seed, sentences), "writing", count)
        with atomic_write(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
            for number, document in enumerate(documents):
                file.write("\n" * (number > 0) + "".join(f"{sentence}\n" for sentence in document))


class Language(Grammar):
    """28 states, 8 topics, 224 words. The seed orders the words of each kind; the n-th has a frequency of 1 / n.

    topics: at least two of TOPICS; a language with fewer topics is smaller and learned faster.
    """

    def __init__(self, seed: int = 0, topics: Sequence[str] = tuple(TOPICS)) -> None:
        rules = successors()
        states = list(rules)
        kinds = words_by_kind(np.random.default_rng(seed))
        kinds = {kind: {name: of[name] for name in ("all", *topics) if name in of} for kind, of in kinds.items()}
        words = sorted({word for kind in kinds.values() for group in kind.values() for word in group})
        place = {word: number for number, word in enumerate(words)}
        transitions = np.array([[rules[state].get(other, 0.0) for other in states] for state in states])
        emissions = np.zeros((len(topics), len(states), len(words)))
        for k, state in enumerate(states):
            for source, group in kinds[kind_of(state)].items():
                frequency = 1 / np.arange(1, len(group) + 1)
                other = (1 - TOPIC_SHARE) / (len(topics) - 1)
                share = [1.0 if source == "all" else TOPIC_SHARE if topic == source else other for topic in topics]
                emissions[:, k, [place[word] for word in group]] = np.outer(share, frequency / frequency.sum())
        super().__init__(tuple(words), transitions, emissions, states.index(STOP))


def successors() -> dict[str, dict[str, float]]:
    """Return the automaton: state -> next state -> probability.

    The name of a state is the kind of its word, the number of the subject (until the verb), and its own number.
    """
    rules = {STOP: {f"determiner {n}": 1 / 2 for n in NUMBERS}}
    for n in NUMBERS:
        rules[f"determiner {n}"] = {f"adjective {n}": 0.3, f"noun {n}": 0.7}
        rules[f"adjective {n}"] = {f"noun {n}": 1.0}
        rules[f"noun {n}"] = {f"preposition {n}": 0.4, f"transitive {n}": 0.36, f"intransitive {n}": 0.24}
        rules[f"preposition {n}"] = {f"determiner after {n} {m}": 1 / 2 for m in NUMBERS}
        for m in NUMBERS:  # of the noun between subject and verb
            rules[f"determiner after {n} {m}"] = {f"noun after {n} {m}": 1.0}
            rules[f"noun after {n} {m}"] = {f"transitive {n}": 0.6, f"intransitive {n}": 0.4}
        rules[f"transitive {n}"] = {f"determiner of object {m}": 1 / 2 for m in NUMBERS}
        rules[f"intransitive {n}"] = {"adverb": 0.5, STOP: 0.5}
        rules[f"determiner of object {n}"] = {f"adjective of object {n}": 0.3, f"noun of object {n}": 0.7}
        rules[f"adjective of object {n}"] = {f"noun of object {n}": 1.0}
        rules[f"noun of object {n}"] = {"adverb": 0.25, STOP: 0.75}
    return rules | {"adverb": {STOP: 1.0}}


def kind_of(state: str) -> str:
    """Return the kind of a state's word, with any number: "noun after plural singular" -> "noun singular"."""
    kind = state.split()[0]
    number = state.split()[-1]
    return kind if kind in SAME_FOR_ALL else f"{kind} {number}"


def words_by_kind(random: np.random.Generator) -> dict[str, dict[str, list[str]]]:
    """Return the words of each kind by topic, or under "all"; frequent words come first."""

    def shuffled(words: str) -> list[str]:
        return [str(word) for word in random.permutation(words.split())]

    found = {kind: {"all": shuffled(words)} for kind, words in SAME_FOR_ALL.items()}
    for place, kind in enumerate(("noun", "transitive", "intransitive")):
        bare = {topic: shuffled(words[place]) for topic, words in TOPICS.items()}
        with_s = {topic: [word + "s" for word in words] for topic, words in bare.items()}
        forms = (bare, with_s) if kind == "noun" else (with_s, bare)  # a boat drifts, boats drift
        found |= {f"{kind} {number}": form for number, form in zip(NUMBERS, forms, strict=True)}
    return found


# ---------------------------------------------------------------------------------------------------------------
# The best possible predictions


@dataclass(frozen=True)
class Procedure:
    """How pretraining rows are made: what a model can know about them before it reads one.

    rate: the share of tokens that is chosen. masked, replaced: the shares of the chosen tokens that become [MASK] or a
    random token. is_next: the share of pairs whose second text follows the first (1 for sentence order, where both
    texts come from one document); the topic of a random second text does not depend on the first.

    full: rows with at least this many tokens, including special tokens, may have been truncated, so their texts may
    start and end within a sentence; None: no row; 0: any row. cut: the probability that an end of a text in such a row
    was truncated. A truncated text starts in any state, with its stationary probability, and ends in any. The true
    probability depends on the lengths of documents, but mostly the words at the end decide it: for pairs of 32 tokens,
    70 % of them full, 0.25 and 0.75 give losses within 0.005 nats of the loss for 0.5.

    The lengths of texts are not used as evidence for "is next".
    """

    rate: float = RATE
    masked: float = MASKED
    replaced: float = REPLACED
    is_next: float = 0.5
    full: int | None = None
    cut: float = 0.5


@dataclass(frozen=True, eq=False)
class BestPredictions:
    """Predictions of the best possible model for M masked tokens and R rows. Only luck makes a model score better."""

    words: Floats  # (M,W): the probability of each word at each place with a label, in the order of rows and places
    true: Integers  # (M): the true word
    is_next: Floats  # (R): the probability that the second text follows the first
    next_labels: Integers | None = None  # (R): 0 is next, 1 is random

    @property
    def loss(self) -> float:
        """Nats per masked token: the mean of -log p(true word)."""
        return float(-np.log(self.words[np.arange(len(self.true)), self.true]).mean())

    @property
    def accuracy(self) -> float:
        """The share of places whose most likely word is the true one."""
        return float((self.words.argmax(axis=1) == self.true).mean())

    @property
    def next_accuracy(self) -> float:
        """The share of rows for which the more likely of "is next" and "is random" is right."""
        return float(((self.is_next < 0.5) == self.next_labels).mean())


def bounds(
    grammar: Grammar,
    ids: Sequence[Sequence[int]],
    labels: Sequence[Sequence[int]],
    next_labels: Sequence[int] | None = None,
    *,
    vocab: Mapping[str, int] | None = None,
    procedure: Procedure = Procedure(),
) -> BestPredictions:
    """Return the best possible predictions for R rows, exactly.

    ids: rows as the model sees them, [CLS] a [SEP] or [CLS] a [SEP] b [SEP], perhaps followed by [PAD]. Each text
    consists of whole sentences (but see `full` of Procedure), with one token per word. labels: true ids of the tokens
    to predict, -100 elsewhere. next_labels: 0 is next, 1 is random. vocab: the ids of tokens; None: their positions in
    `grammar.vocabulary`. Raises ValueError for a vocabulary without the words, and for rows that the language cannot
    produce.
    """
    reader = Posteriors(grammar, vocab or {token: id for id, token in enumerate(grammar.vocabulary)}, procedure)
    rows = progress_bar(zip(ids, labels, strict=True), "bounds", len(ids))
    words, true, is_next = zip(*(reader.read(number, *row) for number, row in enumerate(rows)), strict=True)
    follows = None if next_labels is None else np.asarray(next_labels)
    return BestPredictions(np.concatenate(words), np.concatenate(true), np.array(is_next), follows)


class Posteriors:
    """Computes the posteriors of rows. Words are numbered by their position in `grammar.words`.

    Raises ValueError if a word of the language is not a single token of the vocabulary.
    """

    def __init__(self, grammar: Grammar, vocab: Mapping[str, int], procedure: Procedure) -> None:
        if missing := [token for token in grammar.vocabulary if token not in vocab]:
            raise ValueError(
                f"{missing[0]!r} and {len(missing) - 1} more tokens of the language are not in the vocabulary, but "
                "each word must be one token; learn a larger vocabulary, or use the language's own"
            )
        self.grammar = grammar
        self.procedure = procedure
        W = len(grammar.words)
        self.separator = vocab["[SEP]"]
        # (V): the word of an id; W: another token, W + 1: [MASK].
        self.word_of = np.full(max(vocab.values()) + 1, W)
        self.word_of[[vocab[word] for word in grammar.words]] = np.arange(W)
        self.word_of[vocab["[MASK]"]] = W + 1
        # (W+2,W): p(token seen | true word), if the word was chosen for masking. [UNK] may replace it like any token.
        rate, masked, replaced = procedure.rate, procedure.masked, procedure.replaced
        self.if_chosen = np.full((W + 2, W), replaced / (len(vocab) - len(SPECIAL_TOKENS) + 1))
        self.if_chosen[W + 1] = masked
        self.if_chosen[:W] += (1 - masked - replaced) * np.eye(W)
        # (W+2,T,K): p(token seen | topic, state) if it is unknown whether it was chosen.
        p_seen = rate * self.if_chosen + (1 - rate) * np.eye(W + 2, W)
        self.p_seen: Floats = np.einsum("xw,tkw->xtk", p_seen, grammar.emissions)

    def read(self, number: int, ids: Sequence[int], labels: Sequence[int]) -> tuple[Floats, Integers, float]:
        """Return `words`, (M,W), and `true`, (M), of BestPredictions for one row, and the probability of "is next"."""
        seen = self.word_of[np.asarray(ids)]
        chosen = np.asarray(labels) != IGNORED
        ends = (np.asarray(ids) == self.separator).nonzero()[0]
        is_full = self.procedure.full is not None and ends[-1] + 1 >= self.procedure.full
        parts = [slice(1, ends[0]), slice(ends[0] + 1, ends[-1])]  # the second may be empty
        found = [self.forward_backward(seen[part], self.procedure.cut * is_full) for part in parts]
        if not all(np.isfinite(evidence.max()) for *_, evidence in found):
            raise ValueError(
                f"row {number} has a text that is not made of whole sentences of this language; if rows may be "
                "truncated, set their length: Procedure(full=...)"
            )
        T = len(self.grammar.emissions)
        is_next = self.procedure.is_next
        together = is_next * np.eye(T) / T  # (T,T): p(both topics)
        apart = (1 - is_next) * np.full((T, T), 1 / T**2)
        a, b = (np.exp(evidence - evidence.max()) for *_, evidence in found)  # (T): p(text | topic), up to a factor
        p_next = a @ together @ b
        p_random = a @ apart @ b

        words = []
        for part, other, (context, scale, _) in zip(parts, (b, a), found, strict=True):
            topic = np.exp(scale - scale.max(axis=-1, keepdims=True)) * (other @ (together + apart))  # (n,T)
            p = np.tensordot(topic[:, :, None] * context, self.grammar.emissions, axes=2)  # (n,T,K) -> (n,W)
            words.append((p * self.if_chosen[seen[part]])[chosen[part]])
        p = np.concatenate(words)
        return p / p.sum(axis=1, keepdims=True), self.word_of[np.asarray(labels)[chosen]], p_next / (p_next + p_random)

    def forward_backward(self, seen: Integers, cut: float) -> tuple[Floats, Floats, Floats]:
        """Return the evidence of the rest of a text for the state at each place, by topic; cut: see Procedure.

        These are forward x backward (n,T,K) up to a factor, the logarithm of the factor (n,T), and log p(text | topic),
        (T), up to a factor that is the same for all topics.
        """
        transitions, stop, stationary = self.grammar.transitions, self.grammar.stop, self.grammar.stationary
        T, K, _ = self.grammar.emissions.shape
        p_seen = self.p_seen[seen]  # (n,T,K)
        forward, backward = np.empty((2, *p_seen.shape))
        log_forward, log_backward = np.zeros((2, len(seen), T))

        state = np.tile((1 - cut) * transitions[stop] + cut * stationary, (T, 1))  # (T,K)
        log = np.zeros(T)
        for i in range(len(seen)):
            forward[i], log_forward[i] = state, log
            state, factor = scaled(p_seen[i] * state)
            state = state @ transitions
            log = log + factor

        state = np.tile((1 - cut) * np.eye(K)[stop] / stationary[stop] + cut, (T, 1))
        log = np.zeros(T)
        for i in reversed(range(len(seen))):
            backward[i], log_backward[i] = state, log
            state, factor = scaled((p_seen[i] * state) @ transitions.T)
            log = log + factor

        context = forward * backward
        evidence = scaled(context[0] * p_seen[0])[1] + log_backward[0] if len(seen) else np.zeros(T)
        return context, log_forward + log_backward, evidence


def scaled(x: Floats) -> tuple[Floats, Floats]:
    """Scale to a sum of 1 in the last dimension. Returns the logarithm of the sum too; zeros stay zeros."""
    total = x.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return x / np.where(total > 0, total, 1), np.log(total[..., 0])
