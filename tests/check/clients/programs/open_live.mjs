// Opens the live page in Chromium, which can resolve no name, uses it with the keyboard alone, and
// prints what it shows. Arguments: the browser, the page, and the admin key.
import { chromium } from "playwright-core";

const [executablePath, url, key] = process.argv.slice(2);
const args = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"];
const browser = await chromium.launch({ executablePath, args });
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  const found = { requests: [], errors: [], reached: [] };
  page.on("request", (request) => found.requests.push(request.url()));
  page.on("pageerror", (error) => found.errors.push(String(error)));
  await page.goto(url);
  if (key) {
    await page.locator("#key").fill(key);
    await page.keyboard.press("Enter");
  }
  await page.getByText("Running").waitFor();
  await page.getByText("No request is live.").waitFor();
  await page.locator("#message").fill("hello");
  await page.locator("#max-tokens").fill("6");
  await page.getByLabel("Probabilities").check();
  await page.getByRole("button", { name: "Send" }).focus();
  await page.keyboard.press("Enter");
  await page.getByText(/tokens in, \d+ out/).waitFor();
  found.answer = await page.locator("#answer").innerText();
  await page.waitForTimeout(4000); // until the figures are read again
  found.figures = Object.fromEntries(
    await page.locator("#figures > div").evaluateAll((boxes) =>
      boxes.map((box) => [box.children[0].textContent, box.children[1].textContent])),
  );
  found.blocks = await page.locator("#block-counts").innerText();
  found.step = await page.locator("#last-step").innerText();
  found.drawn = await page.locator("canvas").evaluateAll((canvases) =>
    canvases.map((canvas) => {
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return [canvas.getAttribute("aria-label"), data.some((value) => value !== 0)];
    }));
  await page.evaluate(() => document.body.focus());
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press("Tab");
    found.reached.push(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent));
  }
  const controls = page.locator("button:visible, input:visible, textarea:visible, a:visible");
  found.nameless = await controls.evaluateAll((elements) =>
    elements.filter((e) => !(e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML));
  console.log(JSON.stringify(found));
} finally {
  await browser.close();
}
