// Theme, keys and live figures. The pages also work without it.
(function () {
  "use strict";
  const root = document.documentElement;
  // A choice that the browser keeps, if it keeps any. The other scripts use it too.
  window.sqlbufferChoice = (key) => ({
    get: () => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (value) => { try { localStorage.setItem(key, value); } catch { /* for this page alone */ } },
  });
  const chosen = window.sqlbufferChoice("sqlbuffer-theme");
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => chosen.get() || (wantsDark.matches ? "dark" : "light");
  function showTheme() {
    root.dataset.theme = theme();
    document.dispatchEvent(new CustomEvent("sqlbuffer:theme"));
  }
  showTheme();
  wantsDark.addEventListener("change", showTheme);

  function switchTheme() {
    const other = theme() === "dark" ? "light" : "dark";
    chosen.set(other);
    root.dataset.theme = other;
    document.dispatchEvent(new CustomEvent("sqlbuffer:theme"));
  }

  // Rows for the keys j and k: each has one link, or gets the focus.
  const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent);
  const target = (row) => row.querySelector("a[href], summary, button") || row;
  function move(by) {
    const all = rows();
    if (!all.length) return;
    const now = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
    const element = target(next);
    if (element === next) next.tabIndex = -1;
    element.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  function isTyping(element) {
    return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
  }

  function showKeys() {
    const dialog = document.getElementById("keys");
    if (dialog && !dialog.open) dialog.showModal();
  }

  function turn(way) {
    const to = document.querySelector(`main a[rel="${way}"]`);
    if (to) to.click();
  }

  const KEYS = { "[": () => turn("prev"), "]": () => turn("next"), j: () => move(1), k: () => move(-1), t: switchTheme, "?": showKeys };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) {
      if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("[data-submit]")) {
        event.target.form.requestSubmit();
      }
      return;
    }
    if (event.key === "/") {
      const search = document.querySelector("[data-search]") || document.querySelector("main input, main textarea");
      if (search) { event.preventDefault(); search.focus(); }
    } else if (KEYS[event.key]) {
      event.preventDefault();
      KEYS[event.key]();
    }
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-switch]")) switchTheme();
    if (event.target.closest("[data-keys]")) showKeys();
  });

  // A part of the page that the server sends repeatedly, as escaped HTML.
  function followEvents(part) {
    const note = document.querySelector(part.dataset.liveNote || "[data-live-note]");
    const say = (text) => { if (note) note.textContent = text; };
    let source = null;
    function start() {
      source = new EventSource(part.dataset.live);
      source.onopen = () => say("live");
      source.onerror = () => say("not live: waiting for the server");
      source.addEventListener("trouble", (event) => say(JSON.parse(event.data)));
      source.addEventListener("figures", (event) => {
        const all = rows();
        const focused = part.contains(document.activeElement) ? all.findIndex((row) => row.contains(document.activeElement)) : -1;
        part.innerHTML = JSON.parse(event.data);
        if (focused >= 0 && rows()[focused]) target(rows()[focused]).focus({ preventScroll: true });
        say("live");
      });
    }
    start();
    // A hidden tab requests nothing.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { source.close(); say("paused"); } else if (source.readyState === 2) start();
    });
    addEventListener("pagehide", () => source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) start(); });
  }
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-live]").forEach(followEvents);
  });
})();
