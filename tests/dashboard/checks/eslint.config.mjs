// The rules for the dashboard's scripts, beyond what the type checker checks.

import js from "@eslint/js";

const markup = "This turns text into markup. Use `h` and `replace` of dom.js.";
const properties = ["innerHTML", "outerHTML", "insertAdjacentHTML", "setHTMLUnsafe", "srcdoc",
  "createContextualFragment", "parseFromString", "writeln"];

export default [{ ignores: ["**/vendor/**"] }, {
  files: ["**/*.js"],
  linterOptions: { reportUnusedDisableDirectives: "error" },
  rules: {
    ...js.configs.recommended.rules,
    "no-undef": "off", // the type checker knows all globals
    "no-eval": "error",
    "no-implied-eval": "error",
    "no-new-func": "error",
    "no-script-url": "error",
    "no-implicit-globals": "error",
    "no-restricted-globals": ["error", "event", "name", "status", "top", "parent", "find"],
    "no-restricted-properties": ["error", { object: "document", property: "write", message: markup },
      ...properties.map((property) => ({ property, message: markup }))],
    "no-restricted-syntax": ["error",
      { selector: "NewExpression[callee.name='DOMParser']", message: markup }],
    "no-console": "error",
    "no-var": "error",
    "prefer-const": "error",
    "eqeqeq": "error",
    "no-self-compare": "error",
    "no-unused-expressions": "error",
    "array-callback-return": "error",
    "no-promise-executor-return": ["error", { allowVoid: true }],
  },
}];
