/* What is chosen, in the address: #layer=1&head=8&token=4&pair=4,5&off=2.3, so that a link shows it. */

const FIELDS = Object.keys(START).filter((name) => name !== "hover");

/** The state as the address writes it: only what differs from how the page opens. */
function written() {
  const value = (from, name) => (name === "changes" ? inAddress(from.changes) : String(from[name]));
  const changed = FIELDS.filter((name) => value(state, name) !== value(START, name));
  return changed.map((name) => `${name}=${encodeURIComponent(value(state, name)).replaceAll("%2C", ",")}`).join("&");
}
/** The state in an address, null if it has none. Values that this page does not have are left out. */
function stateIn(hash) {
  const given = new URLSearchParams(hash.slice(1));
  const number = (text) => (/^\d{1,4}$/.test(text) ? Number(text) : -1);
  const among = (name, list) => list.find((one) => String(one) === given.get(name));
  const pair = (given.get("pair") ?? "").split(",").map(number);
  const found = {
    layer: among("layer", data.layers),
    head: among("head", ["mean", "rollout", ...data.heads.map(String)]),
    token: among("token", [...data.tokens.keys()]),
    pair: pair.length === 2 && pair.every((i) => i >= 0 && i < data.pair_tokens) ? pair : undefined,
    merge: among("merge", [true]),
    part: among("part", $$("input[name=part]").map((input) => input.value)),
    mask: among("mask", maskable()),
    off: among("off", allHeads()),
    ...(data.start && typedIn(given)),
  };
  const kept = Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
  if (kept.pair && kept.token === undefined) kept.token = kept.pair[0];
  return Object.keys(kept).length ? kept : null;
}
/** Takes over the state in the address, and returns the stop that it belongs to; "" if there is none. */
function recall(hash) {
  const kept = stateIn(hash);
  if (!kept) return "";
  Object.assign(state, START, kept);
  for (const name of ["layer", "head", "token", "part"]) {
    const input = $(`input[name=${name}][value="${state[name]}"]`);
    if (!input) continue;
    input.checked = true;
    input.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  $("#merge").checked = state.merge;
  if (state.mask >= 0 && state.off && !data.ablation.filled_without[state.mask]) state.off = null;
  if (kept.pair) return "pair";
  if (state.mask >= 0 || state.off) return "ablation";
  if (state.changes?.length) return "change";
  return "layer" in kept || "head" in kept ? "attention" : "text";
}
/** Writes what is chosen into the address, without a new entry in the history. */
function remember() {
  const chosen = written();
  try {
    history.replaceState(null, "", `${location.href.split("#")[0]}${chosen && "#"}${chosen}`);
  } catch {
    // A frame without an address of its own, as in Jupyter, or a browser that counts too many changes: no link then.
  }
}
