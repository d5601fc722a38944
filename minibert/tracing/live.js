/* The reader's own text, computed by bert.js, and what the reader changes. Only in the page of --live.

   state has more here: text, second (of a pair; "" for none), other (the sentence to compare with and to move vectors
   from), changes (a list of objects, see run.js) and lens (the token whose guesses are read at every layer; -1: a [MASK]). */

// -- a worker made of the script of this page; without workers the page computes

/** The worker: runs there, as text. */
function serve() {
  self.onmessage = async ({ data: { id, request } }) => {
    try {
      self.postMessage({ id, result: await self.bert(request, (progress) => self.postMessage({ id, progress })) });
    } catch (error) {
      self.postMessage({ id, error: error.message });
    }
  };
}
const waiting = new Map(); // by id: what to call with a message from the worker
function startWorker() {
  try {
    const started = new Worker(URL.createObjectURL(new Blob([$("#bert").textContent, `(${serve})();`])));
    started.onmessage = ({ data: message }) => waiting.get(message.id)(message);
    started.onerror = (event) => { event.preventDefault(); for (const call of waiting.values()) call({ error: "no worker" }); };
    return started;
  } catch {
    return null;
  }
}
let worker = startWorker(), asked = 0;
function ask(request, report = () => {}) {
  if (!worker) return Promise.resolve().then(() => window.bert(request, report));
  const id = ++asked;
  return new Promise((resolve, reject) => {
    waiting.set(id, ({ progress, error, result }) => {
      if (progress) return report(progress);
      waiting.delete(id);
      if (error) reject(new Error(error));
      else resolve(result);
    });
    worker.postMessage({ id, request });
  });
}
async function openModel() {
  const request = { kind: "open", settings: JSON.parse($("#bert-settings").textContent), weights: $("#weights").textContent };
  try {
    await ask(request);
  } catch {
    worker = null; // as where a policy forbids workers
    await ask(request);
  }
  $("#weights").remove();
}
const opened = data.start && openModel();
window.minibert = {
  /** Resolves to tokens, ids, segments, states (L + 1 of S·D), attentions (L of H·S·S) and logits (S·V, or null). */
  encode: async (text, pair = null) => { await opened; return ask({ kind: "encode", text, pair }); },
};

// -- computing, and what the reader is told

let shown = null, newest = 0;
const past = []; // states before each change, as JSON
async function compute() {
  const number = ++newest, progress = $("#progress");
  progress.hidden = false;
  progress.removeAttribute("value");
  tell(["Computing …"]);
  try {
    await opened;
    if (number !== newest) return;
    const { text, second, other, changes, lens } = state;
    const result = await ask({ kind: "show", number, text, pair: second || null, other, changes, lens }, ({ layer, of, tokens }) => {
      progress.value = layer / of;
      if (number === newest && tokens > MANY) tell([`Computing ${tokens} tokens: layer ${layer} of ${of}`]);
    });
    if (number !== newest) return;
    take(result);
    tell(notesOf(result));
  } catch (error) {
    if (error.message === "superseded") return;
    tell([`This text could not be computed: ${error.message}`]);
  }
  progress.hidden = true;
}
const tell = (lines) => $("#status").replaceChildren(...lines.map((line) => node("span", {}, line)));
function notesOf({ longest, unknown, seconds, left, data: { S } }) {
  const most = data.max_length;
  return [`${S} tokens, computed in ${fixed(seconds, 2)} s${worker ? "" : " in the page, without a worker"}.`,
    longest > most ? `The text has ${longest} tokens, and ${most} are read; the rest was cut off.` : "",
    state.text || state.second ? "" : "The text is empty: the model reads only [CLS] and [SEP].",
    unknown ? `${unknown} of the tokens ${unknown > 1 ? "are" : "is"} [UNK]: the vocabulary has none for these characters.` : "",
    left ? `${left} of the changes concern tokens that the text no longer has, and are left out.` : ""].filter(Boolean);
}
/** Takes over what was computed and draws it. */
function take(result) {
  shown = result;
  Object.assign(data, result.data);
  cache.clear();
  cellRead.clear();
  if (state.token >= data.S) state.token = -1;
  if (state.pair?.some((i) => i >= data.pair_tokens)) state.pair = null;
  if (!data.sides.includes(1)) state.part = "all";
  state.hover = -1;
  for (const place of $$(".size-S")) place.textContent = data.S.toLocaleString("en");
  document.title = `${state.text.slice(0, 60).trim() || "empty text"} · minibert trace`;
  $(".parts").hidden = !data.sides.includes(1);
  drawTools();
  draw();
  remember();
  const [of] = result.effect, number = (x) => (x === null ? "none" : fixed(x, 4));
  if (of) $("#announcement").textContent = `Changed: ${of[0]} ${number(of[2])}, of the control ${number(of[3])}.`;
}
const TEXTS = ["text", "second", "other"];
let typing = 0;
/** Changes what is switched off, and the texts if they were typed anew, so that it can be undone. */
function edit(changed) {
  const { text, second, other, changes, lens } = state;
  past.push(JSON.stringify({ text, second, other, changes, lens }));
  clearTimeout(typing);
  Object.assign(state, Object.fromEntries(TEXTS.map((name) => [name, $(`#typed-${name}`).value])), changed);
  fillForm();
  compute();
}
function undo() {
  if (!past.length) return;
  Object.assign(state, JSON.parse(past.pop()));
  fillForm();
  compute();
}
function fillForm() {
  for (const name of TEXTS) if ($(`#typed-${name}`).value !== state[name]) $(`#typed-${name}`).value = state[name];
  $$(".undo").forEach((button) => { button.disabled = !past.length; });
}

