// Shows times in the reader's zone. Without it, pages show UTC; the title has it in any case.
(() => {
  "use strict";
  const shown = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const localise = () => {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const text = shown.format(new Date(element.dateTime));
      // A refresh brings UTC back; it is replaced before the browser paints.
      if (element.textContent !== text) element.textContent = text;
    }
  };
  const start = () => {
    localise();
    new MutationObserver(localise).observe(document.body, { childList: true, subtree: true, characterData: true });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
