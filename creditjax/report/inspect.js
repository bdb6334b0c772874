"use strict";
// The viewer: one rollout at a time out of those that the filters leave. Its state is the URL's fragment, so that a
// view can be linked to. Text of the file only ever becomes text nodes.
const data = JSON.parse(document.getElementById("rollouts").textContent);
const byId = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const number = (value) => {
  if (value === null || value === undefined) return "no credit assigned";
  if (value === 0) return "0";
  const digits = Number(Math.abs(value).toPrecision(3));
  const shown = digits >= 1e6 || digits < 1e-4 ? digits.toExponential(2) : String(digits);
  return (value > 0 ? "+" : "\u2212") + shown;
};
const plain = (value) => (value === null ? "unscored" : String(Number(value.toPrecision(4))).replace("-", "\u2212"));

// --- One rollout ------------------------------------------------------------------------------------------------------

const acted = (rollout, t) => rollout.mask === 1 || rollout.mask[t] === 1;
// Credit of a recipe is null (it could not run), one number for all positions where the policy acted, or a list.
const creditAt = (rollout, recipe, t) => {
  const credit = rollout.credit[recipe];
  if (credit === null || !acted(rollout, t)) return null;
  return Array.isArray(credit) ? credit[t] : credit;
};
const opposes = (rollout, value) => rollout.standing !== null && value !== null && value * rollout.standing < 0;
const paint = (element, value, scale) => {
  if (!value) return;
  element.classList.add(value > 0 ? "cj-p" : "cj-n");
  element.style.setProperty("--c", Math.min(1, Math.abs(value) / scale).toFixed(3));
};
const verdict = (rollout) =>
  rollout.outcome === null ? "unscored" : rollout.standing > 0 ? "good" : rollout.standing < 0 ? "bad" : "plain";

// --- Filters ----------------------------------------------------------------------------------------------------------

const OUTCOMES = {
  any: () => true,
  better: (r) => r.standing > 0,
  worse: (r) => r.standing !== null && r.standing < 0,
  live: (r) => !r.dead,
  dead: (r) => Boolean(r.dead),
  positive: (r) => r.outcome !== null && r.outcome > 0,
  negative: (r) => r.outcome !== null && r.outcome <= 0,
  unscored: (r) => r.outcome === null,
};
const SORTS = {
  file: () => 0,
  disagreement: (a, b) => b.disagreement - a.disagreement,
  against: (a, b) => b.against - a.against,
  longest: (a, b) => b.length - a.length,
  shortest: (a, b) => a.length - b.length,
  outcome: (a, b) => (b.outcome ?? -Infinity) - (a.outcome ?? -Infinity),
};
const FIELDS = ["group", "outcome", "min", "max", "text", "sort"];
const DEFAULTS = { group: "", outcome: "any", min: "", max: "", text: "", sort: "file" };
const fold = (text) => text.replaceAll("\u21b5", " ").replace(/\s+/g, " ").toLowerCase();
data.rollouts.forEach((rollout, index) => {
  rollout.index = index;
  rollout.length = rollout.pieces.length;
  // What was asked, in one line: the last message that the policy did not write before it began.
  const asked = rollout.prompt.findLast((m) => m[0] === "user") ?? rollout.prompt.at(-1);
  rollout.asked = asked ? asked[1].replaceAll("\u21b5", " ").replace(/\s+/g, " ").trim() : "";
  rollout.words = fold([rollout.id, ...rollout.prompt.map((m) => m[1]), rollout.pieces.join("")].join(" "));
});

// A template that every prompt begins with tells no group from another.
const asks = [...new Set(data.rollouts.map((r) => r.asked))];
let common = 0;
if (asks.length > 1) while (asks.every((ask) => common < ask.length && ask[common] === asks[0][common])) common += 1;
common = asks.length > 1 ? asks[0].lastIndexOf(" ", common - 1) + 1 : 0;
const gist = (rollout) => {
  const from = common > 10 ? common : 0;
  const said = rollout.asked.slice(from, from + 90);
  return (from ? "\u2026" : "") + said + (rollout.asked.length > from + 90 ? "\u2026" : "");
};

let shown = [];
let current = null;
let position = -1;
const state = () => Object.fromEntries(FIELDS.map((name) => [name, byId(`f-${name}`).value]));

