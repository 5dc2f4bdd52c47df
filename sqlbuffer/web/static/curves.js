// Curves, drawn with uPlot from the data that the page holds as JSON.
(function () {
  "use strict";
  const HEIGHT = 190;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function seriesOf(each, place) {
    const stroke = color(`--series-${(place % 3) + 1}`);
    const line = { label: each.label, stroke, width: 1.5, points: { show: false }, spanGaps: true };
    if (each.kind === "points") return { ...line, stroke: color("--quiet"), paths: () => null, points: { show: true, size: 3 } };
    if (each.kind === "faint") return { ...line, stroke: color("--quiet"), width: 0.6 };
    return line;
  }

  // A part that is selected becomes the state of the page, so that its address can be shared.
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
      series: [{ label: "UTC" }, ...data.series.map(seriesOf)],
      axes: [axis, { ...axis, size: 60 }],
      cursor: { drag: { x: true, y: false, setScale: location.protocol === "file:" } },
      hooks: { setSelect: [zoom] },
    };
    if (location.protocol === "file:") options.hooks = {};
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
