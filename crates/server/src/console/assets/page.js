// What pages do in the browser beyond htmx. Without it they show UTC (the title has it in any case), and do not refresh themselves.
(() => {
  "use strict";
  const shown = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const update = () => {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const text = shown.format(new Date(element.dateTime));
      // A refresh brings UTC back; it is replaced before the browser paints.
      if (element.textContent !== text) element.textContent = text;
    }
    // What was under way has ended. The notice keeps its place, so that nothing jumps.
    if (document.querySelector("#refresh[data-over]")) document.querySelector("#note.passes")?.classList.add("over");
  };
  const start = () => {
    update();
    new MutationObserver(update).observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-over"] });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
  // Browsers give the clipboard to pages over HTTPS alone.
  if (navigator.clipboard) {
    document.documentElement.classList.add("copies-text");
    document.addEventListener("click", async (event) => {
      const button = event.target.closest?.("[data-copy]");
      if (!button) return;
      try {
        await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Refused";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
  // A page that is not seen reads nothing, and catches up when it is.
  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden && event.target.id === "refresh") event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) document.getElementById("refresh")?.dispatchEvent(new Event("wake"));
  });
})();
