/* What is drawn, and what happens when. */

const drawers = { strips: drawStrips, field: drawField, norms: drawNorms, heads: drawHeads, arcs: drawArcs,
  matrix: drawMatrix, quadrants: drawQuadrants, weights: drawWeights, pair: drawPair, units: drawUnits, cube: drawCube,
  ablation: drawAblation, ...(data.start && liveDrawers) };
// What a change of the state concerns; the rest stays as it is.
const ofPointer = ["strips", "arcs", "matrix", "weights", "units"];
const ofToken = [...ofPointer, "pair"];
const ofAttention = ["arcs", "matrix", "quadrants", "weights", "pair"];
function draw(names = Object.keys(drawers)) {
  if (!data.attention) return; // not computed yet
  for (const name of names) for (const place of $$(`.draw.${name}`)) drawers[name](place);
  mark();
}
/** Marks the token wherever its name is written. */
function mark() {
  for (const one of $$("[data-token]")) one.classList.toggle("here", Number(one.dataset.token) === focused());
}
function hover(token) {
  if (state.hover === token) return;
  state.hover = token;
  // The arcs under the pointer are drawn anew only when it is on another token.
  draw(ofPointer);
}
/** Follows a token; pair: the steps of attention are those of this query and key, or null: of what it looks at most. */
function choose(token, pair = null) {
  state.token = token;
  state.pair = pair;
  state.hover = -1;
  const input = $(`input[name=token][value="${token}"]`);
  input.checked = true;
  input.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
  draw(ofToken);
  remember();
  $("#announcement").textContent = pair ? pairText() : $("#looks").textContent;
}
document.addEventListener("change", ({ target }) => {
  if (target.name === "token") return choose(Number(target.value));
  if (["from", "to"].includes(target.id)) {
    const pair = [...(pairShown() ?? [0, 0])];
    pair[target.id === "from" ? 0 : 1] = Number(target.value);
    return choose(pair[0], pair);
  }
  if (["masked", "switched-off"].includes(target.id)) return change(target.id === "masked" ? "mask" : "off", target.value);
  if (target.name === "layer") state.layer = Number(target.value);
  else if (target.name === "head") state.head = target.value;
  else if (target.name === "part") state.part = target.value;
  else if (target.id === "merge") state.merge = target.checked;
  else return;
  draw(target.name === "layer" ? ["heads", "norms", "strips", "field", "units", ...ofAttention] : ofAttention);
  remember();
  $("#announcement").textContent = `${where()}. ${$("#looks").textContent}`;
});

const dark = matchMedia("(prefers-color-scheme: dark)"), button = $("#theme");
function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  const isDark = (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  button.textContent = isDark ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark ? "light" : "dark"} colours`);
  readPalette();
  draw();
}
button.addEventListener("click", () => theme(button.textContent.toLowerCase()));
dark.addEventListener("change", () => theme());
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(["arcs", "matrix"]); } });

// The map: open beside the page, closed above it, and the stop in view is marked.
if (innerWidth < 1080) $("#map").open = false;
const seen = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter((entry) => entry.isIntersecting))
    for (const link of $$("nav a")) link.ariaCurrent = link.hash === `#${target.id}` ? "true" : null;
}, { rootMargin: "-20% 0px -70% 0px" });
$$("section.stop").forEach((section) => seen.observe(section));

// Tests look at what is drawn through this.
window.trace = { data, state, view, probs, vector, steps, measure };

/** Shows the state in the address, if there is one, at its stop. */
async function follow() {
  const address = location.hash; // computing writes what was typed into it
  if (data.start && (address.includes("=") || !data.attention)) {
    Object.assign(state, START, typedIn(new URLSearchParams(address.slice(1))));
    fillForm();
    await compute();
  }
  const stop = recall(address);
  if (!stop) return;
  draw();
  remember();
  $(`#${stop}`).scrollIntoView({ behavior: "instant" });
}
addEventListener("hashchange", follow);
theme();
follow();