// -- changes in the address: changes=head.0.1.zero,mask.3,state.2.4.3

const ADDRESS = { mask: ["token"], head: ["layer", "head", "how"], attention: ["layer", "how"], feed_forward: ["layer", "how"],
  state: ["layer", "from", "to"] };
const inAddress = (changes) => changes.map((change) => [change.kind, ...ADDRESS[change.kind].map((name) => change[name])].join(".")).join(",");
function changesIn(text) {
  const ends = { layer: data.L, head: data.H, token: data.max_length, from: data.max_length, to: data.max_length };
  return text.split(",").map((one) => {
    const [kind, ...values] = one.split("."), names = Object.hasOwn(ADDRESS, kind) ? ADDRESS[kind] : [];
    const change = { kind, ...Object.fromEntries(names.map((name, i) => [name, name === "how" ? values[i] : /^\d{1,4}$/.test(values[i]) ? Number(values[i]) : -1])) };
    const right = names.every((name) => name === "how" ? ["zero", "mean"].includes(change.how)
      : change[name] >= 0 && change[name] < ends[name] + Number(kind === "state" && name === "layer"));
    return names.length && right ? change : null;
  }).filter(Boolean);
}
/** What an address says of the text and the changes. */
function typedIn(given) {
  const texts = TEXTS.filter((name) => given.has(name)).map((name) => [name, given.get(name)]);
  const lens = /^\d{1,4}$/.test(given.get("lens")) ? { lens: Number(given.get("lens")) } : {};
  return { ...Object.fromEntries(texts), ...lens, ...(given.has("changes") && { changes: changesIn(given.get("changes")) }) };
}

// -- drawing what the static page has as text

