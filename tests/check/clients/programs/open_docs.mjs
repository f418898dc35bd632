// Opens /docs in Chromium, which can resolve no name, and sends the example of a chat from there.
// Arguments: the browser, the page, and the API key, if the server has one.
import { chromium } from "playwright-core";

const [executablePath, url, key] = process.argv.slice(2);
const args = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
const browser = await chromium.launch({ executablePath, args });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000);
  const found = { requests: [], errors: [] };
  page.on("request", (request) => found.requests.push(request.url()));
  page.on("pageerror", (error) => found.errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error") found.errors.push(message.text());
  });
  await page.goto(url);
  if (key) {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Show" }).click();
  }
  const chat = page.locator(".opblock", { hasText: "/v1/chat/completions" });
  await chat.locator(".opblock-summary").click();
  await chat.getByRole("button", { name: "Try it out" }).click();
  found.body = JSON.parse(await chat.locator("textarea").inputValue());
  await chat.getByRole("button", { name: "Execute" }).click();
  const answer = chat.locator(".live-responses-table .response");
  found.status = await answer.locator(".response-col_status").innerText();
  found.paths = await page.locator(".opblock-summary-path").allInnerTexts();
  found.timing = await page.evaluate(() =>
    performance
      .getEntriesByType("resource")
      .filter((entry) => entry.name.endsWith("/v1/chat/completions"))
      .flatMap((entry) => entry.serverTiming.map((part) => part.name)),
  );
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
}
