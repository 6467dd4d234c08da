// Buttons, keys, and what happens when the page opens.
/* global root, byId, rows, rowOf, fill, search, readTexts, apply, reset, view, dressAll, bring, step, tokensOf */

const pressed = (name, on) => byId("toolbar").querySelector(`[data-do=${name}]`).setAttribute("aria-pressed", String(on));

const remember = (key, value) => {
  // A page opened as a file may have no storage; it then forgets.
  try { localStorage.setItem(key, value); } catch { /* nothing to do */ }
};

const setTheme = (theme) => {
  root.dataset.theme = theme;
  remember("lossless-theme", theme);
};

const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

const toggleView = (name) => {
  view[name] = !view[name];
  pressed(name, view[name]);
  return dressAll();
};

const ACTIONS = {
  next: () => step(1),
  previous: () => step(-1),
  inline: () => toggleView("inline"),
  spaces: () => toggleView("spaces"),
  fold: () => {
    const differing = rows.filter((row) => !row.element.hidden && !["exact", "recorded", "open"].includes(row.o));
    const open = !differing.some((row) => row.element.open);
    for (const row of differing) row.element.open = open;
  },
  theme: () => setTheme(dark() ? "light" : "dark"),
  keys: () => {
    const keys = byId("keys");
    keys.hidden = !keys.hidden;
    byId("toolbar").querySelector("[data-do=keys]").setAttribute("aria-expanded", String(!keys.hidden));
  },
  search: () => search.focus(),
  reset,
};

const KEYS = { n: "next", p: "previous", i: "inline", w: "spaces", f: "fold", d: "theme", "?": "keys", "/": "search" };

const copied = async (button) => {
  const name = button.dataset.copy;
  const source = byId(name) ?? button.closest(".p").querySelector(`pre.${name}`);
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // Without the permission the text is selected, to be copied by hand.
    source.closest("details")?.setAttribute("open", "");
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
  }
  const label = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = label; }, 1200);
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy) copied(button);
  else if (button.dataset.do === "tokens") tokensOf(button.closest(".p"), button);
  else if (button.dataset.do) ACTIONS[button.dataset.do]();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target === search) search.blur();
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId("shortcuts").checked) return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  ACTIONS[action]();
});

const visit = async () => {
  const element = /^#p\d+$/.test(location.hash) && byId(location.hash.slice(1));
  if (!element) return;
  element.open = true;
  element.hidden = false;
  await fill(rowOf.get(element));
  bring(element, "start");
};

try {
  const theme = localStorage.getItem("lossless-theme");
  if (theme) root.dataset.theme = theme;
} catch { /* see remember */ }
root.dataset.js = "yes";
byId("toolbar").hidden = false;
apply();
addEventListener("hashchange", visit);
visit();
// Texts are read while nothing else is to be done, so that the first search finds them ready.
const ready = () => { root.dataset.ready = "yes"; };
const failed = () => { /* the first search reports it */ };
(window.requestIdleCallback ?? setTimeout)(() => readTexts().then(ready, failed));