const filter = () => {
  const want = state();
  const group = want.group.trim().toLowerCase();
  const text = fold(want.text.trim());
  const low = want.min === "" ? 0 : Number(want.min);
  const high = want.max === "" ? Infinity : Number(want.max);
  shown = data.rollouts.filter(
    (r) =>
      (!group || r.group.toLowerCase().includes(group)) &&
      OUTCOMES[want.outcome](r) &&
      r.length >= low &&
      r.length <= high &&
      (!text || r.words.includes(text)),
  );
  shown.sort((a, b) => SORTS[want.sort](a, b) || a.index - b.index);
  drawList();
  byId("count").textContent = `${shown.length} of ${data.rollouts.length} shown`;
  byId("none").hidden = shown.length > 0;
  byId("detail").hidden = shown.length === 0;
  if (!shown.includes(current)) select(shown[0] ?? null, false);
  else mark(false);
};
const remember = () => {
  const want = state();
  const said = new URLSearchParams();
  for (const name of FIELDS) if (want[name] !== DEFAULTS[name]) said.set(name, want[name]);
  if (current) said.set("id", current.id);
  history.replaceState(null, "", `#${said}`);
};
const recall = () => {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const name of FIELDS) {
    const input = byId(`f-${name}`);
    input.value = said.get(name) ?? DEFAULTS[name];
    if (input.value === "" && input.tagName === "SELECT") input.value = DEFAULTS[name];
  }
  const wanted = data.rollouts.find((r) => r.id === said.get("id"));
  // At first something that differs from its group: a dead one shows nothing but zeros.
  current = wanted ?? (location.hash.length < 2 ? data.rollouts.find((r) => !r.dead) : current) ?? null;
  filter();
  if (shown.includes(current)) select(current, true);
};

// --- The list ---------------------------------------------------------------------------------------------------------

const list = byId("list");
const rows = new Map();
const rowOf = (rollout) => {
  if (rows.has(rollout)) return rows.get(rollout);
  const row = make("li", "entry");
  row.setAttribute("role", "option");
  row.id = `r-${rollout.index}`;
  const head = make("span", "who");
  head.append(make("span", `chip ${verdict(rollout)}`, plain(rollout.outcome)), make("span", "name", rollout.group));
  if (rollout.dead) head.append(make("span", "dead", "dead"));
  row.append(head);
  if (rollout.asked) row.append(make("span", "ask", gist(rollout)));
  row.append(make("span", "gist", rollout.pieces.join("").trim().slice(0, 90)));
  const bar = make("span", "gauge");
  bar.title = `disagreement ${rollout.disagreement}`;
  const fill = make("span");
  fill.style.width = `${Math.min(100, (100 * rollout.disagreement) / data.most)}%`;
  bar.append(fill);
  row.append(bar);
  row.addEventListener("click", () => select(rollout, false));
  rows.set(rollout, row);
  return row;
};
const drawList = () => list.replaceChildren(...shown.map(rowOf));
const mark = (scroll) => {
  for (const [rollout, row] of rows) row.setAttribute("aria-selected", String(rollout === current));
  if (!current) return list.removeAttribute("aria-activedescendant");
  list.setAttribute("aria-activedescendant", `r-${current.index}`);
  const row = rows.get(current);
  // Within the list alone: scrollIntoView would move the page too.
  if (row && scroll) {
    if (row.offsetTop < list.scrollTop) list.scrollTop = row.offsetTop;
    const end = row.offsetTop + row.offsetHeight - list.clientHeight;
    if (end > list.scrollTop) list.scrollTop = end;
  }
};
const select = (rollout, scroll = true) => {
  current = rollout;
  position = -1;
  mark(scroll);
  if (rollout) drawDetail(rollout);
  remember();
};
const step = (by) => {
  if (!shown.length) return;
  const at = shown.indexOf(current);
  select(shown[Math.max(0, Math.min(shown.length - 1, at + by))]);
};

// --- The rollout ------------------------------------------------------------------------------------------------------

const detail = byId("detail");
let spans = [];

