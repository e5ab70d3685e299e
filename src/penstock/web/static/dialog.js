// A question that must be answered before something is changed. The browser's own `confirm` can't show what a page
// knows, nor why a change failed.

import { html } from "./chart.js";

// Asks whether to do something, and does it. While it runs the dialog waits; when it fails the dialog says why and stays.
//   name: what the dialog is called
//   says: what will happen, sentence by sentence; those of `warns` need attention
//   label: the name of the button that does it
//   field: {name, hint} of a line that may be filled in; its text is passed to `act`
//   act: does it; may throw
// Gives what `act` gave, or undefined where it was cancelled. The focus returns to where it was.
export function confirmed({ name, says, warns = [], label, field, act }) {
  const before = document.activeElement;
  const line = field && html("input", { type: "text", placeholder: field.hint, maxLength: 1000, autocomplete: "off" });
  const wrong = html("p", { className: "error", role: "alert", hidden: true });
  const cancel = html("button", { type: "button", textContent: "Cancel" });
  const go = html("button", { type: "submit", textContent: label });
  const form = html("form", {},
    html("h2", { id: "dialog-name", textContent: name }),
    html("div", { id: "dialog-says" }, ...says.map((text) => html("p", { textContent: text })), ...warns.map((text) => html("p", { className: "warn-text", textContent: text }))),
    ...(line ? [html("label", {}, field.name, line)] : []), wrong,
    html("div", { className: "bar actions" }, cancel, go));
  const dialog = html("dialog", {}, form);
  dialog.setAttribute("aria-labelledby", "dialog-name");
  dialog.setAttribute("aria-describedby", "dialog-says");
  document.body.append(dialog);
  return new Promise((resolve) => {
    let found;
    form.onsubmit = async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      busy(true);
      try {
        found = await act(line ? line.value.trim() : "");
        dialog.close();
      } catch (error) {
        wrong.textContent = error.message;
        wrong.hidden = false;
      } finally {
        busy(false);
      }
    };
    const busy = (is) => { go.disabled = cancel.disabled = is; form.setAttribute("aria-busy", String(is)); };
    cancel.onclick = () => dialog.close();
    dialog.oncancel = (event) => { if (go.disabled) event.preventDefault(); }; // Escape can't call back what is under way
    dialog.onclose = () => {
      dialog.remove();
      if (before && before.isConnected) before.focus();
      resolve(found);
    };
    dialog.showModal();
    (line || cancel).focus(); // where nothing is asked for, Enter alone changes nothing
  });
}
