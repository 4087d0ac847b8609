// Applies the remembered theme before the first paint (so it must not be a module) and wires the toggle.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js"); // shows what works only with scripts
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try {
      return localStorage.getItem("tiltyard-theme");
    } catch {
      return null; // storage is switched off: follow the system
    }
  };
  const wanted = remembered();
  if (wanted === "light" || wanted === "dark") root.dataset.theme = wanted;

  document.addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme-toggle");
    const current = () => root.dataset.theme ?? (system.matches ? "dark" : "light");
    const label = () => {
      const words = current() === "dark" ? toggle.dataset.toLight : toggle.dataset.toDark;
      toggle.setAttribute("aria-label", words);
      toggle.title = words;
    };
    const menu = document.querySelector(".languages");
    document.addEventListener("click", (event) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
    toggle.hidden = false;
    label();
    system.addEventListener("change", label);
    toggle.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("tiltyard-theme", root.dataset.theme);
      } catch {
        // storage is switched off: the choice lasts for this page
      }
      label();
    });
  });
})();
