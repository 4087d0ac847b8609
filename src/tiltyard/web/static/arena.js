// Makes the arena's pages lively: streaming, keys, copying. Every page works without it.
// It never builds HTML from an answer: the server renders and sanitises what was said so far, and what is shown at
// the end is the server's own page.

// It says nothing of its own either: its words come with the page, in the page's language.

const battle = document.querySelector("[data-battle]");
const words = JSON.parse(document.querySelector("[data-words]").dataset.words);
const say = (name, values = {}) => words[name].replace(/\{(\w+)\}/g, (_, value) => values[value]);
const announcer = document.getElementById("announce");

const policy = window.trustedTypes?.createPolicy("tiltyard", { createHTML: (html) => html });
const fromServer = (html) => policy?.createHTML(html) ?? html;

const announce = (text) => {
  if (announcer) announcer.textContent = text;
};

// What the page asks for belongs to the trace of the page, where the server keeps traces.
const traced = () => {
  const trace = document.querySelector('meta[name="traceparent"]')?.content;
  return trace ? { traceparent: trace } : {};
};

// ---- errors beside the form ------------------------------------------------------------------------------

function showError(text) {
  const place = document.getElementById("form-error");
  if (!place) return announce(text);
  place.textContent = text;
  place.hidden = !text;
}

async function explain(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return say("badAnswer", { status: response.status });
  }
}

// ---- the answers as they come ----------------------------------------------------------------------------

const pane = (side) => [...document.querySelectorAll(`[data-stream="${side}"]`)].at(-1);

function watch() {
  const spoken = new Set();
  const source = new EventSource(`/api/arena/battles/${battle.dataset.battle}/events?as=html`);
  source.addEventListener("turn", () => {
    spoken.clear();
    for (const side of ["a", "b"]) pane(side)?.replaceChildren();
  });
  source.addEventListener("html", (event) => {
    const { side, html } = JSON.parse(event.data);
    const place = pane(side);
    if (place) place.innerHTML = fromServer(html);
    const early = document.querySelector("[data-early]");
    if (spoken.size < 2 && spoken.add(side).size === 2 && early) {
      early.disabled = false; // nobody has to wait for the slow side
      announce(say("bothSpoke"));
    }
  });
  source.addEventListener("done", (event) => {
    const { side, trouble } = JSON.parse(event.data);
    const place = [...document.querySelectorAll(`[data-trouble="${side}"]`)].at(-1);
    if (trouble && place) {
      document.querySelector("[data-early]")?.setAttribute("disabled", ""); // a vote needs both
      place.textContent = trouble;
      place.hidden = false;
    }
  });
  source.addEventListener("settled", async (event) => {
    source.close();
    await refresh();
    announce(say(JSON.parse(event.data).can_vote ? "bothDone" : "oneFailed"));
    askAnotherPair();
  });
  source.addEventListener("error", () => {
    showError(
      source.readyState === EventSource.CLOSED
        ? say("streamGone")
        : say("lost"),
    );
  });
  source.addEventListener("open", () => showError(""));
}

// A side failed: another pair gets the question.
function askAnotherPair() {
  const redraw = document.querySelector("form[data-redraw]");
  if (redraw) send(redraw);
}

// Replace what the server renders anew, and leave alone what the voter is typing.
async function refresh() {
  let page;
  try {
    const response = await fetch(window.location.pathname, { headers: { accept: "text/html", ...traced() } });
    if (!response.ok) return showError(say("notShown"));
    page = new DOMParser().parseFromString(fromServer(await response.text()), "text/html");
  } catch {
    return showError(say("reload"));
  }
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) old.replaceWith(document.adoptNode(fresh));
  }
  document.title = page.title;
  battle.dataset.running = page.querySelector("[data-battle]")?.dataset.running ?? "false";
  document.getElementById("go-on").className = page.getElementById("go-on")?.className ?? "";
  count(); // its place is new
  addCodeCopies();
}

// ---- forms -------------------------------------------------------------------------------------------------

let sending = false; // stays true while the browser leaves for the next page: no vote or question goes out twice

function setSending(now) {
  sending = now;
  document.body.classList.toggle("sending", now);
}
window.addEventListener("pageshow", () => setSending(false)); // back by the browser's own button

