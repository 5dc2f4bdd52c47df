// Columns that are hidden, menus, and copies of whole ids. The pages also work without it.
(function () {
  "use strict";
  const root = document.documentElement, kept = window.sqlbufferChoice("sqlbuffer-hidden-columns");
  // Before the page is painted.
  root.dataset.hidden = kept.get() ?? "ended";

  function startColumns() {
    for (const menu of document.querySelectorAll("[data-columns]")) {
      menu.hidden = false;
      const hidden = root.dataset.hidden.split(" ");
      for (const box of menu.querySelectorAll("input")) box.checked = !hidden.includes(box.value);
    }
  }
  document.addEventListener("change", (event) => {
    const menu = event.target.closest("[data-columns]");
    if (!menu) return;
    const boxes = [...menu.querySelectorAll("input")];
    root.dataset.hidden = boxes.filter((box) => !box.checked).map((box) => box.value).join(" ");
    kept.set(root.dataset.hidden);
  });

  // A menu closes when something else is used.
  const closeMenus = (but) => document.querySelectorAll(".menu[open]").forEach((menu) => { if (!menu.contains(but)) menu.open = false; });
  document.addEventListener("pointerdown", (event) => closeMenus(event.target));
  document.addEventListener("focusin", (event) => closeMenus(event.target));
  document.addEventListener("keydown", (event) => {
    const menu = document.querySelector(".menu[open]");
    if (event.key === "Escape" && menu) { menu.open = false; menu.querySelector("summary").focus(); }
  });

  const whole = (id) => ("whole" in id.dataset ? id.title : id.textContent);
  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page without encryption has no clipboard.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const note = document.getElementById("copied");
    if (note) { note.textContent = `Copied ${text.length > 60 ? `${text.length} characters` : text}`; setTimeout(() => { note.textContent = ""; }, 2000); }
    if (button) { const words = button.textContent; button.textContent = "Copied"; setTimeout(() => { button.textContent = words; }, 1200); }
  }
  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("[data-toggles]");
    if (toggle) {
      const isOn = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", isOn);
      document.querySelectorAll(`.${toggle.dataset.toggles}`).forEach((part) => part.classList.toggle("short", !isOn));
    }
    const button = event.target.closest("[data-copies]");
    if (button && button.textContent !== "Copied") copy(button.parentElement.querySelector("code").textContent, button);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "c" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const id = document.activeElement.closest("[data-row]")?.querySelector(".id");
    if (id) copy(whole(id));
  });

  // What is copied has whole ids: the page shows them in short.
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (!selection.rangeCount || event.target.matches?.("input, textarea")) return;
    const range = selection.getRangeAt(0), place = range.commonAncestorContainer;
    const within = (place.nodeType === 1 ? place : place.parentElement).closest("[data-whole]");
    let text = within ? whole(within) : null;
    if (text === null) {
      const part = range.cloneContents();
      const ids = part.querySelectorAll("[data-whole]");
      if (!ids.length) return;
      ids.forEach((id) => { id.textContent = whole(id); });
      const rows = [...part.querySelectorAll("tr")];
      const line = (row) => [...row.children].filter((cell) => root.dataset.hidden.split(" ").indexOf(cell.dataset.col) < 0).map((cell) => cell.textContent.trim()).join("\t");
      text = rows.length ? rows.map(line).join("\n") : [...part.querySelectorAll("td, th")].map((cell) => cell.textContent.trim()).join("\t") || part.textContent.trim();
    }
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  });

  // Ages go on, from the one that the server wrote: the clocks may differ.
  const UNITS = [[31557600, "y"], [86400, "d"], [3600, "h"], [60, "m"], [1, "s"]], written = new WeakMap();
  function shortAge(seconds) {
    const place = UNITS.findIndex(([length]) => seconds >= length);
    if (place < 0) return "0s";
    const [length, unit] = UNITS[place], n = Math.floor(seconds / length), rest = seconds - n * length;
    const [finer, name] = UNITS[Math.min(place + 1, UNITS.length - 1)];
    return n + unit + (n < 10 && rest >= finer ? ` ${Math.floor(rest / finer)}${name}` : "");
  }
  function tick() {
    for (const age of document.querySelectorAll("time[data-seconds]")) {
      if (!written.has(age)) { written.set(age, performance.now()); continue; }
      const text = shortAge(Math.floor(+age.dataset.seconds + (performance.now() - written.get(age)) / 1000));
      if (age.textContent !== text) age.textContent = text;
    }
  }
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  function start() {
    tick();
    startColumns();
    // On a narrow screen the tabs scroll.
    const tab = document.querySelector(".bar [aria-current]");
    if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 40;
    document.querySelectorAll("[data-copies], [data-toggles]").forEach((button) => { button.hidden = false; });
    document.querySelectorAll("[data-toggles]").forEach((toggle) => {
      if (toggle.getAttribute("aria-pressed") === "true") return;
      document.querySelectorAll(`.${toggle.dataset.toggles}`).forEach((part) => part.classList.add("short"));
    });
  }
  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("htmx:afterSettle", start);
})();
