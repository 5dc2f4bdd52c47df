// Curves and film strips of an episode. The page also works without it.
(function () {
  "use strict";
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(figure) {
    const { x, series } = JSON.parse(figure.dataset.fieldCurve);
    const place = figure.querySelector(".plot");
    if (!window.uPlot || !x.length) return;
    place.replaceChildren();
    // The last values while the pointer is away.
    const tellLast = (plot) => plot.cursor.left < 0 && plot.setLegend({ idx: x.length - 1 }, false);
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 200), height: 170,
      legend: { show: series.length > 1 }, hooks: { ready: [tellLast], setCursor: [tellLast] }, padding: [8, 14, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => (high > low ? [low, high] : [low - 1, high + 1]) } },
      axes: [window.sqlbufferAxes.placeAxis(false), window.sqlbufferAxes.valueAxis()],
      series: [{ label: "step" }, ...series.map((line, i) => ({
        label: line.label, stroke: color(`--series-${(i % 12) + 1}`), width: 1.5,
        points: { show: x.length < 60 },
      }))],
    }, [x, ...series.map((line) => line.values)], place);
    figure.plot = plot;
  }

  function scrub(strip) {
    const frames = [...strip.querySelectorAll(".frames a")];
    const slider = strip.querySelector("[data-scrubber]"), image = strip.querySelector("[data-frame]");
    const name = strip.querySelector("[data-frame-name]");
    if (frames.length < 2 || !slider) return;
    slider.max = frames.length - 1;
    strip.querySelectorAll(".frame, .controls").forEach((part) => { part.hidden = false; });
    function show() {
      const frame = frames[slider.value];
      image.src = frame.href;
      image.alt = name.textContent = frame.dataset.position;
      slider.setAttribute("aria-valuetext", image.alt);
      frames.forEach((each) => each.classList.toggle("now", each === frame));
      const list = frame.parentElement;
      list.scrollLeft = frame.offsetLeft - list.offsetLeft - list.clientWidth / 2;
    }
    // It plays from the first image after the last one, and ends with the page.
    const play = strip.querySelector("[data-play]"), speed = strip.querySelector("[data-speed]");
    let timer = 0;
    function stop() {
      clearTimeout(timer);
      timer = 0;
      play.textContent = "Play";
    }
    function next() {
      if (!strip.isConnected || +slider.value >= frames.length - 1) return stop();
      const due = performance.now() + 1000 / speed.value;
      slider.value = +slider.value + 1;
      show();
      // An image that is late delays the ones after it, so that each is seen.
      image.decode().catch(() => {}).then(() => { if (timer) timer = setTimeout(next, Math.max(0, due - performance.now())); });
    }
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (+slider.value >= frames.length - 1) { slider.value = 0; show(); }
      play.textContent = "Pause";
      timer = setTimeout(next, 1000 / speed.value);
    });
    slider.addEventListener("input", () => { stop(); show(); });
    strip.querySelector(".frames").addEventListener("click", (event) => {
      const at = frames.indexOf(event.target.closest("a"));
      if (at < 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      stop();
      slider.value = at;
      show();
    });
    show();
  }

  // Numbers of a token: of the one that is pointed at, or that the arrow keys have reached.
  function reach(tokens, place) {
    const all = tokens.children, token = all[Math.max(0, Math.min(all.length - 1, place))];
    if (!token) return;
    document.querySelectorAll(".token.now").forEach((each) => each.classList.remove("now"));
    token.classList.add("now");
    tell(token);
    token.scrollIntoView({ block: "nearest" });
  }
  function tell(token) {
    const note = document.querySelector("[data-token-numbers]");
    if (note) note.textContent = `${token.textContent.trim() || "(space)"}: ${token.title}`;
  }
  document.addEventListener("mouseover", (event) => {
    if (event.target.matches("[data-tokens] > .token")) tell(event.target);
  });
  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -1e9, End: 1e9 }[event.key];
    const tokens = document.activeElement;
    if (!by || !tokens.matches("[data-tokens]") || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const now = [...tokens.children].findIndex((each) => each.classList.contains("now"));
    reach(tokens, now < 0 ? (by > 1e8 ? by : 0) : now + by);
  });

  const start = (part) => {
    part.querySelectorAll("[data-field-curve]").forEach(draw);
    part.querySelectorAll("[data-strip]").forEach(scrub);
  };
  const redraw = () => document.querySelectorAll("[data-field-curve]").forEach(draw);
  document.addEventListener("DOMContentLoaded", () => start(document));
  document.addEventListener("htmx:afterSettle", (event) => start(document.getElementById("episode") || event.target));
  document.addEventListener("sqlbuffer:theme", redraw);
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 150); });
})();
