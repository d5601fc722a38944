/* BERT by hand: minibert/text/wordpiece.py and minibert/model.py again, with their names and in their order.

   Letters for shapes are those of model.py; B is 1, and without padding there is no mask. A tensor is a Float32Array, row
   by row: (S,D) has S rows of D numbers. `c` are the sizes and settings of the checkpoint, `w` its weights by their names
   in minibert, such as "layers.0.attention.query.weight"; c.vocab is a Map from token to id. */

// -- wordpiece.py: from text to ids

/** Whether a character is in one of these blocks of code points, [first, last] each. */
function isIn(character, blocks) {
  const code = character.codePointAt(0);
  return blocks.some(([first, last]) => code >= first && code <= last);
}
const CATEGORIES = { Mn: /^\p{Mn}$/u, P: /^\p{P}$/u, C: /^[\p{Cc}\p{Cf}\p{Co}]$/u };
/** Whether the category of a character in Unicode 8.0 is a mark (Mn), punctuation (P) or invisible (C). */
function isOf(category, character, c) {
  if (isIn(character, c.after_unicode_8)) return false;
  const own = c.category_in_unicode_8[character];
  return own ? own.startsWith(category) : CATEGORIES[category].test(character);
}
/** Drops invisible characters; every white space becomes one space. */
function clean(text, c) {
  const kept = [...text].filter((x) => "\t\n\r".includes(x) || (x !== "\ufffd" && !isOf("C", x, c)));
  return kept.map((x) => (/\s/.test(x) ? " " : x)).join("");
}
/** Puts spaces around every Chinese character, so that each is a word. */
const spaceOutChinese = (text, c) => [...text].map((x) => (isIn(x, c.chinese) ? ` ${x} ` : x)).join("");
/** Takes the accents off the letters: decomposes (NFD), then drops the marks. */
const stripAccents = (text, c) => [...text.normalize("NFD")].filter((x) => !isOf("Mn", x, c)).join("");
/** Lower-cases each character by itself. */
const lower = (text) => [...text].map((x) => x.toLowerCase()).join("");
/** Whether this is punctuation in Unicode, or one of the signs of ASCII. */
const isPunctuation = (x, c) => "$+<=>^`|~".includes(x) || isOf("P", x, c);
/** Splits at spaces, and makes every punctuation mark a word of its own. */
const splitWords = (text, c) => [...text].map((x) => (isPunctuation(x, c) ? ` ${x} ` : x)).join("").split(" ");
/** The words of a text, normalized. */
function split(text, c) {
  if (c.clean_text) text = clean(text, c);
  if (c.split_chinese) text = spaceOutChinese(text, c);
  if (c.strip_accents) text = stripAccents(text, c);
  if (c.lowercase) text = lower(text);
  return splitWords(text, c).filter(Boolean);
}
/** Cuts a word, from its start, into the longest pieces that the vocabulary has; [UNK] if that fails. */
function pieces(word, c) {
  const letters = [...word], made = [];
  if (letters.length > c.max_word_length) return [c.unk];
  for (let start = 0, end; start < letters.length; start = end) {
    const prefix = start ? "##" : "";
    for (end = letters.length; end > start; end--) if (c.vocab.has(prefix + letters.slice(start, end).join(""))) break;
    if (end === start) return [c.unk];
    made.push(prefix + letters.slice(start, end).join(""));
  }
  return made;
}
/** The pieces of all words of a text; a typed special token stays whole. */
function tokenize(text, c) {
  const longestFirst = [...c.special_tokens].sort().reverse().map((token) => token.replace(/[^\w]/g, "\\$&"));
  const parts = text.split(new RegExp(`(${longestFirst.join("|")})`));
  return parts.flatMap((part) => (c.special_tokens.includes(part) ? [part]
    : split(part, c).flatMap((word) => pieces(word, c))));
}
/** How many tokens of each text of a pair to keep: the longer one is cut first, down to half of the room. */
function shares(first, second, room) {
  const shorter = Math.min(first, second, Math.floor(room / 2)), longer = Math.min(Math.max(first, second), room - shorter);
  return first <= second ? [shorter, longer] : [longer, shorter];
}
/** [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], cut to the positions of the model; longest: before the cut. */
function rowOf(text, pair, c) {
  const a = tokenize(text, c), b = pair === null ? [] : tokenize(pair, c), specials = pair === null ? 2 : 3;
  const [n, m] = shares(a.length, b.length, c.max_length - specials);
  const cut = (list, count) => (c.truncates_left ? list.slice(list.length - count) : list.slice(0, count));
  const first = [c.cls, ...cut(a, n), c.sep], second = pair === null ? [] : [...cut(b, m), c.sep];
  const tokens = [...first, ...second];
  return { tokens, ids: tokens.map((token) => c.vocab.get(token)), sides: tokens.map((_, i) => Number(i >= first.length)),
    segments: tokens.map((_, i) => Number(i >= first.length) * c.segment), longest: a.length + b.length + specials };
}

