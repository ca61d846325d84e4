"use strict";
// A slider beside each number, and the answer again while one moves: first the plan that stands there at the new load
// (/live), then, when all is quiet, a search (/answer). The address always holds the state. Without this file the form
// works by its button.
const form = document.getElementById("ask"), answer = document.getElementById("answer");
const status = document.getElementById("status"), useCase = document.getElementById("use-case");
let searching = null, living = false, again = false, quiet = 0;

function asked() {
  const found = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "" || name === "flight") found.append(name, value);
  return found;
}

function show(part, text) {
  const open = new Set([...part.querySelectorAll("details[open] > summary")].map(one => one.textContent));
  part.innerHTML = text;
  for (const one of part.querySelectorAll("details > summary")) if (open.has(one.textContent)) one.parentNode.open = true;
}

async function live() {
  const held = answer.querySelector("[data-key]");
  if (!held || held.dataset.plan !== "yes") return;
  if (living) { again = true; return; }
  living = true;
  try {
    const query = asked();
    query.set("of", held.dataset.key);
    const said = await fetch("/live?" + query);
    if (!said.ok || !answer.contains(held)) return;
    show(answer.querySelector("#live"), await said.text());
    status.textContent = answer.querySelector("#verdict").textContent;
  } finally {
    living = false;
    if (again) { again = false; live(); }
  }
}

async function search() {
  if (searching) searching.abort();
  const mine = searching = new AbortController(), query = asked();
  history.replaceState(null, "", "/?" + query);
  status.textContent = "searching …";
  try {
    const said = await fetch("/answer?" + query, { signal: mine.signal });
    if (!said.ok && !(said.headers.get("content-type") || "").startsWith("text/html")) throw new Error(said.status);
    show(answer, await said.text());
    document.title = query.get("model") + " on " + query.getAll("gpu").join(", ") + ": planner";
    copyButtons();
    status.textContent = answer.querySelector("#verdict").textContent;
    ladder();
  } catch (error) {
    if (error.name !== "AbortError") status.textContent = "the planner does not answer: is it still running?";
  }
}

function copyButtons() {
  if (!navigator.clipboard) return; // a page on another machine, without HTTPS
  const copies = (button, text) => button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
  });
  for (const text of answer.querySelectorAll("pre.copy")) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
    copies(button, () => text.textContent);
    text.before(button);
  }
  for (const link of answer.querySelectorAll("[data-link]")) {
    link.hidden = false;
    copies(link, () => location.href);
  }
}

async function ladder() {
  const place = answer.querySelector("#levels");
  if (!place) return;
  const said = await fetch(place.dataset.src, { signal: searching ? searching.signal : null }).catch(() => null);
  if (said && said.status === 200 && answer.contains(place)) place.innerHTML = await said.text();
}

function changed(event) {
  arrange();
  history.replaceState(null, "", "/?" + asked());
  clearTimeout(quiet);
  const field = event.target;
  if (field.closest("[data-live]") && !("search" in field.dataset)) live();
  quiet = setTimeout(() => {
    const wrong = form.querySelector(":invalid:not(fieldset)");
    if (!wrong) search();
    else status.textContent = "not searched, the answer is that of the last question: " + wrong.labels[0].textContent.trim() + ": " + wrong.validationMessage;
  }, 450);
}

function presetOf(select) {
  return JSON.parse(select.selectedOptions[0].dataset.fields);
}

function arrange() {
  const by = new FormData(form).get("by");
  for (const one of form.querySelectorAll("[data-when]")) one.hidden = one.dataset.when !== by;
  const chosen = [...form.querySelectorAll("[name=gpu]:checked")].map(one => one.value);
  document.getElementById("chosen").textContent = chosen.join(", ") || "none";
  form.querySelector("[name=gpu]").setCustomValidity(chosen.length ? "" : "Choose a GPU.");
  form.querySelector("[data-lengths]").hidden = useCase.value !== "" && !("input_len" in presetOf(useCase));
}

const STEPS = 200;
for (const field of form.querySelectorAll("[data-slider]")) {
  const least = Number(field.min), most = Number(field.dataset.most || field.max), whole = field.step === "1";
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: STEPS, step: 1 });
  slider.setAttribute("aria-label", field.labels[0].textContent + ", slider");
  if ("search" in field.dataset) slider.dataset.search = "";
  const place = value => Math.round(STEPS * Math.log(Math.min(Math.max(value, least), most) / least) / Math.log(most / least));
  const mirror = () => {
    slider.value = field.value === "" ? STEPS : place(Number(field.value));
    slider.setAttribute("aria-valuetext", field.value === "" ? "none" : field.value);
  };
  slider.addEventListener("input", () => {
    const value = least * (most / least) ** (slider.value / STEPS);
    const round = Number(value.toPrecision(2));
    field.value = !field.required && field.defaultValue === "" && Number(slider.value) === STEPS ? "" : whole ? Math.max(Math.round(round), least) : round;
    slider.setAttribute("aria-valuetext", field.value);
  });
  field.addEventListener("input", mirror);
  field.after(slider);
  mirror();
}
useCase.addEventListener("input", () => {
  for (const [name, value] of Object.entries(presetOf(useCase))) {
    form.elements[name].value = value;
    if (form.elements[name].dispatchEvent) form.elements[name].dispatchEvent(new Event("input"));  // moves its slider
  }
});
form.addEventListener("input", changed);
form.addEventListener("submit", event => { event.preventDefault(); clearTimeout(quiet); search(); });
if (answer.querySelector("#verdict") && matchMedia("(max-width: 860px)").matches) document.getElementById("question").open = false;
arrange();
copyButtons();
ladder();
