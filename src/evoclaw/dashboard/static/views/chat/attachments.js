// @ts-check
// Pictures for the next message: dropped, pasted or chosen, and made small enough to send.

import { h, replace } from "../../dom.js";
import { button } from "../../components.js";

const EDGES = [1568, 1024, 768, 512]; // pixels of the longer side that are tried
const MAX_BYTES = 350_000; // of one picture: two fit into a request of the default size
const MAX_PICTURES = 8;

/**
 * The picture as a JPEG that is small enough; redrawing it drops its metadata.
 * @param {File} file
 */
async function prepared(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” is no picture that can be sent.`);
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
      return { name: file.name || "picture", ...image };
    }
  }
  throw new Error(`“${file.name}” is too large to send.`);
}

/** The pictures of the next message, shown above the input. */
export class Attachments {
  /** @param {(problem: string) => void} onProblem */
  constructor(onProblem) {
    this.onProblem = onProblem;
    /** @type {(Api.AttachedImage & {name: string})[]} */
    this.pictures = [];
    this.element = h("div", { class: "row attached", hidden: true });
    this.chooser = h("input", { type: "file", accept: "image/png,image/jpeg,image/gif,image/webp",
      multiple: true, hidden: true, "aria-label": "Pictures to attach" });
    this.chooser.addEventListener("change", async () => {
      await this.add(this.chooser.files || []);
      this.chooser.value = "";
    });
    this.button = button("Attach", () => this.chooser.click(),
      { title: "Attach a picture; you can also drop or paste one" });
  }

  /**
   * Accept pictures that are dropped on an element, or pasted into it.
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
        if (this.pictures.length >= MAX_PICTURES) {
          throw new Error(`A message can have ${MAX_PICTURES} pictures.`);
        }
        this.pictures.push(await prepared(file));
      }
      this.onProblem("");
    } catch (cause) {
      this.onProblem(cause.message);
    }
    this.draw();
  }

  /** The pictures as the API expects them. */
  get images() { return this.pictures.map(({ media_type, data }) => ({ media_type, data })); }

  clear() {
    this.pictures = [];
    this.draw();
  }

  draw() {
    this.element.hidden = !this.pictures.length;
    replace(this.element, this.pictures.map((picture) => h("span", { class: "row attachment" },
      h("img", { alt: picture.name, src: `data:${picture.media_type};base64,${picture.data}` }),
      button("Remove", () => {
        this.pictures = this.pictures.filter((one) => one !== picture);
        this.draw();
      }, { tone: "plain tiny", label: `Remove ${picture.name}` }))));
  }
}
