// @ts-check
// Files for the next message: dropped, pasted or chosen. Pictures are made small enough to send.

import { h, oneLine, replace } from "../../dom.js";
import { bytes } from "../../format.js";
import { button } from "../../components.js";
import { readText } from "./files.js";

/** @typedef {{name: string, size: number, image?: Api.AttachedImage, text?: string}} Attachment */

const EDGES = [1568, 1024, 768, 512]; // pixels of the longer side that are tried
const MAX_BYTES = 350_000; // of one picture: two fit into a request of the default size
const MAX_FILES = 8;

/**
 * The picture as a JPEG that is small enough; redrawing it drops its metadata.
 * @param {File} file
 */
async function prepared(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” cannot be sent as a picture. `
      + "Use a PNG, JPEG, GIF or WebP file.");
  }
  for (const edge of EDGES) {
    const scale = Math.min(1, edge / Math.max(bitmap.width, bitmap.height));
    const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)),
      height: Math.max(1, Math.round(bitmap.height * scale)) });
    const context = canvas.getContext("2d");
    if (!context) throw new Error("This browser cannot scale pictures.");
    context.fillStyle = "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const data = canvas.toDataURL("image/jpeg", 0.85).split(",")[1];
    if (data.length * 0.75 <= MAX_BYTES) {
      /** @type {Api.AttachedImage} */
      const image = { media_type: "image/jpeg", data };
      return { name: file.name || "picture", size: Math.floor(data.length * 0.75), image };
    }
  }
  throw new Error(`“${file.name}” is larger than ${bytes(MAX_BYTES)}, even scaled down. `
    + "Crop it, then attach it again.");
}

/**
 * A file, ready to be sent.
 * @param {File} file
 * @returns {Promise<Attachment>}
 */
async function attached(file) {
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return prepared(file);
  return { ...await readText(file), size: file.size };
}

/** The files of the next message, shown above the input. */
export class Attachments {
  /** @param {(problem: string) => void} onProblem */
  constructor(onProblem) {
    this.onProblem = onProblem;
    /** @type {Attachment[]} */
    this.files = [];
    this.element = h("ul", { class: "row attached", "aria-label": "Attached files",
      hidden: true });
    this.chooser = h("input", { type: "file", multiple: true, hidden: true,
      "aria-label": "Files to attach" });
    this.chooser.addEventListener("change", async () => {
      await this.add(this.chooser.files || []);
      this.chooser.value = "";
    });
    this.button = button("Attach", () => this.chooser.click(),
      { title: "Attach pictures or text files; you can also drop or paste them" });
  }

  /**
   * Accept files that are dropped on an element, or pasted into it.
   * @param {HTMLElement} element
   */
  listen(element) {
    /** @param {DataTransfer|null} source */
    const files = (source) => [...(source?.files || [])];
    element.addEventListener("dragover", (event) => {
      if (![...(event.dataTransfer?.types || [])].includes("Files")) return;
      event.preventDefault();
      element.classList.add("dropping");
    });
    element.addEventListener("dragleave", () => element.classList.remove("dropping"));
    element.addEventListener("drop", (event) => {
      element.classList.remove("dropping");
      if (!files(event.dataTransfer).length) return;
      event.preventDefault();
      this.add(files(event.dataTransfer));
    });
    element.addEventListener("paste", (event) => {
      if (!files(event.clipboardData).length) return;
      event.preventDefault();
      this.add(files(event.clipboardData));
    });
  }

  /** @param {Iterable<File>} files */
  async add(files) {
    try {
      for (const file of files) {
        if (this.files.length >= MAX_FILES) {
          throw new Error(`A message can have at most ${MAX_FILES} files. `
            + "Send the others with the next message.");
        }
        this.files.push(await attached(file));
      }
      this.onProblem("");
    } catch (cause) {
      this.onProblem(cause.message);
    }
    this.draw();
  }

  /** The pictures as the API expects them. */
  get images() {
    return this.files.flatMap(({ image }) => (image ? [image] : []));
  }

  /** The text files. */
  get texts() {
    return this.files.flatMap(({ name, text }) => (text === undefined ? [] : [{ name, text }]));
  }

  clear() {
    this.files = [];
    this.draw();
  }

  draw() {
    this.element.hidden = !this.files.length;
    replace(this.element, this.files.map((file) => this.chip(file)));
  }

  /** @param {Attachment} file */
  chip(file) {
    const { image } = file;
    return h("li", { class: "row attachment" },
      image && h("img", { alt: file.name, src: `data:${image.media_type};base64,${image.data}` }),
      h("span", { class: "small" }, oneLine(file.name, 40), " ",
        h("span", { class: "soft" }, bytes(file.size))),
      button("Remove", () => {
        this.files = this.files.filter((one) => one !== file);
        this.onProblem("");
        this.draw();
        this.button.focus();
      }, { tone: "plain tiny", label: `Remove ${file.name}` }));
  }
}
