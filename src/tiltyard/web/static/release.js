// Keeps a page of releases current: what changed is put in place of the old, and whoever is at it is left alone.
"use strict";

const EVERY_MS = 2000;
const policy = window.trustedTypes?.createPolicy("tiltyard", { createHTML: (html) => html });
const parsed = (html) => new DOMParser().parseFromString(policy?.createHTML(html) ?? html, "text/html");
const announcer = document.getElementById("announce");

document.querySelector("#problem, #forecast")?.focus();

// A file that is chosen is shown before it is sent.
document.getElementById("file")?.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  document.getElementById("plan").value = await file.text();
  event.target.value = "";
});

const openDetails = (region) => [...region.querySelectorAll("details[open][id]")].map((one) => one.id);

// The regions are drawn by the server; one is replaced only if it differs, with what was open, scrolled or in focus.
const replace = (old, fresh) => {
  const open = openDetails(old);
  const focus = old.contains(document.activeElement) ? document.activeElement : null;
  const place = focus && [...old.querySelectorAll("a, summary, [tabindex]")].indexOf(focus);
  const scrolled = [...old.querySelectorAll(".table-scroll[id]")].map((one) => [one.id, one.scrollLeft]);
  const inserted = document.importNode(fresh, true);
  for (const id of open) inserted.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  old.replaceWith(inserted);
  for (const [id, left] of scrolled) {
    const again = document.getElementById(id);
    if (again) again.scrollLeft = left;
  }
  if (focus) {
    const same = focus.id ? document.getElementById(focus.id) : inserted.querySelectorAll("a, summary, [tabindex]")[place];
    same?.focus({ preventScroll: true });
  }
  const says = inserted.querySelector("[data-says]")?.textContent.trim();
  if (says && says !== old.querySelector("[data-says]")?.textContent.trim()) announcer.textContent = says;
};

const atWork = (region) => region.contains(document.activeElement) && document.activeElement.matches("input, textarea, select, button");
const typed = (region) => [...region.querySelectorAll("input:not([type=hidden]), textarea")].some((one) =>
  one.type === "radio" || one.type === "checkbox" ? one.checked !== one.defaultChecked : one.value !== one.defaultValue);

// What a person writes stays as it is; what the server would draw now is compared without what was opened by hand.
const drawn = new Map([...document.querySelectorAll("[data-live], [data-live-forms]")].map((one) => [one.id, one.outerHTML]));

const refresh = async () => {
  const response = await fetch(location.pathname + location.search, { headers: { accept: "text/html" }, redirect: "error" });
  if (!response.ok) return;
  const page = parsed(await response.text());
  for (const old of document.querySelectorAll("[data-live], [data-live-forms]")) {
    const fresh = page.getElementById(old.id);
    const html = fresh?.outerHTML ?? "";
    if (drawn.get(old.id) === html || atWork(old) || typed(old)) continue;
    drawn.set(old.id, html);
    if (fresh) replace(old, fresh);
    else old.remove();
  }
};

const watch = async () => {
  if (!document.hidden) await refresh().catch(() => {}); // the server is away: the next look may find it
  setTimeout(watch, EVERY_MS);
};
if (document.querySelector("[data-live]")) setTimeout(watch, EVERY_MS);
