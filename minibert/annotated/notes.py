"""What the code cannot say: for a definition the equation number by number, why it is so, its picture, its tutorial.

In equations `_x` and `_{...}` stand low, `^x` and `^{...}` high. Indices: s, t tokens; d, f numbers of a vector;
h heads; l layers.
"""

from __future__ import annotations

from typing import NamedTuple

from minibert.annotated.rooms import DISTILLATION, ENCODER, PRETRAINING, TUNING, Tutorial


class Note(NamedTuple):
    """What stands beside one definition."""

    equations: tuple[str, ...] = ()
    words: str = ""
    diagrams: tuple[str, ...] = ()  # by their names in diagrams
    tutorials: tuple[Tutorial, ...] = ()

    @property
    def paragraphs(self) -> list[str]:
        """The words, a string a paragraph."""
        return [" ".join(paragraph.split()) for paragraph in self.words.split("\n\n") if paragraph]


# Room -> definition, "" for the room itself -> its note.
NOTES: dict[str, dict[str, Note]] = {
    "model": {
        "Embeddings": Note(
            (
                "x_s = LayerNorm(E[id_s] + G[segment_s] + P[s])",
                "LayerNorm(x)_d = γ_d (x_d − μ) / √(σ² + ε) + β_d",
            ),
            """Added, not put side by side: of a sum a matrix reads both parts, (a + b) W = a W + b W, and
            training gives them directions of their own, so that nothing is lost and the vectors stay D wide.

            Nothing after this sees an order: attention treats its tokens as a set. Without P, “love on rumination”
            would get the same vectors as “rumination on love”. μ and σ² are of one token's numbers, so neither the
            length of the row nor the other texts of the batch change them.""",
            ("embeddings",),
            (Tutorial(ENCODER, "Embeddings: from ids to vectors"),),
        ),
        "eager_attention": Note(
            (
                "score_{hst} = q_{hs} · k_{ht} / √W",
                "p_{hst} = exp(score_{hst}) / Σ_u exp(score_{hsu})",
                "context_{hs} = Σ_t p_{hst} v_{ht}",
            ),
            """A dictionary looked up softly: a query is compared with all keys, and what comes back is a mean
            of the values, weighted by how well each key fits. A sum of W products has W times the variance of one;
            divided by √W it stays where softmax still has a slope.

            The mask is the same for every query: each token sees all others, before and after it. A left-to-right
            model such as GPT has a mask (S,S) here, which hides from each token what follows it. A bias of the keys
            adds one number to a whole row of scores, which softmax takes away again: no output would show that it
            is missing.""",
            ("directions",),
            (
                Tutorial(ENCODER, "One attention head, by loop"),
                Tutorial(ENCODER, "Scaling: why divide by √W"),
                Tutorial(ENCODER, "Masks: what a padded token changes"),
            ),
        ),
        "sdpa_attention": Note(
            words="""The kernel goes through the keys in blocks and carries a running maximum and a running sum for
            each query, so that the (S,S) matrix never exists: memory grows with S, not with its square. The sums
            come in another order, which is why this way is near and not equal.""",
            tutorials=(Tutorial("8_making_it_fast", "4. Attention in one kernel"),),
        ),
        "SelfAttention": Note(
            (
                "head_h = Attention(x W^Q_h + b^Q_h, x W^K_h + b^K_h, x W^V_h + b^V_h)",
                "out = [head_1 … head_H] W^O + b^O = Σ_h head_h W^O_h + b^O",
            ),
            """Heads are nearly free: H of width W multiply as much as one of width D, and one softmax can
            point at one thing, H at H things. The second form says what W^O does: each head has W rows of it, and
            writes into the token's vector on its own; the heads only add up.

            So a head is two small maps: W^Q_h (W^K_h)^T, of rank W, decides who looks at whom, and W^V_h W^O_h, of
            rank W, what is carried over. To cut a head out is to leave its term out of the sum.""",
            ("attention",),
            (Tutorial(ENCODER, "All heads"), Tutorial("7_reading_attention", "One tensor a layer")),
        ),
        "gelu_new": Note(
            ("x Φ(x) ≈ ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))",),
            """Φ(x) is the chance that a normal number is below x: GELU is x, kept with that chance. The two
            forms differ by less than 5e-4, which fresh weights hide and trained ones show.""",
            tutorials=(Tutorial(ENCODER, "Feed-forward and GELU"),),
        ),
        "FeedForward": Note(
            ("FFN(x) = b + Σ_f activation(x · w_f + a_f) u_f",),
            """Read so, it is a memory of F entries: unit f fires when x resembles its key w_f (a column of
            the first matrix), and then adds its value u_f (a row of the second) to the token's vector (Geva et al.
            2021). Two thirds of the weights of a layer are here.

            No token sees another: this is why padding can be taken out, and all tokens of a batch multiplied as one
            matrix.""",
            ("feed_forward",),
            (Tutorial(ENCODER, "Feed-forward and GELU"), Tutorial("8_making_it_fast", "5. Packed: no padding at all")),
        ),
        "Layer": Note(
            ("y = LayerNorm(x + Attention(x))", "x′ = LayerNorm(y + FFN(y))"),
            """The residual makes of each step a correction: a layer that has nothing to say writes nearly 0,
            and the gradient has a short way back, along the sums. Here a norm stands after each sum (post-norm) and
            so on that way, which is why BERT's learning rate must warm up; most models since 2019 put it before the
            step instead.""",
            ("layer",),
            (Tutorial(ENCODER, "Residual and LayerNorm"),),
        ),
        "Pooler": Note(
            ("pooled_e = tanh(b_e + Σ_d W_{ed} x_{[CLS] d})",),
            """Only next sentence prediction, or fine-tuning, trains it. A checkpoint that was trained
            otherwise, such as all-MiniLM-L6-v2, carries it as it was drawn: a random projection of [CLS]. `minibert
            inspect` says so.""",
            ("pooler",),
            (Tutorial(ENCODER, "Pooler"), Tutorial("6_what_is_in_a_vector", "Is this weight trained?")),
        ),
        "initialise": Note(
            words="""Norms at 1 and 0, biases at 0: a fresh layer adds little to its input, and a mistake in a norm
            or a bias changes nothing. So a test on fresh weights is half blind, and the parity tests randomise
            every weight.""",
            tutorials=(Tutorial("5_is_it_right", "4. Why fresh weights hide mistakes"),),
        ),
        "Encoder": Note(
            ("x^0 = Embeddings(ids, segments)", "x^{l+1} = Layer_l(x^l), l = 0 … L − 1"),
            """One shape from end to end, (B,S,D): this is why layers can be stacked, left out, shared
            (ALBERT) or taken over by a student (DistilBERT), and why the states of all layers can be compared.""",
            ("way",),
            (Tutorial(ENCODER, "The whole encoder"), Tutorial(ENCODER, "How far a token travels")),
        ),
    },
    "objectives": {
        "": Note(
            (
                "p_s = softmax(LayerNorm(activation(x_s W + a)) E^T + b)",
                "loss = −mean over the hidden s of log p_s[token_s]",
            ),
            """Why words are hidden: an encoder that sees both sides sees the word itself too, and could copy
            it. A left-to-right model needs no [MASK], for what follows is not there yet; but neither may it use it.

            E is the table of the embeddings once more: the vector that stands for a word where it is read is the
            vector that a guess must resemble. Next sentence prediction came with it because questions on pairs of
            texts were hoped to profit; RoBERTa left it out and lost nothing, ALBERT asks for the order of the two
            instead.""",
            ("pretraining",),
            (Tutorial(PRETRAINING.name, "4. A BERT learns the language"),),
        )
    },
    "heads": {
        "": Note(
            ("p = softmax(c W + b), W (D,K)",),
            """A task head is nearly nothing: two labels take 2 D + 2 numbers. What it can tell apart must
            already lie on the two sides of a plane; that is what the encoder is for. Frozen, the plane is sought in
            vectors that were made for another purpose; fine-tuned, the encoder moves the texts to the right sides
            of it.

            The same thought gives every task: a plane for the whole text (classification), one for each token
            (tagging), two that score where an answer begins and where it ends (question answering).""",
            ("features",),
            (Tutorial(TUNING.name, "3. Frozen and unfrozen"),),
        )
    },
    "text/wordpiece": {
        "": Note(
            words="""Longest first is a choice, and a greedy one: it looks at nothing behind the piece that it
            takes. Byte pairs (text/byte_pairs.py) join in the order in which the joins were learned; a unigram
            model (text/unigram.py) takes the likeliest of all cuts. So a word may be cut in three ways by three
            relatives.""",
            tutorials=(Tutorial("3_wordpiece", "Longest match first"),),
        )
    },
    "text/masking": {
        "": Note(
            words="""80 % [MASK], so that there is something to guess. But no text to be used has a [MASK], so in 10
            % the token stays: the vector of a token that is seen must say which it is. If only hidden and true
            tokens occurred, every token that is seen could be trusted; so 10 % are any token, 1.5 % of all: too few
            to spoil the context, enough that each token is held against those around it.""",
            tutorials=(Tutorial(PRETRAINING.name, "1. Masking by hand"),),
        )
    },
    "vectors/engine": {
        "": Note(
            ("padding = 1 − T / (B S)",),
            """A linear layer multiplies T rows in place of B S, and a text's attention costs the square of
            its own length in place of that of the longest. Sorting the texts first makes the second small, and with
            it the first.""",
            tutorials=(Tutorial("8_making_it_fast", "5. Packed: no padding at all"),),
        )
    },
    "train/loop": {
        "": Note(
            (
                "m ← β_1 m + (1 − β_1) g, v ← β_2 v + (1 − β_2) g²",
                "w ← w − rate (m̂ / (√v̂ + ε) + λ w)",
            ),
            """m̂ and v̂ are m and v over 1 − β^t, because both begin at 0. The gradient is divided by its own
            size, so a step moves each weight by about the learning rate, however flat the loss is there: this is
            why 5e-5 suits tables and norms alike. v̂ of a few steps is a poor guess, and so the rate warms up. The
            decay λ stands beside the gradient and not in it, or it would be divided too (AdamW).""",
            tutorials=(Tutorial(TUNING.name, "1. The loop by hand"),),
        )
    },
    "train/distillation": {
        "": Note(
            (
                "q = softmax(z / τ) of the student, p = softmax(u / τ) of the teacher",
                "∂ (τ² KL) / ∂ z_i = τ (q_i − p_i)",
            ),
            """Where τ is large, this comes near (z_i − u_i) / V, with both centred: the student then matches
            the teacher's scores themselves, also of words that have next to no chance. At τ = 1 only the likely
            words count. Without τ² the gradient would shrink with the square of τ, and the weights of the three
            losses would not hold.

            What is learned so is more than the answer: that “gorgeous” would have been nearly as good as
            “stunning”, and “table” would not.""",
            ("distillation",),
            (Tutorial(DISTILLATION.name, "3. Temperature"), Tutorial(DISTILLATION.name, "5. Three losses")),
        )
    },
}