const drawDetail = (rollout) => {
  const facts = make("p", "facts");
  facts.append(make("span", `chip ${verdict(rollout)}`, `outcome ${plain(rollout.outcome)}`));
  const acting = rollout.pieces.reduce((n, _, t) => n + (acted(rollout, t) ? 1 : 0), 0);
  const said = [`${acting} of ${rollout.length} positions chosen by the policy`];
  if (rollout.standing) said.push(`${number(rollout.standing)} against the mean of its group`);
  if (rollout.end !== "unknown") said.push(rollout.end);
  facts.append(said.join(" \u00b7 "));
  const title = make("h3", "id", rollout.id);
  const parts = [title, facts];
  if (rollout.dead) parts.push(make("p", "warning", `Dead group: ${rollout.dead}.`));
  parts.push(drawGroup(rollout));
  if (rollout.prompt.length) parts.push(drawPrompt(rollout));
  if (rollout.roles.length > 1) parts.push(drawTurns(rollout));
  spans = [];
  const columns = make("div", "columns");
  data.recipes.forEach((recipe, index) => columns.append(drawColumn(rollout, recipe, index)));
  parts.push(columns);
  detail.replaceChildren(...parts);
  read(-1);
};

const drawGroup = (rollout) => {
  const box = make("p", "siblings");
  box.append(make("span", "", `Group ${rollout.group}`));
  if (rollout.asked) box.append(" \u201c", make("span", "ask", gist(rollout)), "\u201d");
  box.append(": ");
  for (const other of data.rollouts.filter((r) => r.group === rollout.group)) {
    const button = make("button", `chip ${verdict(other)}`, plain(other.outcome));
    button.type = "button";
    button.title = other.id;
    if (other === rollout) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => select(other));
    box.append(button);
  }
  const left = rollout.members - data.rollouts.filter((r) => r.group === rollout.group).length;
  if (left > 0) box.append(make("span", "", ` and ${left} more that are not on this page`));
  return box;
};

const drawPrompt = (rollout) => {
  const box = make("details", "prompt-box");
  const length = rollout.prompt.reduce((n, m) => n + m[1].length, 0);
  box.open = length < 700;
  box.append(make("summary", "", "Prompt"));
  for (const [role, content] of rollout.prompt) {
    const line = make("p", "prompt");
    if (rollout.prompt.length > 1) line.append(make("b", "role", role), " ");
    line.append(content);
    box.append(line);
  }
  return box;
};

const means = (rollout, recipe) => {
  const total = rollout.roles.map(() => 0);
  const count = rollout.roles.map(() => 0);
  rollout.segment.forEach((k, t) => {
    const value = k < 0 ? null : creditAt(rollout, recipe, t);
    if (value !== null) {
      total[k] += value;
      count[k] += 1;
    }
  });
  return total.map((sum, k) => (count[k] ? sum / count[k] : null));
};

const drawTurns = (rollout) => {
  const wide = make("div", "wide");
  const table = make("table", "turns");
  table.append(make("caption", "", `Mean credit of each ${rollout.unit}`));
  const head = make("tr");
  head.append(make("th", "", ""));
  // What was not the policy's turn has no column.
  const all = data.recipes.map((_, index) => means(rollout, index));
  const own = rollout.roles.map((_, k) => k).filter((k) => all.some((each) => each[k] !== null));
  for (const k of own) head.append(make("th", "", `${k + 1}`));
  table.append(head);
  data.recipes.forEach((recipe, index) => {
    if (rollout.credit[index] === null) return;
    const row = make("tr");
    row.append(make("th", "", recipe.name));
    for (const k of own) {
      const mean = all[index][k];
      const cell = make("td", "", mean === null ? "\u2013" : number(mean));
      if (mean !== null) paint(cell, mean, recipe.scale);
      cell.title = `${recipe.name}, ${rollout.unit} ${k + 1}: ${number(mean)}`;
      cell.addEventListener("click", () => read(rollout.segment.indexOf(k), true));
      row.append(cell);
    }
    table.append(row);
  });
  wide.append(table);
  return wide;
};

