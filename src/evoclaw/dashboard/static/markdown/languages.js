// @ts-check
// The languages that code is coloured in. Every pattern consumes what it reads: none goes back.

/**
 * @typedef {object} Language
 * @property {RegExp} pattern its groups name the kinds of pieces; `word` is looked at further
 * @property {Set<string>} keywords
 * @property {Set<string>} constants
 * @property {string} [key] the character after the name of a property
 * @property {boolean} [ignoresCase]
 * @property {boolean} [macros] a word before `!` is a function
 */

const END = "(?![\\s\\S])"; // of the whole code
const HASH = "#[^\\n]*", SLASHES = "\\/\\/[^\\n]*", STARS = `\\/\\*[\\s\\S]*?(?:\\*\\/|${END})`;
const DOUBLE = '"(?:[^"\\\\\\n]|\\\\[\\s\\S])*"?', SINGLE = "'(?:[^'\\\\\\n]|\\\\[\\s\\S])*'?";
const LONG = `"""[\\s\\S]*?(?:"""|${END})|'''[\\s\\S]*?(?:'''|${END})`;
const TICKS = "`(?:[^`\\\\]|\\\\[\\s\\S])*`?", RAW_TICKS = "`[^`]*`?";
const WORD = "[A-Za-z_$][\\w$]*", NUMBER = "\\b\\d[\\w.]*";

/**
 * @param {Record<string, string>} kinds patterns by kind, tried in this order
 * @param {{ keywords?: string, constants?: string, key?: string, ignoresCase?: boolean,
 *   macros?: boolean }} more
 * @returns {Language}
 */
function language(kinds, { keywords = "", constants = "", ...more } = {}) {
  const source = Object.entries(kinds).map(([kind, text]) => `(?<${kind}>${text})`).join("|");
  return { pattern: new RegExp(source, "gm"), keywords: new Set(keywords.split(" ")),
    constants: new Set(constants.split(" ")), ...more };
}

const JS = "as async await break case catch class const continue debugger default delete do else "
  + "export extends finally for from function get if import in instanceof let new of return set "
  + "static super switch this throw try typeof var void while with yield";
const TS = `${JS} abstract any bigint boolean declare enum implements interface is keyof namespace `
  + "never number object private protected public readonly satisfies string symbol type unknown";
const C = "alignas auto bool break case catch char class const constexpr continue default delete "
  + "do double else enum extern final float for friend goto if inline int long namespace new "
  + "noexcept operator override private protected public register restrict return short signed "
  + "sizeof static struct switch template this throw try typedef typename union unsigned using "
  + "virtual void volatile while";
const BASH = "case coproc declare do done elif else esac exec exit export fi for function if "
  + "in local readonly return select set shift source then time trap unset until while";
const SQL = "add all alter and as asc begin between by case check column commit constraint create "
  + "cross default delete desc distinct drop else end exists explain foreign from full group "
  + "having if in index inner insert into is join key left like limit not offset on or order "
  + "outer over partition primary references returning right rollback select set table then "
  + "union unique update using values view when where with";
const PYTHON = "and as assert async await break case class continue def del elif else except "
  + "finally for from global if import in is lambda match nonlocal not or pass raise return try "
  + "while with yield";
const RUST = "as async await break const continue crate dyn else enum extern fn for if impl in let "
  + "loop match mod move mut pub ref return self static struct super trait type unsafe use where "
  + "while Self bool char f32 f64 i8 i16 i32 i64 isize str u8 u16 u32 u64 usize";
const GO = "any bool break byte case chan const continue default defer else error fallthrough "
  + "float64 for func go goto if import int int64 interface map package range return rune select "
  + "string struct switch type uint var";

const script = { comment: `${SLASHES}|${STARS}`, string: `${DOUBLE}|${SINGLE}|${TICKS}`,
  meta: `@${WORD}`, number: NUMBER, word: WORD };
const jsConstants = "false Infinity NaN null true undefined";

