// A script of its own, run before anything is painted: the page never flashes in the other colours.
(function () {
  "use strict";
  let chosen = null;
  try {
    chosen = localStorage.getItem("penstock-theme");
  } catch {
    // storage is switched off: the system's choice counts
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
