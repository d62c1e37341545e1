// The chat page: one conversation, kept in this tab alone.

import { rendered } from "./render.js";

const at = (id) => document.getElementById(id);
const talk = at("talk"), status = at("status"), text = at("text"), send = at("send"), stop = at("stop");
const kept = JSON.parse(sessionStorage.getItem("talk") || "{}");
const said = kept.said || [];
let running = null;

for (const id of ["system", "temperature", "think", "key"]) at(id).value = kept[id] || "";
if (kept.theme) document.documentElement.dataset.theme = kept.theme;

function keep() {
  sessionStorage.setItem("talk", JSON.stringify({
    said, system: at("system").value, temperature: at("temperature").value, key: at("key").value,
    think: at("think").value, theme: document.documentElement.dataset.theme,
  }));
}

function headers() {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function button(name, label, action) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = name;
  made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

/** Return the element of a message, without what it says. */
function shell(place) {
  const mine = said[place].role === "user";
  const article = document.createElement("article");
  article.className = said[place].role;
  const head = document.createElement("h2");
  head.textContent = mine ? "You" : "Model";
  const body = document.createElement("div");
  body.className = "body";
  const tools = document.createElement("div");
  tools.className = "tools";
  tools.append(button("Copy", "Copy this message", () => copy(place)));
  if (mine) tools.append(button("Edit", "Edit this message and ask again", () => edit(place)));
  else tools.append(button("Again", "Answer again", () => again(place)));
  article.append(head, body, tools);
  return article;
}

/** Show what a message says now. */
function fill(article, message) {
  const body = article.querySelector(".body");
  if (message.role === "user") {
    body.textContent = message.content;
    return;
  }
  let thought = body.querySelector("details");
  if (message.reasoning && !thought) {
    thought = document.createElement("details");
    const head = document.createElement("summary");
    head.textContent = "Reasoning";
    thought.append(head, document.createElement("div"));
    body.append(thought);
  }
  if (thought) thought.lastChild.textContent = message.reasoning;
  body.replaceChildren(...(thought ? [thought] : []), ...rendered(message.content));
}

function show() {
  talk.replaceChildren(...said.map((message, place) => {
    const article = shell(place);
    fill(article, message);
    return article;
  }));
  talk.scrollTop = talk.scrollHeight;
}

async function copy(place) {
  const words = said[place].content;
  try {
    await navigator.clipboard.writeText(words);
    status.textContent = "copied";
  } catch {
    status.textContent = copied(words) ? "copied" : "this browser does not let a page copy";
  }
}

/** Copy in the old way: browsers have no clipboard for pages that come unencrypted from another machine. */
function copied(words) {
  const from = document.createElement("textarea"), before = document.activeElement;
  from.value = words;
  from.className = "hidden";
  document.body.append(from);
  from.select();
  const done = document.execCommand("copy");
  from.remove();
  before?.focus();
  return done;
}

function edit(place) {
  if (running) return;
  text.value = said[place].content;
  said.length = place;
  show();
  keep();
  text.focus();
}

function again(place) {
  if (running) return;
  said.length = place;
  answer();
}

function body() {
  const system = at("system").value.trim(), temperature = at("temperature").value, think = at("think").value;
  const messages = said.map(({ role, content, reasoning }) => ({ role, content, ...(reasoning ? { reasoning } : {}) }));
  return {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    ...(think ? { thinking: { type: think } } : {}),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    ...(temperature ? { temperature: Number(temperature) } : {}),
  };
}

/** Yield the events of a stream, and fail where it breaks off. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer broke off");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const one of lines) {
      if (!one.startsWith("data: ")) continue;
      if (one === "data: [DONE]") return;
      const event = JSON.parse(one.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function counted(usage, started) {
  const details = usage.completion_tokens_details, seconds = (performance.now() - started) / 1000;
  const drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens;
  const words = [`${usage.completion_tokens} tokens`];
  if (seconds > 0.05) words.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tok/s`);
  if (drafted) words.push(`${Math.round(100 * details.accepted_prediction_tokens / drafted)} % of drafts accepted`);
  status.textContent = words.join(", ");
}

async function answer() {
  running = new AbortController();
  send.hidden = true;
  stop.hidden = false;
  const message = { role: "assistant", content: "", reasoning: "" };
  said.push(message);
  show();
  const article = talk.lastChild;
  talk.setAttribute("aria-busy", "true");
  status.textContent = "waiting for the first token";
  let started = 0, drawn = 0;
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify({ ...body(), messages: body().messages.slice(0, -1) }), signal: running.signal };
    const got = await fetch("v1/chat/completions", options);
    if (!got.ok) throw new Error((await got.json()).error.message);
    for await (const event of events(got)) {
      for (const choice of event.choices) {
        message.reasoning += choice.delta.reasoning || "";
        message.content += choice.delta.content || "";
      }
      if (event.usage && event.usage.completion_tokens) {
        started ||= performance.now();
        counted(event.usage, started);
      }
      if (performance.now() - drawn > 50) {
        const low = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
        fill(article, message);
        if (low) talk.scrollTop = talk.scrollHeight;
        drawn = performance.now();
      }
    }
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "stopped" : `error: ${error.message}`;
    if (!message.content && !message.reasoning) said.pop();
  }
  running = null;
  send.hidden = false;
  stop.hidden = true;
  talk.setAttribute("aria-busy", "false");
  show();
  keep();
  text.focus();
}

function ask(event) {
  event.preventDefault();
  const content = text.value.trim();
  if (!content || running) return;
  said.push({ role: "user", content });
  text.value = "";
  answer();
}

async function greet() {
  try {
    const got = await fetch("v1/models", { headers: headers() });
    const found = await got.json();
    if (got.ok) {
      at("model").textContent = found.data[0].id;
      status.textContent = "ready";
      return;
    }
    status.textContent = found.error.message;
    if (got.status === 503) setTimeout(greet, 2000);
    if (got.status === 401) openSettings(true);
  } catch {
    status.textContent = "the service does not answer";
  }
}

function openSettings(open) {
  at("settings").hidden = !open;
  at("settings-open").setAttribute("aria-expanded", String(open));
}

at("ask").addEventListener("submit", ask);
stop.addEventListener("click", () => running?.abort());
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
at("reset").addEventListener("click", () => {
  running?.abort();
  said.length = 0;
  status.textContent = "";
  show();
  keep();
  text.focus();
});
at("theme").addEventListener("click", () => {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
  keep();
});
at("settings-open").addEventListener("click", () => openSettings(at("settings").hidden));
at("settings").addEventListener("change", () => { keep(); greet(); });
at("settings").addEventListener("submit", (event) => event.preventDefault());

show();
greet();