async function send(form, button) {
  if (sending) return;
  const refused = form === field?.form ? tooLong() : "";
  if (refused) return showError(refused);
  const fields = new URLSearchParams(new FormData(form, button));
  setSending(true);
  showError("");
  try {
    const response = await fetch(form.action, { method: "POST", body: fields, headers: { accept: "application/json", ...traced() } });
    if (response.ok && form.dataset.send !== "quietly") return window.location.assign(response.url);
    if (!response.ok) showError(await explain(response)); // otherwise the stream tells the rest
  } catch {
    showError(say("noServer"));
  }
  setSending(false);
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-send]")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

const field = document.getElementById("message");
field?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    const button = field.form.querySelector("[type=submit]");
    if (!button.disabled) field.form.requestSubmit(button);
  } else if (event.key === "Escape") {
    field.blur(); // the keys of the vote work again
  }
});

// The field takes a text of any length: one that was cut by the browser would go out unseen.
const limit = Number(field?.dataset.limit);
const length = () => [...field.value.trim()].length; // as the server counts
const inWords = (number) => number.toLocaleString(document.documentElement.lang);

function tooLong() {
  if (length() <= limit) return "";
  return say("tooLong", { number: inWords(length()), limit: inWords(limit) });
}

function count() {
  const counter = document.querySelector("[data-counter]");
  if (!counter || !field) return;
  const left = limit - length();
  counter.hidden = left > limit / 5;
  counter.textContent = left < 0 ? say("tooMany", { number: inWords(-left) }) : say("left", { number: inWords(left) });
  counter.classList.toggle("over", left < 0);
  showError(tooLong());
}
field?.addEventListener("input", count);

document.addEventListener("click", (event) => {
  const example = event.target.closest("[data-example]");
  if (!example || !field) return;
  event.preventDefault(); // without scripts an example is asked at once; with them it can be edited first
  field.value = example.textContent.trim();
  field.focus();
  count();
});

// ---- keys ----------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("textarea, input, select, [contenteditable]")) return;
  // a scrolled code block or table takes the arrows itself
  if (event.key.startsWith("Arrow") && event.target.closest("pre, .table-scroll")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  for (const target of document.querySelectorAll("[data-key]")) {
    if (target.dataset.key.split(" ").includes(key) && !target.matches(":disabled")) {
      event.preventDefault();
      target.click();
      return;
    }
  }
});

// ---- copying -------------------------------------------------------------------------------------------------

function addCodeCopies() {
  for (const block of document.querySelectorAll(".code-block:not(:has(.copy))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = say("copy");
    button.setAttribute("aria-label", say("copyCode"));
    block.append(button);
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const place = button.dataset.copyPlace;
  const text = place ? new URL(place, window.location.href).href : button.dataset.copy ?? button.closest(".code-block")?.querySelector("code")?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = say("copied");
  } catch {
    button.textContent = say("copyBlocked");
  }
  setTimeout(() => {
    button.textContent = say("copy");
  }, 1600);
});

// ---- taking a vote back, while there is time -----------------------------------------------------------------

const undo = document.querySelector("form[data-undo-left]");
if (undo) {
  const ends = performance.now() + Number(undo.dataset.undoLeft) * 1000;
  const tick = () => {
    const left = Math.ceil((ends - performance.now()) / 1000);
    if (left <= 0) return undo.remove();
    undo.querySelector("[data-undo-clock]").textContent = say("seconds", { number: inWords(left) });
    setTimeout(tick, 500);
  };
  tick();
}

// ---- what a browser remembers ----------------------------------------------------------------------------------

for (const box of document.querySelectorAll("input[data-remember]")) {
  const name = `tiltyard-${box.dataset.remember}`;
  try {
    box.checked ||= localStorage.getItem(name) === "yes";
    box.addEventListener("change", () => localStorage.setItem(name, box.checked ? "yes" : "no"));
  } catch {
    // storage is switched off: the choice lasts for this page
  }
}

// ---- start ---------------------------------------------------------------------------------------------------

addCodeCopies();
if (battle) {
  const turns = battle.querySelectorAll(".turn");
  if (battle.dataset.running === "true") {
    if (turns.length > 1) turns[turns.length - 1].scrollIntoView({ block: "start" });
    watch();
  } else {
    askAnotherPair();
  }
} else {
  field?.focus();
}
document.getElementById("verdict")?.focus({ preventScroll: true });
