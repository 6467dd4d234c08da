// Which prompts are shown, and in what order.
/* global root, list, byId, all, once, rows, entryOf, breathe */
// Declares for the others: search, status, readTexts, apply, reset.

const search = byId("search");
const regex = byId("regex");
const problem = byId("problem");
const status = byId("status");

const textOf = async (row) => {
  const entry = await entryOf(row);
  return (row.text ??= entry?.text ?? row.element.textContent);
};

const readTexts = once(async () => {
  for (const row of rows) {
    if (row.text === undefined) await textOf(row);
    await breathe();
  }
});

const pattern = () => {
  if (!search.value) return null;
  const source = regex.checked ? search.value : search.value.replace(/[\\^$.*+?()[\]{}|\/]/g, "\\$&");
  return new RegExp(source, "iu");
};

// Select values carry a leading "=", so that an empty value can be told from "every".
const wanted = (id) => byId(id)?.value ?? "";

let latest = 0;
const apply = async () => {
  const turn = ++latest;
  let matches;
  problem.textContent = "";
  try {
    matches = pattern();
  } catch (error) {
    problem.textContent = error.message;
  }
  search.setAttribute("aria-invalid", String(problem.textContent !== ""));
  if (matches) {
    status.textContent = "searching…";
    try {
      await readTexts();
    } catch (error) {
      problem.textContent = error.message;
      matches = null;
    }
  }
  const shown = new Set(all("[name=outcome]:checked").map((box) => box.value));
  const cause = wanted("by-cause"), category = wanted("by-category"), language = wanted("by-language");
  const decided = [];
  for (const row of rows) {
    const fits = shown.has(row.o) && (!cause || "=" + (row.u ?? "") === cause) &&
      (!category || "=" + (row.g ?? "") === category) && (!language || "=" + (row.l ?? "") === language) &&
      (!matches || matches.test(row.text));
    decided.push(fits);
    if (matches) await breathe();
    if (turn !== latest) return;
  }
  let count = 0;
  rows.forEach((row, index) => {
    count += decided[index];
    if (row.element.hidden === decided[index]) row.element.hidden = !decided[index];
  });
  byId("nothing").hidden = count > 0 || rows.length === 0;
  status.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} prompts`;
  root.dataset.applied = String(turn);
};

// Missing values go last, whichever way the others run.
const ORDERS = {
  "": (row) => row.order,
  n: (row) => row.number,
  f: (row) => row.f ?? Infinity,
  x: (row) => -(row.x ?? -Infinity),
  t: (row) => -(row.t ?? -Infinity),
  a: (row) => -(row.a ?? -Infinity),
};

const sort = (key) => {
  const value = ORDERS[key];
  const sorted = [...rows].sort((one, other) => value(one) - value(other) || one.order - other.order);
  list.append(...sorted.map((row) => row.element));
};

const reset = () => {
  for (const box of all("[name=outcome]")) box.checked = true;
  for (const select of all("#toolbar select")) select.value = "";
  search.value = "";
  regex.checked = false;
  sort("");
  return apply();
};

let typing;
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(apply, 120);
});
byId("toolbar").addEventListener("change", (event) => {
  if (event.target.id === "sort") sort(event.target.value);
  else if (event.target.id !== "shortcuts" && event.target !== search) apply();
});
