// Curves, drawn with uPlot from the data that the page holds as JSON.
(function () {
  "use strict";
  const HEIGHT = 190;
  // A report in one file has no other parts of the history.
  const isReport = "report" in document.documentElement.dataset;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A longer span shows fewer parts of a time: no seconds if it covers days.
  function timeText(seconds, width) {
    const iso = new Date(seconds * 1e3).toISOString();
    if (width > 2 * 86400) return iso.slice(5, 16).replace("T", " ");
    return width > 600 ? iso.slice(11, 16) : width > 10 ? iso.slice(11, 19) : iso.slice(17, 23);
  }

  function seriesOf(each, place) {
    const stroke = color(`--series-${(place % 3) + 1}`);
    const few = each.values.length < 50;
    const line = { label: each.label, stroke, width: 1.5, points: { show: few, size: 4 }, spanGaps: true };
    if (each.kind === "points") return { ...line, stroke: color("--quiet"), paths: () => null, points: { show: true, size: 3 } };
    if (each.kind === "faint") return { ...line, stroke: color("--quiet"), width: 0.6 };
    return line;
  }

  // A selected part becomes part of the page's address, which can be shared.
  function zoom(plot) {
    if (plot.select.width < 8) return;
    const address = new URL(location.href);
    address.searchParams.delete("last");
    address.searchParams.set("since", plot.posToVal(plot.select.left, "x").toFixed(3));
    address.searchParams.set("until", plot.posToVal(plot.select.left + plot.select.width, "x").toFixed(3));
    location.assign(address);
  }

  function draw(place) {
    const data = JSON.parse(place.querySelector("script").textContent);
    place.querySelector(".uplot")?.remove();
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    const options = {
      width: place.clientWidth, height: HEIGHT, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
      series: [
        { label: "UTC", value: (_, seconds) => (seconds == null ? "–" : new Date(seconds * 1e3).toISOString().slice(0, 19).replace("T", " ")) },
        ...data.series.map(seriesOf),
      ],
      // A single moment has no width.
      scales: { x: { range: (_, low, high) => (high - low > 0.001 ? [low, high] : [low - 30, high + 30]) } },
      axes: [
        { ...axis, values: (plot, ticks) => ticks.map((seconds) => timeText(seconds, plot.scales.x.max - plot.scales.x.min)) },
        { ...axis, size: 60 },
      ],
      cursor: { drag: { x: true, y: false, setScale: isReport } },
      hooks: { setSelect: [zoom] },
    };
    if (isReport) options.hooks = {};
    return new uPlot(options, [data.x, ...data.series.map((each) => each.values)], place);
  }

  function start() {
    for (const place of document.querySelectorAll("[data-curve]")) {
      let plot = draw(place);
      document.addEventListener("sqlbuffer:theme", () => { plot.destroy(); plot = draw(place); });
      new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
