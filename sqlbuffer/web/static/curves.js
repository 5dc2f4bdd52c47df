// Curves, drawn with uPlot from the data that the page holds as JSON; kept up to date while a run
// writes. A report in one file has them too.
(function () {
  "use strict";
  const HEIGHT = 200, ROOM = 14, FEW = 10, DASHES = [undefined, [6, 4], [2, 3]];
  const isReport = "report" in document.documentElement.dataset;
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (hex, share) => hex + Math.round(share * 255).toString(16).padStart(2, "0");
  const kept = window.sqlbufferChoice("sqlbuffer-smoothing");

  // A mean in which each value counts less than the one behind it, without the bias of the first
  // one (Kingma and Ba, 2015, section 3). Where there is no value, there is no mean.
  function smoothed(values, weight) {
    let mean = 0, n = 0;
    return values.map((value) => {
      if (value == null) return value;
      mean = mean * weight + (1 - weight) * value;
      return mean / (1 - weight ** ++n);
    });
  }

  // Numbers with as many digits as tell the ticks apart, and K, M or B for large ones.
  function numberTexts(ticks, step) {
    const most = Math.max(...ticks.map(Math.abs));
    if (most >= 1e15 || (most && most < 1e-4)) return ticks.map((tick) => (tick ? tick.toExponential(1).replace("+", "") : "0"));
    const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"], [1, ""]];
    const [unit, letter] = units.find(([size]) => most >= (size === 1e3 ? 1e4 : size)) || units[4];
    let digits = 0;
    while (digits < 10 && Math.abs(Math.round(step / unit * 10 ** digits) / 10 ** digits / (step / unit) - 1) > 1e-6) digits++;
    return ticks.map((tick) => (tick ? (tick / unit).toFixed(digits) + letter : "0"));
  }

  const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  const dayText = (date) => `${MONTHS[date.getUTCMonth()]} ${date.getUTCDate()}`;
  // The time, and below it the day where a new one begins; of longer spans days, and years.
  function timeTexts(ticks, step) {
    let shown = null;
    return ticks.map((seconds) => {
      const date = new Date(seconds * 1e3), iso = date.toISOString();
      const isDay = step >= 86400;
      const below = isDay ? iso.slice(0, 4) : dayText(date);
      const above = isDay ? dayText(date) : step >= 60 ? iso.slice(11, 16) : step >= 1 ? iso.slice(11, 19) : iso.slice(11, step >= 0.1 ? 21 : 23);
      const text = below === shown ? above : `${above}\n${below}`;
      shown = below;
      return text;
    });
  }

  const exact = (value) => {
    if (value == null) return "–";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
    return Math.abs(value) >= 1e4 && Math.abs(value) < 1e15 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
  };
  const AXES = { time: "by time, UTC", step: "by step", episode: "by episode", version: "by model version" };
  function placeText(axis, x) {
    if (axis === "time") return new Date(x * 1e3).toISOString().slice(0, 19).replace("T", " ") + " UTC";
    return `${axis} ${exact(Math.round(x))}`;
  }

  // Distances of ticks. In UTC all of them divide a day, or are days.
  const powers = (from, to) => Array.from({ length: to - from }, (_, place) => from + place).flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
  const WHOLE = powers(0, 15);
  const TIMES = [...powers(-3, 0), 1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720].map((minutes) => minutes * 60),
    ...[1, 2, 7, 14, 28, 56, 112, 365, 730, 3650].map((days) => days * 86400)];
  function ticksOf(low, high, step) {
    const first = Math.ceil(low / step - 1e-6), n = Math.floor(high / step + 1e-6) - first + 1;
    return Array.from({ length: Math.max(0, Math.min(n, 100)) }, (_, place) => (first + place) * step);
  }

  // Without the texts that the right edge would cut.
  function within(plot, ticks, texts) {
    return texts.map((text, place) => {
      const end = plot.valToPos(ticks[place], "x") + widthOf(text.split("\n")) / 2;
      return end > plot.bbox.width / devicePixelRatio + ROOM ? "" : text;
    });
  }

  const lookOfAxis = () => ({ stroke: color("--quiet"), font: "11px system-ui, sans-serif", gap: 4,
    grid: { stroke: color("--line"), width: 1 }, ticks: { show: false },
    splits: (_, __, low, high, step) => ticksOf(low, high, step) });
  function placeAxis(isTime) {
    return { ...lookOfAxis(), size: isTime ? 36 : 24, space: isTime ? 80 : 64, incrs: isTime ? TIMES : WHOLE,
      values: (plot, ticks, _, __, step) => within(plot, ticks, isTime ? timeTexts(ticks, step) : numberTexts(ticks, step)) };
  }
  function valueAxis() {
    return { ...lookOfAxis(), space: 32, values: (_, ticks, __, ___, step) => numberTexts(ticks, step),
      size: (_, texts) => (texts ? 14 + Math.ceil(widthOf(texts)) : 40) };
  }
  // The curves of an episode have the same axes.
  window.sqlbufferAxes = { placeAxis, valueAxis };

  const figures = new Set();
  const hidden = new Set();
  let weight = 0.6;

  class Figure {
    constructor(card) {
      this.card = card;
      this.place = card.querySelector("[data-plot]");
      this.place.tabIndex = 0;
      this.place.setAttribute("role", "img");
      this.place.addEventListener("keydown", (event) => this.step(event));
      this.place.addEventListener("blur", () => this.point(null));
      this.read();
      this.draw();
      new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT })).observe(this.place);
    }

    read() {
      this.data = JSON.parse(this.card.querySelector("script").textContent);
      const title = this.card.querySelector("h2").textContent;
      const last = this.data.lines.map((line) => `${line.name} ${exact(line.values.findLast((value) => value != null))}`);
      this.place.setAttribute("aria-label", `${title}. Last: ${last.join(", ")}. Arrow keys read the points.`);
    }

    // Four series for each line: its values, the smoothed ones, and the ends of its band.
    table() {
      const tables = this.data.lines.map((line) => {
        const smooth = (values) => smoothed(values, line.x.length < FEW ? 0 : weight);
        return [line.x, line.values, smooth(line.values),
          ...(["low", "high"].map((end) => (line[end] ? smooth(line[end]) : line.values.map(() => null))))];
      });
      return tables.length === 1 ? tables[0] : uPlot.join(tables);
    }

    draw() {
      this.plot?.destroy();
      const axis = this.data.axis, isTime = axis === "time";
      const series = [{}], bands = [];
      this.data.lines.forEach((line, place) => {
        const stroke = color(`--series-${line.color}`), few = line.x.length < 60;
        // Values with a gap on both sides have no line.
        const alone = new Set(line.x.filter((_, i) => line.values[i] != null && line.values[i - 1] == null && line.values[i + 1] == null));
        const onlyAlone = (plot) => plot.data[0].flatMap((x, i) => (alone.has(x) ? [i] : []));
        const show = !hidden.has(line.name), isPlain = weight === 0 && !line.points;
        const gaps = { spanGaps: false, show };
        series.push(
          { ...gaps, stroke: isPlain ? stroke : faded(stroke, this.data.lines.length > 1 ? 0.25 : 0.4), width: isPlain ? 1.6 : 1, dash: DASHES[line.dash % 3],
            points: { show: line.points || few || alone.size > 0, filter: few || line.points ? () => null : onlyAlone, size: few ? 5 : 3, fill: isPlain ? stroke : faded(stroke, 0.55), stroke: "transparent", width: 0 },
            ...(line.points ? { paths: () => null } : {}) },
          { ...gaps, show: show && (weight > 0), stroke, width: 1.8, dash: DASHES[line.dash % 3], points: { show: alone.size > 0, filter: onlyAlone, size: 5, fill: stroke } },
          { ...gaps, stroke: "transparent", width: 0, points: { show: false } },
          { ...gaps, stroke: "transparent", width: 0, points: { show: false } },
        );
        if (line.low) bands.push({ series: [4 * place + 4, 4 * place + 3], fill: faded(stroke, 0.14) });
      });
      const edge = { time: 30, step: 1, episode: 1, version: 1 }[axis];
      this.plot = new uPlot({
        width: this.place.clientWidth, height: HEIGHT, series, bands, legend: { show: false },
        scales: {
          x: { time: false, range: (plot, low, high) => {
            const places = plot.data[0], only = places.length < 2 || places[places.length - 1] - places[0] < 0.002;
            // A single point has no width.
            if (only) return [(places[0] ?? 0) - edge, (places[0] ?? 0) + edge];
            return isTime || high - low >= 2 ? [low, high] : [Math.floor(low - 1), Math.ceil(high + 1)];
          } },
          y: { range: (_, low, high) => this.range(low, high) },
        },
        axes: [placeAxis(isTime), valueAxis()],
        padding: [8, ROOM, 0, 0],
        cursor: {
          drag: { x: true, y: false, setScale: isReport || axis === "version" }, y: false,
          sync: { key: `figures-${axis}`, setSeries: false },
          points: { size: 7, show: (plot, place) => (place % 4 === (weight > 0 ? 2 : 1) ? undefined : false) },
        },
        hooks: { setCursor: [() => this.tell()], setSelect: [() => this.zoom()] },
      }, this.table(), this.place);
      this.tell();
    }

    // The pointer stays where it is.
    redraw() {
      const { left, top, idx } = this.plot.cursor;
      this.draw();
      if (idx != null && left >= 0) this.plot.setCursor({ left, top });
    }

    range(low, high) {
      if (low == null || (low === 0 && high === 0)) return [0, 1];
      // Means of equal values differ in their last digits.
      const size = Math.max(Math.abs(low), Math.abs(high)), isFlat = high - low < 1e-9 * size;
      const room = isFlat ? size * 0.1 : (high - low) * 0.06;
      if (!Number.isFinite(room)) return [low, high];
      // Zero is shown where it is near, and is not passed.
      if (this.data.zero && low >= 0) return [0, high * 1.06];
      const from = low >= 0 && !isFlat && low - room < (high - low) * 0.1 ? 0 : low - room;
      return [from, high <= 0 && high + room > 0 ? 0 : high + room];
    }

    // The values at the pointer, or else the last ones.
    tell() {
      if (!this.plot) return;
      const place = this.plot.cursor.idx, isAway = place == null || this.plot.cursor.left < 0;
      const readout = this.card.querySelector("[data-readout]");
      readout.textContent = isAway ? AXES[this.data.axis] : placeText(this.data.axis, this.plot.data[0][place]);
      this.card.querySelectorAll("[data-line]").forEach((button) => {
        const number = this.data.lines.findIndex((line) => line.name === button.dataset.line);
        const line = this.data.lines[number], value = button.parentElement.querySelector("[data-value]");
        if (!line || !value) return;
        const all = this.plot.data[4 * number + 2], raw = this.plot.data[4 * number + 1];
        let at = isAway ? all.length - 1 : place;
        while (at >= 0 && all[at] == null) at--;
        const text = exact(all[at]), ofRaw = exact(raw[at]);
        value.textContent = isAway || text === ofRaw ? text : `${text} (${ofRaw})`;
      });
    }

    point(place) {
      const left = place == null ? -10 : this.plot.valToPos(this.plot.data[0][place], "x");
      this.plot.setCursor({ left, top: place == null ? -10 : 10 });
    }

    step(event) {
      const n = this.plot.data[0].length, now = this.plot.cursor.idx ?? n;
      const next = { ArrowLeft: now - 1, ArrowRight: now === n ? 0 : now + 1, Home: 0, End: n - 1 }[event.key];
      if (event.key === "Escape") this.point(null);
      if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.card.querySelector("[data-readout]").setAttribute("aria-live", "polite");
      this.point(Math.max(0, Math.min(n - 1, next)));
    }

    // A selected part of the history becomes part of the page's address, which can be shared.
    zoom() {
      const { left, width } = this.plot.select;
      if (isReport || this.data.axis === "version" || width < 8) return;
      const ends = [left, left + width].map((at) => this.timeAt(this.plot.posToVal(at, "x")));
      const address = new URL(location.href);
      address.searchParams.delete("last");
      address.searchParams.set("since", Math.min(...ends).toFixed(3));
      address.searchParams.set("until", Math.max(...ends).toFixed(3));
      location.assign(address);
    }

    timeAt(x) {
      if (this.data.axis === "time") return x;
      const { x: places, t } = this.data.lines[0];
      const after = places.findIndex((place) => place >= x);
      if (after <= 0) return after === 0 ? t[0] : t[t.length - 1];
      const share = (x - places[after - 1]) / (places[after] - places[after - 1] || 1);
      return t[after - 1] + share * (t[after] - t[after - 1]);
    }
  }

  const pen = document.createElement("canvas").getContext("2d");
  function widthOf(texts) {
    pen.font = "11px system-ui, sans-serif";
    return Math.max(...texts.map((text) => pen.measureText(text ?? "").width));
  }

  function showLines() {
    document.querySelectorAll("[data-line]").forEach((button) => button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.line))));
  }
  function begin(part) {
    if (!window.uPlot) return;
    part.querySelectorAll("[data-curve]").forEach((card) => figures.add(new Figure(card)));
    showLines();
  }
  const redraw = () => figures.forEach((figure) => figure.draw());

  function prepareSmoothing() {
    const label = document.querySelector("[data-smoothing]");
    const slider = label?.querySelector("input"), output = label?.querySelector("output");
    if (!slider) return;
    label.hidden = false;
    if (!("asked" in slider.dataset) && kept.get() !== null) slider.value = kept.get();
    const show = () => { weight = Number(slider.value); output.textContent = slider.value; };
    show();
    slider.addEventListener("input", () => { show(); redraw(); });
    slider.addEventListener("change", () => {
      kept.set(slider.value);
      if (isReport) return;
      const address = new URL(location.href);
      address.searchParams.set("smooth", slider.value);
      history.replaceState(history.state, "", address);
    });
  }

  // The figures again from the server, every few seconds while the tab is visible.
  function pollFigures(part) {
    const badge = document.querySelector("[data-age]");
    let readAt = Date.now(), trouble = null, pause = 5_000, timer = 0;
    function say() {
      const age = Math.round((Date.now() - readAt) / 1e3);
      const text = age < 120 ? `${age} s` : `${Math.round(age / 60)} min`;
      badge.textContent = trouble ? `not updated for ${text}: ${trouble}` : document.hidden ? "paused" : `updated ${text} ago`;
      badge.className = `badge ${trouble ? "trouble" : document.hidden ? "" : "live"}`;
    }
    async function look() {
      const began = Date.now();
      try {
        const answer = await fetch(part.dataset.figures, { headers: { Accept: "text/html" } });
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        take(part, new DOMParser().parseFromString(await answer.text(), "text/html"));
        readAt = Date.now();
        trouble = null;
      } catch (error) {
        trouble = error instanceof TypeError ? "no answer" : error.message;
      }
      // A slow database gets fewer questions.
      pause = Math.max(5_000, 20 * (Date.now() - began));
      say();
      plan();
    }
    function plan() {
      clearTimeout(timer);
      if (!document.hidden) timer = setTimeout(look, pause);
    }
    document.addEventListener("visibilitychange", () => { say(); if (!document.hidden) look(); else clearTimeout(timer); });
    addEventListener("pageshow", (event) => { if (event.persisted) look(); });
    setInterval(say, 1_000);
    say();
    plan();
  }

  function take(part, found) {
    for (const fresh of found.querySelectorAll("[data-part]")) {
      const old = part.querySelector(`[data-part="${fresh.dataset.part}"]`);
      if (!old || old.contains(document.activeElement) && fresh.dataset.part !== "curves") continue;
      if (fresh.dataset.part === "curves") takeCurves(old, fresh);
      else if (old.innerHTML !== fresh.innerHTML) keepOpen(old, () => { old.innerHTML = fresh.innerHTML; });
    }
    showLines();
  }
  function keepOpen(part, change) {
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    change();
    part.querySelectorAll("details").forEach((each, place) => { each.open = Boolean(open[place]); });
  }
  const keysOf = (part) => [...part.querySelectorAll("[data-curve]")].map((card) => card.dataset.curve).join();
  function takeCurves(old, fresh) {
    if (keysOf(old) !== keysOf(fresh)) {
      figures.forEach((figure) => figure.plot.destroy());
      figures.clear();
      keepOpen(old, () => { old.innerHTML = fresh.innerHTML; });
      begin(old);
      return;
    }
    figures.forEach((figure) => {
      const card = fresh.querySelector(`[data-curve="${figure.card.dataset.curve}"]`);
      for (const selector of ["script", "details table", "details .note"]) {
        const now = figure.card.querySelector(selector), next = card.querySelector(selector);
        if (now.textContent !== next.textContent && !now.contains(document.activeElement)) now.replaceWith(next);
      }
      const names = (one) => [...one.querySelectorAll("[data-line]")].map((button) => button.dataset.line).join("\n");
      if (names(figure.card) !== names(card)) figure.card.querySelector(".lines").replaceWith(card.querySelector(".lines"));
      const before = JSON.stringify(figure.data);
      figure.read();
      if (JSON.stringify(figure.data) !== before) figure.redraw();
    });
  }

  function start() {
    prepareSmoothing();
    begin(document);
    document.querySelectorAll("[data-figures]").forEach(pollFigures);
    document.addEventListener("sqlbuffer:theme", redraw);
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-line]");
      if (!button) return;
      const name = button.dataset.line;
      if (hidden.has(name)) hidden.delete(name); else hidden.add(name);
      showLines();
      redraw();
    });
    document.addEventListener("change", (event) => {
      if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
    });
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