/** @type {Record<string, Language>} */
const LANGUAGES = {
  __proto__: /** @type {any} */ (null),
  "javascript": language(script, { keywords: JS, constants: jsConstants }),
  typescript: language(script, { keywords: TS, constants: jsConstants }),
  python: language({ comment: HASH,
    string: `(?:\\b[bBfFrRuU]{1,2})?(?:${LONG}|${DOUBLE}|${SINGLE})`,
    meta: `@${WORD}`, number: NUMBER, word: WORD },
  { keywords: PYTHON, constants: "False None True" }),
  bash: language({ comment: "(?<![^\\s;(])#[^\\n]*",
    string: "\"(?:[^\"\\\\]|\\\\[\\s\\S])*\"?|'[^']*'?",
    variable: "\\$(?:\\w+|\\{[^}\\n]*\\}?|[?!#@*$-])", number: "(?<![\\w.-])\\d+\\b",
    word: "[A-Za-z_][\\w-]*" }, { keywords: BASH, constants: "false true" }),
  json: language({ comment: `${SLASHES}|${STARS}`, string: DOUBLE, number: "-?\\d[\\w.+-]*",
    word: "[A-Za-z]+" }, { constants: "false null true", key: ":" }),
  toml: language({ comment: HASH, string: `${LONG}|${DOUBLE}|'[^'\\n]*'?`,
    title: "^\\[[^\\]\\n]*\\]?\\]?", number: "(?<![\\w.-])[+-]?\\d[\\w.:+-]*",
    word: "[A-Za-z_][\\w.-]*" }, { constants: "false inf nan true", key: "=" }),
  yaml: language({ comment: "(?<![^\\s])#[^\\n]*", string: `${DOUBLE}|(?<![\\w])'[^']*'?`,
    meta: "[&*!][\\w-]+", number: "(?<![\\w.-])-?\\d[\\w.:+-]*(?![\\w])",
    word: "[A-Za-z_][\\w./-]*" }, { constants: "false no null off on true yes", key: ":" }),
  diff: language({ title: "^(?:diff|index|---|\\+\\+\\+|\\*\\*\\*)[^\\n]*", meta: "^@@[^\\n]*",
    added: "^\\+[^\\n]*", removed: "^-[^\\n]*" }),
  html: language({ comment: `<!--[\\s\\S]*?(?:-->|${END})|<[!?][^>]*>?`,
    tag: "<\\/?[A-Za-z][\\w:.-]*|\\/?>", string: "(?<==)(?:\"[^\"]*\"?|'[^']*'?)",
    number: "&#?\\w+;", word: "[A-Za-z_@:][\\w:.-]*" }, { key: "=" }),
  css: language({ comment: STARS, string: `${DOUBLE}|${SINGLE}`, keyword: "@[\\w-]+|!important\\b",
    number: "#[0-9a-fA-F]{3,8}\\b|-?\\d[\\w.%]*", variable: "--[\\w-]+",
    word: "[A-Za-z_-][\\w-]*" }, { key: ":" }),
  sql: language({ comment: `--[^\\n]*|${STARS}`, string: "'[^']*'?|\"[^\"]*\"?", number: NUMBER,
    word: WORD }, { keywords: SQL, constants: "false null true", ignoresCase: true }),
  rust: language({ comment: `${SLASHES}|${STARS}`,
    string: `b?"(?:[^"\\\\]|\\\\[\\s\\S])*"?|'(?:[^'\\\\\\n]|\\\\[^\\n]{1,8}?)'`,
    meta: "#!?\\[[^\\]\\n]*\\]?", variable: "'[a-z_]+", number: NUMBER, word: WORD },
  { keywords: RUST, constants: "Err false None Ok Some true", macros: true }),
  go: language({ comment: `${SLASHES}|${STARS}`, string: `${DOUBLE}|${SINGLE}|${RAW_TICKS}`,
    number: NUMBER, word: WORD }, { keywords: GO, constants: "false iota nil true" }),
  c: language({ comment: `${SLASHES}|${STARS}`, string: `${DOUBLE}|${SINGLE}`,
    meta: "^[ \\t]*#[ \\t]*\\w+", number: NUMBER, word: WORD },
  { keywords: C, constants: "false NULL nullptr true" }),
};

/** @type {Record<string, string>} */
const ALIASES = { __proto__: /** @type {any} */ (null), "c++": "c", cc: "c", cjs: "javascript",
  console: "bash", cpp: "c", golang: "go", h: "c", htm: "html", js: "javascript", json5: "json",
  jsonc: "json", jsx: "javascript", mjs: "javascript", patch: "diff", postgresql: "sql",
  py: "python", python3: "python", rs: "rust", scss: "css", sh: "bash", shell: "bash",
  sqlite: "sql", svg: "html", ts: "typescript", tsx: "typescript", xhtml: "html", xml: "html",
  yml: "yaml", zsh: "bash" };

/**
 * A language by the name that a text gives it; undefined if it is not known.
 * @param {string} name
 * @returns {Language|undefined}
 */
export function languageOf(name) {
  const wanted = name.toLowerCase();
  return LANGUAGES[ALIASES[wanted] || wanted];
}
