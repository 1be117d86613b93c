"use strict";
// Renews the page's values from /status every two seconds and works out rates between two answers.
(() => {
  const POLL_MS = 2000;
  const byId = (id) => document.getElementById(id);
  const classes = {
    ready: "good", healthy: "good", up: "good",
    ejected: "bad", failed: "bad", down: "bad", unhealthy: "bad",
  };

  const grouped = (n) => n.toLocaleString("en-US");
  const bytes = (n) => {
    if (n < 1024) return `${Math.round(n)} B`;
    const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    for (n /= 1024; n >= 1023.95 && unit + 1 < units.length; n /= 1024) unit += 1;
    return `${n.toFixed(1)} ${units[unit]}`;
  };
  const age = (seconds) => {
    const s = Math.floor(seconds), min = Math.floor(s / 60), h = Math.floor(s / 3600);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${min} min ${s % 60} s`;
    if (s < 86400) return `${h} h ${min % 60} min`;
    return `${Math.floor(h / 24)} d ${h % 24} h`;
  };

  // Text only ever gets in as text.
  const make = (tag, className, ...content) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...content);
    return element;
  };
  const setText = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };
  const head = (className, text) => {
    const cell = make("th", className, text);
    cell.scope = "row";
    return cell;
  };
  const setCard = (id, value, below) => {
    const card = byId(`card-${id}`);
    if (!card) return;
    setText(card.querySelector(".value"), value);
    setText(card.querySelector(".below"), below);
  };
  // Keeps unchanged rows, so that selected text stays selected.
  const rowsShown = {};
  const setRows = (id, models, build) => {
    const body = document.querySelector(`#${id} tbody`);
    if (!body) return;
    const before = rowsShown[id] ?? [];
    const now = models.map((model) => JSON.stringify(model));
    models.forEach((model, at) => {
      if (at >= body.rows.length) body.append(build(model));
      else if (now[at] !== before[at]) body.rows[at].replaceWith(build(model));
    });
    while (body.rows.length > models.length) body.rows[models.length].remove();
    rowsShown[id] = now;
  };

  const sum = (listeners, field) => listeners.reduce((total, l) => total + l[field], 0);
  const rate = (now, before, seconds) =>
    before === undefined || seconds <= 0 || now < before ? "–" : `${bytes((now - before) / seconds)}/s`;

  let last = null;

  const showState = (status) => {
    const [className, word] = status.draining ? ["warn", "draining"]
      : status.not_ready === null ? ["good", "ready"] : ["bad", "not ready"];
    byId("state").className = className;
    setText(byId("state"), word);
    setText(byId("reason"), status.not_ready ?? "");
    setText(byId("uptime"), age(status.uptime_seconds));
    const facts = byId("facts");
    if (facts) {
      facts.replaceChildren(...status.facts.flatMap((fact) =>
        [make("dt", "", fact.name), make("dd", "", fact.value)]));
    }
  };

  const showCards = (status, seconds) => {
    const total = (field) => sum(status.listeners, field);
    const before = (field) => (last ? sum(last.status.listeners, field) : undefined);
    setCard("connections", grouped(total("active")), `${grouped(total("total"))} since start`);
    for (const id of ["rx", "tx"]) {
      const field = `${id}_bytes`;
      const now = total(field);
      if (last) setCard(id, rate(now, before(field), seconds), `${bytes(now)} since start`);
    }
    if (status.generation !== null) {
      const below = `in effect for ${age(status.generation_age_seconds ?? 0)}`;
      setCard("generation", grouped(status.generation), below);
    }
  };

  const withRates = (listener, seconds) => {
    const before = last?.status.listeners.find((other) => other.name === listener.name);
    return {
      ...listener,
      rx_rate: rate(listener.rx_bytes, before?.rx_bytes, seconds),
      tx_rate: rate(listener.tx_bytes, before?.tx_bytes, seconds),
    };
  };

  const listenerRow = (listener) =>
    make("tr", "",
      head("", listener.name),
      make("td", "code", listener.address),
      make("td", "", listener.protocol),
      make("td", "number", grouped(listener.active)),
      make("td", "number", grouped(listener.total)),
      make("td", "number", bytes(listener.rx_bytes)),
      make("td", "number", bytes(listener.tx_bytes)),
      make("td", "number rate", listener.rx_rate),
      make("td", "number rate", listener.tx_rate));

  const endpointItem = (endpoint) => {
    const zone = endpoint.zone === null ? "" : `zone ${endpoint.zone}, `;
    return make("li", "",
      make("span", "code", endpoint.address), " ",
      make("span", classes[endpoint.state] ?? "warn", endpoint.state), " ",
      make("span", "quiet", `${zone}${grouped(endpoint.active)} active`));
  };

  const clusterRow = (cluster) => {
    const shown = cluster.endpoints.slice(0, 24);
    const items = shown.map(endpointItem);
    if (shown.length === 0) items.push(make("li", "bad", "no endpoints"));
    const more = cluster.endpoints.length - shown.length;
    if (more > 0) items.push(make("li", "quiet", `and ${more} more`));
    return make("tr", "",
      head("code", cluster.name),
      make("td", "number", grouped(cluster.active)),
      make("td", "number", grouped(cluster.failures)),
      make("td", "", make("ul", "", ...items)));
  };

  const showClusters = (status, filter) => {
    const shown = status.clusters.length, total = status.clusters_total;
    const matching = filter === "" ? "" : " matching";
    setText(byId("note"), shown < total
      ? `The first ${shown} of ${grouped(total)}${matching}.` : `${grouped(total)}${matching}.`);
    setRows("clusters", status.clusters, clusterRow);
  };

  const show = (status, filter) => {
    const at = performance.now();
    const seconds = last ? (at - last.at) / 1000 : 0;
    showState(status);
    showCards(status, seconds);
    const listeners = status.listeners.map((listener) => withRates(listener, seconds));
    setRows("listeners", listeners, listenerRow);
    showClusters(status, filter);
    last = { at, status };
  };

  const stale = byId("stale");
  let timer = null, request = 0, since = new Date();
  const poll = async () => {
    clearTimeout(timer);
    const mine = ++request;
    const filter = (byId("filter")?.value ?? "").trim();
    try {
      const query = filter === "" ? "" : `?filter=${encodeURIComponent(filter)}`;
      const limit = AbortSignal.timeout(10000);
      const answer = await fetch(`status${query}`, { cache: "no-store", signal: limit });
      if (!answer.ok) throw new Error(`it answers ${answer.status}`);
      const status = await answer.json();
      if (mine !== request) return;
      show(status, filter);
      since = new Date();
      stale.hidden = true;
    } catch (error) {
      if (mine !== request) return;
      const time = since.toISOString().slice(11, 19);
      setText(stale, `No answer (${error.message}). These values are as of ${time} UTC.`);
      stale.hidden = false;
    }
    if (!document.hidden) timer = setTimeout(poll, POLL_MS);
  };

  const form = document.querySelector("form");
  if (form) {
    form.querySelector("button").hidden = true;
    form.addEventListener("submit", (event) => { event.preventDefault(); poll(); });
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(poll, 150);
    });
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
})();
