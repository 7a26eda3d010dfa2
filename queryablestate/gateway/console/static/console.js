// What is live on the pages; all else works without it.
"use strict";

const LOG_LENGTH_MAX = 20;
const POINT_COUNT_MAX = 120;
const ROW_COUNT_MAX = 200;
const MISSING_MS = 1000;
const ALOUD_MS = 5000;
const AGAIN_MS = 5000;
const SVG = "http://www.w3.org/2000/svg";

document.documentElement.classList.add("scripted");
for (const one of document.querySelectorAll(".no-script")) one.hidden = true;

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

function clock() {
  return new Date().toISOString().slice(11, 19);
}

// -- pages that are asked for again ------------------------------------------------

function keepFresh(region) {
  const status = document.querySelector("[data-status]");
  const bar = document.querySelector("[data-refreshing]");
  const pause = bar.querySelector("[data-pause]");
  let isPaused = false;
  let isLost = false;
  bar.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) look();
  });

  async function look() {
    if (isPaused || document.hidden) return;
    let text;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.querySelector("[data-refresh]");
      if (found === null) throw new Error(page.querySelector("h1, title")?.textContent);
      if (isPaused) return;
      replace(found);
      text = found.dataset.summary;
      isLost = false;
    } catch (error) {
      text = `${error instanceof TypeError ? "The gateway does not answer" : error.message}. ` +
        "What is shown is as it was; it is asked again.";
      isLost = true;
    }
    region.classList.toggle("stale", isLost);
    // A region that says the same again would be read out again.
    if (status.textContent !== text) status.textContent = text;
  }

  function replace(found) {
    if (found.innerHTML === region.innerHTML) return;
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    const focusable = "a, summary, [tabindex]";
    const place = focused === null ? -1 : [...region.querySelectorAll(focusable)].indexOf(focused);
    const isOpen = [...region.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...region.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    region.replaceChildren(...found.childNodes);
    [...region.querySelectorAll("details")].forEach((one, index) => {
      if (index in isOpen) one.open = isOpen[index];
    });
    [...region.querySelectorAll(".wide")].forEach((one, index) => {
      one.scrollLeft = scrolled[index] ?? 0;
    });
    if (place >= 0) region.querySelectorAll(focusable)[place]?.focus({ preventScroll: true });
  }

  setInterval(look, 1000 * Number(region.dataset.refresh));
  document.addEventListener("visibilitychange", look);
}

// -- a key that is watched ---------------------------------------------------------

// A number as it was written: a double cannot hold all 64 bits of a bigint, or of an epoch.
class Written {
  constructor(number, text) { this.number = number; this.text = text; }
  // Browsers that tell how a number was written can also write it so again.
  toJSON() { return JSON.rawJSON?.(this.text) ?? this.number; }
}

function parsed(text) {
  return JSON.parse(text, (name, value, context) =>
    typeof value === "number" ? new Written(value, context?.source ?? String(value)) : value);
}

function cellOf(value) {
  if (typeof value === "string") return value;
  return value instanceof Written ? value.text : JSON.stringify(value);
}

function durationOf(written) {
  if (!(written instanceof Written)) return "not known";
  const seconds = written.number;
  if (seconds < 0.9995) return `${(1000 * seconds).toFixed(0)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(0)} min`;
}

