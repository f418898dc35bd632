// Shows openapi.json with Swagger UI. Addresses are relative, so that any prefix of a proxy works.
"use strict";

const form = document.querySelector("form");
const field = form.querySelector("input");
const alertText = form.querySelector("[role=alert]");

async function show(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch("openapi.json", { headers });
  form.hidden = answer.ok;
  if (answer.status === 401) {
    alertText.textContent = key ? "The server does not know this key." : "This server needs a key.";
    return;
  }
  if (!answer.ok) throw new Error(`openapi.json: HTTP ${answer.status}`);
  const viewer = SwaggerUIBundle({
    dom_id: "#viewer",
    spec: await answer.json(),
    validatorUrl: null, // the default one is on another host
    onComplete: () => key && viewer.preauthorizeApiKey("key", key),
  });
}

function tryToShow(key) {
  show(key).catch((error) => {
    form.hidden = false;
    alertText.textContent = `The document cannot be shown: ${error.message}`;
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  tryToShow(field.value); // stays in this page: it is neither stored nor part of an address
});
const darkness = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.classList.toggle("dark-mode", darkness.matches);
tryToShow("");