// -- model.py: from ids to vectors

/** y = x Wᵀ + b: (S,K) -> (S,N). Four rows at once, so that each weight is read once for four tokens. */
function linear(x, w, name) {
  const weight = w[`${name}.weight`], bias = w[`${name}.bias`];
  const N = bias.length, K = weight.length / N, S = x.length / K, y = new Float32Array(S * N);
  for (let s = 0; s < S; s += 4) {
    const [i, j, k, l] = [0, 1, 2, 3].map((more) => Math.min(s + more, S - 1)); // the last row may be computed repeatedly
    const [xi, xj, xk, xl] = [i, j, k, l].map((row) => x.subarray(row * K, (row + 1) * K));
    for (let n = 0; n < N; n++) {
      let a = 0, b = 0, c = 0, d = 0;
      for (let at = 0, from = n * K; at < K; at++, from++) {
        const one = weight[from];
        a += xi[at] * one;
        b += xj[at] * one;
        c += xk[at] * one;
        d += xl[at] * one;
      }
      y[i * N + n] = a + bias[n];
      y[j * N + n] = b + bias[n];
      y[k * N + n] = c + bias[n];
      y[l * N + n] = d + bias[n];
    }
  }
  return y;
}
/** y = (x − mean) / √(variance + ε) · scale + shift, each row by itself: (S,D) -> (S,D). */
function layerNorm(x, w, name, c) {
  const scale = w[`${name}.weight`], shift = w[`${name}.bias`], D = scale.length, y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += D) {
    const row = x.subarray(start, start + D);
    const mean = row.reduce((sum, one) => sum + one, 0) / D;
    const variance = row.reduce((sum, one) => sum + (one - mean) ** 2, 0) / D;
    const root = Math.sqrt(variance + c.eps);
    for (let d = 0; d < D; d++) y[start + d] = (row[d] - mean) / root * scale[d] + shift[d];
  }
  return y;
}
/** The vectors of a table for these numbers: (S) -> (S,D). */
function lookUp(table, numbers, D) {
  const x = new Float32Array(numbers.length * D);
  numbers.forEach((number, s) => x.set(table.subarray(number * D, (number + 1) * D), s * D));
  return x;
}
/** x + change: (S,D) -> (S,D). */
const residual = (change, x) => x.map((one, i) => one + change[i]);

