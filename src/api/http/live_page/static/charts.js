// Draws on canvases. Colours are those of the style sheet.

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The context of a canvas, cleared, in CSS pixels.
function begin(canvas) {
  const scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// Bars from the right, the newest last. `rows`: lists of [colour name, value]; `marks`: indexes.
export function drawBars(canvas, rows, unit, marks = []) {
  canvas.style.height ||= `${canvas.getAttribute("height")}px`;
  const { context, width, height } = begin(canvas);
  const barWidth = 5, top = 14;
  const shown = rows.slice(-Math.floor(width / barWidth));
  const sums = shown.map((parts) => parts.reduce((sum, [, value]) => sum + value, 0));
  const highest = Math.max(...sums, 1e-9);
  shown.forEach((parts, index) => {
    const x = width - (shown.length - index) * barWidth;
    let y = height;
    for (const [name, value] of parts) {
      const size = (value / highest) * (height - top);
      context.fillStyle = colour(name);
      context.fillRect(x, y - size, barWidth - 1, size);
      y -= size;
    }
    if (marks.includes(rows.length - shown.length + index)) {
      context.fillStyle = colour("preempted");
      context.fillRect(x, top - 6, barWidth - 1, 5);
    }
  });
  context.fillStyle = colour("soft");
  context.font = "11px system-ui, sans-serif";
  context.fillText(rows.length ? `highest ${unit(highest)}` : "no steps yet", 0, 10);
}

const BLOCK_COLOURS = { f: "free", c: "cached", h: "held", s: "shared" };
const MAX_CELLS = 6000;

// "12f3h" as [["f", 12], ["h", 3]].
export function readRuns(text) {
  return [...text.matchAll(/(\d+)([a-z])/g)].map(([, count, state]) => [state, Number(count)]);
}

// One cell per block; with many blocks, one cell for several, in the state of the first one.
export function drawBlocks(canvas, runs) {
  const total = runs.reduce((sum, [, count]) => sum + count, 0);
  const perCell = Math.ceil(total / MAX_CELLS);
  const cells = Math.ceil(total / perCell);
  const width = canvas.clientWidth;
  const size = Math.max(3, Math.min(12, Math.floor(Math.sqrt((width * 160) / Math.max(cells, 1)))));
  const columns = Math.max(1, Math.floor(width / size));
  canvas.style.height = `${Math.ceil(cells / columns) * size}px`;
  const { context } = begin(canvas);
  let block = 0;
  for (const [state, count] of runs) {
    context.fillStyle = colour(BLOCK_COLOURS[state]);
    for (let cell = Math.ceil(block / perCell); cell * perCell < block + count; cell++) {
      context.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
    }
    block += count;
  }
  return perCell;
}

// A histogram of Prometheus: `buckets` are [upper limit in seconds, number of values].
export function drawHistogram(canvas, buckets) {
  canvas.style.height ||= `${canvas.getAttribute("height")}px`;
  const { context, width, height } = begin(canvas);
  const highest = Math.max(...buckets.map(([, count]) => count), 1);
  const step = width / Math.max(buckets.length, 1);
  context.font = "10px system-ui, sans-serif";
  buckets.forEach(([limit, count], index) => {
    const size = (count / highest) * (height - 16);
    context.fillStyle = colour("prompt");
    context.fillRect(index * step, height - 14 - size, step - 2, size);
    context.fillStyle = colour("soft");
    if (index % Math.ceil(34 / step) === 0) context.fillText(seconds(limit), index * step, height - 2);
  });
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "more";
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  return `${Number((value * 1000).toPrecision(3))} ms`;
}
