// How an answer is shown: side by side or in one column, with its white space, one difference after another.
/* global list, all, rows, rowOf, entryOf, fill, breathe, escaped, status */
// Declares for the others: view, dressAll, bring, step.

const view = { inline: false, spaces: false };

const inlineOf = (row) => {
  const [ref, spec] = [...row.children].map((cell) => [...cell.children]);
  const cell = row.firstElementChild.cloneNode(false);
  cell.classList.add("both");
  while (ref.length || spec.length) {
    if (ref[0]?.localName === "del") cell.append(ref.shift().cloneNode(true));
    else if (spec[0]?.localName === "ins") cell.append(spec.shift().cloneNode(true));
    else {
      cell.append((ref.shift() ?? spec[0]).cloneNode(true));
      spec.shift();
    }
  }
  return cell;
};

const setInline = (element, on) => {
  for (const row of all(".row:not(.sides)", element)) {
    if (row.classList.contains("one") === on) continue;
    row.classList.toggle("one", on);
    if (on) {
      const cell = inlineOf(row);
      for (const side of row.children) side.hidden = true;
      row.append(cell);
    } else {
      row.lastElementChild.remove();
      for (const side of row.children) side.hidden = false;
    }
  }
  for (const sides of all(".row.sides", element)) sides.hidden = on;
};

const plain = new WeakMap();
const setSpaces = (element, on) => {
  for (const block of all(".text", element)) {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (on && !plain.has(node)) {
        plain.set(node, node.data);
        // A dot is no place to break a line; the zero-width space after it is.
        node.data = node.data.replace(/ /g, "·\u200b").replace(/\t/g, "→\t").replace(/\n/g, "↵\n");
      } else if (!on && plain.has(node)) {
        node.data = plain.get(node);
        plain.delete(node);
      }
    }
  }
};

// White space first taken back: a column made of spelled-out text could not be told from one that was not.
const dress = (element) => {
  if (element.dataset.inline !== String(view.inline)) {
    setSpaces(element, false);
    setInline(element, view.inline);
    element.dataset.inline = String(view.inline);
  }
  setSpaces(element, view.spaces);
};

const dressAll = async () => {
  const open = rows.filter((row) => row.element.open && !row.element.hidden).map((row) => row.element);
  const inView = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  for (const element of [...open.filter(inView), ...open]) {
    dress(element);
    await breathe();
  }
};

const rawOf = async (row, place) => {
  const raw = (await entryOf(row))?.raw;
  if (!raw || place.dataset.filled) return;
  place.dataset.filled = "yes";
  // Numbers of one array on one line: a thousand ids one below the other cannot be read.
  const compact = (numbers) => numbers.replace(/\s+/g, "");
  const json = raw.map((record) => JSON.stringify(record, null, 1).replace(/\[[-\d.,e\s[\]null]*\]/g, compact));
  place.textContent = escaped(json.join("\n"));
};

// "toggle" does not bubble, but it can be caught on the way down.
list.addEventListener("toggle", async (event) => {
  const { target } = event;
  if (!target.open) return;
  const element = target.closest(".p");
  const row = rowOf.get(element);
  if (target === element) {
    if (element.checkVisibility?.() === false) return;
    await fill(row);
    if (view.inline || view.spaces || element.dataset.inline) dress(element);
  } else if (target.matches(".raw")) {
    await rawOf(row, target.querySelector("pre"));
  }
}, true);

// Prompts that are open from the start but compressed are filled when they come near.
const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    fill(rowOf.get(target)).then(() => (view.inline || view.spaces) && dress(target));
  }
}, { rootMargin: "600px" });
for (const { element } of rows) if (element.open && element.querySelector(":scope > .packed")) near.observe(element);

const bring = (target, block) => {
  target.scrollIntoView({ block });
  // What was skipped above has its real height only now.
  requestAnimationFrame(() => requestAnimationFrame(() => target.scrollIntoView({ block })));
};

let current = null;
const STOPS = ".p:not([hidden]) .cell:not([hidden]) [data-d], .p:not([hidden])[open] > .packed";

// The places to go to, in order: of a difference that is marked on both sides the first mark.
const stopsOf = (within = document) => {
  const stops = [];
  let before;
  for (const stop of all(STOPS, within)) {
    const row = stop.closest(".row");
    const name = stop.dataset.d;
    if (before && row && before.row === row && before.names.has(name)) continue;
    if (!before || before.row !== row) before = { row, names: new Set() };
    before.names.add(name);
    stops.push(stop);
  }
  return stops;
};

const step = async (direction) => {
  const stops = stopsOf();
  if (!stops.length) return;
  let at = stops.indexOf(current);
  if (at < 0) {
    // Without a difference at hand the search begins where the reader is.
    const from = stops.findIndex((stop) => stop.getBoundingClientRect().top > 60);
    at = direction > 0 ? (from < 0 ? stops.length : from) : (from < 0 ? stops.length : from) - 1;
  } else at += direction;
  let target = stops[(at + stops.length) % stops.length];
  const element = target.closest(".p");
  if (target.matches(".packed")) {
    await fill(rowOf.get(element));
    target = element.querySelector("[data-d]") ?? element;
  }
  element.open = true;
  current = target;
  target.focus({ preventScroll: true });
  bring(target, "center");
  status.textContent = `difference ${((at + stops.length) % stops.length) + 1} of ${stops.length}`;
};

// A click in the strip goes to the difference nearest to it.
list.addEventListener("click", (event) => {
  const strip = event.target.closest(".strip");
  if (!strip) return;
  const box = strip.getBoundingClientRect();
  const stops = stopsOf(strip.closest(".p"));
  const marks = all(".del, .ins", strip).map((mark) => +mark.getAttribute("x")).sort((one, other) => one - other);
  if (!stops.length || !marks.length) return;
  const x = (event.clientX - box.left) / box.width * 1000;
  const nearest = marks.reduce((best, mark, index) => (Math.abs(mark - x) < Math.abs(marks[best] - x) ? index : best), 0);
  current = stops[Math.round(nearest / Math.max(1, marks.length - 1) * (stops.length - 1))];
  current.focus({ preventScroll: true });
  bring(current, "center");
});