/** x = LayerNorm(token + segment + position): (S) -> (S,D). A model without segments has no table of them. */
function embeddings(ids, segments, w, c) {
  const token = lookUp(w["embeddings.token.weight"], ids, c.D);
  const position = lookUp(w["embeddings.position.weight"], [...ids.keys()], c.D);
  const table = w["embeddings.segment.weight"], segment = table && lookUp(table, segments, c.D);
  const sum = residual(position, segment ? residual(segment, token) : token);
  return { token, ...(segment && { segment }), position, sum, x: layerNorm(sum, w, "embeddings.norm", c) };
}
/** Attention(Q, K, V) = softmax(Q Kᵀ / √W) V, for each head: (S,D) each -> context (S,D), probs (H,S,S). */
function eagerAttention(query, key, value, c) {
  const { D, H } = c, S = query.length / D, W = D / H;
  const context = new Float32Array(S * D), probs = new Float32Array(H * S * S), logSums = new Float32Array(H * S);
  for (let h = 0; h < H; h++) {
    for (let q = 0; q < S; q++) {
      const scores = probs.subarray((h * S + q) * S, (h * S + q + 1) * S); // of one query, softmaxed in place
      for (let k = 0; k < S; k++) {
        let dot = 0;
        for (let at = 0, i = q * D + h * W, j = k * D + h * W; at < W; at++, i++, j++) dot += query[i] * key[j];
        scores[k] = dot / Math.sqrt(W);
      }
      logSums[h * S + q] = softmax(scores);
      for (let k = 0; k < S; k++)
        for (let at = 0, i = q * D + h * W, j = k * D + h * W; at < W; at++, i++, j++) context[i] += scores[k] * value[j];
    }
  }
  return { context, probs, logSums };
}
/** p = e^x / Σ e^x, in place; returns ln Σ e^x. The largest x is taken from all, so that no e^x overflows. */
function softmax(x) {
  const largest = x.reduce((a, b) => Math.max(a, b), -Infinity);
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += Math.exp(x[i] - largest);
  for (let i = 0; i < x.length; i++) x[i] = Math.exp(x[i] - largest) / sum;
  return largest + Math.log(sum);
}
/** Concat(heads) Wᴼ + b: (S,D) -> (S,D). Heads that are switched off are changed before Wᴼ. */
function selfAttention(x, w, l, c, changes) {
  const [query, key, value] = ["query", "key", "value"].map((name) => linear(x, w, `layers.${l}.attention.${name}`));
  const { context, probs, logSums } = eagerAttention(query, key, value, c);
  const W = c.D / c.H;
  for (const { head, how } of at(changes, "head", l)) switchOff(context, how, head * W, W, c.D);
  const output = linear(context, w, `layers.${l}.attention.output`);
  for (const { how } of at(changes, "attention", l)) switchOff(output, how, 0, c.D, c.D);
  return { query, key, probs, logSums, attention: output };
}
/** erf(x) = 2/√π e^(−x²) Σ 2ⁿ x^(2n+1) / (1 · 3 ⋯ (2n+1)), to the last digit: no term is negative. */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= 2 * x * x / (2 * n + 1);
  return 2 / Math.sqrt(Math.PI) * Math.exp(-x * x) * sum;
}
const ACTIVATION = {
  gelu: (x) => x / 2 * (1 + erf(x / Math.SQRT2)),
  gelu_new: (x) => x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(x, 0),
};
/** FFN(x) = activation(x W₁ + b₁) W₂ + b₂: (S,D) -> (S,F) -> (S,D). */
function feedForward(x, w, l, c, changes) {
  const activation = linear(x, w, `layers.${l}.feed_forward.expand`).map(ACTIVATION[c.activation]);
  const contract = linear(activation, w, `layers.${l}.feed_forward.contract`);
  for (const { how } of at(changes, "feed_forward", l)) switchOff(contract, how, 0, c.D, c.D);
  return { activation, feed_forward: contract };
}
/** x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)): (S,D) -> (S,D). */
function layer(x, w, l, c, changes) {
  const attended = selfAttention(x, w, l, c, changes);
  const middle = layerNorm(residual(attended.attention, x), w, `layers.${l}.attention_norm`, c);
  const fed = feedForward(middle, w, l, c, changes);
  return { ...attended, middle, ...fed, x: layerNorm(residual(fed.feed_forward, middle), w, `layers.${l}.feed_forward_norm`, c) };
}
/** pooled = tanh(x[CLS] Wᵀ + b): (S,D) -> (D). */
const pooler = (x, w, c) => linear(x.subarray(0, c.D), w, "pooler.dense").map(Math.tanh);
/** logits = LayerNorm(activation(x W + a)) Eᵀ + b: (S,D) -> (S,V). */
function predictTokens(x, w, c) {
  const transformed = linear(x, w, "transform").map(ACTIVATION[c.activation]);
  return linear(layerNorm(transformed, w, "transform_norm", c), w, "decoder");
}
/** Embeddings and L layers: ids (S) -> L + 1 states (S,D). after(l): awaited after each layer. */
async function encoder({ ids, segments }, w, c, changes = [], after = async () => {}) {
  const embedded = embeddings(ids, segments, w, c), states = [put(embedded.x, 0, c, changes)], layers = [];
  for (let l = 0; l < c.L; l++) {
    layers.push(layer(states[l], w, l, c, changes));
    states.push(put(layers[l].x, l + 1, c, changes));
    await after(l + 1);
  }
  return { embedded, states, layers };
}

// -- changes: what the reader switches off or moves. Each has a kind and a layer, and what belongs to its kind.

/** The changes of a kind in layer l. */
const at = (changes, kind, l) => changes.filter((change) => change.kind === kind && change.layer === l);
/** Replaces `width` columns of (S,D) from `start`, by zero or by their mean over the tokens. */
function switchOff(x, how, start, width, D) {
  for (let d = start; d < start + width; d++) {
    let sum = 0;
    for (let i = d; i < x.length; i += D) sum += x[i];
    const value = how === "mean" ? sum / (x.length / D) : 0;
    for (let i = d; i < x.length; i += D) x[i] = value;
  }
}
/** Puts the moved vectors, (D) each, in the place of those of their tokens. */
function put(x, l, c, changes) {
  for (const { to, vector } of at(changes, "state", l)) x.set(vector, to * c.D);
  return x;
}
