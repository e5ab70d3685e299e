// Light or dark colours: as the system says, or as chosen on this page, which the browser keeps. This script is no
// module, so that it runs before anything is drawn: nothing flashes. The stylesheet takes both colours from `color-scheme`.

(() => {
  const NAME = "penstock.theme", CHOICES = ["light", "dark"];
  const root = document.documentElement;
  const kept = () => {
    try {
      const value = localStorage.getItem(NAME);
      return CHOICES.includes(value) ? value : "";
    } catch { return ""; } // a browser may forbid storage: the choice then lasts as long as the page
  };
  const keep = (value) => {
    try { if (value) localStorage.setItem(NAME, value); else localStorage.removeItem(NAME); } catch { /* as above */ }
  };
  const apply = (value) => { root.style.colorScheme = value; }; // "" leaves it to the system

  apply(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = kept();
    choice.addEventListener("change", () => { keep(choice.value); apply(choice.value); });
    window.addEventListener("storage", () => { choice.value = kept(); apply(choice.value); }); // chosen in another tab
  });
})();
