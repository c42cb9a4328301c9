// @ts-check
// A form for a tool's arguments, generated from its schema, or JSON.

import { h, oneLine, replace } from "../../dom.js";
import { button, field, select } from "../../components.js";

/** @param {Schema} schema */
/** @typedef {Api.JsonObject<any>} Schema A JSON schema, as tools declare it. */

/** @param {Schema} schema */
const isNull = (schema) => schema.type === "null";

/**
 * The schema of a property without null.
 * @param {Schema} schema
 */
function plain(schema) {
  /** @type {Schema[]|undefined} */
  const some = schema.anyOf?.filter((/** @type {Schema} */ one) => !isNull(one));
  return some?.length === 1 ? { ...schema, ...some[0] } : schema;
}

/**
 * The input of one property, and a function that reads it; undefined if it is empty.
 * @param {string} name @param {Schema} schema
 */
function control(name, schema) {
  const one = plain(schema);
  if (one.enum) {
    /** @type {unknown[]} */
    const values = one.enum;
    const input = select([["", "(left out)"], ...values.map(String)], "");
    return { input, read: () => values.find((value) => String(value) === input.value) };
  }
  if (one.type === "boolean") {
    const input = select([["", "(left out)"], "true", "false"], "");
    return { input, read: () => (input.value ? input.value === "true" : undefined) };
  }
  if (one.type === "integer" || one.type === "number") {
    const input = h("input", { type: "number", step: one.type === "integer" ? "1" : "any" });
    return { input, read: () => (input.value === "" ? undefined : Number(input.value)) };
  }
  if (one.type === "string") {
    const input = h("textarea", { rows: "1", class: "mono" });
    return { input, read: () => (input.value === "" ? undefined : input.value) };
  }
  const input = h("textarea", { rows: "2", class: "mono", placeholder: "JSON" });
  return { input, read: () => (input.value.trim() ? parsed(input.value, name) : undefined) };
}

/** @param {string} text @param {string} what */
function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new Error(`${what} is not valid JSON: ${cause.message}`, { cause });
  }
}

/**
 * A form for the arguments of a tool.
 * @param {Schema} [schema] @param {string} [title]
 * @returns {{element: Element, values: () => object}} `values` throws if JSON is wrong.
 */
export function argumentForm(schema, title = "Arguments") {
  const required = new Set(schema?.required || []);
  const fields = Object.entries(schema?.properties || {})
    .map(([name, one]) => ({ name, about: one.description || "", ...control(name, one) }));
  const whole = h("textarea", { rows: "6", class: "mono" });
  const place = h("div");
  let asJson = fields.length === 0;
  const fromFields = () => Object.fromEntries(fields.map(({ name, read }) => [name, read()])
    .filter(([, value]) => value !== undefined));
  const draw = () => {
    change.textContent = asJson ? "Edit as a form" : "Edit as JSON";
    replace(place, asJson ? field("Arguments as JSON", whole)
      : h("div", { class: "settings-form" }, fields.map(({ name, about, input }) => field(
        required.has(name) ? `${name} (required)` : name, input, oneLine(about, 110)))));
  };
  const change = button("Edit as JSON", () => {
    if (!asJson) whole.value = JSON.stringify(fromFields(), null, 2);
    asJson = !asJson;
    draw();
  });
  whole.value = "{}";
  draw();
  return {
    element: h("fieldset", null, h("legend", null, title), place,
      fields.length > 0 && h("div", { class: "row end" }, change)),
    values: () => (asJson ? parsed(whole.value || "{}", "the text") : fromFields()),
  };
}
