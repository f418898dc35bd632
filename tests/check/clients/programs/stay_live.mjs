// Keeps the live page open in Chromium until standard input ends, and prints a line once it shows
// the engine. Arguments: the browser, the page, and a file for a picture of it at the end.
import { chromium } from "playwright-core";

const [executablePath, url, path] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage({ viewport: { width: 1100, height: 900 } });
  page.setDefaultTimeout(60_000);
  await page.goto(url);
  await page.locator("#figures > div").first().waitFor();
  console.log("open");
  for await (const _ of process.stdin);
  if (path) await page.screenshot({ path, fullPage: true });
} finally {
  await browser.close();
}
