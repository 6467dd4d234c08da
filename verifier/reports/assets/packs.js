// What the page holds compressed, and the prompts it belongs to.
// The scripts are joined into one function in the order of html.py, so each may use what an earlier one declares.
// Declares for the others: root, list, byId, all, once, rows, rowOf, pieces, entryOf, fill, breathe, escaped.

const root = document.documentElement;
const list = document.getElementById("list");
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const inflate = async (element) => {
  if (!window.DecompressionStream) throw new Error("This browser cannot unpack what the page holds; a newer one can.");
  const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).json();
};

const once = (make) => {
  let made;
  return () => (made ??= make());
};

// A prompt's pack is the first one after it in the file, as it was written.
const rows = [];
{
  let waiting = [];
  for (const element of list.children) {
    if (element.matches(".pack")) {
      const entries = once(async () => new Map((await inflate(element)).map((entry) => [entry.n, entry])));
      for (const row of waiting) row.entries = entries;
      waiting = [];
    } else if (element.matches(".p")) {
      const { o, u, g, l, t, f, x, a } = element.dataset;
      const row = { element, number: +element.id.slice(1), order: rows.length, o, u, g, l, t, f, x, a, entries: null };
      rows.push(row);
      waiting.push(row);
    }
  }
}
const rowOf = new Map(rows.map((row) => [row.element, row]));
const pieces = once(() => inflate(byId("pieces")));

const entryOf = async (row) => (row.entries ? (await row.entries()).get(row.number) : undefined);

// Puts a body in place that was kept compressed. It comes from the same template as the others, escaped there.
const fill = async (row) => {
  const place = row.element.querySelector(":scope > .packed");
  if (!place) return;
  const entry = await entryOf(row);
  if (!place.isConnected || !entry) return;
  const template = document.createElement("template");
  template.innerHTML = entry.html;
  place.replaceWith(template.content);
};

// Lets the page breathe: resolves at once while there is time in this slice, after a frame when there is not.
let sliceEnd = 0;
const breathe = () => {
  if (performance.now() < sliceEnd) return undefined;
  return new Promise((resolve) => setTimeout(() => { sliceEnd = performance.now() + 24; resolve(); }));
};

// Characters that act or hide, as JSON escapes.
const ACTING = new RegExp("[" + [
  "\\u0000-\\u0009\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u180b-\\u180f",
  "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\uffff",
].join("") + "]", "g");
const escaped = (text) => text.replace(ACTING, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
