"use strict";
// The live page: reads the JSON API every two seconds and draws what it says. Everything from the service is put into
// the page as text, never as markup: names of streams are chosen by whoever sends images.
(() => {
  const EVERY = 2000, SLOWEST = 30000, PATIENCE = 10000, ROWS = 50, ALARMS = 5, KEPT = 1000;
  const TOKEN = "tidefast-token";
  const $ = (id) => document.getElementById(id);

  const node = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const drawn = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const present = (value) => value !== null && value !== undefined;
  const whole = (value) => value.toLocaleString("en");
  const written = (value, unit) => ({
    percent: () => (100 * value).toFixed(1) + " %",
    milliseconds: () => (1000 * value).toFixed(1) + " ms",
    plain: () => value.toFixed(3),
    measured: () => String(Number(value.toPrecision(4))), // of whatever size a policy's measurements are
  })[unit]();
  const clock = (seconds) => {
    const date = new Date(1000 * seconds), today = new Date().toDateString() === date.toDateString();
    return today ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB");
  };

  // -- the API --------------------------------------------------------------------------------------------------

  class Refused extends Error {
    constructor(status, message) { super(message); this.status = status; }
  }

  const ask = async (path, method = "GET", body = undefined) => {
    const headers = { Accept: "application/json" };
    const token = sessionStorage.getItem(TOKEN);
    if (token) headers.Authorization = "Bearer " + token;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(PATIENCE),
    });
    if (answer.ok) return answer.status === 204 ? null : answer.json();
    let detail = "";
    try { detail = (await answer.json()).detail; } catch { /* no JSON: the status has to do */ }
    throw new Refused(answer.status, typeof detail === "string" && detail ? detail : "status " + answer.status);
  };
  const of = (name) => "v1/streams/" + encodeURIComponent(name);

  // -- where we are ---------------------------------------------------------------------------------------------

  const selected = () => {
    try { return decodeURIComponent(location.hash.slice(1)) || null; } catch { return null; }
  };
  let info = null, name = null, pages = [""], rows = new Map(), records = [], current = null;

  // -- polling --------------------------------------------------------------------------------------------------

  let timer = 0, round = 0, failures = 0, asking = false;

  const connection = (state, text) => {
    $("connection").className = state;
    say($("connection"), text);
  };

  const poll = async () => {
    clearTimeout(timer);
    if (asking || document.hidden) return;
    const mine = ++round;
    const fresh = () => mine === round;
    try {
      if (!info || !info.classes) about(await ask("v1/info")); // a service learns the classes from its first images
      if (!fresh()) return;
      if (name === null) await overview(fresh); else await detail(fresh);
      if (!fresh()) return;
      failures = 0;
      $("lost").hidden = true;
      connection("", "live");
      timer = setTimeout(poll, EVERY);
    } catch (error) {
      if (!fresh()) return;
      if (error instanceof Refused && error.status === 401) return askForToken();
      failures += 1;
      info = null; // another model may be there when it comes back
      const wait = Math.min(SLOWEST, EVERY * 2 ** (failures - 1));
      const why = error instanceof Refused ? "The service answers: " + error.message + "." : "Connection lost.";
      connection("broken", "not live");
      say($("lost-text"), why + " What is shown may be old. Next try in " + wait / 1000 + " s.");
      $("lost").hidden = false;
      timer = setTimeout(poll, wait);
    }
  };

  const about = (found) => {
    info = found;
    const said = JSON.stringify(found.measurements);
    if (said !== charts.said) charts.length = 0; // another policy measures other things
    charts.said = said;
    const parts = [found.model, found.method, present(found.reset) ? "reset " + found.reset : null];
    $("streams").classList.toggle("no-canaries", !found.canaries);
    say($("about"), parts.filter((part) => present(part)).join(" · "));
  };

  const askForToken = () => {
    asking = true;
    connection("waiting", "waiting for the token");
    $("token-refused").hidden = sessionStorage.getItem(TOKEN) === null;
    sessionStorage.removeItem(TOKEN);
    $("token").value = "";
    if (!$("token-dialog").open) $("token-dialog").showModal();
    $("token").focus();
  };

  $("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = $("token").value.trim();
    $("token-refused").hidden = /^[\x20-\x7e]+$/.test(token);
    if (!$("token-refused").hidden) return;
    sessionStorage.setItem(TOKEN, token);
    $("token-dialog").close();
    asking = false;
    connection("waiting", "connecting");
    poll();
  });
  $("retry").addEventListener("click", () => poll());
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

  const navigate = (first) => {
    name = selected();
    records = [];
    current = null;
    $("overview").hidden = $("detail").hidden = true;
    if (name !== null) {
      named($("name"), name);
      for (const id of ["outcome", "state"]) say($(id), "");
      $("stream-alarms").replaceChildren();
      $("charts").replaceChildren();
      charts.length = 0;
    }
    poll().then(() => { if (!first && !asking) $(name === null ? "overview-title" : "name").focus(); });
  };

  // -- alarms ---------------------------------------------------------------------------------------------------

  const alarmItem = (alarm, linked) => {
    const item = node("li");
    item.append(node("b", alarm.kind), " ");
    if (linked && present(alarm.stream)) item.append(link(alarm.stream), " ");
    const since = node("time", "since " + clock(alarm.since));
    since.dateTime = new Date(1000 * alarm.since).toISOString();
    item.append(since, node("br"), alarm.message);
    return item;
  };

  // A name may break behind its separators, and elsewhere only where a part is longer than the line.
  const named = (element, name) => {
    const parts = name.split(/(?<=[-_./:@,;|+])/);
    element.replaceChildren(...parts.flatMap((part, index) => index ? [node("wbr"), part] : [part]));
    return element;
  };

  const link = (stream) => {
    const made = named(node("a"), stream);
    made.href = "#" + encodeURIComponent(stream);
    return made;
  };

  const listAlarms = (list, alarms, linked) => {
    const said = JSON.stringify(alarms);
    if (list.said === said) return;
    list.said = said;
    list.replaceChildren(...alarms.map((alarm) => alarmItem(alarm, linked)));
  };

  // -- streams at a glance --------------------------------------------------------------------------------------

  const overview = async (fresh) => {
    const query = new URLSearchParams({ order: "attention", limit: ROWS });
    if ($("prefix").value) query.set("prefix", $("prefix").value);
    if (pages.at(-1)) query.set("after", pages.at(-1));
    const [streams, alarms] = await Promise.all([ask("v1/streams?" + query), ask("v1/alarms")]);
    if (!fresh()) return;
    document.title = (alarms.length ? "(" + alarms.length + ") " : "") + "tidefast";
    $("alarms").hidden = alarms.length === 0;
    listAlarms($("alarm-list"), alarms.slice(-ALARMS).reverse(), true);
    $("alarm-rest").hidden = alarms.length <= ALARMS;
    say($("alarm-rest"), "and " + whole(Math.max(0, alarms.length - ALARMS)) + " earlier ones");
    fill(streams);
    $("overview").hidden = false;
  };

  const fill = (streams) => {
    const body = $("streams").tBodies[0], kept = new Map();
    streams.forEach((stream, index) => {
      const row = rows.get(stream.name) || newRow(stream.name);
      kept.set(stream.name, row);
      update(row, stream);
      if (body.rows[index] !== row.element) body.insertBefore(row.element, body.rows[index] || null);
    });
    for (const [key, row] of rows) if (!kept.has(key)) row.element.remove();
    rows = kept;
    const filtered = $("prefix").value !== "";
    $("nothing").hidden = streams.length > 0;
    say($("nothing"), filtered ? "No stream's name begins like that." : pages.length > 1 ? "No more streams."
      : "No streams yet: one begins with the first images sent to it.");
    $("previous").disabled = pages.length === 1;
    $("next").disabled = streams.length < ROWS;
    $("pages").hidden = pages.length === 1 && streams.length < ROWS;
    say($("page-number"), "page " + pages.length);
  };

  const newRow = (stream) => {
    const element = node("tr"), head = node("th");
    head.scope = "row";
    const mark = node("span", "", "mark");
    head.append(link(stream), " ", mark);
    const cells = ["", "", "", "wide canaries", "wide", "wide", "wide"].map((name) => node("td", "", name));
    element.append(head, ...cells);
    return { element, mark, cells };
  };

  const frozen = (stream) => !stream.frozen ? "" : stream.frozen_by ? "frozen by alarm " + stream.frozen_by : "frozen";

  const update = (row, stream) => {
    const [alarms, step, meterCell, canaries, resets, trend, seen] = row.cells;
    say(row.mark, frozen(stream));
    const kinds = stream.alarms.map((alarm) => alarm.kind);
    alarms.className = kinds.length ? "bad" : "soft";
    alarms.title = kinds.join(", ");
    say(alarms, kinds.length ? whole(kinds.length) : "–");
    say(step, whole(stream.step));
    const lately = stream.lately;
    say(canaries, knownImages(lately.canaries));
    say(resets, lately.steps ? whole(lately.resets) + " in " + whole(lately.steps) : "–");
    say(seen, present(lately.seen) ? clock(lately.seen) : "–");
    const latest = lately.trend.findLast((pair) => present(pair[0])) || [stream.last?.concentration, stream.last?.threshold];
    const said = JSON.stringify([latest, lately.trend]);
    if (row.said === said) return;
    row.said = said;
    meterCell.replaceChildren(meter(...latest));
    trend.replaceChildren(spark(lately.trend));
  };

  // The share of known images that get the source model's answer, now and before the stream adapted.
  const knownImages = (asked) => present(asked)
    ? written(asked.canary_agreement, "percent") + ", " + written(asked.canary_reference, "percent") : "–";

  // How far the predictions are on the way from all classes alike (0) to one class only (1).
  const narrowness = (concentration) => 1 + concentration / Math.log(Math.max(2, info.classes || 1000));

  const meter = (concentration, threshold) => {
    if (!present(concentration)) return node("span", "not measured", "soft");
    const share = clamp(narrowness(concentration), 0, 1);
    const limit = present(threshold) ? Math.max(0.001, narrowness(threshold)) : null;
    const filled = limit === null ? share : clamp(share / (2 * limit), 0, 1);
    const over = limit !== null && concentration > threshold;
    const made = node("span", undefined, "meter");
    const label = "concentration " + concentration.toFixed(3) + (limit === null ? "" : ", threshold " + threshold.toFixed(3));
    const svg = drawn("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
    svg.append(drawn("rect", { width: (100 * filled).toFixed(1), height: 10, class: over ? "over" : "" }));
    if (limit !== null) svg.append(drawn("path", { d: "M50 0V10" }));
    made.append(svg, node("span", concentration.toFixed(2)));
    made.title = label;
    return made;
  };

  const spark = (trend) => {
    const values = trend.flat().filter(present);
    const svg = drawn("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
    if (values.length < 2) return svg;
    const axes = scale([0, Math.max(1, trend.length - 1)], spread(values));
    const at = trend.map((_, index) => index);
    svg.append(axes.line(at, trend.map((pair) => pair[1]), "line threshold"));
    svg.append(axes.line(at, trend.map((pair) => pair[0]), "line t5"));
    return svg;
  };

  let typing = 0;
  $("prefix").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { pages = [""]; poll(); }, 250);
  });
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  $("previous").addEventListener("click", () => { pages.pop(); poll(); });
  $("next").addEventListener("click", () => { pages.push([...rows.keys()].at(-1)); poll(); });

  // -- one stream -----------------------------------------------------------------------------------------------

  const detail = async (fresh) => {
    const address = of(name); // of this poll; the name changes when somebody navigates meanwhile
    let stream;
    try {
      stream = await ask(address);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      if (fresh()) gone();
      return;
    }
    const last = records.at(-1);
    const anew = !last || stream.step < last.step;
    let found = await ask(address + "/history?since=" + (anew ? 0 : last.step));
    const rewound = !anew && found.length > 0 && found[0].run !== last.run; // it went back, and past where it was
    if (rewound) found = await ask(address + "/history?since=0");
    if (!fresh()) return;
    records = (anew || rewound ? found : records.concat(found)).slice(-KEPT);
    current = stream;
    document.title = name + " · tidefast";
    describe(stream);
    listAlarms($("stream-alarms"), stream.alarms, false);
    if (found.length || anew) draw();
    $("detail").hidden = false;
  };

  const gone = () => {
    current = null;
    say($("state"), "There is no stream of this name.");
    for (const button of $("actions").children) button.disabled = true;
    $("charts").replaceChildren();
    $("no-history").hidden = true;
    $("detail").hidden = false;
  };

  const describe = (stream) => {
    const part = (label, value) => {
      const made = node("span", label + " ");
      made.append(node("b", value));
      return made;
    };
    const parts = [part("step", whole(stream.step)), part("adapting", stream.frozen ? "no, " + frozen(stream) : "yes")];
    parts.push(part("kept in", stream.where));
    const lately = stream.lately;
    if (lately.steps) parts.push(part("resets in the last " + whole(lately.steps) + " steps", whole(lately.resets)));
    if (present(lately.seen)) parts.push(part("last used", clock(lately.seen)));
    if (stream.last && stream.last.skipped) parts.push(part("last step changed nothing:", stream.last.skipped));
    $("state").replaceChildren(...parts);
    for (const button of $("actions").children) {
      const action = button.dataset.action;
      button.hidden = action === (stream.frozen ? "freeze" : "unfreeze");
      button.disabled = false;
    }
  };

  // -- what can be done to it -----------------------------------------------------------------------------------

  const ACTIONS = {
    freeze: ["Freeze", "It answers without adapting until it is unfrozen.", "Frozen."],
    unfreeze: ["Unfreeze", "It adapts again, from the next images on.", "Adapting again."],
    reset: ["Reset", "It returns to the source model and counts its steps anew. What it has learned is lost, except in snapshots.",
      "Reset to the source model."],
    rollback: ["Roll back", "It returns to what it was in a snapshot. What it has learned since is lost.", "Rolled back."],
  };
  let pending = null;

  const offer = async (action) => {
    const [verb, text] = ACTIONS[action];
    say($("outcome"), "");
    if (action === "rollback") {
      const snapshots = await ask("v1/snapshots");
      if (!snapshots.length) return say($("outcome"), "There is no snapshot yet.");
      $("snapshot").replaceChildren(...snapshots.map((snapshot) => {
        const taken = present(snapshot.taken) ? ", " + clock(snapshot.taken) : "";
        const option = node("option", snapshot.name + taken);
        option.value = snapshot.name;
        return option;
      }).reverse());
      $("snapshot").selectedIndex = 0;
    }
    $("choose").hidden = action !== "rollback";
    named($("confirm-title"), verb + " " + name + "?");
    say($("confirm-text"), text);
    say($("confirm"), verb);
    pending = { action, stream: name };
    $("confirm-dialog").showModal();
    $(action === "rollback" ? "snapshot" : "cancel").focus();
  };

  const act = async ({ action, stream }) => {
    const body = action === "rollback" ? { snapshot: $("snapshot").value } : undefined;
    for (const button of $("actions").children) button.disabled = true;
    await ask(of(stream) + "/" + action, "POST", body);
    if (name === stream) say($("outcome"), ACTIONS[action][2]);
    await poll();
  };

  const tried = async (work) => {
    try {
      await work();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return askForToken();
      say($("outcome"), "That did not work: " + (error instanceof Refused ? error.message : "connection lost") + ".");
      if (current) describe(current);
    }
  };

  for (const button of $("actions").children) button.addEventListener("click", () => tried(() => offer(button.dataset.action)));
  $("cancel").addEventListener("click", () => $("confirm-dialog").close());
  $("confirm-form").addEventListener("submit", (event) => {
    event.preventDefault();
    $("confirm-dialog").close();
    tried(() => act(pending));
  });

  // -- charts, as in the report ---------------------------------------------------------------------------------

  const scale = (x, y) => {
    const across = (value) => 1000 * (value - x[0]) / (x[1] - x[0]);
    const down = (value) => 1000 * (1 - (clamp(value, ...y) - y[0]) / (y[1] - y[0]));
    const path = (d, name) => drawn("path", { d, class: name });
    return {
      across, down,
      line: (at, values, name) => {
        const points = at.map((value, index) => [value, values[index]]).filter((point) => present(point[1]));
        return path(points.map(([a, b], index) => (index ? "L" : "M") + across(a).toFixed(1) + " " + down(b).toFixed(1)).join(""), name);
      },
      stems: (at, values, name) => path(at.map((value, index) => "M" + across(value).toFixed(1) + " 1000V" + down(values[index]).toFixed(1)).join(""), name),
      level: (value, name) => path("M0 " + down(value).toFixed(1) + "H1000", name),
    };
  };

  const spread = (values) => {
    const low = Math.min(...values), high = Math.max(...values), margin = 0.06 * (high - low) || 0.1;
    return [low - margin, high + margin];
  };

  const roundTicks = (low, high, about) => {
    const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) found.push(Number((k * step).toPrecision(10)));
    return found;
  };

  // A series is how to read it off a record, its label, its colour and its unit.
  const field = (name) => (record) => record[name];
  const known = (...reads) => reads.flatMap((read) => records.map(read).filter(present));
  const words = (name) => name.replaceAll("_", " ");

  // One figure for each measurement of the policy, with those that it is to be compared with.
  const measured = ([key, about]) => {
    const group = [[key, about], ...Object.entries(info.measurements).filter(([, other]) => other.beside === key)];
    const share = about.unit === "share", colours = [share ? "t4" : "t5", "ink", "t1", "t6"];
    const series = group.map(([name], index) => [
      (record) => record.measurements[name], words(name), colours[index % colours.length], share ? "percent" : "measured",
    ]);
    const title = series.map(([, label]) => label).join(", ");
    const unit = about.unit && !share ? [" In " + about.unit + "."] : [];
    const compared = group.length > 1 ? [" A stroke marks each reset."] : [];
    return {
      key, title: title[0].toUpperCase() + title.slice(1), height: group.length > 1 ? "middle" : "low",
      note: [group.map(([, other]) => other.description).join(" "), ...unit, ...compared].join(""), series,
      range: () => share ? [0, 1] : spread(known(...series.map(([read]) => read))), marks: group.length > 1,
    };
  };
  const FIGURES = [
    {
      key: "depth", title: "How deep each reset went", height: "low", stems: true,
      note: "The share of layers that returned to the source, counted from the output.",
      series: [[field("reset_fraction"), "layers reset", "t1", "percent"]], range: () => [0, 1],
    },
    {
      key: "latency", title: "Latency", height: "low", note: "From a request to its answer, waiting for its batch included.",
      series: [[field("latency"), "latency", "t6", "milliseconds"]], range: () => [0, 1.1 * Math.max(...known(field("latency"))) || 1],
    },
    {
      key: "images", title: "Images", height: "low", note: "Mean and deviation of the pixels of each batch; black is 0 and white is 1.",
      series: [[field("mean"), "mean", "t4", "plain"], [field("deviation"), "deviation", "t1", "plain"]],
      range: () => [Math.min(0, ...known(field("mean"))), Math.max(1, ...known(field("mean"), field("deviation")))],
    },
  ];
  const charts = [];

  const newChart = (figure) => {
    const panel = node("div", undefined, "panel"), key = node("div", undefined, "key");
    for (const [, label, slot] of figure.series) {
      const entry = node("span");
      entry.append(node("span", undefined, "swatch " + slot), label);
      key.append(entry);
    }
    const plot = node("div", undefined, "plot " + figure.height);
    plot.tabIndex = 0;
    plot.dataset.plot = figure.key;
    plot.setAttribute("role", "group");
    const svg = drawn("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", role: "img" });
    const ticks = node("div"), cursor = node("div", undefined, "cursor"), readout = node("div", undefined, "readout");
    ticks.setAttribute("aria-hidden", "true");
    readout.setAttribute("role", "status");
    cursor.hidden = readout.hidden = true;
    plot.append(svg, ticks, cursor, readout);
    panel.append(node("h2", figure.title), node("p", figure.note, "note"), ...(figure.series.length > 1 ? [key] : []), plot);
    const chart = { figure, panel, plot, svg, ticks, cursor, readout, x: [0, 1], shown: [] };
    listen(chart);
    return chart;
  };

  const draw = () => {
    if (!charts.length) {
      const own = Object.entries(info.measurements).filter(([, about]) => !about.beside).map(measured);
      const figures = [...own, ...FIGURES];
      // What one understands without knowing the policy comes first.
      const plain = figures.filter(({ key }) => key === "images" || key.startsWith("canary"));
      charts.push(...[...plain, ...figures.filter((figure) => !plain.includes(figure))].map(newChart));
      $("charts").replaceChildren(...charts.map((chart) => chart.panel));
    }
    $("no-history").hidden = records.length > 0;
    for (const chart of charts) redraw(chart);
  };

  const redraw = (chart) => {
    const { figure, svg, ticks, plot } = chart;
    const shown = records.filter((record) => figure.series.some(([read]) => present(read(record)) && !(figure.stems && !read(record))));
    chart.shown = shown;
    chart.panel.hidden = shown.length === 0;
    if (!shown.length) return;
    const first = records[0].step, last = Math.max(first + 1, records.at(-1).step);
    chart.x = [first, last];
    const axes = scale(chart.x, figure.range()), at = shown.map((record) => record.step);
    const [low, high] = figure.range(), unit = figure.series[0][3];
    const levels = roundTicks(low, high, figure.height === "low" ? 2 : 4);
    const marks = levels.map((level) => axes.level(level, "gridline"));
    if (figure.marks) {
      const read = figure.series[0][0];
      const resets = records.filter((record) => record.reset_fraction > 0 && present(read(record)));
      marks.push(axes.stems(resets.map((one) => one.step), resets.map(read), "stems faint"));
    }
    for (const [read, , slot] of [...figure.series].reverse()) {
      const values = shown.map(read);
      marks.push(figure.stems ? axes.stems(at, values, "stems " + slot) : axes.line(at, values, "line " + slot));
    }
    svg.replaceChildren(...marks);
    const now = figure.series.map(([read, label, , unit]) => {
      const latest = shown.findLast((record) => present(read(record)));
      return latest ? label + " " + written(read(latest), unit) : "";
    }).filter(Boolean).join(", ");
    svg.setAttribute("aria-label", figure.title + " over " + whole(records.length) + " steps; latest: " + now + ".");
    plot.setAttribute("aria-label", figure.title + ". Arrow keys read values.");
    const labels = levels.map((level) => {
      const text = unit === "percent" ? Math.round(100 * level) + " %" : unit === "milliseconds" ? Number((1000 * level).toPrecision(3)) + " ms" : String(level);
      const label = node("span", text, "ytick");
      label.style.top = axes.down(level) / 10 + "%";
      return label;
    });
    roundTicks(first, last, 4).filter(Number.isInteger).forEach((step, index) => {
      const label = node("span", (index ? "" : "step ") + whole(step), "xtick");
      label.style.left = axes.across(step) / 10 + "%";
      labels.push(label);
    });
    ticks.replaceChildren(...labels);
    if (!chart.readout.hidden) chart.show(chart.reading);
  };

  const nearest = (sorted, wanted) => {
    const after = sorted.findIndex((record) => record.step >= wanted);
    if (after < 0) return sorted.length - 1;
    return after > 0 && wanted - sorted[after - 1].step < sorted[after].step - wanted ? after - 1 : after;
  };

  const listen = (chart) => {
    const { plot, cursor, readout, figure } = chart;
    chart.show = (step) => {
      if (!chart.shown.length) return;
      const record = chart.shown[nearest(chart.shown, step)];
      chart.reading = record.step;
      const share = (record.step - chart.x[0]) / (chart.x[1] - chart.x[0]);
      cursor.hidden = readout.hidden = false;
      cursor.style.left = 100 * share + "%";
      const lines = [node("b", "step " + whole(record.step)), node("em", clock(record.time))];
      for (const [read, label, slot, unit] of figure.series) {
        if (!present(read(record))) continue;
        const line = node("div");
        line.append(node("span", undefined, "swatch " + slot), node("span", label), node("span", written(read(record), unit)));
        lines.push(line);
      }
      if (record.reset_fraction > 0 && !figure.stems) lines.push(node("em", "reset " + written(record.reset_fraction, "percent") + " of the layers"));
      if (record.skipped) lines.push(node("em", record.skipped));
      readout.replaceChildren(...lines);
      const room = plot.clientWidth - readout.offsetWidth;
      const beside = share * plot.clientWidth + (share < 0.5 ? 14 : -14 - readout.offsetWidth);
      readout.style.left = clamp(beside, Math.min(0, room), Math.max(0, room)) + "px";
    };
    const leave = () => { cursor.hidden = readout.hidden = true; };
    const follow = (event) => {
      const box = plot.getBoundingClientRect();
      chart.show(chart.x[0] + (event.clientX - box.left) / box.width * (chart.x[1] - chart.x[0]));
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!direction || !chart.shown.length) return;
      event.preventDefault();
      const from = present(chart.reading) ? nearest(chart.shown, chart.reading) : chart.shown.length;
      chart.show(chart.shown[clamp(from + direction * (event.shiftKey ? 10 : 1), 0, chart.shown.length - 1)].step);
    });
  };

  addEventListener("hashchange", () => navigate(false));
  navigate(true);
})();
