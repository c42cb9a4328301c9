// @ts-check
// A block of code: its language, its colours, and a button that copies it.

import { h, replace } from "../dom.js";
import { button, toast } from "../components.js";
import { highlighted } from "./highlight.js";

/**
 * A button that copies the text of an element, or selects it where the clipboard is forbidden.
 * @param {HTMLElement} element
 */
function copyOf(element) {
  return button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(element.textContent || "");
      toast("Copied");
    } catch {
      getSelection()?.selectAllChildren(element);
      toast("Selected. Press Ctrl+C or ⌘C to copy it.");
    }
  }, { tone: "plain tiny", label: "Copy the code" });
}

/**
 * A block of code. While its end is missing, `growing`, it has no colours.
 * @param {string} text
 * @param {string} info the words after its fence; the first is the language
 */
export function codeBlock(text, info = "", growing = false) {
  const [language = ""] = info.trim().split(/[\s,{]+/, 1);
  const code = h("code");
  const element = h("div", { class: "code" },
    h("div", { class: "row between" },
      h("span", { class: "soft small" }, language.slice(0, 40) || "code"), copyOf(code)),
    h("pre", { tabindex: "0", role: "group",
      "aria-label": `code ${language.slice(0, 40)}`.trim() }, code));
  /** @param {string} now */
  const show = (now, coloured = true) =>
    replace(code, coloured ? highlighted(now, language) : now);
  show(text, !growing);
  return { element, code, info, show };
}