function watchKey(root) {
  const part = (name) => root.querySelector(`[data-${name}]`);
  const columns = JSON.parse(root.dataset.columns);
  const status = part("status");
  const points = [];
  const chooser = part("column");
  let sources = [];
  let isLost = false;
  let changeCount = 0;
  let proxy = null;
  let missing;
  let again;
  let toldAt = 0;
  let isMissing = false;
  let isSilent = false;
  let shownDigest = null;
  part("happened").hidden = false;

  function add(name, text) {
    const list = part(name);
    list.prepend(element("li", null, element("time", clock()), text));
    while (list.children.length > LOG_LENGTH_MAX) list.lastChild.remove();
  }

  function note(text) {
    add("notes", text);
  }

  // Who listens hears of a change now and then, not of fifty a second.
  function tell(text) {
    part("changes").hidden = false;
    add("log", text);
    if (Date.now() - toldAt < ALOUD_MS) return;
    toldAt = Date.now();
    part("aloud").textContent = text;
  }

  function say(text) {
    if (status.textContent !== text) status.textContent = text;
  }

  function trouble(...lines) {
    part("trouble").replaceChildren(...lines.map((text) => element("p", text)));
    part("trouble").hidden = lines.length === 0;
  }

  function rowsOf(value) {
    const kind = root.dataset.kind;
    if (kind === "list") return value.map((row, place) => [String(place), row]);
    if (kind === "map") {
      return value.map((one) => {
        const key = one.map_key;
        const isStruct = key !== null && typeof key === "object" && !(key instanceof Written);
        return [isStruct ? Object.values(key).map(cellOf).join(",") : cellOf(key), one.value];
      });
    }
    return [[null, value]];
  }

  // Whether it is of the kind, and has the columns, that the state had when the page was made.
  function isOfPage(value) {
    if ((root.dataset.kind === "value") === Array.isArray(value)) return false;
    return rowsOf(value).slice(0, 1).every(([, row]) =>
      Object.keys(row ?? {}).length === columns.length
      && columns.every((name) => Object.hasOwn(row, name)));
  }

  function show(found, isAbsent, isFirst) {
    part("absent").hidden = !isAbsent;
    part("value").hidden = isAbsent;
    part("batch").textContent = found.batch_id === null ? "none yet" : found.batch_id.text;
    part("age").textContent = durationOf(found.age_seconds);
    part("generation").textContent = found.generation.text;
    part("read").textContent = `${clock()} UTC`;
    if (isAbsent) return;
    const rows = rowsOf(found.value);
    const body = part("value").querySelector("tbody");
    body.replaceChildren(...rows.slice(0, ROW_COUNT_MAX).map(([first, row]) => {
      const cells = columns.map((name) => element("td", cellOf(row[name])));
      if (first !== null) cells.unshift(element("td", first));
      const made = element("tr", null, ...cells);
      if (!isFirst) made.className = "changed";
      return made;
    }));
    part("cut").textContent = rows.length > ROW_COUNT_MAX
      ? `These are the first ${ROW_COUNT_MAX} of ${rows.length}.` : "";
    if (chooser !== null) {
      points.push({ at: Date.now(), row: found.value, batch: part("batch").textContent });
      if (points.length > POINT_COUNT_MAX) points.shift();
      draw();
    }
  }

  function draw() {
    const name = chooser.value;
    const chart = part("chart");
    const found = points
      .map(({ at, row, batch }) => {
        const value = row[name];
        const number = value instanceof Written ? value.number : value === null ? NaN : Number(value);
        return { at, number, batch, text: cellOf(value) };
      })
      .filter((one) => Number.isFinite(one.number));
    part("line").hidden = false;
    chart.replaceChildren();
    if (found.length === 0) {
      chart.setAttribute("aria-label", "No number seen yet");
      return;
    }
    const numbers = found.map((one) => one.number);
    let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const texts = [found[numbers.indexOf(high)].text, found[numbers.indexOf(low)].text];
    if (low === high) [low, high] = [low - 1, high + 1];
    const since = found[0].at;
    const span = Math.max(found[found.length - 1].at - since, 1);
    const x = (one) => (found.length === 1 ? 300 : 8 + 584 * (one.at - since) / span);
    const y = (one) => 128 - 96 * ((one.number / 2 - low / 2) / (high / 2 - low / 2));
    const shape = (kind, attributes, text) => {
      const made = document.createElementNS(SVG, kind);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      chart.append(made);
    };
    shape("line", { x1: 8, x2: 592, y1: 136, y2: 136 });
    // A value holds until the next one: the line goes in steps.
    const steps = found.flatMap((one, place) => place === 0
      ? [`${x(one)},${y(one)}`] : [`${x(one)},${y(found[place - 1])}`, `${x(one)},${y(one)}`]);
    shape("polyline", { points: steps.join(" ") });
    for (const one of found) shape("circle", { cx: x(one), cy: y(one), r: 3 });
    shape("text", { x: 8, y: 20 }, texts[0] === texts[1] ? texts[0] : `highest ${texts[0]}`);
    if (texts[0] !== texts[1]) shape("text", { x: 592, y: 20, "text-anchor": "end" }, `lowest ${texts[1]}`);
    shape("text", { x: 8, y: 156 }, new Date(since).toISOString().slice(11, 19));
    if (found.length > 1) {
      shape("text", { x: 592, y: 156, "text-anchor": "end" },
        new Date(found[found.length - 1].at).toISOString().slice(11, 19));
    }
    chart.setAttribute("aria-label", `${name} as it changed: ${found.length} values, from ` +
      `${found[0].text} to ${found[found.length - 1].text}, lowest ${texts[1]}, highest ${texts[0]}`);
  }

  function came(event, isAbsent) {
    const found = parsed(event.data);
    if (!isAbsent && !isOfPage(found.value)) {
      close();
      trouble("The state has other columns now, or is of another kind.",
        "Read the page again: it shows what there is.");
      say("Not live.");
      return;
    }
    const isFirst = changeCount === 0;
    // GENERATION.BATCH.DIGEST; what is read after a problem may be what is shown.
    const digest = event.lastEventId.split(".")[2];
    const isShown = !isFirst && digest === shownDigest;
    shownDigest = digest;
    changeCount += 1;
    trouble();
    if (!isShown) show(found, isAbsent, isFirst);
    const batch = found.batch_id === null ? "before the first batch" : `batch ${found.batch_id.text}`;
    if (isFirst) {
      note(`Watching, from ${batch} on`);
      say("Live.");
    } else if (!isShown) {
      const row = root.dataset.kind === "value" && !isAbsent
        ? columns.map((name) => `${name} ${cellOf(found.value[name])}`).join(", ") : "";
      tell(isAbsent ? `Nothing is there any more, ${batch}` : `Changed, ${batch}${row ? `: ${row}` : ""}`);
    }
    if (isLost && !isFirst) {
      note("The value can be read again");
      say("Live again.");
    }
    isLost = false;
  }

  function open() {
    const key = new EventSource(root.dataset.watch);
    key.addEventListener("value", (event) => came(event, false));
    key.addEventListener("absent", (event) => came(event, true));
    key.addEventListener("problem", (event) => {
      const problem = JSON.parse(event.data);
      isLost = true;
      note(`${problem.title}: ${problem.detail}`);
      trouble(`${problem.title}. ${problem.detail}`,
        "The value that is shown is the last one that could be read; it is asked for again by itself.");
      say(`Unavailable: ${problem.title}.`);
    });
    key.addEventListener("open", () => {
      if (!isSilent) return;
      isSilent = false;
      isLost = false;
      trouble();
      note("The gateway answers again");
      say("Live again.");
    });
    key.addEventListener("error", () => {
      isLost = true;
      if (key.readyState === EventSource.CLOSED) {
        // The answer was a problem: which one, a browser does not tell, and asks no more.
        trouble("This key cannot be watched now.",
          "It is asked for again by itself. Read the page again: it says why, and what to do.");
        say("Not live.");
        again = setTimeout(() => { close(); open(); }, AGAIN_MS);
      } else {
        isSilent = true;
        trouble("The gateway does not answer.", "The page comes back by itself when it does.");
        say("Not live: looking for the gateway.");
      }
    });
    const leader = new EventSource(root.dataset.proxy);
    leader.addEventListener("leader", (event) => {
      const found = parsed(event.data).leader;
      clearTimeout(missing);
      if (found === null) {
        // A proxy that is followed at once needs one line, not two.
        missing = setTimeout(() => {
          isMissing = true;
          note("No proxy leads. Values stay where they are, and are asked for again when one does");
          say("The proxy is gone: waiting for the next one.");
        }, MISSING_MS);
        return;
      }
      if (proxy !== null && (isMissing || proxy.epoch.text !== found.epoch.text)) {
        const before = proxy.address === found.address ? "" : `The proxy at ${proxy.address} is gone. `;
        note(`${before}The proxy at ${found.address} leads now, epoch ${found.epoch.text}`);
        say(`Live. Another proxy leads since ${clock()} UTC.`);
      }
      isMissing = false;
      proxy = found;
    });
    sources = [key, leader];
  }

  function close() {
    clearTimeout(missing);
    clearTimeout(again);
    for (const one of sources) one.close();
    sources = [];
  }

  if (chooser !== null) chooser.addEventListener("change", draw);
  // A browser has six connections for a host: pages that nobody sees leave them to others.
  document.addEventListener("visibilitychange", () => {
    close();
    if (!document.hidden) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  if (!document.hidden) open();
}

const region = document.querySelector("[data-refresh]");
if (region !== null) keepFresh(region);
const watched = document.querySelector("[data-watch]");
if (watched !== null) watchKey(watched);
