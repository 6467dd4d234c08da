// The answers by token: what each one is, and what the reference thinks of it.
/* global rowOf, pieces, entryOf, escaped */
// Declares for the others: tokensOf.

const AROUND = 16;
const SPANS = 24;
const NOT_KNOWN = "not known";

const made = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// Ranges of tokens around the spans of one side, joined where they meet.
const windows = (spans, side, length) => {
  const ranges = [];
  for (const span of spans.slice(0, SPANS)) {
    const start = Math.max(0, span[side] - AROUND);
    const end = Math.min(length, Math.min(span[side + 1], span[side] + 4 * AROUND) + AROUND);
    const last = ranges.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else ranges.push([start, end]);
  }
  return ranges.length ? ranges : [[0, Math.min(length, 4 * AROUND)]];
};

const inSpan = (spans, side, index) => spans.some((span) => span[side] <= index && index < span[side + 1]);

const bytesOf = (piece) => [...new TextEncoder().encode(piece)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");

// Before the first difference both sides share the reference's distributions; at a split the evidence tells.
const standing = (facts, side, index, id) => {
  const split = facts.splits.find((one) => one.index === index);
  const first = facts.spans[0]?.[0] ?? Infinity;
  const top = side === 0 || index <= first ? facts.ref.top?.[index] : undefined;
  const place = top?.findIndex(([token]) => token === id) ?? -1;
  let logprob = place >= 0 ? top[place][1] : undefined;
  let rank = place >= 0 ? place + 1 : undefined;
  if (split && id === split.spec_token) [logprob, rank] = [split.spec_logprob ?? logprob, split.rank ?? rank];
  else if (split && id === split.ref_token) logprob = split.ref_logprob ?? logprob;
  return { logprob, rank, split };
};

const named = (id, names) => (names[id] === undefined ? `#${id}` : `#${id} ${escaped(JSON.stringify(names[id]))}`);

const describe = (facts, names, side, index, id) => {
  const { logprob, rank, split } = standing(facts, side, index, id);
  const piece = names[id];
  const words = [
    `token ${index} of the ${side === 0 ? "reference" : "speculative answer"}`,
    `id ${id}`,
    piece === undefined ? "text not known" : `text ${escaped(JSON.stringify(piece))}`,
    piece === undefined ? "bytes not known" : `bytes ${bytesOf(piece)}`,
    `logprob on the reference ${logprob === undefined ? NOT_KNOWN : logprob.toFixed(4)}`,
    `rank ${rank ?? NOT_KNOWN}`,
  ];
  if (split) {
    const tied = split.tied?.length ? split.tied.map((token) => named(token, names)).join(", ") : "none";
    words.push(`gap ${split.at_least ? "at least " : ""}${split.gap.toFixed(4)} nats`, `tolerance ${split.tolerance}`);
    words.push(`argmax ${named(split.argmax, names)}`, `tied: ${tied}`);
  }
  return words.join(" · ");
};

const lane = (title, facts, names, side, tell) => {
  const ids = side === 0 ? facts.ref.ids : facts.spec.ids;
  const chips = made("div", { className: "chips" });
  let shown = 0;
  for (const [start, end] of windows(facts.spans, 2 * side, ids.length)) {
    if (start > shown) chips.append(made("span", { className: "more", textContent: `${start - shown} tokens` }));
    for (let index = start; index < end; index++) {
      const id = ids[index];
      const piece = names[id];
      const changed = inSpan(facts.spans, 2 * side, index);
      const label = piece === undefined ? `#${id}` : escaped(piece).replace(/ /g, "·").replace(/\n/g, "↵") || "∅";
      const chip = made("button", { type: "button", textContent: label });
      if (changed) chip.className = side === 0 ? "changed-ref" : "changed-spec";
      chip.addEventListener("click", () => tell(describe(facts, names, side, index, id)));
      chips.append(chip);
    }
    shown = end;
  }
  if (shown < ids.length) chips.append(made("span", { className: "more", textContent: `${ids.length - shown} tokens` }));
  return made("div", {}, made("p", { className: "role", textContent: title }), chips);
};

const tokensOf = async (element, button) => {
  const place = element.querySelector(".tokens");
  const on = place.hidden;
  if (on && !place.firstChild) {
    const raw = (await entryOf(rowOf.get(element)))?.raw ?? [];
    const find = (type, arm) => raw.find((record) => record.type === type && (!arm || (record.arm === arm && record.run === 0)));
    const comparison = find("comparison");
    const spans = comparison?.alignment?.unit === "token" ? comparison.alignment.spans : [];
    const facts = { spans, splits: comparison?.splits ?? [], ref: find("completion", "ref"), spec: find("completion", "spec") };
    const names = await pieces();
    const line = made("p", { className: "token", textContent: "Choose a token to see what the reference thinks of it." });
    line.setAttribute("role", "status");
    const tell = (text) => { line.textContent = text; };
    const lanes = [lane("reference", facts, names, 0, tell), lane("speculative", facts, names, 1, tell)];
    place.append(made("div", { className: "lanes" }, ...lanes), line);
  }
  place.hidden = !on;
  button.setAttribute("aria-pressed", String(on));
};