const drawColumn = (rollout, recipe, index) => {
  const box = make("section", "column");
  const head = make("h4", "", recipe.name);
  box.append(head);
  if (rollout.credit[index] === null) {
    box.append(make("p", "none", "This rollout lacks what the recipe needs."));
    return box;
  }
  const opposed = rollout.pieces.reduce((n, _, t) => n + (opposes(rollout, creditAt(rollout, index, t)) ? 1 : 0), 0);
  head.append(make("small", "", opposed ? `${recipe.to}, ${opposed} against the outcome` : recipe.to));
  const bar = make("div", "cj-legend");
  bar.append(make("span", "", number(-recipe.scale)), make("span", "cj-bar"), make("span", "", number(recipe.scale)));
  box.append(bar);
  const averages = means(rollout, index);
  const drawn = [];
  let block = null;
  let last = null;
  rollout.pieces.forEach((piece, t) => {
    const segment = rollout.segment[t];
    if (block === null || segment !== last) {
      block = make("div", "cj-tokens");
      if (rollout.roles.length > 1) {
        const turn = make("div", segment < 0 ? "turn" : `turn ${averages[segment] === null ? "silent" : ""}`);
        if (segment >= 0 && averages[segment]) paint(turn, averages[segment], recipe.scale);
        if (rollout.unit === "turn" && segment >= 0) turn.append(make("div", "role", rollout.roles[segment]));
        turn.append(block);
        box.append(turn);
      } else box.append(block);
      last = segment;
    }
    const span = make("span", "cj-t");
    const value = creditAt(rollout, index, t);
    if (!acted(rollout, t)) span.classList.add("cj-m");
    else if (value === null) span.classList.add("cj-x");
    else paint(span, value, recipe.scale);
    if (opposes(rollout, value)) span.classList.add("cj-w");
    span.dataset.c = acted(rollout, t) ? number(value) : "not chosen by the policy";
    span.dataset.t = t;
    span.textContent = piece || "\u2205";
    block.append(span);
    drawn.push(span);
  });
  spans.push(drawn);
  return box;
};

// What the pointer or the arrow keys are on: marked in every column, and read out with all numbers.
const readout = byId("readout");
const read = (at, scroll = false) => {
  for (const drawn of spans) drawn[position]?.classList.remove("cj-on");
  position = at;
  const rollout = current;
  if (!rollout || at < 0 || at >= rollout.length) {
    position = -1;
    readout.replaceChildren(make("span", "hint", "Point at a token, or press \u2190 and \u2192, to read its credit."));
    return;
  }
  for (const drawn of spans) drawn[at]?.classList.add("cj-on");
  const segment = rollout.segment[at];
  const parts = [make("b", "", rollout.pieces[at].trim() || "\u2423")];
  const where = segment >= 0 && rollout.roles.length > 1 ? `, ${rollout.unit} ${segment + 1}` : "";
  parts.push(make("span", "hint", `position ${at + 1}${where}`));
  if (!acted(rollout, at)) parts.push(make("span", "", "not chosen by the policy"));
  else
    data.recipes.forEach((recipe, index) => {
      if (rollout.credit[index] === null) return;
      const value = creditAt(rollout, index, at);
      const said = make("span", "value", `${recipe.name} ${value === null ? "none" : number(value)}`);
      if (value !== null) paint(said, value, recipe.scale);
      if (opposes(rollout, value)) said.append(make("small", "", " against the outcome"));
      parts.push(said);
    });
  readout.replaceChildren(...parts);
  if (scroll) spans[0]?.[at]?.scrollIntoView({ block: "nearest" });
};
detail.addEventListener("pointerover", (event) => {
  const at = event.target.dataset?.t;
  if (at !== undefined) read(Number(at));
});
detail.addEventListener("pointerleave", () => read(-1));

// --- Keys -------------------------------------------------------------------------------------------------------------

const viewer = byId("viewer");
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  // The arrows scroll the page, but in the viewer.
  const inside = viewer.contains(event.target);
  const last = current ? current.length - 1 : 0;
  const act = {
    j: () => step(1),
    k: () => step(-1),
    h: () => read(Math.max(0, position - 1), true),
    l: () => read(Math.min(last, position + 1), true),
    "/": () => byId("f-text").focus(),
    ...(inside && {
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      ArrowLeft: () => read(Math.max(0, position - 1), true),
      ArrowRight: () => read(Math.min(last, position + 1), true),
      Home: () => read(0, true),
      End: () => read(last, true),
      Escape: () => read(-1),
    }),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
for (const name of FIELDS) byId(`f-${name}`).addEventListener("input", () => (filter(), remember()));
byId("reset").addEventListener("click", () => {
  for (const name of FIELDS) byId(`f-${name}`).value = DEFAULTS[name];
  filter();
  remember();
});
window.addEventListener("hashchange", recall);
recall();
