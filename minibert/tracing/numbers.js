/* Draws the numbers of the page and follows the chosen token.

   These files are one function: numbers, vectors, attention, pair, units, ablation, address, live, and page, which says what happens when.
   live is only in the page of --live, whose numbers come from run.js: Float32Arrays in place of packed numbers.

   data (from numbers.py):
     S, E, D, H, L      sizes; tokens, ids, sides (0: A, 1: B), words (the word that each token belongs to)
     norm_first         a norm comes before each half of a layer, not after it; ffn_bias: the feed-forward adds b₂
     norm               its name, LayerNorm or RMSNorm; normed: whether the embeddings end with one
     reach[layer]       how many tokens to each side a token attends to; absent where it attends to all
     layers, heads      those that the page has; vector_tokens: of how many tokens it has the vectors, T
     attention[layer]   heads (heads,S,S), mean (S,S), rollout (S,S): uint16 in base64, 65535 for 1
     vectors[name]      (T,D) float16 in base64, before hidden0 (T,E); hidden0 is the embeddings, hidden1 what layer 0 returns;
                        middle0 is between the two halves of layer 0
     pairs[layer]       queries, keys (heads,P,W), turned if they are, float16 in base64, P = pair_tokens; log_sums[head][query]: ln Σ e^score, or null
     units[layer][token] unit, activation, share: of the strongest; rest, bias: the shares of all others and of b₂
     norms[name]        (S) length of each vector; cosines[name]: of before and after a step
     decided            the label that a classifier gives the text, and its probability; null without a classifier
     ablation           heads[layer][head] and masked[token]: [cosines (S), cosine of the mean, probability or null];
                        filled[token] and filled_without[token][layer][head]: [id, token, its probability, guesses]

   Every change of the state ends in draw(), which draws what depends on it. */
const data = JSON.parse(document.getElementById("trace-data").textContent);
const START = { hover: -1, layer: data.layers[0], head: "mean", token: -1, pair: null, merge: false, part: "all",
  mask: -1, off: null, ...data.start };
const state = { ...START };
const MANY = 64; // tokens from which arcs are drawn finer and labels left out
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// -- small helpers