function drawGiven(place) {
  const texts = state.second ? [["A ", state.text], ["B ", state.second]] : [["", state.text]];
  place.replaceChildren(...texts.map(([letter, text]) => node("p", { class: "given" }, node("b", {}, letter), bdi(text || "(empty)"),
    node("span", { class: "soft" }, ` ${[...text].length} characters`))));
}
const kindOf = (i) => `${data.sides[i] ? "b" : "a"}${/^\[(CLS|SEP)\]$/.test(data.tokens[i]) ? " special" : ""}${i && data.words[i] === data.words[i - 1] ? " goes-on" : ""}`;
function drawWords(place) {
  const words = data.names.map(() => node("span", { class: "word" }));
  data.tokens.forEach((one, i) => words[data.words[i]].append(node("span", { class: `token ${kindOf(i)}` }, bdi(one))));
  place.replaceChildren(node("p", { class: "words" }, ...words));
}
function drawIds(place) {
  const columns = ["position", "token", "id", ...(data.vectors.segment ? ["segment"] : []), "word"];
  const rows = data.tokens.map((_, i) => cells(`${i}`, token(i), data.ids[i].toLocaleString("en"),
    ...(data.vectors.segment ? [`${data.segments[i]}`] : []), `${data.words[i]}`));
  place.replaceChildren(steppedTable("ids", "Tokens and ids", columns, rows));
}
function drawFollow(place) {
  const radio = (value, face, kind) => {
    const input = node("input", { type: "radio", name: "token", value });
    input.checked = value === state.token;
    return node("label", { class: `token ${kind}` }, input, node("span", {}, face));
  };
  place.replaceChildren(radio(-1, "all tokens", "all"), ...data.tokens.map((one, i) => radio(i, bdi(one), kindOf(i))));
}
/** Fills a list of tokens, and keeps what is chosen. */
function options(select, tokens, chosen = select.value) {
  select.replaceChildren(...tokens.map(([value, text]) => new Option(text, value)));
  select.value = [...select.options].some((option) => option.value === String(chosen)) ? chosen : select.options[0]?.value ?? "";
}
const numbered = (tokens) => tokens.map((one, i) => [i, `${i} ${one}`]);
function drawTools() {
  const free = numbered(shown.typed).filter(([i]) => !/^\[(CLS|SEP|MASK)\]$/.test(shown.typed[i]));
  options($("#mask-token"), free);
  for (const id of ["from", "to"]) options($(`#${id}`), numbered(data.tokens.slice(0, data.pair_tokens)));
  options($("#move-from"), numbered(shown.others));
  options($("#move-to"), numbered(data.tokens));
  options($("#lens-token"), numbered(data.tokens), shown.lens.place);
  for (const [kind, none] of [["mask", !free.length], ["state", !shown.others.length]]) $(`[data-add=${kind}]`).disabled = none;
}

// -- changes, their effect, the logit lens and the comparison

