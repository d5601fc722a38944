/* What changes when a head is switched off or a token is masked: computed beforehand, for this text. */

const ablation = data.ablation ?? { heads: [], masked: {}, filled: {}, filled_without: {} };
/** The heads that can be switched off, as "layer.head", and the tokens that can be masked. */
const allHeads = () => data.ablation?.heads.flatMap((heads, layer) => heads.map((_, head) => `${layer}.${head}`)) ?? [];
const maskable = () => Object.keys(ablation.masked).map(Number);
const nameOfHead = (off) => `layer ${off.split(".")[0]}, head ${off.split(".")[1]}`;
/** What the page has for the chosen head, of the whole text or of a masked token. */
const ofHeadOff = (table, off) => { const [layer, head] = off.split("."); return table?.[layer]?.[head]; };

/** Switches a head off ("2.3") or masks a token; both at once where the page has the guesses for both. */
function change(name, value) {
  if (name === "mask") state.mask = Number(value);
  else state.off = value || null;
  if (state.mask >= 0 && state.off && !ablation.filled_without[state.mask]) {
    if (name === "mask") state.off = null;
    else state.mask = -1;
  }
  draw(["ablation"]);
  remember();
  $("#announcement").textContent = $(".ablation .outcome").textContent;
}
/** What the map of heads shows: its caption, and the number of a head. */
function measure() {
  const fills = ablation.filled_without[state.mask], first = ablation.filled[state.mask];
  if (fills) return [`Change of the probability of ${first[1]} at [MASK]`, (layer, head) => fills[layer][head][2] - first[2]];
  if (data.decided) return [`Change of the probability of ${data.decided[0]}`, (layer, head) => ablation.heads[layer][head][2] - data.decided[1]];
  return ["1 − cosine of the mean vector with the original", (layer, head) => 1 - ablation.heads[layer][head][1]];
}
/** A cell for each head, L rows of H. */
function headMap() {
  const [caption, of] = measure(), { L, H } = data;
  const all = Array.from({ length: L * H }, (_, i) => of(Math.floor(i / H), i % H));
  const largest = Math.max(...all.map(Math.abs)) || 1, cell = Math.max(12, Math.min(34, Math.floor((Math.min(innerWidth, 700) - 120) / H)));
  const canvas = paint(node("canvas", { style: `width:${H * cell}px;height:${L * cell}px`,
    "aria-label": `${caption}: ${L} layers of ${H} heads` }), L, H, (i) => palette.signed(all[i] / largest));
  const readout = readoutLine(), labels = (kind, name, count) =>
    node("div", { class: kind }, ...Array.from({ length: count }, (_, i) => node("span", {}, `${name}${i}`)));
  explore(canvas, "heads", L, H, (layer, head) => {
    readout.textContent = `layer ${layer}, head ${head} switched off: ${fixed(all[layer * H + head], 4)}`;
  }, (layer, head) => change("off", `${layer}.${head}`));
  return node("figure", {}, node("figcaption", {}, `${caption}, for each head switched off`),
    node("p", { class: "soft hint" }, `Strongest colour: ±${fixed(largest, 4)}; blue is negative, orange positive. ${HOW} A tap or Enter switches the head off.`), readout,
    node("div", { class: "scroll" }, node("div", { class: "grid map", style: `--cell:${cell}px;--font:${Math.min(12.5, cell - 1)}px` },
      labels("columns", "", H), labels("labels", "layer ", L), node("div", { class: "cells" }, canvas))));
}
function guessTable(caption, [, , , guesses]) {
  const rows = guesses.map(([name, p]) => cells(node("code", {}, bdi(name)), fixed(p, 4),
    node("span", { class: "bar", "aria-hidden": "true" }, node("i", { style: `width:${100 * p}%` }))));
  return steppedTable("bars", caption, ["token", "probability", ""], rows);
}
/** The direction of each token's last vector, compared with the original. */
function turnTable([cosines, mean]) {
  const all = [...cosines, mean], most = Math.max(...all.map((cosine) => 1 - cosine)) || 1;
  const rows = all.map((cosine, i) => cells(i < data.S ? [token(i), ` ${i}`] : "mean of all tokens", fixed(cosine, 4),
    node("span", { class: "bar", "aria-hidden": "true" }, node("i", { style: `width:${100 * Math.max(0, 1 - cosine) / most}%` }))));
  return steppedTable("bars", "Cosine of each last vector with the original; the bar shows 1 − cosine",
    ["last vector of", "cosine", ""], rows);
}
/** The chosen change and what it does, in a sentence, and the tables that belong to it. */
function outcome() {
  const { mask, off } = state, filled = ablation.filled[mask];
  const parts = [mask >= 0 ? `${data.tokens[mask]} (${mask}) is masked` : "", off ? `${nameOfHead(off)} is switched off` : ""];
  const done = parts.filter(Boolean).join(" and ");
  if (!done) return ["Nothing is changed yet. Choose a token or a head.", []];
  const without = off && ofHeadOff(ablation.filled_without[mask], off);
  if (filled) {
    const now = without ? `, and ${fixed(without[2], 4)} without the head` : "";
    const tables = [guessTable("The likeliest tokens, all heads on", filled)];
    if (without) return [`${done}: the probability of ${filled[1]} is ${fixed(filled[2], 4)} with all heads${now}.`,
      [...tables, guessTable(`The likeliest tokens without ${nameOfHead(off)}`, without)]];
    return [`${done}: the model gives ${filled[1]} a probability of ${fixed(filled[2], 4)}.`, [...tables, turnTable(ablation.masked[mask])]];
  }
  const effect = off ? ofHeadOff(ablation.heads, off) : ablation.masked[mask];
  const decided = data.decided ? ` The probability of ${data.decided[0]} changes from ${fixed(data.decided[1], 4)} to ${fixed(effect[2], 4)}.` : "";
  return [`${done}: the cosine with the original is ${fixed(effect[0][0], 4)} for ${data.tokens[0]} and ${fixed(effect[1], 4)} for the mean of all tokens.${decided}`,
    [turnTable(effect)]];
}
function drawAblation(place) {
  $("#masked").value = state.mask;
  $("#switched-off").value = state.off ?? "";
  if (state.off) cellRead.set("heads", state.off.split(".").map(Number));
  else cellRead.delete("heads");
  const [sentence, tables] = outcome();
  renew(place, node("p", { class: "outcome" }, sentence), ...(ablation.heads.length ? [headMap()] : []),
    node("div", { class: "views" }, ...tables));
}