/** An element: node("span", {class: "a"}, "text", child). Text never becomes HTML. */
function node(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "text", "rect", "g", "line", "polygon"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const bdi = (text) => node("bdi", { dir: "auto" }, text);
const fixed = (x, digits = 2) => x.toFixed(digits).replace("-", "−");
/** The token that pictures of one token show: under the pointer, else the chosen one, else [CLS]. */
const shownToken = () => (state.hover >= 0 ? state.hover : Math.max(state.token, 0));
const focused = () => (state.hover >= 0 ? state.hover : state.token);

// -- unpacking

const cache = new Map();
function once(key, make) {
  if (!cache.has(key)) cache.set(key, make());
  return cache.get(key);
}
function uint16(text) {
  const bytes = atob(text);
  const numbers = new Uint16Array(bytes.length / 2);
  for (let i = 0; i < numbers.length; i++) numbers[i] = bytes.charCodeAt(2 * i) | (bytes.charCodeAt(2 * i + 1) << 8);
  return numbers;
}
function half(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
  return bits & 0x8000 ? -size : size;
}
/** Numbers that were packed as float16 or as shares of 65535; what the page computed is not packed. */
const floats = (packed) => (typeof packed === "string" ? Float32Array.from(uint16(packed), half) : packed);
const fractions = (packed) => (typeof packed === "string" ? Float32Array.from(uint16(packed), (x) => x / 65535) : packed);
/** Vectors of the first T tokens, row by row; null where the page does not have them. */
const vectors = (name) => once("v" + name, () =>
  data.vectors[name] ? floats(data.vectors[name]) : null);
const LOOKED_UP = ["token", "segment", "position", "sum"];
function vector(name, token) {
  const all = vectors(name), width = LOOKED_UP.includes(name) ? data.E : data.D;
  return all && token < data.vector_tokens ? all.subarray(token * width, (token + 1) * width) : null;
}
/** Attention of one layer and head, (S,S). */
function probs(layer, head) {
  return once(`p${layer}.${head}`, () => {
    const of = data.attention[layer], size = data.S * data.S;
    const place = data.heads.indexOf(Number(head));
    const named = head === "mean" || head === "rollout";
    const all = named ? fractions(of[head]) : once("p" + layer, () => fractions(of.heads));
    return named ? all : all.subarray(place * size, (place + 1) * size);
  });
}

// -- tokens or words, the whole or a part of a pair

/** What the attention is drawn between: names, first token and members of each unit, and unit of each token. */
function units() {
  const of = state.merge ? data.words : data.tokens.map((_, i) => i);
  const list = [];
  of.forEach((unit, token) => {
    if (list[unit]) list[unit].tokens.push(token);
    else {
      const name = state.merge ? data.names[unit] : data.tokens[token];
      list[unit] = { name, tokens: [token], b: data.sides[token] === 1 };
    }
  });
  return { list, of };
}
/** Attention between units: summed over the keys of a word, averaged over its queries, so rows still sum to 1. */
function merged(matrix, { list, of }) {
  if (!state.merge) return matrix;
  const n = list.length, out = new Float32Array(n * n);
  for (let q = 0; q < data.S; q++)
    for (let k = 0; k < data.S; k++)
      out[of[q] * n + of[k]] += matrix[q * data.S + k] / list[of[q]].tokens.length;
  return out;
}
/** The attention now on show: units, those that look (rows), those looked at (columns), and at(row, column). */
function view() {
  return once(["view", state.layer, state.head, state.merge, state.part].join(), () => {
    const all = units(), matrix = merged(probs(state.layer, state.head), all), n = all.list.length;
    const side = (letter) => [...all.list.keys()].filter((i) => all.list[i].b === (letter === "B"));
    const whole = [...all.list.keys()];
    const rows = state.part === "all" ? whole : side(state.part[0]);
    const columns = state.part === "all" ? whole : side(state.part[1]);
    let largest = 0;
    for (const q of rows) for (const k of columns) largest = Math.max(largest, matrix[q * n + k]);
    return { ...all, rows, columns, largest: largest || 1, at: (q, k) => matrix[q * n + k] };
  });
}
const focusedUnit = (v) => (focused() < 0 ? -1 : v.of[focused()]);
const where = () => state.head === "rollout" ? `rollout to layer ${state.layer}`
  : `layer ${state.layer}, ${state.head === "mean" ? "mean of the heads" : `head ${state.head}`}`;

// -- colours, from the style sheet, so that light and dark agree with it

let palette;
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  const [zero, high, negative, positive] = ["--zero", "--high", "--negative", "--positive"].map(rgb);
  const mix = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);
  palette = {
    share: (t) => mix(zero, high, Math.min(1, t) ** 0.8),
    signed: (t) => mix(zero, t < 0 ? negative : positive, Math.min(1, Math.abs(t)) ** 0.8),
  };
}
/** A picture with one pixel for each number; the style sheet stretches it. */
function paint(canvas, rows, columns, colour) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b] = colour(i);
    image.data.set([r, g, b, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
/** Replaces what is drawn in a place; the keyboard stays where it was. */
function renew(place, ...children) {
  const kept = place.contains(document.activeElement);
  place.replaceChildren(...children);
  if (kept) $("input:checked, canvas[tabindex]", place)?.focus({ preventScroll: true });
}
const cellRead = new Map(); // by picture: the row and column that was read last, by a tap or a key
const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
/** Lets a reader read a picture cell by cell, with a mouse, by touch or with the arrow keys; a click or Enter chooses. */
function explore(canvas, key, rows, columns, show, choose = () => {}) {
  const within = (x, end) => Math.max(0, Math.min(end - 1, Math.floor(x)));
  const cell = (event) => [within(event.offsetY / canvas.clientHeight * rows, rows),
    within(event.offsetX / canvas.clientWidth * columns, columns)];
  const box = node("i", { class: "mark" });
  function read(row, column) {
    cellRead.set(key, [row, column]);
    show(row, column);
    if (!canvas.parentElement?.matches(".cells")) return;
    box.style.cssText = `inset:${100 * row / rows}% ${100 - 100 * (column + 1) / columns}% ${100 - 100 * (row + 1) / rows}% ${100 * column / columns}%`;
    canvas.after(box);
  }
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.addEventListener("pointermove", (event) => show(...cell(event)));
  canvas.addEventListener("click", (event) => { read(...cell(event)); choose(...cell(event)); });
  canvas.addEventListener("keydown", (event) => {
    const [row, column] = cellRead.get(key) ?? [0, 0], step = KEYS[event.key];
    if (step) {
      read(within(row + step[0], rows), within(column + step[1], columns));
      box.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (event.key === "Enter") choose(row, column);
    else return;
    event.preventDefault();
  });
  const [row, column] = cellRead.get(key) ?? [rows, 0];
  if (row < rows && column < columns) queueMicrotask(() => read(row, column));
}
/** A line under a picture that says what was read in it. */
const readoutLine = (...parts) => node("p", { class: "readout", "aria-live": "polite" }, ...parts);
const HOW = "Point at a cell, tap it, or use the arrow keys to read its number.";
/** The number at which colours end: 99 of 100 numbers are below it. */
function extent(...lists) {
  const sizes = lists.flatMap((list) => Array.from(list, Math.abs)).sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || 1;
}