const named = (i) => shown.typed[i] ?? "a token that is gone";
const stateName = (l) => (l ? `after layer ${l - 1}` : "embeddings");
const SAID = {
  mask: ({ token: i }) => `token ${i}, ${named(i)}, masked`,
  head: ({ layer, head, how }) => `layer ${layer}, head ${head}: ${how}`,
  attention: ({ layer, how }) => `layer ${layer}, attention: ${how}`,
  feed_forward: ({ layer, how }) => `layer ${layer}, feed-forward: ${how}`,
  state: ({ layer, from, to }) => `${stateName(layer)}, token ${from} of the other sentence, ${shown.others[from] ?? "the last"}, moved to token ${to}, ${named(to)}`,
};
const said = (change) => SAID[change.kind](change);
function drawChanges(place) {
  const chips = state.changes.map((change, i) => {
    const remove = node("button", { type: "button", "aria-label": `Take back: ${said(change)}`, "data-remove": i }, "×");
    return node("li", {}, bdi(said(change)), " ", remove);
  });
  const clear = node("button", { type: "button", id: "clear" }, "Take all back");
  place.replaceChildren(chips.length ? node("ul", { class: "chips" }, ...chips, node("li", {}, clear))
    : node("p", { class: "soft" }, "Nothing is changed."));
}
function drawEffect(place) {
  if (!shown.effect.length) return place.replaceChildren();
  const only = state.changes.every(({ kind }) => kind === "mask");
  const show = (x) => (x === null ? "–" : fixed(x, 4));
  const rows = shown.effect.map(([name, ...values]) => cells(bdi(name), ...values.map(show)));
  const control = shown.control.map((change) => (change.kind === "state" ? `${said(change)}, but from “${change.source}”` : said(change)));
  place.replaceChildren(steppedTable("figures", "Last vectors and guesses", ["", only ? "as typed" : "before", "changed", "control"], rows),
    node("p", { class: "soft hint" }, `Cosines are with the vector ${only ? "of the text as typed" : "before the change, tokens masked as chosen"}. `,
      control.length ? "Control: " : "There is no control: nothing else could be changed in its place.", bdi(control.join("; ")), control.length ? ". A change that does no more than its control says little." : ""));
}
const guess = ([name, p]) => [node("code", {}, bdi(name)), ` ${fixed(p, 3)} `];
function drawLens(place) {
  const { place: at, beside, guesses, control } = shown.lens;
  if (!guesses.length) return place.replaceChildren(node("p", { class: "note" }, "This checkpoint has no masked-LM head, so there are no guesses to read."));
  const rows = guesses.map((best, l) => cells(stateName(l), node("span", {}, ...best.flatMap(guess)), node("span", {}, ...control[l].flatMap(guess))));
  place.replaceChildren(steppedTable("lens", `Guesses for token ${at}, ${data.tokens[at]}, after each layer`, ["state", "likeliest", `control: token ${beside}, ${data.tokens[beside]}`], rows));
}
function drawCompared(place) {
  if (!shown.compared.length) return place.replaceChildren(node("p", { class: "soft" }, "Type another sentence above to compare it with yours."));
  const rows = shown.compared.map((values, l) => cells(stateName(l), ...values.map((x) => fixed(x, 3))));
  place.replaceChildren(steppedTable("figures", "Cosines of your text with the other sentence, and with an unrelated one",
    ["state", "[CLS]", "mean", "[CLS], unrelated", "mean, unrelated"], rows));
}
function drawGuesses(place) {
  const tables = shown.guesses.map(([i, best]) => guessTable(`[MASK] at position ${i}`, [, , , best]));
  place.replaceChildren(...(tables.length ? tables : [node("p", { class: "soft" }, "The text has no [MASK]. Type one, or mask a token below.")]));
}
const liveDrawers = { given: drawGiven, words: drawWords, ids: drawIds, chooser: drawFollow, guesses: drawGuesses,
  changes: drawChanges, effect: drawEffect, lens: drawLens, compared: drawCompared };

// -- what the reader does

function typed({ target }) {
  if (!target.id.startsWith("typed-")) return;
  clearTimeout(typing);
  typing = setTimeout(() => edit({}), 250);
}
/** A change that a button adds, from the lists beside it. */
function chosenChange(kind) {
  const value = (id) => Number($(`#${id}`).value);
  if (kind === "mask") return { kind, token: value("mask-token") };
  if (kind === "state") return { kind, layer: value("move-layer"), from: value("move-from"), to: value("move-to") };
  const [what, layer, head] = $("#off-what").value.split("."), how = $("#off-how").value;
  return { kind: what, layer: Number(layer), ...(head !== undefined && { head: Number(head) }), how };
}
/** The same thing is changed once: a new change replaces the one of the same head, layer, token or place. */
const thing = ({ how: _how, from: _from, ...rest }) => JSON.stringify(rest);
function clicked({ target }) {
  const { add, remove } = target.dataset ?? {};
  if (add) {
    const change = chosenChange(add);
    edit({ changes: [...state.changes.filter((one) => thing(one) !== thing(change)), change] });
  } else if (remove) edit({ changes: state.changes.filter((_, i) => i !== Number(remove)) });
  else if (target.id === "clear") edit({ changes: [] });
  else if (target.classList?.contains("undo")) return undo();
  else return;
  if (!add) $("#change .undo").focus(); // the button that was pressed is gone
}
if (data.start) {
  document.addEventListener("input", typed);
  document.addEventListener("click", clicked);
  document.addEventListener("change", ({ target }) => target.id === "lens-token" && edit({ lens: Number(target.value) }));
  $("#typing").addEventListener("submit", (event) => event.preventDefault());
  fillForm();
}
