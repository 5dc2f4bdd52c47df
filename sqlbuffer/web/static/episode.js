// Curves and film strips of an episode. The page also works without it.
(function () {
  "use strict";
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(figure) {
    const { x, series } = JSON.parse(figure.dataset.fieldCurve);
    const place = figure.querySelector(".plot");
    if (!window.uPlot || !x.length) return;
    const lines = ["--series-1", "--series-2", "--series-3", "--good", "--warn", "--bad", "--quiet", "--ink"];
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    place.replaceChildren();
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 200), height: 170,
      legend: { show: series.length > 1 },
      scales: { x: { time: false } }, axes: [axis, { ...axis, size: 56 }],
      series: [{ label: "step" }, ...series.map((line, i) => ({
        label: line.label, stroke: colour(lines[i % lines.length]), width: 1.5,
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
    strip.querySelector(".frame").hidden = false;
    function show() {
      const frame = frames[slider.value];
      image.src = frame.href;
      image.alt = `step ${frame.dataset.position}`;
      name.textContent = `step ${frame.dataset.position}`;
      slider.setAttribute("aria-valuetext", image.alt);
      frames.forEach((each) => each.classList.toggle("now", each === frame));
      const list = frame.parentElement;
      list.scrollLeft = frame.offsetLeft - list.offsetLeft - list.clientWidth / 2;
    }
    slider.addEventListener("input", show);
    strip.querySelector(".frames").addEventListener("click", (event) => {
      const at = frames.indexOf(event.target.closest("a"));
      if (at < 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      slider.value = at;
      show();
    });
    show();
  }

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
